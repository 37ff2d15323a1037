"""The remote worker over llama.cpp's server with a pretrained model: what the engine here gives.

The server has the engine's weights, unquantized. (With the GGUF file's own, in 4 bits, it also
rounds activations to 8 bits, and the smallest model says other things.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.peers.llama_cpp import live_slots, serving_gguf, write_gguf
from orchestrator.types import LabelQuery, Message, StopCriteria, Transcript
from tests.workers.remote.test_worker import DIGITS, GREEDY, call, write
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.server import Server
from workers.worker import EngineWorker, ModelWorker

FOLDER = Path(__file__).parents[2] / "build" / "real-pair" / "tiny"
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Sag Hallo auf Deutsch und male drei Emojis: 🦜🧬🧠",
)
NEAR = 0.05  # of a log-probability, by rounding

pytestmark = [
    pytest.mark.skipif(not FOLDER.is_dir(), reason="no weights: make real-pair"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def here() -> Iterator[EngineWorker]:
    worker = load(str(FOLDER), dtype="float32", rows=2, max_len=1024)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = write_gguf(FOLDER, tmp_path_factory.mktemp("llama.cpp") / "tiny.gguf")
    with serving_gguf(file, 1024, slots=2) as address:
        yield address


@pytest.fixture
def served(url: str, here: EngineWorker) -> ModelWorker:
    return ModelWorker(RemoteBackend(Server(url), "tiny", here.tokenizer))


def ask(question: str) -> Transcript:
    return Transcript((Message("user", question),))


async def test_greedy_text_ids_and_log_probabilities(
    here: EngineWorker, served: ModelWorker
) -> None:
    """Equal up to a choice between two tokens that are as likely but for rounding."""
    for question in QUESTIONS:
        transcript = ask(question)
        ours, theirs = [
            (await write(worker, transcript, StopCriteria(40))).segment for worker in (here, served)
        ]
        pairs = list(zip(ours.tokens, theirs.tokens, strict=False))
        same = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
        assert same >= min(8, len(ours.tokens)), (ours.text, theirs.text)
        for one, other in zip(ours.logprobs[:same], theirs.logprobs[:same], strict=True):
            assert other == 0.0 or other == pytest.approx(one, abs=NEAR)
        if same < len(pairs):
            before = transcript.extend(
                type(ours)("large", "", ours.tokens[:same], (), ours.tokenizer)
            )
            options = type(ours)("large", "", (theirs.tokens[same],), (), ours.tokenizer)
            (nll,) = (await here.verify(call(before), options, GREEDY)).nll
            assert nll == pytest.approx(-ours.logprobs[same], abs=NEAR)


async def test_a_distribution_over_digits(here: EngineWorker, served: ModelWorker) -> None:
    query = LabelQuery(
        (Message("user", "Rate this from 0 to 9 with one digit."),), "The digit is: ", DIGITS
    )
    for question in QUESTIONS:
        ours, theirs = [
            await worker.classify(call(ask(question)), query) for worker in (here, served)
        ]
        assert theirs.probabilities == pytest.approx(ours.probabilities, abs=0.02)
        assert theirs.outside == pytest.approx(ours.outside, abs=0.02)


async def test_hanging_up_stops_it(served: ModelWorker, url: str) -> None:
    stream: Any = served.generate(call(ask("Count to 500.")), StopCriteria(900), GREEDY)
    await anext(stream)
    assert live_slots(url) == 1
    await stream.aclose()
    for _ in range(100):
        if live_slots(url) == 0:
            break
        await asyncio.sleep(0.05)
    assert live_slots(url) == 0


async def test_calls_at_once_answer_as_they_do_alone(served: ModelWorker) -> None:
    alone = [(await write(served, ask(question), StopCriteria(12))) for question in QUESTIONS]
    together = await asyncio.gather(
        *(write(served, ask(question), StopCriteria(12)) for question in QUESTIONS)
    )
    assert [one.segment.tokens[:6] for one in together] == [one.segment.tokens[:6] for one in alone]
