"""A file of rows is of one run at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.evaluation.json_lines import RowFile
from orchestrator.errors import ConfigError


def test_two_runs_do_not_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = RowFile(path, "rows", {})
    with pytest.raises(ConfigError, match="another run is adding to it"):
        RowFile(path, "rows", {})
    first.add(1)
    first.close()
    again = RowFile(path, "rows", {})
    assert again.rows == [1]
    again.close()
