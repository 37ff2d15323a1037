"""The routes of experiments. Changes need the admin key, which `auth` checks."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from orchestrator.errors import InvalidRequest, Unusable
from orchestrator.experiments.documents import Experiment
from orchestrator.experiments.runs import Run
from orchestrator.http.body import Json, json_object, read_body
from orchestrator.http.routes.openapi import described
from orchestrator.http.routes.policies import ChangeNote, audit_info, refresh
from orchestrator.http.service import Service


def add_experiment_routes(app: FastAPI, service: Service) -> None:
    experimenter = service.shared.experimenter
    runs = experimenter.runs

    @app.get("/v1/experiments", **described("Every experiment's newest run"))
    async def overview() -> Response:
        found = await runs.read(await service.shared.store.state())
        listed = [run_json(run) for run in found.runs]
        listed += [unreadable_json(name, why) for name, why in found.unreadable.items()]
        return JSONResponse(
            {
                "object": "list",
                "degraded": service.shared.degraded,
                "not_in_effect": found.set_aside,
                "data": listed,
            }
        )

    @app.post("/v1/experiments", **described("Start an experiment", Experiment, status=201))
    async def start(request: Request) -> Response:
        given = Experiment.parse(await json_object(request, service.settings))
        _check_judges(service, given)
        run = await runs.start(given, audit_info(request, given))
        await refresh(service)
        return JSONResponse(run_json(run), status_code=201)

    @app.get("/v1/experiments/{name}", **described("An experiment with its state"))
    async def show(name: str) -> Response:
        try:
            return JSONResponse(run_json(await runs.find(name)))
        except Unusable as error:
            return JSONResponse(unreadable_json(name, str(error)))

    @app.get("/v1/experiments/{name}/report", **described("The readout"))
    async def readout(name: str) -> Response:
        run, analysis = await experimenter.report(name)
        coverage = run.state.coverage(run.experiment) if run.live else 0.0
        about = {"object": "baton.report", "run": run.number, "coverage": coverage}
        return JSONResponse({**about, **analysis.json()})

    @app.post("/v1/experiments/{name}/stop", **described("End an experiment", ChangeNote))
    async def stop(name: str, request: Request) -> Response:
        given = await read_body(request, service.settings, ChangeNote)
        run = await runs.stop(name, audit_info(request, given))
        await refresh(service)
        return JSONResponse(run_json(run))

    @app.post(
        "/v1/experiments/{name}/remove",
        **described("Forget an experiment that has ended", ChangeNote),
    )
    async def remove(name: str, request: Request) -> Response:
        given = await read_body(request, service.settings, ChangeNote)
        run = await runs.remove(name, audit_info(request, given))
        await refresh(service)
        gone = unreadable_json(name, None) if run is None else run_json(run)
        return JSONResponse(gone)


def _check_judges(service: Service, given: Experiment) -> None:
    """Refuse an experiment that acts on rewards but names no `judges`, if there are keys."""
    access = service.access
    keys = access.users or access.admins or access.observers
    if keys and given.acts_on_rewards and given.judges is None:
        raise InvalidRequest(
            "judges: rewards alone may stop an arm here, and any key can give its answers the "
            "worst; name the keys whose rewards count, each by the eight digits in logs and "
            "traces, or all",
            param="judges",
            code="invalid_value",
        )


def unreadable_json(name: str, trouble: str | None) -> Json:
    """Return an unreadable experiment as the API shows it; `trouble` None: it is removed."""
    return {
        "object": "baton.experiment",
        "id": name,
        "run": None,
        "status": "unreadable",
        "in_effect": False,
        "trouble": trouble,
        "coverage": 0.0,
        "weights": {},
        "base": None,
        "arms": {},
        "state": None,
        "experiment": None,
    }


def run_json(run: Run) -> Json:
    """Return a run as the API shows it. `base` is the control; `in_effect`: this replica assigns
    requests to its arms."""
    experiment, state = run.experiment, run.state
    return {
        "object": "baton.experiment",
        "id": run.name,
        "run": run.number,
        "status": "running" if run.live else "stopped",
        "in_effect": run.live and run.error is None,
        "trouble": run.error if run.live or not run.arms else None,
        "coverage": state.coverage(experiment) if run.live else 0.0,
        "weights": experiment.weights,
        "base": experiment.base,
        "arms": {
            name: {
                "policy": arm.name,
                "version": arm.version,
                "params": arm.policy.model_dump(mode="json"),
                "speculation": arm.speculation,
            }
            for name, arm in run.arms.items()
        },
        "state": state.model_dump(mode="json"),
        "experiment": experiment.model_dump(mode="json"),
    }
