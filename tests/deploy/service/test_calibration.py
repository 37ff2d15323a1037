"""A pair's thresholds in a deployment file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.launch.deployment_file import load
from deploy.service.calibration import read, same_checkpoint
from deploy.service.notes import pair_of
from orchestrator.errors import ConfigError
from tests.deploy.service.test_config import ARGS, write


def calibrated(folder: Path, pair: dict[str, str], **params: Any) -> Path:
    file = folder / "pair.json"
    policies = {"specreason": {"params": {"threshold": 4.25, **params}, "large_share": 0.3}}
    file.write_text(json.dumps({"baton_calibration": 1, "pair": pair, "policies": policies}))
    return file


def test_measured_thresholds_are_defaults(tmp_path: Path) -> None:
    """They go before the checkpoint's own."""
    pair = pair_of(load(write(tmp_path)).args.workers)
    file = calibrated(tmp_path, pair, likelihood=[2.0, 0.5])
    change = {f"{ARGS}.policy": {"calibration": str(file)}}
    args = load(write(tmp_path, change)).args
    policy = args.policy.policy("specreason")
    assert (policy.threshold, policy.likelihood) == (4.25, (2.0, 0.5))  # type: ignore[attr-defined]
    assert policy.judge == "short"  # type: ignore[attr-defined]


def test_a_parameter_that_is_given_twice_is_named(tmp_path: Path) -> None:
    file = calibrated(tmp_path, {})
    written = {"calibration": str(file), "params": {"specreason": {"threshold": 1, "first_n": 2}}}
    with pytest.raises(
        ConfigError, match=r"params\.specreason\.threshold: the calibration has it too"
    ):
        load(write(tmp_path, {f"{ARGS}.policy": written}))
    del written["params"]["specreason"]["threshold"]  # type: ignore[index]
    policy = load(write(tmp_path, {f"{ARGS}.policy": written})).args.policy.policy("specreason")
    assert (policy.threshold, policy.first_n) == (4.25, 2)  # type: ignore[attr-defined]


def test_checkpoints_are_compared_by_weights_where_they_can_be() -> None:
    assert same_checkpoint("/a/small@12", "build/small@12")
    assert not same_checkpoint("/a/small@12", "/a/small@13")
    assert same_checkpoint("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")
    assert not same_checkpoint("Qwen/Qwen3-8B", "Qwen/Qwen3-4B")


def test_a_gguf_file_is_told_apart_by_its_weights(tmp_path: Path) -> None:
    """Also where a tune leaves what stands at both ends: the vocabulary and the head."""
    file = tmp_path / "large.gguf"
    change = {f"{ARGS}.workers.large": {"model": str(file)}}
    content = bytearray(8 << 20)
    found = set()
    for tuned in (0, 1):
        content[3 << 20 : 5 << 20] = bytes([tuned]) * (2 << 20)
        file.write_bytes(content)
        found.add(pair_of(load(write(tmp_path, change)).args.workers)["large"])
    assert len(found) == 2
    assert all(one.startswith(f"{file}@") for one in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "expected a file that `baton calibrate` or `baton learn` wrote"),
        ('{"pair": {}, "policies": {}}', "expected a file that"),
        ('{"baton_calibration": 2, "pair": {}, "policies": {}}', "expected a file that"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "pair.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read(file)
    with pytest.raises(ConfigError, match=f"calibration: .*{said}"):
        load(write(tmp_path, {f"{ARGS}.policy": {"calibration": str(file)}}))


def test_a_parameter_that_does_not_fit_is_named(tmp_path: Path) -> None:
    file = calibrated(tmp_path, {}, treshold=1)
    with pytest.raises(ConfigError, match="calibration: specreason: treshold: unknown field"):
        load(write(tmp_path, {f"{ARGS}.policy": {"calibration": str(file)}}))
