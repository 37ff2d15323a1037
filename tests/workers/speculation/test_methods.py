"""Every lossless method on real models: tokens, laws, caches, and in service.

A new method is tested here by one line in `OPTIONS`; what it emits is compared with transformers
and with the model's own law, whatever it drafts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.lab.pair.generation import generate
from deploy.lab.stock import stock
from deploy.service.worker_spec import LOSSY
from orchestrator.errors import WorkerError
from orchestrator.types import Sampling, StopCriteria
from tests.workers.conftest import head_folder, make_adapter, network_of, save_head
from tests.workers.engine.local import ask, run
from tests.workers.speculation.exact import agrees
from tests.workers.speculation.loops import (
    DRAFTS,
    begin,
    check_caches,
    decoder,
    finish,
    law_of_three,
    tiny,
)
from workers.engine.loading import load
from workers.model.sampling import warp
from workers.model.target import Target
from workers.model.tree import Row, Tree
from workers.speculation import METHODS, build
from workers.speculation.decode import Decoder
from workers.speculation.drafter import DrafterMethod
from workers.worker import EngineWorker

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("vanilla", {}),
    ("chain", {"draft": "other", "gamma": 3}),
    ("chain", {"draft": "other", "gamma": 4, "threshold": 0.015}),
    ("lookup", {"gamma": 4}),
    ("spectr", {"draft": "other", "count": 3, "gamma": 2}),
    ("recursive-c", {"draft": "other", "branching": [2, 2]}),
    ("recursive-s", {"draft": "other", "width": 3, "gamma": 3}),
    ("kangaroo", {"adapter": make_adapter(), "gamma": 3, "threshold": 0.3}),
    ("fspad", {"depth": 3, "width": 2, "nodes": 5}),
]


DRAFTING = [
    *(case for case in OPTIONS if case[0] not in ("vanilla", "lookup")),
    ("reflective", {"draft": "other", "gamma": 3}),
    ("relaxed", {"draft": "other", "gamma": 3}),
]
"""Those whose drafts come from a model; `auto` has them from these."""


LOSSLESS = pytest.mark.parametrize(
    ("method", "options"), OPTIONS, ids=[name for name, _ in OPTIONS]
)


def test_every_lossless_method_is_tested() -> None:
    lossless = {name for name, made in METHODS.items() if made.lossless}  # type: ignore[attr-defined]
    assert lossless == {name for name, _ in OPTIONS} | {"auto"}  # auto: test_auto.py


# Tokens ----------------------------------------------------------------------------------

LENGTHS = (3, 5, 9, 14)


@pytest.fixture(scope="module")
def expected() -> tuple[list[list[int]], list[list[int]]]:
    """80 prompts of four lengths, and what transformers makes of them."""
    generator = torch.Generator().manual_seed(0)
    prompts, outputs = [], []
    for length in LENGTHS:
        ids = torch.randint(0, 400, (20, length), generator=generator)
        made = tiny().generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False
        )
        prompts += ids.tolist()
        outputs += made[:, length:].tolist()
    order = torch.randperm(80, generator=generator).tolist()  # neighbours of unequal length
    return [prompts[i] for i in order], [outputs[i] for i in order]


@LOSSLESS
def test_greedy_tokens_are_those_of_transformers(
    method: str, options: dict[str, Any], expected: Any
) -> None:
    prompts, outputs = expected
    assert generate(decoder(method, options, slots=80, padded=9), prompts, 7) == outputs
    alone = decoder(method, options, slots=1)
    assert [generate(alone, [prompt], 7)[0] for prompt in prompts[:16]] == outputs[:16]


ALSO: dict[str, dict[str, Any]] = {
    "reflective": {"draft": "other", "gamma": 3, "prompt": [7, 8]},
    "relaxed": {"draft": "other", "gamma": 3},
    "auto": {"draft": "other", "lengths": [2]},
}


def beside_each_other(*, slots: int = 8, only: str | None = None) -> Decoder:
    """A decoder whose rows may have any method, or `only` one of them."""
    target = Target(network_of(tiny()), slots=slots, max_len=64, vocabulary=400)
    wanted = {**dict(reversed(OPTIONS)), **ALSO}
    wanted["fspad"] = {"head": head_folder(), **wanted["fspad"]}
    named = {
        name: build(name, target, lambda draft: network_of(tiny(**DRAFTS[draft])), **options)
        for name, options in wanted.items()
        if only in (None, name)
    }
    return Decoder(target, named)


EVERY = [*dict.fromkeys(name for name, _ in OPTIONS), *ALSO]
MIXED = EVERY * 3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_p=0.95, seed=11)], ids=str)
def test_rows_of_all_methods_in_one_batch_say_what_they_say_alone(
    sampling: Sampling, expected: Any
) -> None:
    prompts, outputs = (part[: len(MIXED)] for part in expected)
    made = generate(
        beside_each_other(slots=len(MIXED)), prompts, 7, sampling=sampling, methods=MIXED
    )
    for name in EVERY:
        mine = [at for at, method in enumerate(MIXED) if method == name]
        if sampling.temperature == 0 and name not in LOSSY:
            assert [made[at] for at in mine] == [outputs[at] for at in mine], name
        if name == "auto" and sampling.temperature > 0:
            continue  # which method draws a token depends on the clock
        alone = beside_each_other(only=name)
        for at in mine:
            seeded = Sampling(sampling.temperature, sampling.top_p, seed=11 + at)
            assert generate(alone, [prompts[at]], 7, sampling=seeded) == [made[at]], name


def test_a_slot_goes_from_method_to_method(expected: Any) -> None:
    """What one has left in its drafter, or was copied there, misleads no other."""
    prompts, outputs = expected
    loop = beside_each_other(slots=3)
    lossless = [name for name in EVERY if name not in LOSSY]
    for at, prompt in enumerate(prompts[:60]):
        method = lossless[at % len(lossless)]
        shared = [*prompt[:-1], prompt[-1]]
        assert generate(loop, [shared], 7, methods=[method]) == [outputs[at]], method
        loop.copy(0, 1 + at % 2, at % (loop.target.cache.lengths[0] + 1))
        if at % 3 == 0:
            loop.copy(1, 0, loop.target.cache.lengths[1])


@LOSSLESS
def test_a_draft_of_the_target_itself_is_accepted(method: str, options: dict[str, Any]) -> None:
    if "draft" not in options:
        pytest.skip("no draft model")
    # Without noise a beam is not bound to hold the path of the argmax.
    warm = [Sampling(1.0, seed=3), Sampling(0.7, top_p=0.9, seed=4)]
    for sampling in warm if method == "recursive-s" else [Sampling(), *warm]:
        certain = {"threshold": 0} if "threshold" in options else {}
        loop = decoder(method, {**options, "draft": "same", **certain}, slots=1)
        generate(loop, [[5, 9, 2, 7]], 25, sampling=sampling)
        depth = len(options.get("branching", [0] * options.get("gamma", 0)))
        assert loop.target.passes == 1 + -(-24 // (depth + 1))


@LOSSLESS
@pytest.mark.parametrize("warm", [Sampling(1.0, top_p=0.8), Sampling(1.6)])
def test_sampled_tokens_follow_the_law_of_the_model(
    method: str, options: dict[str, Any], warm: Sampling
) -> None:
    vocabulary, draws, prompt = 5, 400, [1, 2, 3]
    loop = decoder(method, options, slots=draws, vocabulary=vocabulary, padded=2)
    counts = np.zeros((vocabulary,) * 3)
    for output in generate(loop, [prompt] * draws, 6, sampling=replace(warm, seed=7_000)):
        counts[tuple(output[1:4])] += 1
    agrees(counts.ravel(), law_of_three(loop.target.model, prompt, warm).ravel())


@LOSSLESS
def test_a_row_does_not_feel_its_neighbours(method: str, options: dict[str, Any]) -> None:
    """Ragged prompts, greedy and sampled rows, that join and end one after the other."""
    prompts = [[5, 9, 2, 7], [8] * 20, [1, 2, 3], [300, 20, 10, 5, 4, 3, 2], [9, 9]]
    rooms = [12, 3, 7, 1, 9]
    kinds = [Sampling(1.2, seed=3), Sampling(), Sampling(0.8, top_p=0.9), Sampling(2.0), Sampling()]
    rows = list(zip((3, 0, 5, 1, 4), prompts, kinds, rooms, strict=True))
    together = finish(decoder(method, options), rows)
    for row, prompt, room in zip(rows, prompts, rooms, strict=True):
        assert len(together[row[0]]) == len(prompt) + room
        assert finish(decoder(method, options), [row]) == {row[0]: together[row[0]]}


@LOSSLESS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_caches_after_every_round_equal_a_fresh_prefill(
    method: str, options: dict[str, Any], temperature: float
) -> None:
    loop = decoder(method, options)
    for slot, prompt in enumerate([[5, 9, 2, 7], [8] * 12, [1, 2, 3]]):
        begin(loop, 2 * slot, prompt, Sampling(temperature))
    for _ in range(3):
        loop.step(loop.rows)
        check_caches(loop)


# In service ------------------------------------------------------------------------------

BESIDE_VANILLA = pytest.mark.parametrize(
    ("method", "options"), [(name, options) for name, options in dict(OPTIONS).items() if options]
)


async def answers(worker: EngineWorker) -> list[Any]:
    """Spans that end inside a block in every way there is, and calls that meet."""
    spans = [
        StopCriteria(23),
        StopCriteria(40, until=("a", "\n")),
        StopCriteria(40, stop=WORDS[:1]),
        StopCriteria(40, stop=WORDS[1:]),
        StopCriteria(40, min_confidence=0.05),
        StopCriteria(1),
        StopCriteria(2),
    ]

    async def one(text: str, criteria: StopCriteria) -> Any:
        segment = (await run(worker, ask(text), criteria)).segment
        return segment.text, segment.tokens, segment.finish

    texts = ["What is 12 + 34?", "What is 12 + 35?", "Hello", "What is 12 + 34?"]
    return [await asyncio.gather(*(one(text, criteria) for text in texts)) for criteria in spans]


WORDS = ("st", "e", "9", "z")


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Any:
    """What plain decoding answers, with an end-of-turn id in the middle of every text."""

    async def answered() -> tuple[int, list[Any]]:
        worker = load(checkpoint, rows=2, slots=3, max_len=200)
        whole = await answers(worker)
        end = whole[0][0][1][11]
        worker.backend.ends |= {end}
        ended = await answers(worker)
        worker.close()
        return end, [whole, ended]

    end, expected = asyncio.run(answered())
    finishes = {answer[2] for part in expected for criteria in part for answer in criteria}
    assert finishes >= {"length", "until", "stop", "doubt", "eos"}
    return end, expected


@BESIDE_VANILLA
async def test_spans_end_where_they_end_without_speculation(
    method: str, options: dict[str, Any], checkpoint: Path, plain: Any, tmp_path: Path
) -> None:
    end, expected = plain
    if "draft" in options:  # the target itself, so that whole blocks are accepted
        options = {**options, "draft": str(checkpoint)}
    if method == "fspad":
        save_head(tmp_path, stock(checkpoint))
        options = {**options, "head": str(tmp_path)}
    speculation = {"method": method, **options}
    worker = load(checkpoint, speculation=speculation, rows=2, slots=3, max_len=200)
    made = [await answers(worker)]
    worker.backend.ends |= {end}
    made.append(await answers(worker))
    worker.close()
    assert made == expected


def open_worker(
    method: str, options: dict[str, Any], checkpoint: Path, draft_checkpoint: Path, folder: Path
) -> EngineWorker:
    """A worker that decodes with the method, its draft model and head among `options` filled in."""
    if "draft" in options:
        options = {**options, "draft": str(draft_checkpoint)}
    if method == "fspad":
        save_head(folder, stock(checkpoint))
        options = {**options, "head": str(folder)}
    return load(checkpoint, speculation={"method": method, **options}, rows=2, max_len=200)


@BESIDE_VANILLA
async def test_nan_logits_are_an_error_and_poison_nobody(
    method: str, options: dict[str, Any], checkpoint: Path, draft_checkpoint: Path, tmp_path: Path
) -> None:
    worker = open_worker(method, options, checkpoint, draft_checkpoint, tmp_path)

    async def tokens(sampling: Sampling) -> Any:
        return (await run(worker, ask("What?"), StopCriteria(9), sampling)).segment.tokens

    good = await tokens(Sampling())
    loop = worker.backend.engine.decoder
    score = loop.method.score

    def broken(target: Target, plan: Any) -> Any:
        result = score(target, plan)
        result.logits.fill_(torch.nan)
        return result

    loop.method.score = broken  # type: ignore[method-assign]
    for sampling in (Sampling(), Sampling(0.8, seed=1)):
        with pytest.raises(WorkerError, match="NaN"):
            await tokens(sampling)
    loop.method.score = score  # type: ignore[method-assign]
    assert await tokens(Sampling()) == good
    worker.close()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=1)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("method", "options"), DRAFTING, ids=[name for name, _ in DRAFTING])
async def test_a_draft_of_nan_is_an_error_and_no_later_call_meets_it(
    method: str,
    options: dict[str, Any],
    sampling: Sampling,
    checkpoint: Path,
    draft_checkpoint: Path,
    tmp_path: Path,
) -> None:
    """Also behind a first level that is sound, where a threshold must not take it for certainty."""
    worker = open_worker(method, options, checkpoint, draft_checkpoint, tmp_path)

    async def tokens() -> Any:
        return (await run(worker, ask("What?"), StopCriteria(9), sampling)).segment.tokens

    good = await tokens()
    model = worker.backend.engine.decoder.method
    model = getattr(model, "base", model)
    model = model.drafter.model if isinstance(model, DrafterMethod) else model.target
    name = "_early_logits" if method == "kangaroo" else "forward"
    whole = getattr(model, name)
    for sound in (0, 1):
        left = [None] * sound

        def broken(*args: Any, left: list[None] = left, **more: Any) -> Any:
            result = whole(*args, **more)
            logits = result if isinstance(result, torch.Tensor) else result.logits
            if left:
                left.pop()
            elif logits.shape[1]:
                model.cache.data[:] = torch.nan
                logits[..., -1] = torch.nan
            return result

        setattr(model, name, broken)
        with pytest.raises(WorkerError, match=r"(draft|adapter)'s logits are NaN"):
            await tokens()
        setattr(model, name, whole)
        if method == "kangaroo":  # the engine resets the slots of failed calls, not of others
            model.cache.data.nan_to_num_()
        assert await tokens() == good
    worker.close()


@LOSSLESS
def test_log_probabilities_are_those_of_the_model(method: str, options: dict[str, Any]) -> None:
    """Not of a residual, and not of the draft."""
    warm = Sampling(0.8, top_p=0.9)
    loop = decoder(method, options, slots=1)
    row = Row(0, [5, 9, 2, 7], warm, 3)
    logprobs = loop.join(row, loop.target.prefill(0, row.ids)).logprobs
    for _ in range(5):
        logprobs += loop.step(loop.rows)[0][1].logprobs
    target = Target(loop.target.model, slots=1, max_len=64)
    with torch.inference_mode():
        laws = warp(target.forward([0], [Tree.chain(row.ids)]).logits, [warm])[0, 3:-1]
    expected = laws.gather(1, torch.tensor(row.ids[4:])[:, None]).log().squeeze(1)
    assert torch.allclose(torch.tensor(logprobs), expected, atol=1e-3)
