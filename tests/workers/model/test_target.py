"""Every supported family says what transformers' own forward pass says, on the same weights."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.workers.conftest import config_of, network_of
from tests.workers.model.families import CASES, WINDOW, network, stock_logits
from workers.model.families import FAMILIES
from workers.model.shapes import shapes
from workers.model.target import PromptChunk, Target
from workers.model.tree import Tree

FIRST = [5, 9, 33, 2, 71, 8, 60, 61, 5, 17, 90, 44, 3]
SECOND = [60, 61, 5]
TREE = Tree([12, 30, 31, 40, 41, 42, 50, 51, 52, 53, 54], [-1, 0, 0, 1, 1, 2, 3, 6, 7, 5, 8])


def path_to(tree: Tree, node: int) -> list[int]:
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, tree.parents[path[0]])
    return path


def assert_close(found: torch.Tensor, known: torch.Tensor) -> None:
    # The stock norms compute in float32 whatever the type.
    torch.testing.assert_close(found, known, rtol=1e-5, atol=2e-5)


def test_every_family_is_compared_over_its_windows() -> None:
    assert {family for family, _ in CASES.values()} == set(FAMILIES)
    windowed = {family for family, more in CASES.values() if "sliding_window" in more}
    assert windowed == {key for key, one in FAMILIES.items() if "sliding_window" in one.follows}
    assert len(FIRST) > 2 * WINDOW
    assert max(len(path_to(TREE, node)) for node in range(len(TREE))) > WINDOW


@pytest.fixture(params=["together", "apart", "unpadded"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one pass are read as one tensor, or each where it lies, as long ones are; products
    take their padding too, or not."""
    if request.param == "apart":
        monkeypatch.setattr("workers.model.cache.APART", 0)
    if request.param == "unpadded":
        monkeypatch.setattr("workers.model.target.FREE", 0)
        monkeypatch.setattr("workers.model.target.SKIPPING", 0)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("case", CASES)
def test_chains(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt at once and in chunks, behind a cached part, token by token, in ragged rows."""
    model = network(case)
    known, other = stock_logits(model, FIRST), stock_logits(model, SECOND)
    target = Target(network_of(model), slots=3, max_len=32)
    with torch.inference_mode():
        assert_close(target.prefill(0, FIRST, num_logits=len(FIRST)).logits[0], known)
        for chunk in (2, 3, 7):
            target.cache.evict(1)
            monkeypatch.setattr("workers.model.target.CHUNK", chunk)
            output = target.prefill(1, FIRST[:-1], num_logits=2)
            assert_close(output.logits[0], known[-3:-1])
        one = target.forward([1], [Tree(FIRST[-1:], [-1])]).logits[0]
        assert_close(one, known[-1:])
        for at in range(len(FIRST)):
            assert_close(target.prefill(2, FIRST[: at + 1]).logits[0, -1], known[at])
        for slot in (0, 2):
            target.cache.evict(slot)
        ragged = target.forward([0, 1], [Tree.chain(SECOND), Tree(FIRST[-1:], [-1])]).logits
        assert_close(ragged[0], other)
        assert_close(ragged[1, :1], known[-1:])
        for slot in range(3):
            target.cache.evict(slot)
        chunks = PromptChunk(2, FIRST, 3, final=True), PromptChunk(0, SECOND, 1, final=True)
        first, second = target.extend_all(chunks)
        assert_close(first.logits[0], known[-3:])
        assert_close(second.logits[0], other[-1:])


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("case", CASES)
def test_trees(case: str) -> None:
    """Every node of a tree sees its path, alone and beside shorter rows, and so do later passes
    behind the committed branch, in levels as drafters run them."""
    model = network(case)
    target = Target(network_of(model), slots=3, max_len=32)
    wanted = [
        stock_logits(model, FIRST + [TREE.tokens[i] for i in path_to(TREE, node)])[-1]
        for node in range(len(TREE))
    ]
    with torch.inference_mode():
        target.prefill(0, FIRST, num_logits=0)
        target.prefill(2, FIRST, num_logits=0)
        target.prefill(1, SECOND[:-1], num_logits=0)
        alone = target.forward([0], [TREE]).logits[0]
        rows = target.forward([0, 1], [TREE, Tree(SECOND[-1:], [-1])]).logits
        for node, known in enumerate(wanted):
            assert_close(alone[node], known)
            assert_close(rows[0, node], known)
        assert_close(rows[1, 0], stock_logits(model, SECOND)[-1])
        for start, end in ((0, 3), (3, 6), (6, 9), (9, 11)):  # later nodes find earlier ones cached
            level = Tree(TREE.tokens[:end], TREE.parents[:end])
            for slots in ([2], [1, 2]):
                trees = [Tree(SECOND[-1:], [-1])] * (len(slots) - 1) + [level]
                skip = [0] * (len(slots) - 1) + [start]
                logits = target.forward(slots, trees, skip=skip).logits[-1]
                for node in range(start, end):
                    assert_close(logits[node - start], wanted[node])
        branch = path_to(TREE, 10)
        for slot in (0, 2):
            target.cache.commit(slot, branch)
        text = FIRST + [TREE.tokens[node] for node in branch]
        known = stock_logits(model, [*text, 7, 8])[-2:]
        behind = target.forward([0, 2], [Tree.chain([7, 8]), Tree([7, 8, 9], [-1, 0, 0])]).logits
        for row in behind:
            assert_close(row[:2], known)
        assert_close(target.prefill(0, [*text, 7, 8], num_logits=2).logits[0], known)


@pytest.mark.parametrize("case", CASES)
def test_the_names_and_shapes_of_weights_are_those_of_transformers(case: str) -> None:
    model = network(case)
    stored = {name: tuple(one.shape) for name, one in model.named_parameters()}  # a tied one once
    assert shapes(config_of(model)) == stored


@pytest.mark.parametrize("case", ["llama", "granite", "gemma 3"])
def test_half_precision_rounds_no_more_than_transformers_does(case: str) -> None:
    """Distance to the same weights in double precision, beside that of transformers."""
    model = network(case, torch.bfloat16)
    exact = stock_logits(copy.deepcopy(model).double(), FIRST)
    theirs = stock_logits(model, FIRST)
    target = Target(network_of(model), slots=1, max_len=32)
    with torch.inference_mode():
        ours = target.prefill(0, FIRST, num_logits=len(FIRST)).logits[0]
    assert (ours - exact).square().mean() < 1.5 * (theirs - exact).square().mean()
