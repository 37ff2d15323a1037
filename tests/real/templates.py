"""Public chat templates for tests: those that llama.cpp keeps, unpacked to the user's cache.

    python -m tests.real.templates [--families]

The option prints the family of thought that each shows alone, and the one that it shows together
with a vocabulary that has `<think>` and `</think>` as tokens, where that differs.

The source package of llama-cpp-python holds them as plain data. pip fetches it, pinned by hash, and
wants its metadata from the package's build tool: it is given a module of ours in place of that, so
nothing of the package and of its build tool is installed or run.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from deploy.lab.fetch import FetchError, alone, cache_folder, pip_download
from orchestrator.errors import ConfigError
from workers.text.chat_template import ChatTemplate
from workers.text.thinking import find_format

NAME, VERSION = "llama-cpp-python", "0.3.36"
PIN = (
    f"{NAME}=={VERSION} "
    "--hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
)
INSIDE = "vendor/llama.cpp/models/templates"
_STEM = f"{NAME.replace('-', '_')}-{VERSION}"
_BUILD_TOOL = f"""
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, settings=None):
    made = Path(folder, "{_STEM}.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
    return made.name
"""


def public_templates(cache: Path | None = None) -> dict[str, str]:
    """Jinja sources by the names of their files; they are fetched the first time.

    Raises:
        FetchError: they cannot be had here.
    """
    cache = cache or cache_folder().with_name("templates")
    folder = cache / VERSION
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with alone(cache / "lock"):
            if not folder.is_dir():
                _fetch(cache, folder)
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.iterdir())}


def _fetch(cache: Path, folder: Path) -> None:
    work, partial = cache / "work", cache / "partial"
    for stale in (work, partial):
        shutil.rmtree(stale, ignore_errors=True)
    tool = work / "tool" / "scikit_build_core"
    tool.mkdir(parents=True)
    (tool / "__init__.py").touch()
    (tool / "build.py").write_text(_BUILD_TOOL)
    pip_download(
        [PIN],
        work,
        ["--no-binary", ":all:", "--no-build-isolation"],
        {**os.environ, "PYTHONPATH": str(tool.parent)},
    )
    partial.mkdir()
    with tarfile.open(work / f"{_STEM}.tar.gz") as package:
        for member in package:
            path = PurePosixPath(member.name)
            if path.parent == PurePosixPath(_STEM, INSIDE) and path.suffix == ".jinja":
                data = package.extractfile(member)
                assert data is not None, "a template is a file"
                (partial / path.name).write_bytes(data.read())
    partial.rename(folder)
    shutil.rmtree(work)


def family_of(source: str, added: Sequence[str] = ()) -> str:
    """The family of thought that a template shows, with a vocabulary that has these tokens."""
    try:
        template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    except ConfigError as error:
        return f"refused: {error}"
    found = find_format(template, added)
    return "none" if found is None else found.name


def main() -> int:
    try:
        found = public_templates()
    except (FetchError, OSError) as error:
        print(f"templates: {error}", file=sys.stderr)
        return 1
    if "--families" in sys.argv:
        for name, source in found.items():
            alone, known = family_of(source), family_of(source, ("<think>", "</think>"))
            print(f"{name:56} {alone:18}", "" if known == alone else f"with the tokens: {known}")
    print(f"{len(found)} public chat templates")
    return 0


if __name__ == "__main__":
    sys.exit(main())
