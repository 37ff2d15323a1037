"""The embedded pair: problem generator, training recipe, checkpoints."""

from pathlib import Path

STRANGERS = Path(__file__).parent / "strangers.jsonl"
"""Questions of every family, written by somebody who had not seen the generator."""
