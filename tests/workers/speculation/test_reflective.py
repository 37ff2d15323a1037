"""Reflective verification: the base method at alpha 0, and what it says it is above that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.lab.pair.generation import generate
from orchestrator.types import Sampling, StopCriteria
from tests.workers.conftest import network_of
from tests.workers.engine.local import ask, run
from tests.workers.speculation.loops import DRAFTS, begin, check_caches, decoder, finish, tiny
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load, load_model
from workers.model.sampling import warp
from workers.model.target import Target
from workers.model.tree import Plan, Row, Tree
from workers.speculation import build
from workers.speculation.decode import Decoder
from workers.text.tokenizer_files import load_tokenizer

PROMPTS = [[5, 9, 2, 7], [1, 2, 3], [8] * 20, [300, 20, 10, 5, 4, 3, 2]]
REFLECTION = [17, 4, 99]
CHAIN: dict[str, Any] = {"draft": "other", "gamma": 3}
BASES: list[dict[str, Any]] = [
    CHAIN,
    {"base": "lookup", "gamma": 4},
    {"base": "spectr", "draft": "other", "count": 2, "gamma": 2},
    {"base": "recursive-c", "draft": "other", "branching": [2, 2, 1]},
    {"base": "recursive-s", "draft": "other", "width": 2, "gamma": 3},
]
OVER = pytest.mark.parametrize("base", BASES, ids=lambda base: base.get("base", "chain"))
WARM = (Sampling(), Sampling(0.8, seed=3), Sampling(1.4, top_p=0.9, seed=4))


def over(base: dict[str, Any], alpha: float, **more: Any) -> Decoder:
    return decoder("reflective", {"prompt": REFLECTION, **base, "alpha": alpha, **more})


def plain(base: dict[str, Any]) -> Decoder:
    name = base.get("base", "chain")
    return decoder(name, {k: v for k, v in base.items() if k != "base"})


def written(
    loop: Decoder, kinds: Sequence[Sampling], answering: Sequence[bool] = (False,) * 4
) -> list[list[int]]:
    """What the prompts' rows write side by side, those named as answers."""
    for slot, prompt in enumerate(PROMPTS):
        begin(loop, slot, prompt, kinds[slot], 20, answering=answering[slot])
    ended = finish(loop)
    return [ended[slot][len(prompt) :] for slot, prompt in enumerate(PROMPTS)]


# At alpha 0 ------------------------------------------------------------------------------


@OVER
@pytest.mark.parametrize("warm", WARM)
def test_at_alpha_0_it_is_its_base(base: dict[str, Any], warm: Sampling) -> None:
    ours, theirs = over(base, 0), plain(base)
    widths: dict[str, list[int]] = {}
    for name, loop in (("ours", ours), ("theirs", theirs)):
        widths[name] = []
        forward = loop.target.forward

        def watched(slots: Any, trees: Any, name: Any = name, f: Any = forward, **more: Any) -> Any:
            widths[name] += [len(tree) for tree in trees]
            return f(slots, trees, **more)

        loop.target.forward = watched  # type: ignore[method-assign]
    made = generate(ours, PROMPTS, 20, sampling=warm)
    assert made == generate(theirs, PROMPTS, 20, sampling=warm)
    assert widths["ours"] == widths["theirs"]  # nothing more is read


# Above it --------------------------------------------------------------------------------


def flat(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits of stock transformers over one sequence."""
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def expected(model: Any, ids: list[int], tree: Tree, alpha: float) -> dict[int, torch.Tensor]:
    """Fused logits behind each node, leaf by leaf, by a whole forward of the flat sequence."""
    paths: list[list[int]] = []
    for node in range(len(tree)):
        if not tree.children(node):
            path = [node]
            while path[0]:
                path.insert(0, tree.parents[path[0]])
            paths.append(path)
    first: dict[int, torch.Tensor] = {}
    second: dict[int, list[torch.Tensor]] = {}
    for path in paths:
        draft = [tree.tokens[node] for node in path[1:]]
        logits = flat(model, ids + draft + REFLECTION + draft)
        begin = len(ids) + len(draft) + len(REFLECTION) - 1
        for place, node in enumerate(path):
            first[node] = logits[len(ids) - 1 + place]
            if place < len(draft):
                second.setdefault(node, []).append(logits[begin + place])
    return {
        node: (1 - alpha) * law + alpha * torch.stack(second[node]).mean(0)
        if node in second
        else law
        for node, law in first.items()
    }


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_logits_are_fused_as_a_plain_reading_of_the_flat_text_says(
    family: str, alpha: float
) -> None:
    options = {**CHAIN, "prompt": REFLECTION, "alpha": alpha}
    loop = decoder("reflective", options, family=family)
    target = loop.target
    trees = [
        Tree.chain([7, 1, 2, 3]),
        Tree([3, 1, 2, 3, 4, 5, 6], [-1, 0, 0, 1, 1, 2, 5]),
        Tree([8], [-1]),
        Tree.chain([2, 11]),
    ]
    rows = [Row(i, list(prompt), Sampling(), 0) for i, prompt in enumerate(PROMPTS)]
    for chosen in ([0], [1], [0, 3], [0, 1, 2, 3]):  # a chain alone, a tree alone, chains, all
        plan = Plan([rows[i] for i in chosen], [trees[i] for i in chosen])
        with torch.inference_mode():
            for row in plan.rows:
                target.cache.truncate(row.slot, row.ids, 0)
                target.prefill(row.slot, row.ids[:-1], num_logits=0)
            made = loop.method.score(target, plan).logits
            assert made.shape[:2] == (len(chosen), max(map(len, plan.trees)))
            for logits, row, tree in zip(made, plan.rows, plan.trees, strict=True):
                for node, law in expected(tiny(family), row.ids, tree, alpha).items():
                    assert torch.allclose(logits[node], law, atol=2e-4), (row.slot, node)


@OVER
def test_a_row_does_not_feel_its_neighbours(base: dict[str, Any]) -> None:
    kinds = [Sampling(1.2), Sampling(), Sampling(0.8, top_p=0.9), Sampling()]
    rows = list(zip((2, 0, 3, 1), PROMPTS, kinds, (12, 3, 7, 9), strict=True))
    together = finish(over(base, 0.5), rows)
    for row in rows:
        assert finish(over(base, 0.5), [row]) == {row[0]: together[row[0]]}


@OVER
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_copy_leaves_no_trace_in_the_cache(base: dict[str, Any], temperature: float) -> None:
    loop = over(base, 0.6)
    for slot, prompt in enumerate(PROMPTS):
        begin(loop, slot, prompt, Sampling(temperature))
    for _ in range(3):
        loop.step(loop.rows)
        check_caches(loop)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_greedy_tokens_are_those_of_a_loop_in_ten_lines(family: str, alpha: float) -> None:
    target, draft = tiny(family), tiny(family, **DRAFTS["other"])
    outputs = []
    for prompt in PROMPTS:
        ids = [*prompt, int(flat(target, prompt)[-1].argmax())]
        while len(ids) < len(prompt) + 15:
            depth = min(3, len(prompt) + 15 - len(ids) - 1)
            drafted = list(ids)
            for _ in range(depth):
                drafted.append(int(flat(draft, drafted)[-1].argmax()))
            tree = Tree.chain(drafted[len(ids) - 1 :])
            laws = expected(target, ids, tree, alpha)
            for node in range(depth + 1):
                ids.append(int(laws[node].argmax()))
                if node == depth or tree.tokens[node + 1] != ids[-1]:
                    break
        outputs.append(ids[len(prompt) :])
    options = {**CHAIN, "prompt": REFLECTION, "alpha": alpha}
    assert generate(decoder("reflective", options, family=family), PROMPTS, 15) == outputs
    # The dial does something: these models do not say what they say at alpha 0.
    usual = generate(decoder("reflective", {**options, "alpha": 0}, family=family), PROMPTS, 15)
    assert usual != outputs


def test_log_probabilities_are_those_of_the_fused_law() -> None:
    loop, warm = over(CHAIN, 0.4), Sampling(0.8)
    for slot, prompt in enumerate(PROMPTS):
        begin(loop, slot, prompt, warm)
    before = [list(row.ids) for row in loop.rows]
    drafts: list[Plan] = []
    draft = loop.method.draft

    def watched(rows: Any) -> Plan:
        drafts.append(draft(rows))
        return drafts[-1]

    loop.method.draft = watched  # type: ignore[method-assign]
    accepted = loop.step(loop.rows)
    for ids, tree, (_, one) in zip(before, drafts[0].trees, accepted, strict=True):
        laws = expected(tiny(), ids, tree, 0.4)
        for node, token, logprob in zip(one.path, one.tokens, one.logprobs, strict=True):
            law = warp(laws[node][None, None], [warm])[0, 0]
            assert logprob == pytest.approx(float(law[token].log()), abs=1e-3)


# Thoughts alone --------------------------------------------------------------------------


@OVER
@pytest.mark.parametrize("warm", WARM[:2])
def test_answers_may_be_exact_beside_lenient_thoughts(base: dict[str, Any], warm: Sampling) -> None:
    """A row is the base's where it answers and the lenient method's where it thinks."""
    thinking, exact = written(over(base, 1.0), [warm] * 4), written(plain(base), [warm] * 4)
    assert thinking != exact  # else nothing could be told apart
    for answering in ([True] * 4, [False] * 4, [True, False, True, False]):
        made = written(over(base, 1.0, thoughts_only=True), [warm] * 4, answering)
        told = zip(answering, exact, thinking, strict=True)
        assert made == [strict if answers else free for answers, strict, free in told]


def test_answers_alone_read_nothing_twice() -> None:
    loop = over(CHAIN, 1.0, thoughts_only=True)
    method: Any = loop.method
    copied: list[Tree] = []
    reflected = method.reflected

    def watched(tree: Tree, room: int) -> Any:
        copied.append(tree)
        return reflected(tree, room)

    method.reflected = watched
    written(loop, [Sampling()] * 4, [True] * 4)
    assert copied == []
    written(loop, [Sampling()] * 4, [True, True, True, False])
    assert copied
    assert not loop.lossless  # for an answer follows from its thought


# Limits ----------------------------------------------------------------------------------


def test_no_copy_is_read_beyond_the_context() -> None:
    """The model has no more positions: where a copy finds none, the first reading decides."""
    positions = 24
    target = Target(network_of(tiny()), slots=1, max_len=positions, vocabulary=400)
    draft = network_of(tiny(**DRAFTS["other"]))
    options = {"draft": "other", "gamma": 3, "alpha": 1.0, "prompt": REFLECTION}
    method = build("reflective", target, lambda _: draft, **options)
    loop = Decoder(target, {"reflective": method})
    reach: list[int] = []
    forward = target.forward

    def watched(slots: Any, trees: Any, **more: Any) -> Any:
        reach.append(target.cache.lengths[0] + max(max(tree.ancestor_masks()[0]) for tree in trees))
        return forward(slots, trees, **more)

    target.forward = watched  # type: ignore[method-assign]
    (made,) = generate(loop, [PROMPTS[0]], positions - len(PROMPTS[0]))
    assert len(made) == positions - len(PROMPTS[0])
    assert max(reach) < positions
    # A context in which no copy fits at all is decoded as by the base.
    short = len(PROMPTS[0]) + 4
    for name, extra in (("reflective", options), ("chain", {"draft": "other", "gamma": 3})):
        small = Target(target.model, slots=1, max_len=short, vocabulary=400)
        loop = Decoder(small, {name: build(name, small, lambda _: draft, **extra)})
        assert generate(loop, [PROMPTS[0]], 4) == generate(plain(CHAIN), [PROMPTS[0]], 4)


def test_leaves_for_which_the_cache_has_no_place_are_judged_once() -> None:
    method: Any = over(CHAIN, 0.5).method
    wide = Tree([0] * 41, [-1] + [0] * 40)
    longer, readings = method.reflected(wide, 100)
    assert len(longer) <= 126
    copies = (126 - 41) // len(REFLECTION)
    assert readings == [(0, 41 + 3 * i + 2, 1 / copies) for i in range(copies)]
    assert method.reflected(Tree([5], [-1]), 100) == (Tree([5], [-1]), [])
    assert method.reflected(Tree.chain([5, 6, 7]), 5)[1] == []  # 2 + 3 + 1 positions
    assert len(method.reflected(Tree.chain([5, 6, 7]), 6)[1]) == 2


# In service ------------------------------------------------------------------------------


async def test_the_engine_knows_what_is_an_answer(checkpoint: Path, draft_checkpoint: Path) -> None:
    """The same prompt's thought by the lenient method, its answer by the exact one."""
    lenient = {"method": "reflective", "draft": str(draft_checkpoint), "gamma": 4, "alpha": 1.0}
    kinds = {
        "only": {**lenient, "thoughts_only": True},
        "lenient": lenient,
        "exact": {"method": "chain", "draft": str(draft_checkpoint), "gamma": 4},
    }
    thinking = ask()
    answering = replace(thinking, transcript=replace(thinking.transcript, closed=True))
    texts: dict[str, list[Any]] = {}
    for name, speculation in kinds.items():
        worker = load(checkpoint, speculation=speculation, rows=2, slots=3, max_len=200)
        made = [await run(worker, call, StopCriteria(30)) for call in (thinking, answering)]
        texts[name] = [one.segment.tokens for one in made]
        assert worker.stats()["lossy"] == (name != "exact")
        worker.close()
    assert texts["lenient"][0] != texts["exact"][0]
    assert texts["lenient"][1] != texts["exact"][1]
    assert texts["only"] == [texts["lenient"][0], texts["exact"][1]]


# It does not accept anything -------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1)])
def test_a_draft_of_random_tokens_is_refused(sampling: Sampling) -> None:
    """A control on a model that can copy: a second look must not wave garbage through."""
    folder = str(resolve("embedded:large"))
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    texts = ["What is 37*46+12?", "Tom has 3 boxes of 14 pens. How many pens?", "2+2", "Ada has 9"]
    prompts = [list(tokenizer.encode(text)) for text in texts]
    vocabulary, rates = len(tokenizer.pieces), {}
    for alpha in (0.0, 0.3, 0.5):
        target = Target(model, slots=4, max_len=128, vocabulary=vocabulary, encode=tokenizer.encode)
        made = build("reflective", target, lambda _: None, base="lookup", gamma=4, alpha=alpha)
        loop, noise = Decoder(target, {"reflective": made}), torch.Generator().manual_seed(0)
        accepted, walk = [], made.verify

        def garbage(rows: list[Row], noise: Any = noise) -> Plan:
            drawn = torch.randint(0, vocabulary, (len(rows), 4), generator=noise)
            trees = [
                Tree.chain([row.ids[-1], *tokens])
                for row, tokens in zip(rows, drawn.tolist(), strict=True)
            ]
            return Plan(rows, trees)

        def watched(plan: Plan, result: Any, walk: Any = walk, to: Any = accepted) -> Any:
            walked = walk(plan, result)
            to += [len(one.path) - 1 for one in walked]
            return walked

        made.draft, made.verify = garbage, watched  # type: ignore[method-assign]
        generate(loop, prompts, 12, sampling=sampling)
        rates[alpha] = sum(accepted) / (4 * len(accepted))
    assert rates[0.0] < 0.02
    assert max(rates.values()) < rates[0.0] + 0.02
