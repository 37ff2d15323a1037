"""A checkpoint's tokenizer from its files: in a folder, on the Hugging Face hub, or in a GGUF file.

The files are those that transformers reads. No code of a checkpoint is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from orchestrator.errors import ConfigError
from workers.heap import give_back
from workers.reporting import first_line
from workers.text.gguf_tokenizer import is_gguf, write_tokenizer
from workers.text.thinking import AUTO, ThinkingFormat
from workers.text.tokenizer import Tokenizer

FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
    "generation_config.json",
)  # fmt: skip

SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""SentencePiece's files, which transformers converts to tokenizers with other white space."""

Convert = Callable[[str, Path], None]
"""(folder or Hugging Face id, folder to write to): writes the tokenizer as `FILES`."""


def load_tokenizer(
    model: str | Path, convert: Convert | None = None, thinking: ThinkingFormat | str = AUTO
) -> Tokenizer:
    """Load the tokenizer of a checkpoint: a folder, a Hugging Face id, or a GGUF file.

    `convert` makes the files of a checkpoint without `tokenizer.json`; None refuses one.

    Raises:
        ConfigError: there is no such checkpoint, or it has no usable tokenizer.
    """
    if is_gguf(model):
        with TemporaryDirectory() as converted:
            write_tokenizer(model, Path(converted))
            return _load(Path(converted), model, thinking)
    folder = checkpoint_folder(model)
    if (folder / "tokenizer.json").is_file():
        return _load(folder, model, thinking)
    if found := [name for name in SENTENCEPIECE if (folder / name).is_file()]:
        raise ConfigError(
            f"{model} has {found[0]} and no tokenizer.json, and transformers would convert it to a "
            "tokenizer that encodes white space differently from the training: put the "
            "tokenizer.json of the same checkpoint beside it (most are on the Hugging Face hub), "
            "or name a GGUF file of the checkpoint"
        )
    if convert is not None:
        with TemporaryDirectory() as converted:
            convert(str(model), Path(converted))
            return _load(Path(converted), model, thinking)
    return _load(folder, model, thinking)


def _load(folder: Path, model: str | Path, thinking: ThinkingFormat | str) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"{model} has no tokenizer.json; save one beside the model with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(f"{file} cannot be read: {first_line(error)}") from error
    try:
        config = read_object(folder / "tokenizer_config.json")
        special_map = read_object(folder / "special_tokens_map.json")
        # As transformers does: with a table of added tokens in the config, the map is not read.
        named = config if "added_tokens_decoder" in config else config | special_map
        special_tokens = _special_tokens(named)
        _add_tokens(backend, named, special_tokens)
        templates = _chat_templates(folder, config)
        default, with_tools = templates.get("default"), templates.get("tool_use")
        made = Tokenizer(backend, special_tokens, default, thinking, with_tools)
    except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
        raise ConfigError(f"the tokenizer of {model}: {first_line(error)}") from error
    del backend
    give_back()
    return made


def checkpoint_folder(model: str | Path, *files: str) -> Path:
    """Return the folder of a checkpoint; download these files of a Hugging Face id, or `FILES`; or
    raise ConfigError."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    name = str(model)
    try:
        return Path(snapshot_download(name, allow_patterns=[*(files or (*FILES, *SENTENCEPIECE))]))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} is neither a folder nor a model of the Hugging Face hub that can be read "
            f"from here: {first_line(error)}"
        ) from error


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; empty without the file. Raise ValueError if it holds something else."""
    if not file.is_file():
        return {}
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{file.name} must hold a JSON object, not {type(data).__name__}")
    return data


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the special tokens by name."""
    extra = config.get("extra_special_tokens")
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    named |= extra if isinstance(extra, dict) else {}
    texts = {name: _content(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _add_tokens(
    backend: Backend, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Add the tokens that the config names and tokenizer.json lacks, in transformers' order."""
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    table = config.get("added_tokens_decoder") or {}
    for _, entry in sorted(table.items(), key=lambda item: int(item[0])):
        token = AddedToken(**{name: value for name, value in entry.items() if name != "__type"})
        if repr(token) not in known:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    texts = {token.content for token in backend.get_added_tokens_decoder().values()}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    listed = [] if isinstance(extra, dict) else [_content(token) for token in extra]
    for text in (*special_tokens.values(), *listed):
        if text and text not in texts:
            backend.add_special_tokens([text])


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the sources of the chat templates by name; one without a name is "default"."""
    files = {file.stem: file for file in folder.glob("additional_chat_templates/*.jinja")}
    if (file := folder / "chat_template.jinja").is_file():
        files["default"] = file
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    given = config.get("chat_template") or read_object(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    named = given if isinstance(given, dict) else {"default": given}
    return {name: source for name, source in named.items() if isinstance(source, str)}
