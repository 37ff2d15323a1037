"""Which build of torch an installation takes, and what it says before it downloads."""

from __future__ import annotations

import pytest

from deploy import install
from tests.deploy.conftest import ROOT

TORCH = install._pinned("torch")
REST = ["install", "--constraint", "requirements.lock", "--editable", ".[engine]"]


class Machine:
    """A machine without torch: what each index has for it, and what pip was asked for."""

    def __init__(self, configured: str = "", pytorch: str = "") -> None:
        self.of = {(): configured, ("--index-url", install.CPU_INDEX): pytorch}
        self.asked: list[list[str]] = []

    def use(self, monkeypatch: pytest.MonkeyPatch, gpu: str | None = None) -> None:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(install, "_gpu", lambda: gpu)
        monkeypatch.setattr(install, "_installed", lambda name: None)
        monkeypatch.setattr(install, "_versions", lambda *options: {self.of[options]})
        monkeypatch.setattr(install, "_pip", lambda *asked: self.asked.append([*asked]))


@pytest.mark.parametrize(
    ("machine", "options", "said"),
    [
        (Machine(configured=f"{TORCH}+cpu"), [], "pip is configured"),
        (
            Machine(configured=TORCH, pytorch=f"{TORCH}+cpu"),
            ["--index-url", install.CPU_INDEX],
            install.CPU_INDEX,
        ),
    ],
    ids=["configured", "pytorch"],
)
def test_without_a_gpu_the_build_for_cpus_comes_first(
    machine: Machine,
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.use(monkeypatch)
    install.install(["engine"])
    assert machine.asked == [["install", "--no-deps", *options, f"torch=={TORCH}+cpu"], REST]
    told = capsys.readouterr().err
    assert said in told
    assert install.CPU_SIZE in told


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("/dev/nvidiactl", "since there is /dev/nvidiactl"), (None, "press Ctrl-C")],
    ids=["gpu", "no build for CPUs anywhere"],
)
def test_cuda_is_announced_with_its_size(
    gpu: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(configured=TORCH, pytorch="1.0+cpu")
    machine.use(monkeypatch, gpu)
    install.install(["engine"])
    assert machine.asked == [REST]
    told = capsys.readouterr().err
    assert said in told
    assert install.CUDA_SIZE in told


def test_a_core_takes_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(configured=f"{TORCH}+cpu")
    machine.use(monkeypatch)
    install.install([])
    assert machine.asked == [[*REST[:-1], "."]]
