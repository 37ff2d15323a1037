"""The configuration that a replica goes by: the last good one it has read, kept current.

Requests read `current` and never ask the store. A hint from the store, or half a second without
one, makes the follower look; only what could be read whole and checked replaces what was there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.errors import StoreError, UnknownPolicy
from orchestrator.experiments.runs import Run, Runs
from orchestrator.state.store import PATIENCE_S, State, Store
from orchestrator.state.versions import PolicyVersions, Published, active, latest

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""Seconds between looks at the store when no hint comes."""
START_S: Final = 2 * PATIENCE_S
"""Seconds that a starting replica waits for its first look."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What one revision of the store says. `active` None: the deployment file's default.

    `latest` has the number of each policy's newest version, `experiments` each one's newest run;
    `identity` names the store's contents.
    """

    revision: str = ""
    active: Published | None = None
    latest: Mapping[str, int] = field(default_factory=dict)
    experiments: tuple[Run, ...] = ()

    @property
    def identity(self) -> str:
        return self.revision.partition(":")[0]


class Follower:
    """Keeps the configuration; `trouble` says why it may be out of date, None while it is not."""

    def __init__(
        self, store: Store, versions: PolicyVersions, runs: Runs, registry: CollectorRegistry
    ) -> None:
        self._store, self._versions, self._runs = store, versions, runs
        self.current = Configuration()
        self.trouble: str | None = "the store has not been read yet"
        self._seen, self._looked = "", monotonic()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._changes = Counter(
            "baton_config_changes",
            "Configurations that this replica took over from the store.",
            registry=registry,
        )
        age = Gauge(
            "baton_config_age_seconds",
            "Seconds since the store last confirmed the configuration.",
            registry=registry,
        )
        age.set_function(lambda: monotonic() - self._looked)

    async def start(self) -> None:
        """Look once, as long as that is quick, and then go on looking."""
        with suppress(TimeoutError, StoreError):
            async with asyncio.timeout(START_S):
                await self.look()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def look(self) -> None:
        """Take over what the store says now.

        Raises:
            StoreError: it cannot be read or used; `current` stays and `trouble` says so.
        """
        async with self._looking:
            try:
                state = await self._store.state(self.current.revision)
                if state is not None:
                    self._seen = state.revision
                    self.current = await self._read(state)
                    self._changes.inc()
            except StoreError as error:
                self._troubled(str(error))
                raise
            self.trouble, self._looked = None, monotonic()

    async def _read(self, state: State) -> Configuration:
        if not state.revision:
            raise StoreError("the store is empty: it has been wiped")
        target = active(state)
        try:
            published = None if target is None else await self._versions.find(target)
        except UnknownPolicy as error:
            raise StoreError(str(error)) from None
        experiments = await self._runs.read(state)
        return Configuration(state.revision, published, latest(state), experiments)

    async def _follow(self) -> None:
        while True:
            try:
                await self._store.changed(self._seen, POLL_S)
                await self.look()
            except StoreError as error:
                self._troubled(str(error))
                await asyncio.sleep(POLL_S)
            except Exception as error:
                self._troubled(type(error).__name__)
                log.exception("the configuration cannot be followed")
                await asyncio.sleep(POLL_S)

    def _troubled(self, told: str) -> None:
        if told != self.trouble:
            log.warning("the last good configuration stays: %s", told)
        self.trouble = told
