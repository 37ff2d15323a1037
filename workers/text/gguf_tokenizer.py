"""The tokenizer of a GGUF file, written as the files that transformers reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.errors import ConfigError
from workers.reporting import first_line

MAGIC = b"GGUF"
_WORDS_FIRST = frozenset({
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken",
})  # fmt: skip
"""Names of pre-tokenizers with which llama.cpp takes a word of the vocabulary whole, without
merges, and puts the begin token before a text unless the file says otherwise."""


def is_gguf(model: str | Path) -> bool:
    """Whether a name ends in `.gguf`, or a file begins as one, as those of Ollama do."""
    path = Path(model)
    return path.suffix.lower() == ".gguf" or (path.is_file() and _begins_as_gguf(path))


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:  # the later read reports it
        return False


def write_tokenizer(path: str | Path, folder: Path) -> None:
    """Write the file's vocabulary, special tokens and chat template to a folder, or raise
    ConfigError."""
    try:
        from transformers import PreTrainedTokenizerFast  # slow, and only GGUF files need it
    except ImportError as error:
        raise ConfigError(
            f"{path}: a GGUF file's tokenizer needs transformers, which is not installed here: "
            "name the model's Hugging Face id or folder, or run pip install -e '.[engine]' in "
            "Baton's checkout"
        ) from error

    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        with TemporaryDirectory() as alone:  # transformers would prefer a tokenizer.json beside it
            (Path(alone) / file.name).symlink_to(file.resolve())
            made = PreTrainedTokenizerFast.from_pretrained(alone, gguf_file=file.name)
        _check_vocabulary(made, file)
        _encode_as_trained(made, file)
        made.save_pretrained(folder)
        _drop_padding(folder / "tokenizer.json")
    except ConfigError:
        raise
    except Exception as error:  # a converter may raise anything at a broken file
        raise ConfigError(f"the tokenizer of {path}: {first_line(error)}") from error


def _check_vocabulary(tokenizer: Any, file: Path) -> None:
    """Refuse a tokenizer whose tokens are not those that the file lists."""
    from transformers.integrations.gguf.reader import read_gguf_metadata

    name = "tokenizer.ggml.tokens"
    metadata, _ = read_gguf_metadata(str(file), (name,))
    listed, vocabulary = metadata.get(name), tokenizer.get_vocab()
    if not isinstance(listed, list):
        raise ConfigError(f"{file} lists no tokens ({name}): use a file that holds its tokenizer")
    different = [text for text, i in vocabulary.items() if listed[i : i + 1] != [text]]
    different += [text for text in listed if text not in vocabulary]
    if different:
        raise ConfigError(
            f"{file}: transformers reads another vocabulary from it than its {name}; the token "
            f"{different[0]!r} differs: use the checkpoint that the file was made of"
        )


def _encode_as_trained(tokenizer: Any, file: Path) -> None:
    """Set up the pre-tokenizer of a byte-level vocabulary, of which the file has only the name.

    An unknown name, which transformers treats as GPT-2's, is refused.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(file))
    name, backend = metadata.get("tokenizer.ggml.pre"), tokenizer.backend_tokenizer
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    if name in _WORDS_FIRST:
        backend.model.ignore_merges = True
        tokenizer.add_bos_token = metadata.get("tokenizer.ggml.add_bos_token", True)
    if name == "smollm":  # as SmolLM2's own tokenizer.json
        parts = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    elif name != "gpt-2" and name not in GGUF_PRE_TOKENIZER_SPLITS:
        known = ", ".join(sorted({*GGUF_PRE_TOKENIZER_SPLITS, "gpt-2", "smollm"}))
        raise ConfigError(f"{file}: tokenizer.ggml.pre must be one of {known}, not {name}")


def _drop_padding(file: Path) -> None:
    """Remove llama.cpp's `[PADn]` entries: the original checkpoint has no such tokens, and none may
    be drawn."""
    spec = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, dict):
        for text, token in list(vocabulary.items()):
            if re.fullmatch(r"\[PAD\d+\]", text) and text == f"[PAD{token}]":
                del vocabulary[text]
        file.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
