"""What is said of the embedded pair, which is a toy."""

from __future__ import annotations

from typing import Final

REAL_MODELS: Final = "baton serve --small WHAT --large WHAT"
TOY: Final = (
    "This embedded toy pair solves short problems with numbers, and nothing else. For real models: "
    f"{REAL_MODELS} (Hugging Face ids, folders, GGUF files, or servers as "
    "MODEL@http://HOST:PORT/v1)"
)
DECLINE: Final = "I can only solve short problems with numbers, so I cannot answer this."
"""The pair's answer to all else: its weights were trained to write it."""
REMARKS: Final = {DECLINE: f" This is an embedded toy pair. For real models: {REAL_MODELS}"}
"""What the service adds to an answer, by the answer."""
