"""One replica's service: its parts, what it shares through the store, how a request is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, generate_latest

from orchestrator.experiments.experimenter import Experimenter
from orchestrator.experiments.recorder import EventRecorder
from orchestrator.experiments.runs import Runs
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner, Solve
from orchestrator.http.admission import Admission, Place
from orchestrator.http.ask import Ask, Choice, Incoming
from orchestrator.http.auth import Access
from orchestrator.http.errors import shutting_down
from orchestrator.http.planning import Catalog, Planner, Pools
from orchestrator.http.settings import HttpSettings, ServiceLimits
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Hurry
from orchestrator.loop.solve import solve
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import PolicyVersions
from orchestrator.state.watcher import ConfigWatcher
from orchestrator.telemetry.metrics import ServiceMetrics

if TYPE_CHECKING:  # most services make no spans and load no tracing
    from orchestrator.telemetry.spans import Spans


class LiveRequests:
    """The requests that are being answered; `quiet` is set while there are none."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.admission = Admission(
            limits.concurrent, limits.wait_s, prompt_tokens=limits.prompt_tokens
        )
        self.wanted = 0  # answers that are being planned, waited for or made
        self.draining = False
        self.cuts: set[Callable[[], object]] = set()  # each ends a response that is being sent
        # What ends the thoughts of a key's requests, by the key and a name of the request.
        self.hurries: dict[tuple[str | None, str], list[Hurry]] = {}
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._sessions: set[str] = set()  # of the live requests

    @asynccontextmanager
    async def place(self, ask: Ask, incoming: Incoming) -> AsyncIterator[tuple[Place, str]]:
        """Wait for a request's place; yield it with the name of its session for workers.

        Raises:
            HttpError: 429, all places are taken; 503, the service is stopping.
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
    def hurry(self, names: Collection[str], key: str | None) -> Iterator[Hurry]:
        """Yield the wish by which `answer_now` ends the thoughts of a request with these names."""
        hurry, places = Hurry(), [(key, name) for name in names]
        for place in places:
            self.hurries.setdefault(place, []).append(hurry)
        try:
            yield hurry
        finally:
            for place in places:
                self.hurries[place].remove(hurry)
                if not self.hurries[place]:
                    del self.hurries[place]

    def answer_now(self, name: str, key: str | None) -> int:
        """End the thoughts of a key's requests of this name here; return how many requests."""
        found = self.hurries.get((key, name), [])
        for hurry in found:
            hurry.set()
        return len(found)

    @contextmanager
    def _affinity(self, incoming: Incoming) -> Iterator[str]:
        """Yield the name by which workers prefer the replica of the session's earlier requests.

        It is empty while another request of the session is live: then this one is no next turn.
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
        """Refuse new requests; return how many are still being answered."""
        self.draining = True
        return self.admission.live

    def cut(self) -> None:
        """Refuse new requests, and end every answer with an error that gives the reason."""
        self.drain()
        for cut in list(self.cuts):
            cut()


class Shared:
    """One replica's side of the store.

    Args:
        quiet: is set while no request is being answered; only then shadows run.
        solve_shadow: answers a served request again by another policy.
        priced: whether the service names prices, as a policy's `max_cost` needs.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        registry: CollectorRegistry,
        quiet: asyncio.Event,
        solve_shadow: Solve,
        priced: bool,
    ) -> None:
        self.store = store
        self.versions = PolicyVersions(store, catalog.policies, catalog.params, priced=priced)
        runs = Runs(store, self.versions, catalog.methods)
        self.watcher = ConfigWatcher(store, self.versions, runs, registry)
        self.outbox = Outbox(store, registry)
        self.shadows = ShadowRunner(solve_shadow, quiet, self.outbox, registry)
        self.recorder = EventRecorder(self.outbox, self.shadows, registry)
        self.experimenter = Experimenter(store, runs, self.watcher, registry)

    async def start(self) -> None:
        """Start to follow the store; one that does not answer delays this only shortly."""
        for part in (self.watcher, self.outbox, self.shadows, self.experimenter):
            await part.start()

    async def stop(self) -> None:
        """Write what waits for the store, then close it."""
        for part in (self.experimenter, self.shadows, self.watcher, self.outbox):
            await part.stop()
        await self.store.aclose()

    @property
    def degraded(self) -> str | None:
        """Why the configuration may be old, outcomes are not written yet, or a published document
        is not in effect; None if all is in order."""
        if self.error is not None:
            return self.error
        aside = self.watcher.current.set_aside.items()
        return "; ".join(f"{name} is not in effect: {why}" for name, why in aside) or None

    @property
    def error(self) -> str | None:
        """Why the store cannot be read or written to; None if it answers."""
        return self.watcher.error or self.outbox.error


class Service:
    """One replica's parts. `access`, `spans` and `scrape` may be replaced while it runs.

    Attributes:
        spans: makes OpenTelemetry spans of requests, if set.
        scrape: returns the Prometheus text of all replicas; None: only this process is shown.
        hurry: does `LiveRequests.answer_now`, in all replicas if there are several.

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
            store or MemoryStore(),
            catalog,
            self.registry,
            self.live.quiet,
            self._solve_shadow,
            priced=self.settings.prices is not None,
        )
        versions, watcher = self.shared.versions, self.shared.watcher
        self.planner = Planner(catalog, pools, versions, watcher, lambda: self.live.wanted)
        self.metrics = ServiceMetrics(self.registry)
        self.responses = Counter(
            "baton_http_responses",
            "HTTP responses begun, by status code, refusals and probes included.",
            ("code",),
            registry=self.registry,
        )
        self.spans: Spans | None = None
        self.scrape: Callable[[], Coroutine[Any, Any, bytes]] | None = None
        self.hurry: Callable[[str, str | None], Awaitable[int]] = self._hurry_here
        self._scraping: asyncio.Task[bytes] | None = None

    @asynccontextmanager
    async def admit(
        self, ask: Ask, incoming: Incoming
    ) -> AsyncIterator[tuple[list[Choice], Place]]:
        """Plan a request and wait for its place; yield the answers that it wants, and the place.

        Raises:
            HttpError: 429, all places are taken; 503, the service is stopping, or a model is still
                loading.
            Others: as `Planner.plan`.
        """
        if self.live.draining:
            raise shutting_down()
        self.live.wanted += ask.choices
        try:
            plan = await self.planner.plan(ask, incoming)  # first: a wrong request must get no 429
            async with self.live.place(ask, incoming) as (place, affinity):
                yield [Choice(ask, incoming, plan, affinity, i) for i in range(ask.choices)], place
        finally:
            self.live.wanted -= ask.choices

    async def metrics_text(self) -> bytes:
        """Return the metrics as Prometheus text; concurrent requests share one scrape."""
        if self.scrape is None:
            return generate_latest(self.registry)
        if self._scraping is None or self._scraping.done():
            # Without this request's context: Ray cancels what a request started with the request.
            self._scraping = asyncio.create_task(self.scrape(), context=Context())
        return await asyncio.shield(self._scraping)

    async def _hurry_here(self, name: str, key: str | None) -> int:
        return self.live.answer_now(name, key)

    def _solve_shadow(
        self, policy: Policy, shadow: ShadowRequest, response: ResponseAccumulator
    ) -> AsyncGenerator[Event, None]:
        asked = replace(shadow.asked, id=f"{shadow.asked.id}-shadow")
        return solve(policy, asked, self.pools.workers, response)
