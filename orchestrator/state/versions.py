"""Policy versions: published, never changed, one of them active.

    policy/NAME/N          document  version N of a policy, its parameters complete
    policy/latest/NAME     pointer   the number of NAME's newest version
    policy/active          pointer   the version of the model `baton`; none: the file's default
    policy/previous        pointer   the versions before, which rollbacks restore

A version has all parameters, even those that its publisher left out, so that it does not depend on
a deployment file or on defaults, which may change. It is validated by the policy's typed parameters
before it is published, and again when it is read, since other programs may write to the store.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from orchestrator.errors import Conflict, InvalidRequest, UnknownPolicy, Unusable
from orchestrator.loop.policy import Policy
from orchestrator.loop.spending import check_priced
from orchestrator.state.store import AUDIT, Commit, Store, StoreState, change
from orchestrator.validation import invalid_request

ACTIVE: Final = "policy/active"
PREVIOUS: Final = "policy/previous"
LATEST: Final = "policy/latest/"
FILE: Final = "default"
"""The name of the deployment file's default in pointers and the audit; it has no version."""

_REFERENCE: Final = re.compile(r"([A-Za-z0-9._-]{1,64})@([1-9][0-9]{0,8})")
_FORMER: Final = {"sure": None, "sure_at": 0.9, "probe": "", "probe_tokens": 16}
"""Removed parameters of every policy, at their defaults: stored documents may have them."""
_CACHED: Final = 256  # versions, those that requests pinned last
_REMEMBERED: Final = 32  # formerly active versions, for rollbacks

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
    """The body of `POST /v1/policies`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    policy: str
    params: dict[str, Any] = Field(default_factory=dict)
    note: Note = ""
    author: Author = ""
    activate: bool = True


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """The author of a change and a note; `key` is 8 hex digits of the API key's digest, if any."""

    author: str = ""
    key: str | None = None
    note: str = ""

    def entry(self, action: str, what: str, **more: object) -> bytes:
        """Return the audit entry of a change that is made now."""
        entry = {"at": time.time(), "action": action, "what": what, **more, **asdict(self)}
        return json.dumps(entry, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A version that has been validated, and the policy built from it."""

    document: PolicyVersion
    policy: Policy


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version in the store; `trouble`: why it cannot be used, or has no `document`."""

    reference: str
    document: PolicyVersion | None
    trouble: str | None = None


def reference(text: str) -> tuple[str, int] | None:
    """Return `NAME@VERSION` as name and number; None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return (match[1], int(match[2])) if match else None


def build(policies: Mapping[str, type[Policy]], name: str, params: Mapping[str, Any]) -> Policy:
    """Build a policy from its parameters.

    Raises:
        ValidationError: a parameter is unknown or has a wrong value.
    """
    # Through JSON, since strict validation then accepts 1 as a float, but not "1". A type that only
    # YAML has (a date) becomes text, which no parameter accepts in its place.
    return policies[name].model_validate_json(json.dumps(params, default=str), strict=True)


def without_former(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a stored document without removed ones that have no effect."""
    return dict(item for item in params.items() if item not in _FORMER.items())


class PolicyVersions:
    """Published policies in a store. `defaults` are the deployment file's parameters, which those
    of a publication override; `priced`: the service names prices."""

    def __init__(
        self,
        store: Store,
        policies: Mapping[str, type[Policy]],
        defaults: Mapping[str, Mapping[str, Any]],
        *,
        priced: bool = False,
    ) -> None:
        self._store, self._priced = store, priced
        self.policies, self.defaults = policies, defaults
        self._cache: LRUCache[tuple[str, str], PublishedPolicy] = LRUCache(_CACHED)

    def build(self, name: str, params: Mapping[str, Any], place: str, called: str = "") -> Policy:
        """Build a policy from its parameters; errors name it as `called`, by default its name.

        Raises:
            InvalidRequest: names one at `place` that is unknown, has a wrong value or needs prices.
        """
        try:
            policy = build(self.policies, name, params)
        except ValidationError as error:
            what = f"parameter of {called or name}"
            wrong = invalid_request(error, place, self.policies[name], what)
            given = (wrong.param or "").removeprefix(f"{place}.")
            others = [other for other, kind in self.policies.items() if given in kind.model_fields]
            if wrong.code == "unknown_parameter" and others:
                said = f"{wrong.param}: unknown {what}; it is a parameter of {', '.join(others)}"
                wrong = InvalidRequest(said, param=wrong.param, code=wrong.code)
            raise wrong from None
        check_priced(policy, self._priced, place)
        return policy

    async def publish(self, given: Publication, info: AuditInfo) -> PolicyVersion:
        """Make a new version, and activate it if the publication says so.

        Raises:
            UnknownPolicy, InvalidRequest: no such policy, or a wrong parameter, by name.
        """
        name = given.policy
        self._check_name(name)
        values = {**self.defaults.get(name, {}), **given.params}
        params = self.build(name, values, "params").model_dump(mode="json")

        async def plan(state: StoreState) -> tuple[Commit, PolicyVersion]:
            document = PolicyVersion(
                policy=name,
                version=await self._newest_number(state, name) + 1,
                params=params,
                note=given.note,
                author=given.author,
                created=time.time(),
            )
            pointers = {LATEST + name: b"%d" % document.version}
            if given.activate:
                pointers |= _activation(state, document.reference)
            audit = _audit("publish", info, document.reference, state, given.activate)
            path = _path(name, document.version)
            return Commit(audit, pointers, {path: document.model_dump_json().encode()}), document

        return await change(self._store, plan)

    async def activate(self, target: str | None, info: AuditInfo) -> None:
        """Move the active pointer to `NAME@VERSION`; None: to the deployment file's default.

        Raises:
            UnknownPolicy: no such version. Unusable: it cannot be used any more.
        """
        if target is not None:
            await self.find(target)

        async def plan(state: StoreState) -> tuple[Commit, None]:
            audit = _audit("activate", info, target or FILE, state, moved=True)
            return Commit(audit, _activation(state, target)), None

        await change(self._store, plan)

    async def rollback(self, info: AuditInfo, to: str | None = None) -> str | None:
        """Activate the former version, or `to` (`NAME@VERSION`, or "default": the file's).

        A second rollback activates the version before that, never the one that the first replaced.

        Returns:
            The active `NAME@VERSION`; None for the deployment file's default.

        Raises:
            InvalidRequest: there is nothing to roll back. UnknownPolicy: no such version.
            Unusable: it cannot be used any more; `to` may name another.
            Conflict: another version became active in the same moment.
        """
        seen = await self._store.state()
        earlier = active_before(seen)
        if to is not None:
            target = None if to == FILE else to
            known = earlier.index(target) + 1 if target in earlier else 0
        elif earlier:
            target, known = earlier[0], 1
        else:
            raise InvalidRequest("nothing was active before: there is nothing to roll back")
        if target is not None:
            await self.find(target)

        async def plan(state: StoreState) -> tuple[Commit, str | None]:
            if any(state.pointers.get(it) != seen.pointers.get(it) for it in (ACTIVE, PREVIOUS)):
                raise Conflict("another client changed the active version; try again")
            audit = _audit("rollback", info, target or FILE, state, moved=True)
            return Commit(audit, _pointers(target, earlier[known:])), target

        return await change(self._store, plan)

    async def find(self, target: str, *, identity: str | None = None) -> PublishedPolicy:
        """Return a published version by `NAME@VERSION`.

        With the `identity` of the store's contents, a version that was read before comes from a
        cache: it cannot have changed.

        Raises:
            UnknownPolicy: there is none. Unusable: it cannot be read, or is not valid.
        """
        if identity is not None and (known := self._cache.get((identity, target))) is not None:
            return known
        published = self._validated(target, await self._document(target))
        if identity is not None:
            self._cache[identity, target] = published
        return published

    async def look_up(self, target: str) -> ListedVersion:
        """Return a published version by `NAME@VERSION`, whether or not it can be used.

        Raises:
            UnknownPolicy: there is none.
        """
        return self._listed(target, await self._document(target))

    async def newest(self, name: str, count: int) -> list[ListedVersion]:
        """Return a policy's versions, newest first."""
        self._check_name(name)
        number = await self._newest_number(await self._store.state(), name)
        numbers = range(number, max(0, number - count), -1)
        documents = await self._store.documents([_path(name, number) for number in numbers])
        return [
            self._listed(f"{name}@{number}", data)
            for number, data in zip(numbers, documents, strict=True)
            if data is not None
        ]

    async def history(self, count: int) -> list[dict[str, Any]]:
        """Return the audit, newest first, without entries of other programs."""
        entries = [_audited(entry.event) for entry in await self._store.newest(AUDIT, count)]
        return [entry for entry in entries if entry is not None]

    def _check_name(self, name: str) -> None:
        if name not in self.policies:
            raise UnknownPolicy(f"no policy is named {name[:64]!r}", param="policy")

    async def _document(self, target: str) -> bytes:
        parts = reference(target)
        if parts is None:
            raise UnknownPolicy(f"{target[:80]!r} is not NAME@VERSION")
        (data,) = await self._store.documents([_path(*parts)])
        if data is None:
            raise UnknownPolicy(f"no version {target} has been published")
        return data

    async def _newest_number(self, state: StoreState, name: str) -> int:
        """Return the number of a policy's newest version (0: none), whatever the pointer says."""
        number = newest_numbers(state)[0].get(name, 0)
        while (await self._store.documents([_path(name, number + 1)]))[0] is not None:
            number += 1
        return number

    def _listed(self, target: str, data: bytes) -> ListedVersion:
        try:
            return ListedVersion(target, self._validated(target, data).document)
        except Unusable as error:
            with suppress(ValidationError):
                document = PolicyVersion.model_validate_json(data)
                if document.reference == target:
                    return ListedVersion(target, document, str(error))
            return ListedVersion(target, None, str(error))

    def _validated(self, target: str, data: bytes) -> PublishedPolicy:
        try:
            document = PolicyVersion.model_validate_json(data)
        except ValidationError as error:
            raise Unusable(f"{target} cannot be used: {invalid_request(error).message}") from None
        if document.reference != target:
            raise Unusable(f"{target}: the store holds {document.reference[:80]} in its place")
        if document.policy not in self.policies:
            raise Unusable(f"{target}: there is no such policy any more")
        document = document.model_copy(update={"params": without_former(document.params)})
        try:
            policy = self.build(document.policy, document.params, "params")
        except InvalidRequest as error:
            raise Unusable(f"{target} cannot be used: {error.message}") from None
        return PublishedPolicy(document, policy)


def active(state: StoreState) -> str | None:
    """Return the active version's `NAME@VERSION`; None: the deployment file's default.

    Raises:
        Unusable: the pointer has another value.
    """
    return _version(ACTIVE, state.pointers.get(ACTIVE, FILE.encode()))


def newest_numbers(state: StoreState) -> tuple[dict[str, int], dict[str, str]]:
    """Return each policy's newest version number, and errors by the names of unreadable pointers.

    The next version that is published corrects such a pointer.
    """
    numbers, unreadable = {}, {}
    for pointer, number in state.pointers.items():
        if not pointer.startswith(LATEST):
            continue
        if number.isdigit() and len(number) <= 9:
            numbers[pointer.removeprefix(LATEST)] = int(number)
        else:
            unreadable[pointer] = f"{pointer} holds no number: {number[:20]!r}"
    return numbers, unreadable


def active_before(state: StoreState) -> list[str | None]:
    """Return the formerly active versions, the latest first, without unusable ones."""
    earlier: list[str | None] = []
    for target in state.pointers.get(PREVIOUS, b"").split():
        with suppress(Unusable):
            earlier.append(_version(PREVIOUS, target))
    return earlier


def _version(pointer: str, data: bytes) -> str | None:
    target = data.decode(errors="replace")
    if target != FILE and reference(target) is None:
        raise Unusable(f"{pointer} holds no version: {target[:80]!r}")
    return None if target == FILE else target


def _path(name: str, version: int) -> str:
    return f"policy/{name}/{version}"


def _activation(state: StoreState, target: str | None) -> dict[str, bytes]:
    earlier = active_before(state)
    with suppress(Unusable):  # a rollback to that is impossible
        if (before := active(state)) != target:
            earlier = [before, *earlier]
    return _pointers(target, earlier)


def _pointers(target: str | None, earlier: Sequence[str | None]) -> dict[str, bytes]:
    remembered = " ".join(version or FILE for version in earlier[:_REMEMBERED])
    return {ACTIVE: (target or FILE).encode(), PREVIOUS: remembered.encode()}


def _audit(action: str, info: AuditInfo, what: str, state: StoreState, moved: bool) -> bytes:
    before = state.pointers.get(ACTIVE, FILE.encode()).decode(errors="replace")
    return info.entry(f"policy.{action}", what, before=before, active=moved)


def _audited(data: bytes) -> dict[str, Any] | None:
    """Return an audit entry; None for what is no JSON object that an answer may contain."""
    try:
        entry = from_json(data, allow_inf_nan=False)
        json.dumps(entry, allow_nan=False)  # 1e999 is infinite, too
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
