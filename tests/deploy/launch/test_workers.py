"""Workers in one process: what their engines are given, and what is missing here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.cli import main as cli
from deploy.cli.pair import large_speculation
from deploy.launch import workers
from deploy.launch.deployment_file import load
from deploy.service import extras
from deploy.service.worker_spec import Workers, WorkerSpec
from orchestrator.errors import ConfigError, InvalidRequest
from tests.deploy.conftest import ROOT
from workers.engine import loading


def spec(**more: Any) -> WorkerSpec:
    return WorkerSpec.model_validate({"model": "embedded:small", **more})


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of the GPU, as engines are given them; none is loaded."""
    given: list[float] = []

    def load(model: str, **options: Any) -> None:
        given.append(options["share"])

    monkeypatch.setitem(sys.modules, "workers.vllm.loading", SimpleNamespace(load=load))
    monkeypatch.setattr(loading, "load", load)
    return given


def test_in_one_process_engines_of_vllm_keep_to_their_shares(shares: list[float]) -> None:
    cuda = {"model": "m", "device": "cuda"}
    workers.load_pair(
        Workers.model_validate({"small": {**cuda, "gpu": 0.25}, "large": {**cuda, "gpu": 0.72}})
    )
    assert shares == [0.25, 0.72]


def test_in_one_process_our_own_engines_share_its_cap(shares: list[float]) -> None:
    workers.open_worker(spec(engine="builtin", device="cuda", gpu=0.25))
    assert shares == [1.0]


def chosen(pair: Workers, text: str) -> dict[str, Any]:
    found = large_speculation(pair, text)
    assert found is not None
    return found.params


def test_the_small_model_drafts_where_the_command_line_names_the_method() -> None:
    cuda = {"model": "m", "device": "cuda"}
    pair = Workers.model_validate({"small": {**cuda, "model": "s"}, "large": cuda})
    assert chosen(pair, "draft_model") == {"model": "s"}
    assert chosen(pair, "ngram") == {}
    ours = Workers.model_validate({"small": {"model": "s"}, "large": {"model": "m"}})
    assert chosen(ours, "chain") == {"draft": "s"}
    assert chosen(ours, "chain:draft=d") == {"draft": "d"}


def test_parameters_of_a_method_go_before_those_of_the_file() -> None:
    method = {"method": "chain", "params": {"draft": "d", "gamma": 2, "threshold": 0.4}}
    pair = Workers.model_validate(
        {"small": {"model": "s"}, "large": {"model": "m", "speculation": method}}
    )
    assert chosen(pair, "chain:gamma=16") == {"draft": "d", "gamma": 16, "threshold": 0.4}
    assert large_speculation(pair, None) == pair.large.speculation
    assert chosen(pair, "reflective:base=chain:gamma=3") == {
        "draft": "s", "base": "chain", "gamma": 3,
    }  # fmt: skip
    for text, said in (("chian", "no speculation method 'chian'"), ("chain:gama=3", "'gama'")):
        with pytest.raises(InvalidRequest, match=said):
            large_speculation(pair, text)


def test_an_engine_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    said = r"workers\.small needs torch, .*-e '\.\[engine\]'"
    with pytest.raises(ConfigError, match=said):
        workers.want_engines(load(ROOT / "deploy" / "local.yaml").args.workers)
    workers.want_engines(load(ROOT / "deploy" / "remote.yaml").args.workers)
    with pytest.raises(ConfigError, match="embedded:small needs torch"):
        workers.open_worker(spec())


def test_a_vllm_that_is_missing_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    said = r"workers\.small is for the engine vllm .* not installed here: `make setup GPU=1` makes"
    file = ROOT / "deploy" / "gpu.yaml"
    with pytest.raises(ConfigError, match=said):
        workers.want_engines(load(file).args.workers)
    workers.want_engines(load(ROOT / "deploy" / "local.yaml").args.workers)
    monkeypatch.setattr(sys, "argv", ["baton", "serve", str(file)])
    with pytest.raises(SystemExit):
        cli.main()
    captured = capsys.readouterr()
    assert "make setup GPU=1" in captured.err
    assert "Starting Ray" not in captured.out
