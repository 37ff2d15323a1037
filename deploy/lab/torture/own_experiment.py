"""An experiment of a service of one's own, with as many events as months of traffic leave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp

from deploy.lab.torture.attack import bearer
from orchestrator.errors import WorkerError
from orchestrator.experiments.outcome_log import Exposure, Outcome
from orchestrator.experiments.runs import outcome_stream
from orchestrator.state.outbox import EVENTS_KEPT
from orchestrator.state.store import Store

NAME: Final = "torture"
ARMS: Final = ("control", "treatment")
AT_ONCE: Final = 1000  # events sent to the store
MEDIAN_MS, SPREAD = 400.0, 0.6  # of times, lognormal


class OwnExperiment:
    """An experiment that `start` begins by the admin's key.

    Args:
        url: the service's.
        admin_key: None: it has no keys.
        opened: opens the store that the service uses.
    """

    def __init__(self, url: str, admin_key: str | None, opened: Callable[[], Store]) -> None:
        self._url, self._admin_key, self._opened = url, admin_key, opened

    async def start(self, events: int, chance: random.Random) -> str:
        """Begin it, with so many events already.

        Returns:
            The path of its report.

        Raises:
            WorkerError: the service does not start it.
        """
        arms = [{"name": name, "policy": "large-only"} for name in ARMS]
        # None of the attacker's requests takes part: they ask for a policy by its name.
        document = {"name": NAME, "arms": arms, "goal": {"metric": "ms"}}
        run = (await self._post("", document))["run"]
        lines, store = [*_events(events, chance)], self._opened()
        try:
            for start in range(0, len(lines), AT_ONCE):
                batch = lines[start : start + AT_ONCE]
                await store.append(outcome_stream(NAME, run), batch, keep=EVENTS_KEPT)
        finally:
            await store.aclose()
        return f"/v1/experiments/{NAME}/report"

    async def stop(self) -> None:
        """End it."""
        await self._post(f"/{NAME}/stop", {})

    async def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        headers, url = bearer(self._admin_key), f"{self._url}/v1/experiments{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, json=document) as reply,
        ):
            if not reply.ok:
                told = await reply.text()
                raise WorkerError(
                    f"expected an experiment to start and stop, got {reply.status} {told}"
                )
            answered: dict[str, Any] = await reply.json()
            return answered


def _events(count: int, chance: random.Random) -> Iterator[bytes]:
    """Exposures and outcomes of requests, two events each."""
    for number in range(count // 2):
        trace, at, arm = f"torture-{number}", float(number), chance.choice(ARMS)
        exposure = Exposure(trace_id=trace, at=at, arm=arm, unit=trace)
        ms = MEDIAN_MS * chance.lognormvariate(0, SPREAD)
        outcome = Outcome(
            trace_id=trace, at=at, arm=arm, ms=ms, first_step_ms=ms / 4,
            small_tokens=30, large_tokens=20, prompt_tokens=40, accepted=chance.random(),
        )  # fmt: skip
        yield from (exposure.model_dump_json().encode(), outcome.model_dump_json().encode())
