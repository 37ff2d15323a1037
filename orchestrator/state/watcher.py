"""The configuration of a replica: the last valid one that it read, kept current.

Requests read `current` and never wait for the store. A task refreshes it every half second; only a
configuration that was read whole replaces the one before. Versions and experiments that this
release cannot use are set aside by name.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.background import Background
from orchestrator.errors import StoreError, UnknownPolicy, Unusable
from orchestrator.experiments.runs import POINTER, Run, Runs
from orchestrator.state.store import TIMEOUT_S, Store, StoreState
from orchestrator.state.versions import (
    ACTIVE,
    PolicyVersions,
    PublishedPolicy,
    active,
    newest_numbers,
)

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""Seconds between two refreshes."""
FIRST_REFRESH_S: Final = 2 * TIMEOUT_S
"""Seconds that a starting replica waits for its first refresh."""

_REVISION: Final = re.compile(r"([0-9a-f]+):([0-9]{1,18})")  # the identity, and a count of commits


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration at one revision of the store.

    `active` None: the deployment file's default. `latest` has the number of each policy's newest
    version, `experiments` the newest run of each. `set_aside` has, by name, the reason why an entry
    is not in effect; if it is the active version, `active` is the last one that could be used.
    `identity` names the store's contents: a wiped or restored store has another one.
    """

    revision: str = ""
    active: PublishedPolicy | None = None
    latest: Mapping[str, int] = field(default_factory=dict)
    experiments: tuple[Run, ...] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""


class ConfigWatcher(Background):
    """Keeps the configuration current; `error`: why it may be out of date, else None."""

    def __init__(
        self, store: Store, versions: PolicyVersions, runs: Runs, registry: CollectorRegistry
    ) -> None:
        self._store, self._versions, self._runs = store, versions, runs
        self.current = Configuration()
        self.error: str | None = "the store has not been read yet"
        self._confirmed, self._restored = monotonic(), 0
        self._refreshing = asyncio.Lock()
        self._changes = Counter(
            "baton_config_changes",
            "Changes of the configuration that this replica read from the store.",
            registry=registry,
        )
        age = Gauge(
            "baton_config_age_seconds",
            "Seconds since the store last confirmed the configuration.",
            registry=registry,
        )
        age.set_function(lambda: monotonic() - self._confirmed)
        aside = Gauge(
            "baton_config_set_aside",
            "Published versions and experiments that cannot be used here, and are not in effect.",
            registry=registry,
        )
        aside.set_function(lambda: len(self.current.set_aside))

    async def start(self) -> None:
        """Refresh once, within `FIRST_REFRESH_S`, and then follow the store in a task."""
        with suppress(TimeoutError, StoreError):
            async with asyncio.timeout(FIRST_REFRESH_S):
                await self.refresh()
        await super().start()

    async def refresh(self) -> None:
        """Read the configuration from the store.

        Raises:
            StoreError: it cannot be read; `current` is unchanged, and `error` has the reason.
        """
        async with self._refreshing:
            try:
                state = await self._store.state()
                if state.revision != self.current.revision:
                    before, self.current = self.current, await self._read(state)
                    self._changes.inc()
                    for name, why in self.current.set_aside.items():
                        if before.set_aside.get(name) != why:
                            log.warning("%s is not in effect: %s", name, why)
            except StoreError as error:
                self._failed(str(error))
                raise
            self.error, self._confirmed = None, monotonic()

    async def _read(self, state: StoreState) -> Configuration:
        if not state.revision:
            raise StoreError("the store is empty: it has been wiped")
        if _went_back(self.current.revision, state.revision):  # an older backup was restored
            self._restored += 1
        numbers, set_aside = newest_numbers(state)
        try:
            target = active(state)
            published = None if target is None else await self._versions.find(target)
        except (Unusable, UnknownPolicy) as error:
            set_aside[ACTIVE], published = str(error), self.current.active
        found = await self._runs.read(state)
        set_aside |= {POINTER + name: why for name, why in found.set_aside.items()}
        identity = f"{state.revision.partition(':')[0]}/{self._restored}"
        return Configuration(state.revision, published, numbers, found.runs, set_aside, identity)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
            except StoreError:
                continue  # `error` says why
            except Exception as error:
                self._failed(type(error).__name__)
                log.exception("the configuration cannot be followed")

    def _failed(self, reason: str) -> None:
        if reason != self.error:
            log.warning("the last good configuration stays: %s", reason)
        self.error = reason


def _went_back(before: str, now: str) -> bool:
    """Return whether a revision is an earlier one of the same contents."""
    former, latter = _REVISION.fullmatch(before), _REVISION.fullmatch(now)
    if former is None or latter is None or former[1] != latter[1]:
        return False
    return int(latter[2]) < int(former[2])
