"""The tokenizer of a GGUF file, written as the files that transformers reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError


def is_gguf(model: str | Path) -> bool:
    """Whether a name is that of a GGUF file; whoever reads it finds out whether it is one."""
    return Path(model).suffix.lower() == ".gguf"


def write_tokenizer(path: str | Path, folder: Path) -> None:
    """Write the file's vocabulary, special tokens and chat template to a folder.

    Raises:
        ConfigError: there is no such file, or it holds no tokenizer that can be used.
    """
    from transformers import PreTrainedTokenizerFast  # with torch: only where a GGUF file is named

    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        made = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name)
        _split_as_trained(made.backend_tokenizer, file)
        made.save_pretrained(folder)
        _drop_padding(folder / "tokenizer.json")
    except ConfigError:
        raise
    except Exception as error:  # a converter raises whatever a file of its format leads to
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
        raise ConfigError(f"the tokenizer of {path}: {reason}") from error


def _split_as_trained(backend: Any, file: Path) -> None:
    """How text is cut before merging: a byte-level vocabulary's file gives it a name alone.

    transformers takes GPT-2's way where it does not know the name: here that is refused.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(file))
    name = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or name in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if name == "smollm":  # as SmolLM2's own tokenizer.json
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    elif name != "gpt-2":
        known = ", ".join(sorted({*GGUF_PRE_TOKENIZER_SPLITS, "gpt-2", "smollm"}))
        raise ConfigError(f"{file}: tokenizer.ggml.pre is {name}, which is not known; {known} are")


def _drop_padding(file: Path) -> None:
    """Without the names that llama.cpp gives to ids of a model's head that no token has.

    So the vocabulary is that of the checkpoint the file was made of, and no such id is drawn.
    """
    spec = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, dict):
        for text, token in list(vocabulary.items()):
            if re.fullmatch(r"\[PAD\d+\]", text) and text == f"[PAD{token}]":
                del vocabulary[text]
        file.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
