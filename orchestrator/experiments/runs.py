"""Experiments in the store: start, change, stop. Every change has an audit entry.

    experiment/NAME/RUN   document   the experiment as it was started for the RUN-th time
    experiment/NAME       pointer    the number of the newest run, and its state

The stream of a run's events is dropped when a newer run replaces it or it is removed, since nothing
reads it then.

Two experiments that run at the same time must exclude each other, since a request has one policy.
Arms are built when an experiment is started and again when it is read, since other programs may
write to the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final

from cachetools import LRUCache
from pydantic import Field, ValidationError

from orchestrator.errors import (
    Conflict,
    InvalidRequest,
    StoreError,
    UnknownPolicy,
    Unusable,
)
from orchestrator.experiments.documents import (
    Arm,
    Experiment,
    ExperimentDocument,
    ExperimentState,
    initial_state,
)
from orchestrator.loop.policy import Policy
from orchestrator.state.store import Commit, Store, StoreState, change
from orchestrator.state.versions import AuditInfo, PolicyVersions, without_former
from orchestrator.validation import invalid_request
from orchestrator.worker import check_method

POINTER: Final = "experiment/"
_CACHED: Final = 64
_SWEPT: Final = 100  # former runs whose streams are dropped again, as events may come late

RunKey = tuple[str, float]


@dataclass(frozen=True, slots=True)
class BuiltArm:
    """An arm's policy, its name and version (0: not published), and the large worker's method."""

    name: str
    version: int
    policy: Policy
    speculation: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an experiment at one revision of the store.

    `error`: why it gets no requests here even if it runs, such as an arm that this deployment can
    no longer build; then there are no `arms`.
    """

    number: int
    experiment: Experiment
    state: ExperimentState
    arms: Mapping[str, BuiltArm]
    error: str | None = None

    @property
    def key(self) -> RunKey:
        """Its identity: a wiped store may hold another run of the same name and number."""
        return self.stream, self.state.started

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def live(self) -> bool:
        return self.state.ended is None

    @property
    def stream(self) -> str:
        return outcome_stream(self.name, self.number)


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Every experiment's newest run, in the order of their starts.

    `set_aside` has, by name, the reason why an experiment is not in effect: it is `unreadable` and
    has no run, or its run has an `error` and has not ended.
    """

    runs: tuple[Run, ...]
    unreadable: Mapping[str, str]

    @property
    def set_aside(self) -> dict[str, str]:
        live = {run.name: run.error for run in self.runs if run.live and run.error is not None}
        return {**self.unreadable, **live}


class Runs:
    """The experiments of a store. `methods` are those of the large worker here."""

    def __init__(self, store: Store, versions: PolicyVersions, methods: Collection[str]) -> None:
        self._store, self._versions, self._methods = store, versions, methods
        self._cache: LRUCache[RunKey, Run] = LRUCache(_CACHED)

    async def start(self, experiment: Experiment, info: AuditInfo) -> Run:
        """Start an experiment, again if it was stopped.

        Raises:
            InvalidRequest, UnknownPolicy: an arm cannot be built, by name, or its requests lack a
                metric that decides.
            Conflict: it runs already, or one runs that would share units with it.
        """
        experiment.check_decidable()
        arms = await self._build(experiment)
        self._check_methods(experiment)

        async def plan(seen: StoreState) -> tuple[Commit, Run]:
            runs = (await self.read(seen)).runs
            _check_room(experiment, runs)
            last = next((run for run in runs if run.name == experiment.name), None)
            begun = _with_secret(experiment, last)
            number = 1 if last is None else last.number + 1
            while await self._is_taken(begun.name, number):
                number += 1
            state = initial_state(await self._store.time())
            run = Run(number, begun, state, arms)
            document = {_path(run.name, number): begun.model_dump_json().encode()}
            return Commit(_audit("start", run, info), _pointer(run), document), run

        run = await change(self._store, plan)
        await self._drop_streams(run.name, before=run.number)
        return run

    async def _is_taken(self, name: str, number: int) -> bool:
        """Return whether a former run has left a document or events of this number."""
        (document,) = await self._store.documents([_path(name, number)])
        events = await self._store.newest(outcome_stream(name, number), 1)
        return document is not None or bool(events)

    async def stop(self, name: str, info: AuditInfo) -> Run:
        """Stop an experiment: all requests get the default again.

        Raises:
            UnknownPolicy: no experiment has this name. Conflict: it is not running.
            Unusable: it cannot be read; it gets no requests, and may be removed.
        """

        async def plan(seen: StoreState) -> tuple[Commit, Run]:
            run = await self._find(seen, name)
            if not run.live:
                raise Conflict(f"the experiment {name} does not run")
            ended = run.state.model_copy(update={"ended": await self._store.time()})
            stopped = replace(run, state=ended)
            return Commit(_audit("stop", stopped, info), _pointer(stopped)), stopped

        return await change(self._store, plan)

    async def remove(self, name: str, info: AuditInfo) -> Run | None:
        """Remove an experiment that does not run, and its events; its documents stay.

        Returns:
            Its last run; None if it could not be read.

        Raises:
            UnknownPolicy: no experiment has this name. Conflict: it runs.
        """

        async def plan(seen: StoreState) -> tuple[Commit, Run | None]:
            run, audit = None, info.entry("experiment.remove", name)
            with suppress(Unusable):
                run = await self._find(seen, name)
            if run is not None:
                if run.live:
                    raise Conflict(f"the experiment {name} runs: stop it first")
                audit = _audit("remove", run, info)
            return Commit(audit, {POINTER + name: b""}), run

        run = await change(self._store, plan)
        if run is not None:
            await self._drop_streams(name, before=run.number + 1)
        return run

    async def change(self, run: Run, state: ExperimentState, action: str, info: AuditInfo) -> None:
        """Replace the state of a run.

        Raises:
            Conflict: it was changed since `run` was read.
        """

        async def plan(seen: StoreState) -> tuple[Commit, None]:
            if run not in (await self.read(seen)).runs:
                raise Conflict(f"the experiment {run.name} was changed by another client")
            changed = replace(run, state=state)
            return Commit(_audit(action, changed, info), _pointer(changed)), None

        await change(self._store, plan)

    async def _drop_streams(self, name: str, before: int) -> None:
        """Drop the streams of the runs before this number; if it fails, a later call does so."""
        numbers = range(max(1, before - _SWEPT), before)
        with suppress(StoreError):
            await self._store.drop(*(outcome_stream(name, number) for number in numbers))

    async def find(self, name: str) -> Run:
        """Return an experiment's newest run.

        Raises:
            UnknownPolicy: no experiment has this name. Unusable: it cannot be read.
        """
        return await self._find(await self._store.state(), name)

    async def _find(self, seen: StoreState, name: str) -> Run:
        if (pointer := seen.pointers.get(POINTER + name)) is None:
            raise UnknownPolicy(
                f"no experiment is named {name[:64]!r}", param="name", code="experiment_not_found"
            )
        return await self._run(name, pointer)

    async def read(self, seen: StoreState) -> FoundRuns:
        """Return every experiment's newest run."""
        runs, unreadable = [], {}
        for pointer, data in seen.pointers.items():
            if pointer.startswith(POINTER):
                name = pointer.removeprefix(POINTER)
                try:
                    runs.append(await self._run(name, data))
                except Unusable as error:
                    unreadable[name] = str(error)
        runs.sort(key=lambda run: (run.state.started, run.name))
        return FoundRuns(tuple(runs), unreadable)

    async def _run(self, name: str, data: bytes) -> Run:
        """Return the run that a pointer names, or raise Unusable."""
        place = POINTER + name
        try:
            pointer = _Pointer.model_validate_json(data)
            place = _path(name, pointer.run)
            key = place, pointer.state.started
            if (known := self._cache.get(key)) is None:
                (document,) = await self._store.documents([place])
                experiment = Experiment.model_validate_json(document or b"")
                if experiment.name != name:
                    raise InvalidRequest(f"it holds the experiment {experiment.name}")
                known = self._cache[key] = await self._loaded(pointer.run, experiment)
        except (ValidationError, InvalidRequest) as error:
            wrong = error if isinstance(error, InvalidRequest) else invalid_request(error)
            raise Unusable(
                f"{place} cannot be used: {wrong.message}; it gets no requests, and may be removed"
            ) from None
        return replace(known, state=pointer.state)

    async def _loaded(self, number: int, experiment: Experiment) -> Run:
        known = (
            arm.model_copy(update={"params": without_former(arm.params)}) for arm in experiment.arms
        )
        experiment = experiment.model_copy(update={"arms": tuple(known)})
        run = Run(number, experiment, initial_state(0.0), {})
        try:
            run = replace(run, arms=await self._build(experiment))
            self._check_methods(experiment)
        except InvalidRequest as error:  # only this experiment is set aside
            return replace(run, error=error.message)
        return run

    async def _build(self, experiment: Experiment) -> dict[str, BuiltArm]:
        return {arm.name: await self._built(arm) for arm in experiment.arms}

    async def _built(self, arm: Arm) -> BuiltArm:
        place, versions = f"arms.{arm.name}", self._versions
        name, version, params = arm.policy, 0, versions.defaults.get(arm.policy, {})
        if "@" in arm.policy:
            try:
                document = (await versions.find(arm.policy)).document
            except (UnknownPolicy, Unusable) as error:
                raise InvalidRequest(f"{place}.policy: {error}", param=place) from None
            name, version, params = document.policy, document.version, document.params
        if name not in versions.policies:
            raise InvalidRequest(f"{place}.policy: no policy is named {name[:64]!r}", param=place)
        policy = versions.build(name, {**params, **arm.params}, f"{place}.params")
        return BuiltArm(name, version, policy, arm.speculation)

    def _check_methods(self, experiment: Experiment) -> None:
        for arm in experiment.arms:
            check_method(arm.speculation, self._methods, f"arms.{arm.name}.speculation")


def _check_room(experiment: Experiment, runs: Iterable[Run]) -> None:
    """Raise Conflict if the experiment runs already, or one that would share units with it."""
    for other in runs:
        if other.live and other.name == experiment.name:
            raise Conflict(f"the experiment {other.name} runs already: stop it first")
        if other.live and not experiment.excludes(other.experiment):
            raise Conflict(
                f"the experiment {other.name} runs: give both the same unit and group, "
                "each its own part of it"
            )


def _with_secret(experiment: Experiment, last: Run | None) -> Experiment:
    """Return the experiment with its last run's secret, so that units keep their arms, or a new
    one."""
    if experiment.secret is not None:
        return experiment
    secret = last.experiment.secret if last is not None else None
    return experiment.model_copy(update={"secret": secret or secrets.token_hex(16)})


def outcome_stream(name: str, number: int) -> str:
    return f"outcomes/{name}/{number}"


def _path(name: str, number: int) -> str:
    return f"{POINTER}{name}/{number}"


class _Pointer(ExperimentDocument):
    run: Annotated[int, Field(ge=1)]
    state: ExperimentState


def _pointer(run: Run) -> dict[str, bytes]:
    pointer = _Pointer(run=run.number, state=run.state)
    return {POINTER + run.name: pointer.model_dump_json().encode()}


def _audit(action: str, run: Run, info: AuditInfo) -> bytes:
    what, state = f"{run.name}/{run.number}", run.state.model_dump()
    return info.entry(f"experiment.{action}", what, state=state)
