"""One replica's service: its parts, and how a request is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, generate_latest

from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.http.admission import Admission, Place
from orchestrator.http.ask import Ask, Choice, Incoming
from orchestrator.http.auth import Access
from orchestrator.http.errors import HttpError, shutting_down
from orchestrator.http.planning import Catalog, Planner
from orchestrator.http.settings import HttpSettings, ServiceLimits
from orchestrator.http.shared import Shared
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import Store
from orchestrator.telemetry.metrics import ServiceMetrics
from orchestrator.types import GREEDY, Sampling
from orchestrator.worker import Worker

if TYPE_CHECKING:  # most services make no spans and load no tracing
    from orchestrator.telemetry.spans import Spans


async def _nothing_to_check() -> Mapping[str, bool]:
    return {}


async def _greedy() -> Sampling:
    return GREEDY


async def _nothing_known() -> Mapping[WorkerName, int | None]:
    return {}


@dataclass(frozen=True, slots=True)
class Pools:
    """The workers, and what is known of them.

    `ready` returns whether each pool answers, cheaply, since that needs no key. `contexts` returns
    each worker's context in tokens, None if it is not known. `sampling` returns the default for
    requests that leave it open.
    """

    workers: Mapping[WorkerName, Worker]
    ready: Callable[[], Awaitable[Mapping[str, bool]]] = _nothing_to_check
    contexts: Callable[[], Awaitable[Mapping[WorkerName, int | None]]] = _nothing_known
    sampling: Callable[[], Awaitable[Sampling]] = _greedy


class LiveRequests:
    """The requests that are being answered: their places, and how all of them end.

    Attributes:
        quiet: set while there are none.
        cuts: ends each of the answers that are being sent.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self.admission = Admission(
            limits.concurrent, limits.wait_s, prompt_tokens=limits.prompt_tokens
        )
        self.draining = False
        self.cuts: set[Callable[[], object]] = set()
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._sessions: set[str] = set()  # of the live requests

    @asynccontextmanager
    async def place(self, ask: Ask, incoming: Incoming) -> AsyncIterator[tuple[Place, str]]:
        """A place for a request, within the share of its key; and its session's name for workers.

        Raises:
            HttpError: 429, all places are taken; 503, the service is about to end.
        """
        wanted = incoming.key or "", ask.choices, ask.estimated_prompt, ask.labels.priority
        async with self.admission.place(*wanted, prompts=len(ask.conversations)) as place:
            if self.draining:
                raise shutting_down()
            self.quiet.clear()
            try:
                with self._affinity(incoming) as affinity:
                    yield place, affinity
            finally:
                if self.admission.live == 1:  # this one alone
                    self.quiet.set()

    @contextmanager
    def _affinity(self, incoming: Incoming) -> Iterator[str]:
        """The name by which workers prefer the replica of the session's earlier requests.

        It is empty for a request beside another of its session, which is no next turn.
        """
        session = incoming.unit(incoming.session)
        if session is None or session in self._sessions:
            yield ""
            return
        self._sessions.add(session)
        try:
            yield blake2b(session.encode(), digest_size=16).hexdigest()
        finally:
            self._sessions.remove(session)

    def drain(self) -> int:
        """Take on no more requests; returns how many are still being answered."""
        self.draining = True
        return self.admission.live

    def cut(self) -> None:
        """End every answer now, each with an error that gives the reason."""
        self.drain()
        for cut in list(self.cuts):
            cut()


class Service:
    """One replica's parts. `access`, `spans` and `scrape` may be replaced while it runs.

    Attributes:
        spans: makes OpenTelemetry spans of requests, if it is set.
        scrape: returns the Prometheus text of all replicas; None: this process's.

    Raises:
        ConfigError: `catalog` names no policy, or a parameter is wrong.
    """

    def __init__(
        self,
        catalog: Catalog,
        pools: Pools,
        settings: HttpSettings | None = None,
        access: Access | None = None,
        store: Store | None = None,
    ) -> None:
        self.pools, self.settings = pools, settings or HttpSettings()
        self.access = access or Access()
        self.registry = CollectorRegistry()
        self.live = LiveRequests(self.settings.limits)
        self.shared = Shared(
            store or MemoryStore(), catalog, self.registry, self.live.quiet, self._solve_shadow
        )
        self.planner = Planner(catalog, self.shared.versions, self.shared.watcher, pools.sampling)
        self.metrics = ServiceMetrics(self.registry)
        self.responses = Counter(
            "baton_http_responses",
            "HTTP responses begun, by status code, refusals and probes included.",
            ("code",),
            registry=self.registry,
        )
        self.spans: Spans | None = None
        self.scrape: Callable[[], Coroutine[Any, Any, bytes]] | None = None
        self._scraping: asyncio.Task[bytes] | None = None

    @asynccontextmanager
    async def admit(
        self, ask: Ask, incoming: Incoming
    ) -> AsyncIterator[tuple[list[Choice], Place]]:
        """Plan a request and give it a place; yields the answers that it wants.

        Raises:
            HttpError: 403, its key may not choose an arm; 429, all places are taken; 503, the
                service is about to end.
            Others: as `Planner.plan`.
        """
        if self.live.draining:
            raise shutting_down()
        self._check_may_force(incoming)
        plan = await self.planner.plan(ask, incoming)  # what can never be answered gets no 429
        async with self.live.place(ask, incoming) as (place, affinity):
            yield [Choice(ask, incoming, plan, affinity, i) for i in range(ask.choices)], place

    def _check_may_force(self, incoming: Incoming) -> None:
        """Refuse an arm to keys that may not read experiments: other errors would show names."""
        if incoming.forced_arm is None:
            return
        if not self.access.sees_all(incoming.headers.get("authorization")):
            raise HttpError(
                403,
                "x-baton-arm: this needs an admin key, or an API key that is an observer's too",
                code="admin_key_required",
            )

    async def metrics_text(self) -> bytes:
        """The metrics as Prometheus text; concurrent requests share one scrape."""
        if self.scrape is None:
            return generate_latest(self.registry)
        if self._scraping is None or self._scraping.done():
            # Ray ends what a request began with that request, which it knows by the context.
            self._scraping = asyncio.create_task(self.scrape(), context=Context())
        return await asyncio.shield(self._scraping)

    def _solve_shadow(self, policy: Policy, shadow: ShadowRequest) -> AsyncGenerator[Event, None]:
        asked = replace(shadow.asked, id=f"{shadow.asked.id}-shadow")
        return solve(policy, asked, self.pools.workers)
