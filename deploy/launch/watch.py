"""What dies while a service runs: replicas, Serve's own actors, servers of workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

from deploy.service.worker_spec import Workers
from workers.remote.address import checked

ASK_EVERY_S = 5.0  # between two looks at servers, by the service's own /ready
ANSWER_S = 3.0
MEANT = {"RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"}
"""Why Serve's own actors end when it stops or replaces them."""
SHOWN = 300  # characters of a cause


class Watch:
    """Says once what has died, or answers again, of the service at `url`."""

    def __init__(self, url: str, workers: Workers) -> None:
        self._url = url
        self._servers = {
            name: checked(spec.url).netloc
            for name, spec in workers.by_name().items()
            if spec.url is not None
        }
        self._silent: set[str] = set()
        self._next = time.monotonic() + ASK_EVERY_S
        self._seen = {one["ActorID"]: _state(one) for one in _actors()}

    def look(self) -> Iterator[str]:
        """Yield a line for each change since the last look."""
        for one in _actors():
            before = self._seen.get(one["ActorID"], (0, False))
            now = self._seen[one["ActorID"]] = _state(one)
            if now > before and (cause := _cause(one["DeathCause"])) is not None:
                yield f"{_name(one['Name'])} (process {one['Pid']}) died: {cause}"
        if self._servers and time.monotonic() >= self._next:
            self._next = time.monotonic() + ASK_EVERY_S
            yield from self._ask()

    def _ask(self) -> Iterator[str]:
        try:
            ready = httpx.get(f"{self._url}/ready", timeout=ANSWER_S, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return  # what ails the service itself, its actors show
        for name, place in self._servers.items():
            answers = ready.get("workers", {}).get(name, True)
            if not answers and name not in self._silent:
                self._silent.add(name)
                why = ready.get("reasons", {}).get(name, "")
                yield f"the {name} worker's server at {place} cannot be used: {why}"
            elif answers and name in self._silent:
                self._silent.remove(name)
                yield f"the {name} worker's server at {place} answers again"


def _actors() -> list[Mapping[str, Any]]:
    from ray._private.state import actors

    with suppress(Exception):  # Ray has died, which `RunningService.check` reports
        return list(actors().values())
    return []


def _state(actor: Mapping[str, Any]) -> tuple[int, bool]:
    """How often an actor was started again, and whether it is dead."""
    return actor["NumRestarts"], actor["State"] == "DEAD"


def _name(actor: str) -> str:
    """`SERVE_REPLICA::baton#LargeWorker#x1` as a replica of LargeWorker, others as they are."""
    kind, _, rest = actor.partition("::")
    return f"a replica of {rest.split('#')[1]}" if kind == "SERVE_REPLICA" else kind


def _cause(death: Any) -> str | None:
    """Why an actor died; None if that was meant."""
    died = death.actor_died_error_context
    reason = type(died).Reason.Name(died.reason)
    if reason in MEANT:
        return None
    said = " ".join((death.oom_context.error_message or died.error_message).split())
    detail = said.rpartition("Worker exit detail: ")[2] or "no reason was given"
    return f"{detail[:SHOWN]}; Ray Serve starts another"
