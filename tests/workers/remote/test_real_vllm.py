"""The remote worker over vLLM's own server with the embedded large checkpoint: a real process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from orchestrator.types import LabelQuery, StopCriteria
from tests.workers.remote.conftest import running
from tests.workers.remote.corruptions import Corrupting
from tests.workers.remote.test_worker import (
    DIGITS,
    GREEDY,
    JUDGE,
    QUESTIONS,
    ask,
    call,
    runs_ahead,
    write,
)
from tests.workers.remote.vllm_like import serving
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.openai import OPENAI
from workers.remote.dialects.vllm import VLLM
from workers.remote.server import Server
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: make test-vllm", allow_module_level=True)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

FOLDER = str(resolve("embedded:large"))
OPTIONS = (
    "-m vllm.entrypoints.openai.api_server --served-model-name large --dtype float32 "
    "--enforce-eager --max-num-seqs 4 --block-size 32 --enable-prompt-tokens-details"
)
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's server on this machine."""
    command = [*OPTIONS.split(), "--model", FOLDER]
    with running(command, ENVIRONMENT, tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url


@pytest.fixture
async def served(address: str) -> Any:
    worker = ModelWorker(
        RemoteBackend(Server(f"{address}/v1"), "large", load_tokenizer(FOLDER), context=1024)
    )
    yield worker
    await worker.backend.aclose()


@pytest.fixture(scope="module")
def builtin() -> Iterator[Any]:
    """The same model over our own engine."""
    worker = load("embedded:large", rows=4, max_len=1024, threads=1)
    yield worker
    worker.close()


async def test_what_it_can_do_is_found(served: ModelWorker) -> None:
    assert await served.backend.capabilities() == ServerCapabilities(
        "ids",
        VLLM,
        top=20,
        scores=True,
        lookups=True,
        min_tokens=True,
        extras=True,
        forms=True,
    )


async def test_a_thought_ends_where_a_proxy_drops_all_ids(address: str, builtin: Any) -> None:
    """The text hides the marker, and stop strings are looked for in the text."""
    with serving(Corrupting(address, "ids are dropped").app) as url:
        worker = ModelWorker(RemoteBackend(Server(url, retries=0), "large", load_tokenizer(FOLDER)))
        capabilities = await worker.backend.capabilities()
        assert capabilities.dialect is OPENAI
        assert capabilities.stops
        for question in QUESTIONS:
            ours = (await write(builtin, ask(question), StopCriteria(120))).segment
            theirs = (await write(worker, ask(question), StopCriteria(120))).segment
            assert replace(theirs, logprobs=()) == replace(ours, logprobs=())
        assert theirs.finish == "think_end"


async def test_it_generates_as_our_own_engine_if_streams_run_ahead(
    address: str, builtin: Any
) -> None:
    server = Server(f"{address}/v1")
    tokenizer = load_tokenizer(FOLDER)
    ahead = ModelWorker(RemoteBackend(server, "large", tokenizer, context=1024, run_ahead=24))
    await runs_ahead(ahead, builtin, StopCriteria(120, until=("\n\n",)))
    await ahead.backend.aclose()


async def test_it_generates_as_our_own_engine(served: ModelWorker, builtin: Any) -> None:
    for question in QUESTIONS:
        for criteria in (StopCriteria(120), StopCriteria(120, until=("\n\n",)), StopCriteria(5)):
            ours = (await write(builtin, ask(question), criteria)).segment
            theirs = (await write(served, ask(question), criteria)).segment
            assert (theirs.text, theirs.tokens, theirs.finish) == (
                ours.text,
                ours.tokens,
                ours.finish,
            )
            assert theirs.logprobs == pytest.approx(ours.logprobs, abs=2e-3)


async def test_it_judges_as_our_own_engine(served: ModelWorker, builtin: Any) -> None:
    for question in QUESTIONS:
        step = (await write(builtin, ask(question), StopCriteria(120, until=("\n\n",)))).segment
        query = LabelQuery(JUDGE, "Score: ", DIGITS, nll=True)
        judged = call(ask(question).extend(step), "large")
        ours, theirs = [await one.classify(judged, query) for one in (builtin, served)]
        assert theirs.probabilities == pytest.approx(ours.probabilities, abs=2e-3)
        assert theirs.outside == pytest.approx(ours.outside, abs=2e-3)
        assert theirs.nll == pytest.approx(ours.nll, abs=2e-3)
        drafted = call(ask(question), "large")
        ours, theirs = [await one.verify(drafted, step, GREEDY) for one in (builtin, served)]
        assert theirs.nll == pytest.approx(ours.nll, abs=2e-3)
        assert (theirs.choices, theirs.pieces) == (ours.choices, ours.pieces)
