"""Puts the events of one replica's requests into the outbox, so that no request waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from orchestrator.experiments.assignment import Enrollment
from orchestrator.experiments.outcome_log import Exposure, Outcome, Reward
from orchestrator.experiments.runs import outcome_stream
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner
from orchestrator.state.outbox import Outbox


class EventRecorder:
    """Records exposures, outcomes and rewards, and queues requests for shadow arms."""

    def __init__(self, outbox: Outbox, shadows: ShadowRunner, registry: CollectorRegistry) -> None:
        self._outbox, self._shadows = outbox, shadows
        self._exposures = Counter(
            "baton_experiment_exposures",
            "Requests in which an arm took effect.",
            ("experiment", "arm"),
            registry=registry,
        )

    def exposure(self, enrollment: Enrollment, trace_id: str) -> None:
        """Record that an arm takes effect: its policy begins to answer."""
        run, unit = enrollment.run, f"{enrollment.run.experiment.unit}:{enrollment.unit}"
        exposure = Exposure(
            trace_id=trace_id,
            at=time.time(),
            arm=enrollment.arm,
            unit=blake2b(unit.encode(), digest_size=12).hexdigest(),
        )
        self._exposures.labels(run.name, enrollment.arm).inc()
        self._outbox.event(run.stream, exposure.model_dump())

    def outcome(self, enrollment: Enrollment, outcome: Outcome, request: ShadowRequest) -> None:
        """Record the `outcome` of a request, and queue it for the shadows that sample it."""
        run = enrollment.run
        self._outbox.event(run.stream, outcome.model_dump())
        if outcome.status == "finished" and enrollment.arm == run.experiment.base:
            for arm in run.experiment.shadows:
                built = run.arms[arm.name]
                asked = replace(request.asked, speculation=built.speculation)
                again = replace(request, asked=asked)
                policy = built.policy.within(request.thought_cap)
                self._shadows.add(run.stream, arm.name, policy, again)

    def reward(self, record: Mapping[str, Any], reward: Reward) -> None:
        """Record a reward for the answer whose trace is `record`."""
        number = record.get("run")
        if reward.experiment is not None and isinstance(number, int):
            stream = outcome_stream(reward.experiment, number)
            self._outbox.event(stream, reward.model_dump())
