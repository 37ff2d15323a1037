"""How many replicas a load asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig

from deploy.service.scaling import LOOK_BACK_S, PoolLoad, scaling
from deploy.service.worker_spec import Replicas


def context(*loads: float, target: int = 3) -> Any:
    metrics = {"load": {f"replica{index}": load for index, load in enumerate(loads)}}
    return SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=target)


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [((0.4,), 0.5), ((0.8,), 1.0), ((2.4,), 3.0), ((0.8, 0.8, 0.8), 3.0), ((0.0, 0.4), 0.5)],
)
def test_each_replica_shall_be_as_full_as_the_file_says(
    loads: tuple[float, ...], wanted: float
) -> None:
    assert PoolLoad(0.8)(context(*loads)) == (pytest.approx(wanted), {})


@pytest.mark.parametrize("metrics", [None, {}, {"load": {}}])
def test_replicas_that_have_said_nothing_yet_change_nothing(metrics: Any) -> None:
    silent = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)
    assert PoolLoad(0.8)(silent) == (3, {})


def test_a_fixed_number_is_not_scaled() -> None:
    assert scaling(Replicas.model_validate(2)) == {"num_replicas": 2}


def test_what_serve_makes_of_it() -> None:
    given = Replicas(min=1, max=4, full_at=0.5, up_after_s=7, down_after_s=90)
    config = AutoscalingConfig(**scaling(given)["autoscaling_config"])
    assert (config.min_replicas, config.max_replicas) == (1, 4)
    assert (config.upscale_delay_s, config.downscale_delay_s) == (7, 90)
    assert config.look_back_period_s == LOOK_BACK_S
    policy = config.policy.get_policy()(**config.policy.policy_kwargs)
    assert policy(context(1.0)) == (2.0, {})
