"""The remote worker over `transformers serve` with the embedded checkpoints: a real process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import Unsupported
from orchestrator.types import LabelQuery, Message, Sampling, StopCriteria, Transcript
from policies.specreason import SpecReason
from tests.workers.remote.conftest import running
from tests.workers.remote.test_worker import JUDGE, QUESTIONS, answer, ask, call, texts, write
from tests.workers.remote.vllm_like import PAIR
from workers.embedded.checkpoints import resolve
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.transformers_serve import TRANSFORMERS_SERVE
from workers.remote.server import Server
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

pytestmark = pytest.mark.timeout(400)

SERVE = "from transformers.cli.transformers import main; main()"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A `transformers serve` that loads a checkpoint when it is asked for it."""
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = ["-c", SERVE, "serve", "--device", "cpu", "--dtype", "float32"]
    with running(command, environment, tmp_path_factory.mktemp("serve") / "log") as url:
        yield url


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


async def test_it_generates_as_in_process(
    served: dict[Any, ModelWorker], pair: dict[Any, Any]
) -> None:
    small = served["small"]
    assert await small.backend.capabilities() == ServerCapabilities("text", TRANSFORMERS_SERVE)
    for question in QUESTIONS[:2]:
        for where, criteria, ours in (await texts(pair["small"], question))[:4]:
            theirs = (await write(small, where, criteria)).segment
            assert replace(theirs, logprobs=()) == replace(ours, logprobs=())


async def test_greedy_specreason_as_in_process(
    served: dict[Any, ModelWorker], pair: dict[Any, Any]
) -> None:
    """And with one local worker beside a remote one."""
    policy = SpecReason(scoring="greedy", judge="short", threshold=5)
    for question in QUESTIONS[:2]:
        ours = await answer(policy, pair, question)
        for workers in (served, {**pair, "large": served["large"]}):
            theirs = await answer(policy, workers, question)
            assert [(s.author, s.text, s.score) for s in theirs.steps] == [
                (s.author, s.text, s.score) for s in ours.steps
            ]


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
