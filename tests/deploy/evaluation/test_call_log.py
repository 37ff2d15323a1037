"""Kept answers: the same after they were written and read, and never those of another pair."""

from __future__ import annotations

from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.cached_worker import CachedWorker
from deploy.evaluation.call_log import CallLog
from deploy.evaluation.calls import AnsweredCall
from deploy.launch.deployment_file import load
from deploy.service.notes import settings_of
from orchestrator.errors import ConfigError
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
    Verification,
)
from orchestrator.worker import Call
from tests.deploy.service.test_config import ARGS, write
from tests.workers.scripted import Scripted

SEGMENT = Segment("small", "2+2=4 🧡", (1, 2), (-0.5, -0.25), "hash", "until")
ANSWERS = (
    Generation(SEGMENT, Usage(9, 8, 2, 2), 1.5, True),
    Classification(("0", "1"), (0.25, 0.75), 0.1, Usage(9), 2.0, (0.5, 1.0), inf),
    Verification((0.5, inf), (1, 2, 3), Usage(9), 2.0, ("2", "4"), (SEGMENT,) * 3, None),
)
CALLS = [AnsweredCall("large", f"key {i}", i, answer) for i, answer in enumerate(ANSWERS)]
PAIR = {"pair": {"small": "a", "large": "b"}}
CALL = Call("r", Transcript((Message("user", "2 + 2?"),)))


def test_answers_are_the_same_when_read_again(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    log = CallLog(path, PAIR)
    for one in CALLS:
        log.add(one)
    log.close()
    with path.open("a", encoding="utf-8") as file:
        file.write('["large", "key 3", 0, "Gener')  # a run was killed here
    for _ in range(2):  # what is broken is dropped
        again = CallLog(path, PAIR)
        again.close()
        assert again.known == CALLS


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"rows": 3, "threads": 1}, True),
        ({"dtype": "bfloat16"}, False),
        ({"thinking": "none"}, False),
        ({"max_len": 512}, False),
        ({"speculation": {"method": "reflective", "params": {"alpha": 0.5}}}, False),
    ],
)
def test_answers_of_a_pair_that_is_set_otherwise_are_left_alone(
    change: dict[str, Any], alike: bool, tmp_path: Path
) -> None:
    path = tmp_path / "calls.jsonl"
    first = {"method": "reflective", "params": {"alpha": 0.25}} if "speculation" in change else {}
    before = {f"{ARGS}.workers.large.speculation": first} if first else {}
    CallLog(path, settings_of(load(write(tmp_path, before)).args.workers)).close()
    changes = {f"{ARGS}.workers.large.{key}": value for key, value in change.items()}
    settings = settings_of(load(write(tmp_path, before | changes)).args.workers)
    with nullcontext() if alike else pytest.raises(ConfigError, match="of another run"):
        CallLog(path, settings).close()


async def test_a_run_that_was_broken_off_asks_no_model_twice(tmp_path: Path) -> None:
    path, model = tmp_path / "calls.jsonl", Scripted(story=("one two three", "four"))
    query = LabelQuery((Message("user", "Good?"),), "", ("0", "1"))
    for count in (1, 1, 2):
        log = CallLog(path, PAIR)
        cached = CachedWorker(model, "small", log.known, log.add)
        items = [i async for i in cached.generate(CALL, StopCriteria(9 * count), Sampling())]
        whole = items[-1]
        assert isinstance(whole, Generation)
        assert whole.segment.text == "one two three"
        first = await cached.classify(CALL, query)
        assert first.labels == ("0", "1")
        verified = await cached.verify(CALL, whole.segment, Sampling())
        assert len(verified.nll) == len(whole.segment.tokens)
        log.close()
    assert len(model.calls) == 3
