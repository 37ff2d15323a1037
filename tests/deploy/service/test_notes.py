"""What is said of a pair that runs on thresholds which were not measured on it."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.checking.files import check
from deploy.launch.deployment_file import load
from deploy.service.notes import notes, pair_of, uncalibrated
from policies import POLICIES
from tests.deploy.service.test_calibration import calibrated
from tests.deploy.service.test_config import ARGS, write
from workers.embedded.remarks import DECLINE, REAL_MODELS, REMARKS

STRANGERS = {
    f"{ARGS}.workers.small.model": "Qwen/Qwen3-0.6B",
    f"{ARGS}.workers.large.model": "Qwen/Qwen3-8B",
}


def test_a_pair_on_the_thresholds_of_another(tmp_path: Path) -> None:
    file = calibrated(tmp_path, {"small": "Qwen/Qwen3-1.7B", "large": "Qwen/Qwen3-8B"})
    change = STRANGERS | {f"{ARGS}.policy": {"calibration": str(file)}}
    path = write(tmp_path, change)
    (line,) = uncalibrated(load(path).args)
    assert "belongs to Qwen/Qwen3-1.7B with Qwen/Qwen3-8B, not to Qwen/Qwen3-0.6B with" in line
    report = check(str(path))
    assert [(one.level, one.message) for one in report.findings] == [("note", line)]
    assert report.ok


def test_a_pair_that_was_never_calibrated(tmp_path: Path) -> None:
    assert uncalibrated(load(write(tmp_path)).args) == []  # the embedded pair's are the defaults
    (line,) = uncalibrated(load(write(tmp_path, STRANGERS)).args)
    named = [name for name, policy in POLICIES.items() if policy.calibrated is not None]
    named.remove("coin")  # which needs no scores
    assert f"never measured on this pair: {', '.join(named)};" in line


def test_a_default_policy_that_the_calibration_leaves_out(tmp_path: Path) -> None:
    pair = pair_of(load(write(tmp_path, STRANGERS)).args.workers)
    file = calibrated(tmp_path, pair)  # of specreason
    for default, named in (("specreason", False), ("bild", True), ("large-only", False)):
        policy = {"calibration": str(file), "default": default}
        found = uncalibrated(load(write(tmp_path, STRANGERS | {f"{ARGS}.policy": policy})).args)
        assert len(found) == named
        if named:
            assert "never measured on this pair: bild;" in found[0]
            assert found[0].endswith(f"--out {file}")
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "unmet": {"bild": {}}}))  # it was looked for
    policy = {"calibration": str(file), "default": "bild"}
    assert uncalibrated(load(write(tmp_path, STRANGERS | {f"{ARGS}.policy": policy})).args) == []


def test_the_embedded_pair_says_what_it_is(tmp_path: Path) -> None:
    (line,) = notes(load(write(tmp_path)).args)
    assert REAL_MODELS in line
    assert notes(load(write(tmp_path, STRANGERS)).args) == uncalibrated(
        load(write(tmp_path, STRANGERS)).args
    )
    assert DECLINE in REMARKS
