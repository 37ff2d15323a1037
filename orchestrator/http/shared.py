"""What replicas share through the store: configuration, records, experiments."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from orchestrator.experiments.experimenter import Experimenter
from orchestrator.experiments.recorder import EventRecorder
from orchestrator.experiments.runs import Runs
from orchestrator.experiments.shadows import ShadowRunner, Solve
from orchestrator.http.planning import Catalog
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import PolicyVersions
from orchestrator.state.watcher import ConfigWatcher


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
