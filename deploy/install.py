"""Install this checkout with some of its extras and the pinned versions, for the running Python.

    .venv/bin/python deploy/install.py engine

It runs before anything else is installed, so it needs the standard library alone. torch comes in
its build for CPUs unless there is a GPU: PyPI's build for Linux brings CUDA's libraries with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from shutil import which

LOCK = "requirements.lock"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_SIZE, CUDA_SIZE = "0.2 GB", "2.7 GB"
SOURCES = {"where pip is configured to look": (), CPU_INDEX: ("--index-url", CPU_INDEX)}


def install(extras: list[str]) -> None:
    """Install the checkout in the current folder."""
    if {"engine", "dev"} & set(extras) and sys.platform == "linux":
        version = _pinned("torch")
        if version != _installed("torch"):
            _install_torch(version)
    _say(f"Installing Baton, with {', '.join(extras) or 'no extra'}")
    _pip("install", "--constraint", LOCK, "--editable", f".[{','.join(extras)}]".replace("[]", ""))


def _install_torch(version: str) -> None:
    """Install torch's build for CPUs alone if that is wanted; what torch needs comes later."""
    if gpu := _gpu():
        _say(f"torch {version} for CUDA, since there is {gpu}: {CUDA_SIZE} to download")
        return
    build = f"{version}+cpu"
    for source, options in SOURCES.items():
        if build in _versions(*options):
            _say(f"torch {build}, since there is no GPU, from {source}: {CPU_SIZE} to download")
            _pip("install", "--no-deps", *options, f"torch=={build}")
            return
    _say(
        f"torch {version} for CUDA: {CUDA_SIZE} to download, although there is no GPU. No build "
        f"for CPUs was found {', nor at '.join(SOURCES)}. To take one from elsewhere, press "
        "Ctrl-C, run\n"
        f"  {sys.executable} -m pip install --no-deps --index-url URL torch=={build}\n"
        "and repeat this command."
    )


def _gpu() -> str | None:
    """What shows that there is an NVIDIA GPU."""
    device = Path("/dev/nvidiactl")
    return str(device) if device.exists() else which("nvidia-smi")


def _versions(*options: str) -> set[str]:
    """The versions of torch that an index has for this machine."""
    command = [sys.executable, "-m", "pip", "index", "versions", *options, "torch"]
    found = subprocess.run(command, capture_output=True, text=True).stdout  # noqa: S603
    return set(re.findall(r"[^\s,()]+", found))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _pinned(name: str) -> str:
    lines = Path(LOCK).read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))


def _pip(command: str, *arguments: str) -> None:
    # Compiling takes half of pip's time and 0.3 GB, mostly for modules that nothing ever imports.
    done = subprocess.run([sys.executable, "-m", "pip", command, "--no-compile", *arguments])  # noqa: S603
    if done.returncode:
        raise SystemExit(done.returncode)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    install(sys.argv[1:])
