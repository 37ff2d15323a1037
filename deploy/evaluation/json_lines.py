"""A file of JSON lines that outlives whatever breaks a run off."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def rewrite(path: Path, lines: Iterable[str]) -> None:
    """Let a file hold these lines and no others; until it does it holds the old ones.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # not the link to it
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(new, path)
