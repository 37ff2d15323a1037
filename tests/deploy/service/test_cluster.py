"""What a deployment wants of a machine, before anything of it is started."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from deploy.service.cluster import NotServing, _gist, _want_gpus
from deploy.service.config import Workers

CPU = {"model": "embedded:small"}


def cuda(**more: Any) -> dict[str, Any]:
    return {"model": "m", "device": "cuda", **more}


@pytest.mark.parametrize(
    ("small", "large", "there", "said"),
    [
        (CPU, CPU, 0, None),
        (cuda(gpu=0.25), cuda(gpu=0.75), 1, None),
        ({"url": "http://h:1", "model": "m"}, cuda(), 1, None),
        (cuda(gpu=0.25), CPU, 0, "than the 0 of this machine: workers.small 0.25; write device"),
        (cuda(), cuda(), 1, "workers.small 1, workers.large 1; write device: cpu, or let the"),
        (cuda(), cuda(tensor_parallel=4), 2, "workers.large 4; write device: cpu, or serve it"),
        (CPU, cuda(replicas={"min": 3, "max": 5}), 2, "workers.large 3; write device: cpu, or se"),
    ],
)
def test_gpus_that_are_not_there_are_no_reason_to_wait(
    small: Any, large: Any, there: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "GPU": float(there)})
    workers = Workers.model_validate({"small": small, "large": large})
    if said is None:
        _want_gpus(workers)
        return
    with pytest.raises(NotServing) as info:
        _want_gpus(workers)
    assert said in str(info.value)


def test_the_cause_of_a_failure_has_no_name_of_a_class_of_ours() -> None:
    traceback = "Traceback:\n  File x\norchestrator.errors.ConfigError: no model 'x'; there are a"
    assert _gist([traceback]) == "no model 'x'; there are a"
    assert _gist(["torch.OutOfMemoryError: 3 GB"]) == "torch.OutOfMemoryError: 3 GB"
