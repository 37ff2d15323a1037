"""What the commands of the laboratory share: options, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import InvalidRequest

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write rows and settings to this file.")
]
Device = Annotated[str, typer.Option(help="A torch device.")]
ModelName = Annotated[str, typer.Option(help="A folder, a Hugging Face id, or embedded:NAME.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; none: as many as a worker takes.")
]


def numbers(option: str, text: str, least: float = 1) -> list[float]:
    """The numbers of an option, each once.

    Raises:
        InvalidRequest: one is no number, or less than `least`.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(least <= number < 1e6 for number in found):
        raise InvalidRequest(f"{option} {text}: expected numbers from {least:g}, such as 1,4")
    return list(dict.fromkeys(found))


def counts(option: str, text: str) -> list[int]:
    """The whole numbers from 1 of an option, each once.

    Raises:
        InvalidRequest: one is no whole number, or less than 1.
    """
    found = numbers(option, text)
    if any(number % 1 for number in found):
        raise InvalidRequest(f"{option} {text}: expected whole numbers from 1, such as 1,4")
    return [int(number) for number in found]


def named(option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """The names of an option; all that are known if it is not given.

    Raises:
        InvalidRequest: one is not known.
    """
    names = list(dict.fromkeys(known))
    wanted = names if text is None else text.split(",")
    if unknown := [name for name in wanted if name not in names]:
        raise InvalidRequest(f"{option}: expected some of {', '.join(names)}, not {unknown[0]!r}")
    return wanted
