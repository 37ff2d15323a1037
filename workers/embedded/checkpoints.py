"""Where a checkpoint lies: a folder, a GGUF file, the Hugging Face hub, or beside this file.

A folder is known by one file: `CONFIG` of a model, `TOKENIZER` if no more than that is read.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError
from workers.text.gguf_tokenizer import is_gguf

MODELS = Path(__file__).parent
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
EMBEDDED = "embedded:"
JUDGE_FILE = "judge.json"
"""Beside a large model's weights: the parameters of policies that judge with this model."""
GATE_FILE = "gate.json"
"""Beside a large model's weights: a calibration file with the gates learned for small models."""


def resolve(model: str | Path, needs: str = CONFIG) -> Path | str:
    """Resolve a name to its folder or GGUF file, or return it as a Hugging Face id.

    Args:
        needs: the file that makes a folder one of these.

    Raises:
        ConfigError: a folder that holds no checkpoint, a file or an embedded model that does not
            exist.
    """
    name = str(model)
    if name.startswith(EMBEDDED):
        folder = MODELS / name.removeprefix(EMBEDDED)
        if folder.parent != MODELS or not (folder / "config.json").is_file():
            known = sorted(f"{EMBEDDED}{one.parent.name}" for one in MODELS.glob("*/config.json"))
            raise ConfigError(f"there is no embedded model {name!r}; there are {', '.join(known)}")
        return folder
    if is_gguf(name):
        file = Path(name).expanduser()
        if not file.is_file():
            raise ConfigError(f"there is no file {file}; a GGUF file is named by its path")
        return file
    if name.startswith((".", "/", "~")):
        folder = Path(name).expanduser()
        if not any((folder / file).is_file() for file in (needs, CONFIG)):
            if not folder.exists():
                raise ConfigError(f"there is no folder {folder}")
            kind = "model" if needs == CONFIG else "tokenizer"
            raise ConfigError(f"{folder} is no {kind} folder: it has no {needs}")
        return folder
    return Path(name) if name and (Path(name) / needs).is_file() else name


def place_of(model: str | None, needs: str = CONFIG) -> Path | None:
    """Where a checkpoint lies, if that is on this machine: its folder, or its GGUF file."""
    try:
        place = resolve(model or "", needs)
    except ConfigError:
        return None  # who loads it says what is wrong
    return place if isinstance(place, Path) else None


def folder_of(model: str | None, needs: str = CONFIG) -> Path | None:
    """Where a checkpoint lies, if that is a folder of this machine."""
    place = place_of(model, needs)
    return place if place is not None and place.is_dir() else None
