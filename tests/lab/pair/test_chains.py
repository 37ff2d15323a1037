"""Prediction alignment: chains of the large model, as documents, into the small one."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from deploy.lab.pair import recipe
from deploy.lab.pair.chains import Chains, document, write_chains
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.vocabulary import ASSISTANT, CLOSE, END, THINK, USER
from workers.embedded.checkpoints import MODELS
from workers.text.tokenizer_files import load_tokenizer


def quiet(_: str) -> None: ...


def chains_of(path: Path) -> list[tuple[list[int], list[int]]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def loss(checkpoint: Path, chains: list[tuple[list[int], list[int]]]) -> float:
    """Mean negative log-likelihood (natural log) of a token of the replies."""
    author = Author(checkpoint)
    total = count = 0.0
    with torch.inference_mode():
        for prompt, reply in chains:
            log_probs = author.model(torch.tensor([prompt + reply])).logits[0].log_softmax(-1)
            of_reply = log_probs[len(prompt) - 1 : -1].gather(1, torch.tensor(reply)[:, None])
            total, count = total - float(of_reply.sum()), count + len(reply)
    return total / count


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chains(
        MODELS / "large", tmp_path_factory.mktemp("align") / "chains.gz", 6, 0, log=quiet
    )


def test_chains_are_whole_greedy_answers(chains: Path) -> None:
    author = Author(MODELS / "large")
    written = chains_of(chains)
    assert 4 <= len(written) <= 6
    for prompt, reply in written:
        question, answer = author.tokenizer.decode(prompt), author.tokenizer.decode(reply)
        assert question.startswith(USER)
        assert question.endswith(END + ASSISTANT + THINK)
        assert answer.count(CLOSE) == 1
        assert answer.endswith(END)
    ((prompt, reply), *_) = written
    assert author.continued([prompt], 256, to_end=True) == [reply]


def test_only_replies_are_learnt() -> None:
    doc = document([1, 2, 3], [4, 5])
    assert doc.tokens == [1, 2, 3, 4, 5]
    assert doc.targets == [-100, -100, 4, 5, -100]
    assert doc.weights == [0, 0, 1, 1, 0]
    assert len({len(part) for part in (doc.tokens, doc.positions, doc.branches, doc.flags)}) == 1


def test_every_process_reads_all_chains_in_an_order_of_its_own(chains: Path) -> None:
    size = len(chains_of(chains))
    streams = [
        [tuple(doc.tokens) for doc in islice(Chains(chains)(rank, 2, 0), 2 * size)]
        for rank in range(2)
    ]
    assert set(streams[0][:size]) == set(streams[0][size:]) == set(streams[1][:size])
    assert streams[0] != streams[1]


def test_no_chains_are_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "chains.gz"
    with gzip.open(empty, "wt"):
        pass
    with pytest.raises(ValueError, match="holds no chains"):
        next(Chains(empty)(0, 1, 0))


def test_the_stage_brings_the_small_model_closer_to_the_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(
        recipe.RECIPES["align"], batch_tokens=1024, warmup=5, processes=1, compile=False
    )
    monkeypatch.setitem(recipe.RECIPES, "align", short)
    monkeypatch.setattr(recipe, "ALIGNED_PROBLEMS", 6)
    recipe.run("align", tmp_path, tokens=30_000, log=quiet)
    aligned, small = tmp_path / "aligned", MODELS / "small"
    assert load_tokenizer(str(aligned)).hash == load_tokenizer(str(small)).hash
    written = chains_of(tmp_path / "chains.jsonl.gz")
    assert loss(aligned, written) < loss(small, written)
    before = (tmp_path / "chains.jsonl.gz").stat().st_mtime_ns
    recipe.run("align", tmp_path, tokens=31_000, resume=True, log=quiet)
    assert (tmp_path / "chains.jsonl.gz").stat().st_mtime_ns == before
