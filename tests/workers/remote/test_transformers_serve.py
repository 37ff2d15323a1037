"""The remote worker over `transformers serve` with the embedded checkpoints: a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.errors import Unsupported
from orchestrator.types import LabelQuery, Message, Sampling, StopCriteria, Transcript
from policies.specreason import SpecReason
from tests.deploy.conftest import free_port
from tests.workers.remote.test_worker import JUDGE, QUESTIONS, answer, ask, call, write
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.transformers_serve import TRANSFORMERS_SERVE
from workers.remote.server import Server
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

pytestmark = pytest.mark.timeout(400)

SERVE = "from transformers.cli.transformers import main; main()"
PAIR = ("small", "large")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A `transformers serve` that loads a checkpoint when it is asked for it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log: Path = tmp_path_factory.mktemp("serve") / "log"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", SERVE, "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 240
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, "transformers serve does not answer"
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                    break
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=120)
        process.kill()
        process.wait()


@pytest.fixture
def served(address: str) -> dict[Any, ModelWorker]:
    workers = {}
    for name in PAIR:
        folder = str(resolve(f"embedded:{name}"))
        server = Server(address, silence_s=120.0)
        workers[name] = ModelWorker(
            RemoteBackend(server, folder, load_tokenizer(folder), context=1024)
        )
    return workers


async def test_it_generates_as_in_process(served: dict[Any, ModelWorker]) -> None:
    small = served["small"]
    assert await small.backend.capabilities() == ServerCapabilities("text", TRANSFORMERS_SERVE)
    here = load("embedded:small")
    try:
        for question in QUESTIONS[:2]:
            for criteria in (
                StopCriteria(200),
                StopCriteria(200, until=("\n\n",)),
                StopCriteria(5),
                StopCriteria(200, stop=("=",)),
            ):
                ours, theirs = [
                    (await write(worker, ask(question), criteria)).segment
                    for worker in (here, small)
                ]
                assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
                assert theirs.tokens == ours.tokens
    finally:
        here.close()


async def test_greedy_specreason_as_in_process(served: dict[Any, ModelWorker]) -> None:
    """And with one local worker beside a remote one."""
    here: dict[Any, Any] = {name: load(f"embedded:{name}") for name in PAIR}
    policy = SpecReason(scoring="greedy", judge="short", threshold=5)
    try:
        for question in QUESTIONS[:2]:
            ours = await answer(policy, here, question)
            for pair in (served, {**here, "large": served["large"]}):
                theirs = await answer(policy, pair, question)
                assert [(s.author, s.text, s.score) for s in theirs.steps] == [
                    (s.author, s.text, s.score) for s in ours.steps
                ]
    finally:
        for worker in here.values():
            worker.close()


async def test_what_it_lacks_is_refused_by_name(served: dict[Any, ModelWorker]) -> None:
    transcript = Transcript((Message("user", "1+1?"),))
    with pytest.raises(
        Unsupported, match="log-probabilities, which a distribution over labels needs"
    ):
        await served["large"].classify(call(transcript), LabelQuery(JUDGE, "", ("1", "2")))
    drafted = (await write(served["small"], transcript, StopCriteria(8))).segment
    with pytest.raises(Unsupported, match="log-probabilities of the prompt"):
        await served["large"].verify(call(transcript), drafted, Sampling())


async def test_hanging_up_stops_it(served: dict[Any, ModelWorker]) -> None:
    """It serves one at a time: the next call is answered although the first asked for much."""
    small = served["small"]
    async with aclosing(
        small.generate(call(ask(QUESTIONS[0])), StopCriteria(900), Sampling())
    ) as stream:
        await anext(stream)
    assert (await write(small, ask(QUESTIONS[1]), StopCriteria(4))).segment.text


async def test_it_samples_at_a_temperature(served: dict[Any, ModelWorker]) -> None:
    """Though the checkpoint's `generation_config` does not say `do_sample`; seeds are kept."""
    small, where = served["small"], ask(QUESTIONS[0])
    texts = [
        (await write(small, where, StopCriteria(12), Sampling(2.0, seed=seed))).segment.text
        for seed in (1, 1, 2, 3, 4, 5, 6)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) >= 5
    greedy = (await write(small, where, StopCriteria(12))).segment.text
    likeliest = await write(small, where, StopCriteria(12), Sampling(2.0, top_k=1, seed=3))
    assert likeliest.segment.text == greedy
