"""Relaxed acceptance: what is likely enough stays, and all else is the base method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.types import Sampling
from tests.workers.speculation import test_reflective
from tests.workers.speculation.loops import DRAFTS, decoder, tiny
from tests.workers.speculation.test_reflective import CHAIN, PROMPTS, plain, written
from workers.model.sampling import warp
from workers.model.target import ModelOutput
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.decode import Decoder

BASES: list[dict[str, Any]] = [
    *test_reflective.BASES,
    {"base": "kangaroo", "gamma": 3, "threshold": 0.3},
    {"base": "fspad", "depth": 3, "width": 2, "nodes": 5},
]
OVER = pytest.mark.parametrize("base", BASES, ids=lambda base: base.get("base", "chain"))
ALL = {"top_k": 400, "delta": 1.0, "thoughts_only": False}
"""With these every draft that the target could write is accepted."""


def relaxed(base: dict[str, Any], **options: Any) -> Decoder:
    return decoder("relaxed", {**base, "thoughts_only": False, **options})


@OVER
def test_greedily_with_no_margin_it_is_its_base(base: dict[str, Any]) -> None:
    exact = generate(plain(base), PROMPTS, 20)
    assert generate(relaxed(base, top_k=1, delta=0.0), PROMPTS, 20) == exact
    assert generate(relaxed(base, top_k=1, delta=1.0), PROMPTS, 20) == exact
    assert generate(relaxed(base, top_k=400, delta=0.0), PROMPTS, 20) == exact


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("top_k", "delta"), [(60, 1.0), (400, 0.2), (400, 1.0)])
def test_greedy_tokens_are_those_of_a_loop_in_ten_lines(
    family: str, top_k: int, delta: float
) -> None:
    target, draft = tiny(family), tiny(family, **DRAFTS["other"])

    def law(model: Any, ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0, -1].softmax(-1)

    outputs = []
    for prompt in PROMPTS:
        ids = [*prompt, int(law(target, prompt).argmax())]
        while (room := len(prompt) + 15 - len(ids)) > 0:
            drafted = list(ids)
            for _ in range(min(3, room - 1)):
                drafted.append(int(law(draft, drafted).argmax()))
            for token in drafted[len(ids) :]:
                probs = law(target, ids)
                near = probs[token] >= probs.max() - delta and (probs > probs[token]).sum() < top_k
                ids.append(token if near else int(probs.argmax()))
                if not near and ids[-1] != token:
                    break
            else:
                ids.append(int(law(target, ids).argmax()))
        outputs.append(ids[len(prompt) :])
    loop = decoder("relaxed", {**CHAIN, "top_k": top_k, "delta": delta}, family=family)
    assert generate(loop, PROMPTS, 15) == outputs
    assert outputs != generate(decoder("chain", CHAIN, family=family), PROMPTS, 15)


@OVER
@pytest.mark.parametrize("warm", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "drawn"])
def test_with_the_widest_margin_whole_drafts_stay(base: dict[str, Any], warm: Sampling) -> None:
    loop, shapes = relaxed(base, **ALL), list[tuple[int, int]]()
    verify = loop.method.verify

    def watched(plan: Plan, scores: ModelOutput) -> list[Accepted]:
        accepted = verify(plan, scores)
        shapes.extend(
            (tree.depth, len(one.path) - 1) for tree, one in zip(plan.trees, accepted, strict=True)
        )
        return accepted

    loop.method.verify = watched  # type: ignore[method-assign]
    generate(loop, PROMPTS, 20, sampling=warm)
    assert any(depth for depth, _ in shapes)
    if base.get("base") != "recursive-s":  # whose beams need not all go down to the last level
        assert all(depth == accepted for depth, accepted in shapes)


# One verification, by hand ---------------------------------------------------------------

PROBS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.9, 0.06, 0.03, 0.01], [0.4, 0.3, 0.2, 0.1]])


def verified(
    tree: Tree, sampling: Sampling, row: dict[str, Any] | None = None, **options: Any
) -> Any:
    """What is accepted of a draft where the target's distributions are `PROBS`."""
    method = decoder("relaxed", {"base": "lookup", "thoughts_only": False, **options}).method
    plan = Plan([Row(0, [7], sampling, 5, **(row or {}))], [tree])
    (one,) = method.verify(plan, ModelOutput(PROBS[: len(tree)].log()[None]))
    return one


@pytest.mark.parametrize(
    ("token", "margins", "stays"),
    [
        (0, {"top_k": 1, "delta": 0.0}, True),
        (1, {"top_k": 2, "delta": 0.21}, True),
        (1, {"top_k": 1, "delta": 0.21}, False),
        (1, {"top_k": 2, "delta": 0.19}, False),
        (2, {"top_k": 3, "delta": 0.36}, True),
        (2, {"top_k": 2, "delta": 1.0}, False),
    ],
)
def test_a_token_stays_by_its_rank_and_its_probability(
    token: int, margins: dict[str, Any], stays: bool
) -> None:
    one = verified(Tree.chain([7, token]), Sampling(), **margins)
    assert one.path == ([0, 1] if stays else [0])
    assert one.tokens == ([token, 0] if stays else [0])
    # Told are the target's own probabilities, not that it had no choice.
    places = zip(one.path, one.tokens, strict=True)
    assert one.logprobs == pytest.approx([float(PROBS[n, t].log()) for n, t in places])
    assert one.confidences == pytest.approx([float(PROBS[n].max()) for n in one.path])


def test_of_siblings_the_likeliest_stays() -> None:
    tree = Tree([7, 2, 1, 3], [-1, 0, 0, 0])
    one = verified(tree, Sampling(), top_k=4, delta=1.0)
    assert (one.path, one.tokens[0]) == ([0, 2], 1)


@pytest.mark.parametrize("seed", range(20))
def test_of_drawn_text_a_likely_draft_always_stays(seed: int) -> None:
    """By the probabilities that it is drawn from: what `top_k` or `top_p` cut off is no draft."""
    warm = Sampling(1.7, top_k=3, seed=seed)
    law = warp(PROBS.log()[None, :1], [warm])[0, 0]
    one = verified(Tree.chain([7, 2]), warm, top_k=3, delta=1.0)
    assert one.path == [0, 1]
    assert one.logprobs[0] == pytest.approx(math.log(float(law[2])))
    cut = verified(Tree.chain([7, 3]), warm, top_k=4, delta=1.0)
    assert cut.path == [0]


def test_a_nan_is_left_to_whoever_looks_for_it() -> None:
    method = decoder("relaxed", {"base": "lookup", **ALL}).method
    plan = Plan([Row(0, [7], Sampling(), 5)], [Tree.chain([7, 1])])
    (one,) = method.verify(plan, ModelOutput(torch.full((1, 2, 4), float("nan"))))
    assert math.isnan(one.confidences[0])


# Thoughts alone --------------------------------------------------------------------------


def test_answers_and_what_may_end_a_text_are_verified_exactly() -> None:
    margins = {"top_k": 4, "delta": 1.0, "thoughts_only": True}
    tree = Tree.chain([7, 1, 2])
    assert verified(tree, Sampling(), **margins).path == [0, 1, 2]
    assert verified(tree, Sampling(), {"answering": True}, **margins).path == [0]
    # An end that is not the target's own choice, and what is drafted behind one that is.
    assert verified(tree, Sampling(), {"may_end": {1}.__contains__}, **margins).path == [0]
    ended = Tree.chain([7, 0, 1])
    closing = {"may_end": {0}.__contains__}
    assert verified(ended, Sampling(), closing, **margins).path == [0, 1]
    # An end that is the target's choice is not passed over, whatever else is likely.
    free = {**margins, "thoughts_only": False}
    assert verified(Tree.chain([7, 1, 2]), Sampling(), closing, **free).path == [0]
    later = {"may_end": {2}.__contains__}
    assert verified(Tree.chain([7, 1, 1]), Sampling(), later, **free).path == [0, 1, 2]


@OVER
def test_rows_that_answer_are_the_bases_beside_others(base: dict[str, Any]) -> None:
    options = {**ALL, "thoughts_only": True}
    free = written(relaxed(base, **options), [Sampling()] * 4)
    exact = written(plain(base), [Sampling()] * 4)
    mixed = [True, False, True, False]
    told = zip(mixed, exact, free, strict=True)
    expected = [strict if answers else loose for answers, strict, loose in told]
    assert written(relaxed(base, **options), [Sampling()] * 4, mixed) == expected
