"""Deployment files that name servers, in process; a service over one: test_store_serving."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.evaluation.builtin.problems import draw
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import LocalClient, ask
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.launch.workers import close, load_pair
from deploy.service.config import Args
from orchestrator.errors import ConfigError
from tests.deploy.conftest import free_port
from tests.workers.remote.vllm_like import MODEL, ServerBehavior, VllmLike, serving
from workers.engine.loading import load as load_local

QUESTIONS = [problem.question for problem in draw("dev", 11, 3)]
PAIR = ("small", "large")
LABEL = Candidate("specreason", "specreason", {})


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The embedded pair on servers that want a key."""
    workers = {name: load_local(f"embedded:{name}") for name in PAIR}
    apps = [VllmLike(worker, ServerBehavior(key="k")).app for worker in workers.values()]
    with serving(apps[0]) as small, serving(apps[1]) as large:
        yield {"small": small, "large": large}
    for worker in workers.values():
        worker.close()


def remote_file(folder: Path, urls: dict[str, str], *remote: str) -> Path:
    data: dict[str, Any] = yaml.safe_load(DEFAULT_FILE.read_text())
    data["http_options"]["port"] = free_port()
    workers = data["applications"][0]["args"]["workers"]
    for name in remote:
        workers[name] = {
            "url": urls[name],
            "model": MODEL,
            "tokenizer": f"embedded:{name}",
            "api_key_env": "SERVER_KEY",
        }
    path = folder / f"{'-'.join(remote) or 'local'}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


async def answers(args: Args) -> list[Any]:
    pair = load_pair(args.workers)
    try:
        client = LocalClient(args, pair)
        answers = [await ask(client, question, LABEL) for question in QUESTIONS]
        return [
            (answer.text, [(s.author, s.text, s.accepted) for s in answer.steps])
            for answer in answers
        ]
    finally:
        await close(pair.values())


async def test_the_same_answers_whichever_is_remote(
    tmp_path: Path, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "k")
    ours = await answers(load(DEFAULT_FILE).args)
    for remote in (("small",), ("large",), PAIR):
        assert await answers(load(remote_file(tmp_path, urls, *remote)).args) == ours


def test_a_key_that_is_promised_must_be_there(tmp_path: Path, urls: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"\$SERVER_KEY holds no key"):
        load_pair(load(remote_file(tmp_path, urls, "large")).args.workers)


def test_ask_and_eval_over_servers(
    tmp_path: Path,
    urls: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    baton: Any,
) -> None:
    monkeypatch.setenv("SERVER_KEY", "k")
    config, rows = str(remote_file(tmp_path, urls, *PAIR)), tmp_path / "rows.json"
    ran = baton("ask", QUESTIONS[0], "--config", config)
    assert (ran.status, "boxed" in ran.out) == (0, True)
    problems = ("--problems", "builtin:dev", "--limit", "2", "--config", config)
    ran = baton("eval", *problems, "--policies", "specreason", "--json", str(rows))
    assert ran.status == 0, ran.err
    assert {row["speculation"] for row in json.loads(rows.read_text())["rows"]} == {"the server's"}
    ran = baton("eval", *problems, "--speculation", "vanilla")
    assert ran.status != 0
    assert "--speculation" in ran.err
