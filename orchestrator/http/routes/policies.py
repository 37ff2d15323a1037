"""The routes of published policies. Changes need the admin key, which `auth` checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fastapi import FastAPI, Query, Request
from starlette.responses import JSONResponse, Response

from orchestrator.errors import StoreError, UnknownPolicy, Unusable
from orchestrator.experiments.documents import Experiment
from orchestrator.http.body import Given, Json, read_body
from orchestrator.http.routes.openapi import described
from orchestrator.http.service import Service
from orchestrator.state.versions import (
    AuditInfo,
    Author,
    ListedVersion,
    Note,
    Publication,
    active,
    active_before,
    newest_numbers,
)

LISTED: Final = 100  # versions or changes in a list, by default


class ChangeNote(Given):
    """The reason and the author of a change; the body that ends an experiment."""

    note: Note = ""
    author: Author = ""


class Activation(ChangeNote):
    """The body of `PUT /v1/policies/active`: NAME@VERSION, or None for the file's default."""

    version: str | None


class Rollback(ChangeNote):
    """The body of a rollback; `to`: NAME@VERSION, or "default"; None: what was active before."""

    to: str | None = None


def add_policy_routes(app: FastAPI, service: Service) -> None:
    versions = service.shared.versions
    count = Query(LISTED, ge=1, le=1000)

    @app.get("/v1/policies", **described("Every policy, and what is active"))
    async def overview() -> Response:
        return JSONResponse(await _overview(service))

    @app.post("/v1/policies", **described("Publish a version", Publication, status=201))
    async def publish(request: Request) -> Response:
        given = await read_body(request, service.settings, Publication)
        made = await versions.publish(given, audit_info(request, given))
        await refresh(service)
        listed = ListedVersion(made.reference, made)
        return JSONResponse(version_json(listed), status_code=201)

    @app.get("/v1/policies/active", **described("What the model baton means"))
    async def show_active() -> Response:
        state, current = await service.shared.store.state(), service.shared.watcher.current
        if current.revision and not state.revision:  # a wiped store: the last version is served
            return JSONResponse(await _answering(service))
        try:
            return JSONResponse(await _version(service, active(state)))
        except (Unusable, UnknownPolicy) as error:
            return JSONResponse({**await _answering(service), "trouble": str(error)})

    @app.put("/v1/policies/active", **described("Change what baton means", Activation))
    async def activate(request: Request) -> Response:
        given = await read_body(request, service.settings, Activation)
        with _naming("version"):
            await versions.activate(given.version, audit_info(request, given))
        await refresh(service)
        return JSONResponse(await _version(service, given.version))

    @app.post("/v1/policies/rollback", **described("Restore what was active before", Rollback))
    async def rollback(request: Request) -> Response:
        given = await read_body(request, service.settings, Rollback)
        with _naming("to"):
            target = await versions.rollback(audit_info(request, given), given.to)
        await refresh(service)
        return JSONResponse(await _version(service, target))

    @app.get("/v1/policies/history", **described("Who changed what, newest first"))
    async def history(count: int = count) -> Response:
        return JSONResponse({"object": "list", "data": await versions.history(count)})

    @app.get("/v1/policies/{name}", **described("A policy's versions, or NAME@VERSION"))
    async def show(name: str, count: int = count) -> Response:
        if "@" in name:
            return JSONResponse(await _version(service, name))
        listed = [version_json(version) for version in await versions.newest(name, count)]
        return JSONResponse({"object": "list", "data": listed})


def version_json(version: ListedVersion) -> Json:
    """Return a version as the API shows it; `trouble` says why it cannot be used here."""
    name, _, number = version.reference.partition("@")
    document = version.document
    about: Json = {"policy": name, "version": int(number), "params": {}, "created": None}
    about |= {"note": "", "author": ""} if document is None else document.model_dump(mode="json")
    return {"object": "baton.policy", "id": version.reference, **about, "trouble": version.trouble}


async def _overview(service: Service) -> Json:
    """Return every policy as the store has it now, or else as this replica read it last.

    `answering` is the version that the model baton has here: not the active one if that cannot be
    used.
    """
    current, catalog = service.shared.watcher.current, service.planner.catalog
    answering = None if current.active is None else current.active.document.reference
    known: Json = {"active": answering, "previous": None, "can_roll_back": False}
    numbers, revision, degraded = dict(current.latest), current.revision, service.shared.degraded
    try:
        state = await service.shared.store.state()
        if state.revision or not revision:
            earlier = active_before(state)
            previous = earlier[0] if earlier else None
            known = {"active": None, "previous": previous, "can_roll_back": bool(earlier)}
            numbers, revision = newest_numbers(state)[0], state.revision
            with suppress(Unusable):  # `not_in_effect` says so
                known["active"] = active(state)
    except StoreError as error:
        degraded = str(error)
    return {
        "object": "list",
        **known,
        "answering": answering,
        "default": catalog.default,
        "when_busy": None if catalog.when_busy is None else catalog.when_busy.model_dump(),
        "revision": revision,
        "degraded": degraded,
        "not_in_effect": dict(current.set_aside),
        "data": [
            {"object": "baton.policy", "policy": name, "latest": numbers.get(name, 0)}
            for name in catalog.policies
        ],
    }


async def _answering(service: Service) -> Json:
    known = service.shared.watcher.current.active
    if known is None:
        return await _version(service, None)
    return version_json(ListedVersion(known.document.reference, known.document))


async def _version(service: Service, target: str | None) -> Json:
    """Return a version by NAME@VERSION; None: the deployment file's default, whose version is 0."""
    if target is not None:
        with _naming("version"):
            return version_json(await service.shared.versions.look_up(target))
    name = service.planner.catalog.default
    return {
        "object": "baton.policy",
        "id": name,
        "policy": name,
        "version": 0,
        "params": service.planner.defaults[name].model_dump(mode="json"),
        "note": "the deployment file's default",
        "author": "",
        "created": None,
        "trouble": None,
    }


@contextmanager
def _naming(param: str) -> Iterator[None]:
    """Name the parameter in the error of a version that does not exist."""
    try:
        yield
    except UnknownPolicy as error:
        raise UnknownPolicy(error.message, param=param, code="version_not_found") from None


async def refresh(service: Service) -> None:
    """Show a change on this replica at once; the other replicas follow within `POLL_S`."""
    with suppress(StoreError):  # the change is made; `degraded` shows why it cannot be read
        await service.shared.watcher.refresh()


def audit_info(request: Request, given: ChangeNote | Publication | Experiment) -> AuditInfo:
    return AuditInfo(given.author, request.state.caller.key, given.note)
