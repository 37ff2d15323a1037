"""What has died is said once, by name and with the cause."""

from __future__ import annotations

from typing import Any

import pytest
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext, OomContext
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deploy.launch import watch
from deploy.launch.watch import Watch
from deploy.service.worker_spec import Workers
from tests.workers.remote.vllm_like import serving

HERE = {"model": "embedded:small"}
THERE = {"url": "http://10.0.0.7:8001/v1", "model": "m"}
LARGE = "SERVE_REPLICA::baton#LargeWorker#x1"


class Actors:
    """Ray's table of actors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        monkeypatch.setattr(watch, "_actors", lambda: list(self.rows.values()))

    def put(self, identity: str, name: str, state: str = "ALIVE", restarts: int = 0) -> None:
        self.rows[identity] = {
            "ActorID": identity,
            "Name": name,
            "State": state,
            "NumRestarts": restarts,
            "Pid": 7,
            "DeathCause": ActorDeathCause(),
        }

    def die(self, identity: str, cause: Any) -> None:
        self.rows[identity] |= {"State": "DEAD", "DeathCause": cause}


def died(reason: str, message: str) -> Any:
    context = ActorDiedErrorContext(
        reason=ActorDiedErrorContext.Reason.Value(reason), error_message=message
    )
    return ActorDeathCause(actor_died_error_context=context)


def watched(url: str = "http://127.0.0.1:9", large: Any = HERE) -> Watch:
    return Watch(url, Workers.model_validate({"small": HERE, "large": large}))


def test_a_replica_that_dies_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = Actors(monkeypatch)
    actors.put("1", LARGE)
    looking = watched()
    assert list(looking.look()) == []
    actors.die("1", died("WORKER_DIED", "killed\n by signal 9"))
    (line,) = looking.look()
    assert line.startswith("a replica of LargeWorker (process 7) died: killed by signal 9;")
    assert list(looking.look()) == []


def test_rays_memory_killer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = Actors(monkeypatch)
    looking = watched()
    actors.put("1", LARGE)
    cause = OomContext(error_message="the node was low on memory")
    actors.die("1", ActorDeathCause(oom_context=cause))
    assert "low on memory" in next(looking.look())


def test_an_actor_that_was_started_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = Actors(monkeypatch)
    actors.put("1", "SERVE_CONTROLLER_ACTOR")
    looking = watched()
    actors.rows["1"]["NumRestarts"] = 1
    assert next(looking.look()).startswith("SERVE_CONTROLLER_ACTOR (process 7) died")


@pytest.mark.parametrize("reason", ["RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"])
def test_what_serve_stops_itself_is_no_death(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actors = Actors(monkeypatch)
    actors.put("1", LARGE)
    looking = watched()
    actors.die("1", died(reason, "stopped"))
    assert list(looking.look()) == []


def test_a_server_that_is_silent_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    Actors(monkeypatch)
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.0)
    answers = [True, False, False, True]

    async def ready(_: Request) -> JSONResponse:
        workers = {"small": False, "large": answers.pop(0)}
        return JSONResponse({"workers": workers, "reasons": {"large": "no such model"}})

    with serving(Starlette(routes=[Route("/ready", ready)])) as url:
        looking = watched(url.removesuffix("/v1"), THERE)
        said = [list(looking.look()) for _ in range(4)]
    place = "the large worker's server at 10.0.0.7:8001"
    silent = f"{place} cannot be used: no such model"
    assert said == [[], [silent], [], [f"{place} answers again"]]
    assert list(watched("http://127.0.0.1:9", THERE).look()) == []  # of itself, others speak
