"""Policies as documents: published versions that never change, and the one that is active.

    policy/NAME/N          document  version N of a policy, its parameters complete
    policy/latest/NAME     pointer   the number of NAME's newest version
    policy/active          pointer   what the model `baton` means; none: the file's default
    policy/previous        pointer   what it meant before, where a rollback leads

A version carries all its parameters, also those that nobody gave: what it means may not depend on
a deployment file or on defaults that change. It is checked by the policy's own typed parameters
before it is published, and again whenever it is read, since a store may hold anything.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from orchestrator.errors import Conflict, InvalidRequest, StoreError, UnknownPolicy
from orchestrator.http.schemas import invalid
from orchestrator.loop.policy import Policy
from orchestrator.state.store import AUDIT, Move, State, Store

ACTIVE: Final = "policy/active"
PREVIOUS: Final = "policy/previous"
LATEST: Final = "policy/latest/"
FILE: Final = "default"
"""How the audit calls the deployment file's default, which is no published version."""

_REFERENCE: Final = re.compile(r"([A-Za-z0-9._-]{1,64})@([1-9][0-9]{0,8})")
_CACHED: Final = 256  # versions that were pinned lately
_TRIES: Final = 20  # against others who publish at the same time

Note = Annotated[str, StringConstraints(max_length=1000)]
Author = Annotated[str, StringConstraints(max_length=128)]


class PolicyVersion(BaseModel):
    """One published version. `created` is in seconds since 1970."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str
    version: Annotated[int, Field(ge=1)]
    params: dict[str, Any]
    note: Note = ""
    author: Author = ""
    created: float

    @property
    def reference(self) -> str:
        return f"{self.policy}@{self.version}"


class Publication(BaseModel):
    """What a publisher says: a policy's name, parameters, and what should be known about them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    policy: str
    params: dict[str, Any] = Field(default_factory=dict)
    note: Note = ""
    author: Author = ""
    activate: bool = True


@dataclass(frozen=True, slots=True)
class Who:
    """Who changes something, and why: `key` is 8 hex digits of the key's digest, where there is."""

    author: str = ""
    key: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """A version that has been checked, and the policy that it makes."""

    document: PolicyVersion
    policy: Policy


def reference(text: str) -> tuple[str, int] | None:
    """`NAME@VERSION` in two; None for what is not written like that."""
    match = _REFERENCE.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def build(policies: Mapping[str, type[Policy]], name: str, params: Mapping[str, Any]) -> Policy:
    """A policy from its parameters.

    Raises:
        ValidationError: a parameter is unknown or has a wrong value.
    """
    # By way of JSON, where strict means what a client would expect: 1 is a float, "1" not. What
    # only YAML knows (a date) is no parameter of any policy, and refused as the text it was.
    return policies[name].model_validate_json(json.dumps(params, default=str), strict=True)


class PolicyVersions:
    """Published policies in a store. `defaults` are the deployment file's, under what is given."""

    def __init__(
        self,
        store: Store,
        policies: Mapping[str, type[Policy]],
        defaults: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._store, self._policies, self._defaults = store, policies, defaults
        self._found: OrderedDict[tuple[str, str], Published] = OrderedDict()

    async def publish(self, given: Publication, who: Who) -> PolicyVersion:
        """Make a new version, and the active one where the publication says so.

        Raises:
            UnknownPolicy, InvalidRequest: no such policy, or a wrong parameter, by name.
        """
        name = given.policy
        if name not in self._policies:
            raise UnknownPolicy(f"no policy is named {name[:64]!r}", param="policy")
        try:
            values = {**self._defaults.get(name, {}), **given.params}
            policy = build(self._policies, name, values)
        except ValidationError as error:
            raise invalid(error, "params") from None
        params = policy.model_dump(mode="json")
        for _ in range(_TRIES):
            state = await self._state()
            latest = _number(state, name)
            document = PolicyVersion(
                policy=name,
                version=latest + 1,
                params=params,
                note=given.note,
                author=given.author,
                created=time.time(),
            )
            seen = state.pointers.get(LATEST + name)
            moves = [Move(LATEST + name, seen, b"%d" % document.version)]
            if given.activate:
                moves += _activation(state, document.reference)
            try:
                await self._store.commit(
                    create={_path(name, document.version): document.model_dump_json().encode()},
                    move=moves,
                    audit=_audit("publish", who, document.reference, state, given.activate),
                )
            except Conflict:
                continue
            return document
        raise Conflict("too many publish at the same time; try again")

    async def activate(self, target: str | None, who: Who) -> None:
        """Move the active pointer to `NAME@VERSION`; None: to the deployment file's default.

        Raises:
            UnknownPolicy: no such version. StoreError: it cannot be used any more.
        """
        if target is not None:
            await self.find(target)
        for _ in range(_TRIES):
            state = await self._state()
            try:
                await self._move(state, target, "activate", who)
            except Conflict:
                continue
            return
        raise Conflict("too many change the active policy at the same time; try again")

    async def rollback(self, who: Who) -> str | None:
        """Move the active pointer back to where it was before; rolled back again, it returns.

        Returns:
            What is active now, `NAME@VERSION`; None for the deployment file's default.

        Raises:
            InvalidRequest: there is nothing to roll back.
            Conflict: somebody moved the pointer in the same moment.
        """
        state = await self._state()
        if PREVIOUS not in state.pointers:
            raise InvalidRequest("nothing was ever activated: there is nothing to roll back")
        target = previous(state)
        if target is not None:
            await self.find(target)
        await self._move(state, target, "rollback", who)
        return target

    async def find(self, target: str, *, identity: str | None = None) -> Published:
        """A published version by `NAME@VERSION`.

        With the `identity` of the store's contents a version that was read lately is not asked for
        again: it cannot have changed.

        Raises:
            UnknownPolicy: there is none. StoreError: it cannot be read, or not be used.
        """
        parts = reference(target)
        if parts is None:
            raise UnknownPolicy(f"{target[:80]!r} is not NAME@VERSION")
        if identity is not None and (identity, target) in self._found:
            self._found.move_to_end((identity, target))
            return self._found[identity, target]
        (data,) = await self._store.documents([_path(*parts)])
        if data is None:
            raise UnknownPolicy(f"no version {target} has been published")
        found = self._checked(target, data)
        if identity is not None:
            self._found[identity, target] = found
            while len(self._found) > _CACHED:
                self._found.popitem(last=False)
        return found

    async def newest(self, name: str, count: int) -> list[PolicyVersion]:
        """The newest versions of a policy, newest first; what cannot be read is left out."""
        if name not in self._policies:
            raise UnknownPolicy(f"no policy is named {name[:64]!r}", param="policy")
        latest = _number(await self._state(), name)
        numbers = range(latest, max(0, latest - count), -1)
        found = []
        for data in await self._store.documents([_path(name, number) for number in numbers]):
            try:
                found.append(PolicyVersion.model_validate_json(data or b""))
            except ValidationError:
                continue
        return found

    async def history(self, count: int) -> list[dict[str, Any]]:
        """What changed, newest first: `at`, `action`, `what`, `before`, `author`, `key`, `note`."""
        told = []
        for entry in await self._store.newest(AUDIT, count):
            try:
                event = json.loads(entry.event)
            except ValueError:
                continue
            if isinstance(event, dict):
                told.append(event)
        return told

    def _checked(self, target: str, data: bytes) -> Published:
        try:
            document = PolicyVersion.model_validate_json(data)
            if document.reference != target:
                raise StoreError(
                    f"{target}: the store holds {document.reference[:80]} in its place"
                )
            if document.policy not in self._policies:
                raise StoreError(f"{target}: there is no such policy any more")
            return Published(document, build(self._policies, document.policy, document.params))
        except ValidationError as error:
            raise StoreError(f"{target} cannot be used: {invalid(error).message}") from None

    async def _state(self) -> State:
        state = await self._store.state()
        assert state is not None
        return state

    async def _move(self, state: State, target: str | None, action: str, who: Who) -> None:
        await self._store.commit(
            move=_activation(state, target),
            audit=_audit(action, who, target or FILE, state, moved=True),
        )


def active(state: State) -> str | None:
    """The active version's `NAME@VERSION`; None: the deployment file's default.

    Raises:
        StoreError: the pointer holds something else.
    """
    return _pointed(state, ACTIVE)


def previous(state: State) -> str | None:
    """As `active`, for the version that was active before."""
    return _pointed(state, PREVIOUS)


def latest(state: State) -> dict[str, int]:
    """The number of each policy's newest version, for those that have any."""
    names = [name.removeprefix(LATEST) for name in state.pointers if name.startswith(LATEST)]
    return {name: _number(state, name) for name in names}


def _pointed(state: State, pointer: str) -> str | None:
    told = state.pointers.get(pointer, FILE.encode()).decode(errors="replace")
    if told != FILE and reference(told) is None:
        raise StoreError(f"{pointer} holds no version: {told[:80]!r}")
    return None if told == FILE else told


def _number(state: State, name: str) -> int:
    told = state.pointers.get(LATEST + name, b"0")
    if not told.isdigit() or len(told) > 9:
        raise StoreError(f"{LATEST}{name} holds no number: {told[:20]!r}")
    return int(told)


def _path(name: str, version: int) -> str:
    return f"policy/{name}/{version}"


def _activation(state: State, target: str | None) -> list[Move]:
    before = state.pointers.get(ACTIVE)
    return [
        Move(ACTIVE, before, (target or FILE).encode()),
        Move(PREVIOUS, state.pointers.get(PREVIOUS), before or FILE.encode()),
    ]


def _audit(action: str, who: Who, what: str, state: State, moved: bool) -> bytes:
    entry = {
        "at": time.time(),
        "action": f"policy.{action}",
        "what": what,
        "before": state.pointers.get(ACTIVE, FILE.encode()).decode(errors="replace"),
        "active": moved,
        "author": who.author,
        "key": who.key,
        "note": who.note,
    }
    return json.dumps(entry, ensure_ascii=False).encode()
