"""Public chat templates are fetched once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.templates import public_templates


def test_templates_are_unpacked_and_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = public_templates(tmp_path)
    assert len(found) == 70
    assert all("messages" in source for source in found.values())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # nothing to be had there
    assert public_templates(tmp_path) == found
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0.3.36", "lock"]
