"""The level of a template that stands for the one that a client asks for."""

from __future__ import annotations

import pytest

from orchestrator.efforts import SCALE, TemplateEfforts, thought_cap


@pytest.mark.parametrize(
    ("levels", "strict", "found"),
    [
        ("low medium xhigh", True, "low low medium xhigh xhigh xhigh"),  # Qwen3.8
        ("low medium high", True, "low low medium high high high"),  # gpt-oss
        ("low high", True, "low low high high high high"),  # Hy3
        ("low high", False, "- low high high - -"),  # its default is beyond both
        ("max", False, "- - - - - max"),
        ("minimal low", False, "minimal low - - - -"),
    ],
)
def test_the_nearest_level_stands_for_a_missing_one(levels: str, strict: bool, found: str) -> None:
    known = TemplateEfforts("reasoning_effort", tuple(levels.split()), strict)
    assert [known.nearest(asked) or "-" for asked in SCALE] == found.split()


def test_a_level_off_the_scale_is_not_guessed() -> None:
    assert TemplateEfforts("reasoning_effort", ("low", "high")).nearest("much") is None


def test_without_levels_an_effort_is_a_share_of_the_cap() -> None:
    caps = [thought_cap(effort, 80) for effort in SCALE]
    assert caps == [10, 20, 40, None, None, None]
    assert thought_cap("minimal", 3) == 1
