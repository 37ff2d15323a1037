"""What a deployment wants of a machine, before anything of it is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from deploy.launch import cluster
from deploy.launch.cluster import NodeDied, NotServing, RunningService, _gist, _want_gpus
from deploy.launch.meanwhile import answering, want_port
from deploy.service.worker_spec import Workers
from tests.deploy.conftest import free_port

CPU = {"model": "embedded:small"}


def cuda(**more: Any) -> dict[str, Any]:
    return {"model": "m", "device": "cuda", **more}


@pytest.mark.parametrize(
    ("small", "large", "there", "said"),
    [
        (CPU, CPU, 0, None),
        (cuda(gpu=0.25), cuda(gpu=0.75), 1, None),
        ({"url": "http://h:1", "model": "m"}, cuda(), 1, None),
        (cuda(gpu=0.25), CPU, 0, "asks for 1 GPUs, and this machine has 0: workers.small 0.25;"),
        (cuda(), cuda(), 1, "workers.small 1, workers.large 1; write device: cpu, or let the"),
        (cuda(), cuda(tensor_parallel=4), 2, "workers.large 4; write device: cpu, or use a"),
        (
            CPU,
            cuda(gpu=0.6, replicas={"min": 3, "max": 3}),
            2,
            "asks for 3 GPUs, and this machine has 2: w",
        ),
        (CPU, cuda(replicas={"min": 3, "max": 5}), 2, "workers.large 3; write device: cpu, or us"),
    ],
)
def test_gpus_that_are_not_there_are_no_reason_to_wait(
    small: Any, large: Any, there: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "GPU": float(there)})
    workers = Workers.model_validate({"small": small, "large": large})
    if said is None:
        _want_gpus(workers)
        return
    with pytest.raises(NotServing) as info:
        _want_gpus(workers)
    assert said in str(info.value)


def test_the_cause_of_a_failure_has_no_name_of_a_class_of_ours() -> None:
    traceback = "Traceback:\n  File x\norchestrator.errors.ConfigError: no model 'x'; there are a"
    assert _gist([traceback]) == "no model 'x'; there are a"
    assert _gist(["torch.OutOfMemoryError: 3 GB"]) == "torch.OutOfMemoryError: 3 GB"


def test_the_port_answers_while_ray_starts() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with answering("127.0.0.1", port):
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").json()["error"]["code"] == "starting"
        with answering("127.0.0.1", port):  # as Ray's proxy comes beside it
            pass
        assert httpx.get(f"{url}/ready").status_code == 503
        with pytest.raises(NotServing, match=r"cannot listen .* name another port \(--port\)"):
            want_port("127.0.0.1", port, "--port")
    want_port("127.0.0.1", port, "--port")


def test_a_node_is_well_while_its_processes_run() -> None:
    workers = Workers.model_validate({"small": CPU, "large": CPU})
    dead = list[tuple[str, Any]]()
    node = SimpleNamespace(dead_processes=lambda: dead)
    service = RunningService("http://localhost", "baton", workers, node)
    assert service.check() == []
    dead.append(("raylet", SimpleNamespace(pid=7)))
    with pytest.raises(NodeDied, match=r"\(raylet, process 7\).*start it again"):
        service.check()


class Starting:
    """A deployment that Serve says is starting, until it is `loaded_at`, in seconds of its clock;
    then it answers `ready`."""

    url = "http://127.0.0.1:1"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loaded_at: float, ready: int = 200) -> None:
        self.now, self.loaded_at, self.ready = 0.0, loaded_at, ready
        monkeypatch.setattr("deploy.launch.cluster.time.monotonic", lambda: self.now)
        monkeypatch.setattr("deploy.launch.cluster.time.sleep", self._sleep)
        monkeypatch.setattr(serve, "status", self._status)
        monkeypatch.setattr(httpx.Client, "get", self._get)

    message = ""
    """What Ray Serve says of the large worker."""

    def _sleep(self, _: float) -> None:
        self.now += 5.0

    def _status(self) -> Any:
        loaded = self.now >= self.loaded_at
        large = SimpleNamespace(status="HEALTHY" if loaded else "UPDATING", message=self.message)
        small = SimpleNamespace(status="HEALTHY", message="")
        app = SimpleNamespace(
            status="RUNNING" if loaded else "DEPLOYING",
            message="",
            deployments={"SmallWorker": small, "LargeWorker": large},
        )
        return SimpleNamespace(applications={"baton": app})

    def _get(self, *_: Any) -> Any:
        body = {"error": {"message": "not ready yet: no answer of large"}}
        return httpx.Response(self.ready if self.now >= self.loaded_at else 503, json=body)


def test_a_model_may_load_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, told = Starting(monkeypatch, loaded_at=7200), list[str]()
    cluster._wait(starting, None, told.append)  # type: ignore[arg-type]
    assert 7200 <= starting.now < 7300
    assert 100 < len(told) <= 120
    assert "after 61 min: LargeWorker (logs:" in told[len(told) // 2]


def test_an_end_to_waiting_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(monkeypatch, loaded_at=7200)
    with pytest.raises(NotServing, match="not ready within 900 s; still starting: LargeWorker;"):
        cluster._wait(starting, 900, lambda _: None)  # type: ignore[arg-type]


def test_what_runs_and_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, told = Starting(monkeypatch, loaded_at=600, ready=503), list[str]()
    with pytest.raises(NotServing, match="has run for 300 s, but not ready yet: no answer"):
        cluster._wait(starting, None, told.append)  # type: ignore[arg-type]
    assert "Everything runs, but not ready yet: no answer of large" in told
    assert "not ready yet: no answer of large" in told[-1]
    assert 600 + cluster.READY_S <= starting.now < 700 + cluster.READY_S


def test_what_has_no_place_says_once_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, told = Starting(monkeypatch, loaded_at=50), list[str]()
    starting.message = (
        "Deployment 'LargeWorker' in application 'baton' has 1 replicas that have taken more than "
        '30s to be scheduled. Resources required for each replica: {"GPU": 2.0}, total resources '
        'available: {"GPU": 1.0}. Use `ray status` for more details.'
    )
    cluster._wait(starting, None, told.append)  # type: ignore[arg-type]
    assert told == [
        'LargeWorker waits for a place: a replica needs {"GPU": 2.0}, '
        'total resources available: {"GPU": 1.0}'
    ]
    enough, starting.now = starting.message.replace('{"GPU": 1.0}', '{"GPU": 2.0}'), 0.0
    starting.message = enough  # the machine is slow
    cluster._wait(starting, None, told.append)  # type: ignore[arg-type]
    starting = Starting(monkeypatch, loaded_at=50)
    starting.message = "LargeWorker has 1 replicas that have taken more than 30s to initialize."
    cluster._wait(starting, None, told.append)  # type: ignore[arg-type]
    assert len(told) == 1  # "Still starting" says it every minute
