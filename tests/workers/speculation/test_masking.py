"""Under a grammar, and before `min_tokens` tokens, the law of what comes out is the masked
target's, whatever is drafted.

In three parts: the mask reaches every draft node that can be accepted and no other; a method that
verifies such a tree keeps the masked law exactly, whatever stands at the others; and the loop
itself writes what plain decoding writes under the same grammar.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.errors import InvalidRequest
from orchestrator.types import Sampling
from tests.workers.speculation.exact import Laws, Prefix, agrees, joint, random_laws
from tests.workers.speculation.loops import begin, decoder
from tests.workers.speculation.test_lossless import (  # noqa: F401 (a fixture among them)
    IDS,
    PROOFS,
    emitted,
    method,
    rational_rho,
)
from tests.workers.speculation.test_methods import ALSO, OPTIONS
from workers.model.masking import MinTokens, mask, mask_chain
from workers.model.target import ModelOutput, Target
from workers.model.tree import Plan, Row, Tree
from workers.speculation import METHODS
from workers.speculation.decode import Decoder

VOCABULARY = 12


class Alternating:
    """A toy grammar: tokens rise and fall in turn, `END` may follow an even count of them."""

    END = 0

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        self.vocabulary, self.written = vocabulary, list[int]()

    def allowed(self) -> Any:
        tokens = np.arange(self.vocabulary)
        if not self.written:
            return tokens > 0
        last, rises = self.written[-1], len(self.written) % 2 == 1
        fits = (tokens >= last) if rises else (tokens <= last)
        return np.where(tokens == self.END, not rises, fits & (tokens > 0))

    def accept(self, token: int) -> bool:
        if token == self.END or not self.allowed()[token]:
            return False
        self.written.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.written[len(self.written) - count :]


def masked(laws: Laws, allowed: dict[Prefix, list[bool]]) -> Laws:
    """The laws cut to what is allowed; as they were behind what is not."""
    found = dict(laws)
    for prefix, law in laws.items():
        if all(allowed[prefix[:i]][token] for i, token in enumerate(prefix)):
            cut = law * np.array([Fraction(int(one)) for one in allowed[prefix]], dtype=object)
            found[prefix] = cut / cut.sum()
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("proof", PROOFS, ids=IDS)
def test_the_law_is_the_masked_target_law_exactly(proof: Any, seed: int) -> None:
    name, reference, vocabulary, depth = proof
    rng = random.Random(seed)
    target = random_laws(rng, vocabulary, depth + 1)
    draft = random_laws(rng, vocabulary, depth + 1)
    allowed: dict[Prefix, list[bool]] = {}
    for prefix, law in target.items():
        allowed[prefix] = [rng.random() < 0.6 for _ in range(vocabulary)]
        allowed[prefix][rng.choice([i for i, p in enumerate(law) if p])] = True
    cut = masked(target, allowed)
    law = emitted(cut, draft, reference, method(name).verify_tree, depth)
    assert dict(law) == dict(joint(cut, depth + 1))
    assert all(allowed[whole[:i]][token] for whole in law for i, token in enumerate(whole)), (
        "a forbidden token came out"
    )


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("proof", PROOFS, ids=IDS)
def test_no_text_ends_before_min_tokens_and_its_law_is_the_targets_without_ends(
    proof: Any, count: int
) -> None:
    name, reference, vocabulary, depth = proof
    rng = random.Random(count)
    target = random_laws(rng, vocabulary, depth + 1)
    draft = random_laws(rng, vocabulary, depth + 1)
    end = vocabulary - 1
    for law in target.values():  # ends are likely, and something else is always possible
        law[:] = [*([Fraction(1, 2 * end)] * end), Fraction(1, 2)]
    allowed: dict[Prefix, list[bool]] = {}
    for prefix in target:
        matcher = MinTokens(count, [end], vocabulary)
        for token in prefix:
            matcher.accept(token)
        allowed[prefix] = matcher.allowed().tolist()
    cut = masked(target, allowed)
    law = emitted(cut, draft, reference, method(name).verify_tree, depth)
    assert dict(law) == dict(joint(cut, depth + 1))
    assert not any(end in whole[:count] for whole in law)
    assert count > depth or any(end in whole for whole in law)


def test_what_was_rolled_back_counts_no_more() -> None:
    matcher = MinTokens(2, [0, 99], VOCABULARY)  # ids beyond the model's are no tokens
    assert matcher.allowed().tolist() == [i > 0 for i in range(VOCABULARY)]
    assert not matcher.accept(0)
    assert matcher.accept(5)
    assert matcher.accept(5)
    assert matcher.allowed().all()
    matcher.rollback(1)
    assert not matcher.allowed()[0]


@pytest.mark.parametrize("seed", range(20))
def test_every_node_that_can_be_accepted_is_masked_and_no_other(seed: int) -> None:
    rng = random.Random(seed)
    size = 14
    tree = Tree(
        [rng.randrange(VOCABULARY) for _ in range(size)],
        [-1, *sorted(rng.randrange(i) for i in range(1, size))],
    )
    tree.parents[1:] = [min(parent, i) for i, parent in enumerate(tree.parents[1:])]
    matcher = Alternating()
    matcher.written = [3]
    row = Row(0, [1, tree.tokens[0]], Sampling(), 0, matcher=matcher)
    logits = torch.zeros(2, size, VOCABULARY)
    plain = Row(1, [1], Sampling(), 0)
    mask(Plan([row, plain], [tree, tree]), ModelOutput(logits))
    assert matcher.written == [3]  # where it was before
    assert not logits[1].isinf().any()  # a row without a grammar keeps its scores
    for node in range(size):
        path = []
        at = node
        while at > 0:
            path.insert(0, tree.tokens[at])
            at = tree.parents[at]
        reader = Alternating()
        reader.written = [3]
        reachable = all(reader.accept(token) for token in path)
        expected = reader.allowed() if reachable else np.ones(VOCABULARY, dtype=bool)
        assert (~logits[0, node].isinf()).tolist() == expected.tolist()


def test_a_given_text_is_masked_up_to_what_does_not_fit() -> None:
    logits = torch.zeros(4, VOCABULARY)
    mask_chain(Alternating(), [5, 9, 11], logits)
    assert (~logits[0].isinf()).tolist() == [i > 0 for i in range(VOCABULARY)]
    assert (~logits[1].isinf()).tolist() == [i >= 5 for i in range(VOCABULARY)]
    assert (~logits[2].isinf()).tolist() == [i <= 9 for i in range(VOCABULARY)]
    assert not logits[3].isinf().any()


DRAFTED = {**dict(OPTIONS), **ALSO}
del DRAFTED["vanilla"]


def masking(name: str) -> Decoder:
    return decoder(name, DRAFTED.get(name), slots=2, max_len=120, vocabulary=VOCABULARY)


def constrained(
    loop: Decoder, prompt: list[int], sampling: Sampling, count: int, matcher: Any, end: int = -1
) -> list[int]:
    """What a constrained row writes, as far as the round of its `end`."""
    row = begin(loop, 0, prompt, sampling, count, matcher=matcher)
    while row.remaining_tokens > 0 and end not in row.ids[len(prompt) :]:
        loop.step(loop.rows)
    loop.leave(row)
    loop.target.cache.reset(0)
    return row.ids[len(prompt) :]


def written(loop: Decoder, prompt: list[int], sampling: Sampling, count: int) -> list[int]:
    """What a row writes up to the end that the grammar lets it have."""
    end = Alternating.END
    tokens = constrained(loop, prompt, sampling, count, Alternating(), end)
    return tokens[: tokens.index(end)] if end in tokens else tokens[:count]


def fits(tokens: list[int]) -> bool:
    reader = Alternating()
    return all(reader.accept(token) for token in tokens)


@pytest.mark.parametrize("name", DRAFTED)
def test_every_method_writes_min_tokens(name: str) -> None:
    loop, prompt, end, count = masking(name), [1, 2, 3], 7, 9
    plain = masking("vanilla")

    def tokens(of: Decoder, sampling: Sampling, least: int) -> list[int]:
        matcher = MinTokens(least, range(end), VOCABULARY)  # more than half of all are ends
        return constrained(of, prompt, sampling, 24, matcher)

    greedy = tokens(loop, Sampling(), count)
    assert min(greedy[:count]) >= end
    if loop.lossless:
        assert greedy == tokens(plain, Sampling(), count)
        assert tokens(loop, Sampling(), 0) == tokens(plain, Sampling(), 0)
    ended = 0
    for seed in range(6):
        drawn = tokens(loop, Sampling(1.5, seed=seed), count)
        assert min(drawn[:count]) >= end
        ended += min(drawn[count:]) < end
    assert ended


def test_every_method_is_tried() -> None:
    assert {"vanilla", *DRAFTED} >= METHODS.keys()


@pytest.mark.parametrize("name", DRAFTED)
def test_every_method_writes_what_the_grammar_allows(name: str) -> None:
    loop, plain = masking(name), masking("vanilla")
    for prompt in ([5, 9, 2, 7], [1, 2, 3], [8, 8, 8, 8]):
        greedy = written(loop, prompt, Sampling(), 24)
        assert fits(greedy)
        if loop.lossless:
            assert greedy == written(plain, prompt, Sampling(), 24)
        for seed in range(4):
            assert fits(written(loop, prompt, Sampling(1.5, seed=seed), 24))


@pytest.mark.parametrize("name", ["chain", "recursive-c"])
def test_sampled_tokens_have_the_masked_law(name: str) -> None:
    loop, prompt = masking(name), [1, 2, 3]
    counts: Counter[tuple[int, ...]] = Counter(
        tuple(written(loop, prompt, Sampling(2.0, seed=seed), 2)[:2]) for seed in range(600)
    )
    target = Target(loop.target.model, slots=1, max_len=120)

    def law(ids: list[int], matcher: Alternating) -> list[float]:
        target.cache.truncate(0, ids, 0)
        with torch.inference_mode():
            logits = target.prefill(0, ids).logits[0, -1]
        target.cache.reset(0)
        logits = logits.float().clone() / 2.0
        logits[~torch.from_numpy(matcher.allowed())] = -torch.inf
        return logits.double().softmax(-1).tolist()

    expected: dict[tuple[int, ...], float] = {}
    for first, p in enumerate(law(prompt, Alternating())):
        if p > 0:
            matcher = Alternating()
            assert matcher.accept(first)
            for second, q in enumerate(law([*prompt, first], matcher)):
                expected[(first, second)] = p * q
    cells = sorted(expected)
    agrees([counts[cell] for cell in cells], [expected[cell] for cell in cells])
    assert sum(counts.values()) == sum(counts[cell] for cell in cells)


class Failing(Alternating):
    """A grammar that cannot be followed any further after two tokens."""

    def allowed(self) -> Any:
        if len(self.written) >= 2:
            raise InvalidRequest("the grammar fails: too complex")
        return super().allowed()


def test_a_grammar_that_fails_is_its_rows_failure_alone() -> None:
    loop = masking("chain")
    rows = [
        begin(loop, slot, [1, 2, 3], room=20, matcher=matcher)
        for slot, matcher in enumerate((Failing(), Alternating()))
    ]
    for _ in range(4):
        loop.step(loop.rows)
    assert isinstance(rows[0].failure, InvalidRequest)
    assert rows[1].failure is None
    written = rows[1].ids[3:]
    end = written.index(Alternating.END) if Alternating.END in written else len(written)
    assert fits(written[:end])
