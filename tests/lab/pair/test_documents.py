"""Training documents: what is trained, what is only read, and where a step goes wrong."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import astuple
from itertools import islice
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deploy.evaluation.builtin.sketch import Fact, GeneratedProblem
from deploy.lab.pair import documents
from deploy.lab.pair.documents import DocumentWriter
from deploy.lab.pair.mistakes import Mistakes, Reflection
from deploy.lab.pair.steps import is_right, reflects
from deploy.lab.pair.vocabulary import train_tokenizer
from workers.embedded.checkpoints import MODELS

PROBLEM = GeneratedProblem(
    "37*6+12?", "234", "chain", 2, "k", (Fact("37*6", 222), Fact("222+12", 234))
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    out: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.from_file(str(train_tokenizer(documents.texts(0, 2000), out)))


@pytest.mark.parametrize(
    ("index", "text", "right"),
    [
        (0, "37*6=222.", True),
        (0, "First, 6*37=222 pens.", True),
        (0, "37*6=224.", False),
        (0, "36*6=216.", False),  # true, but not this problem's
        (0, "222+12=234.", False),  # a step too early
        (0, "37*6=222. 222+12=234.", False),  # two at once
        (1, "Then 222+12=234.", True),
        (1, "12+222=234.", True),
        (1, "So the answer is 222.", False),  # an early end
        (1, "Let me check: 37*6=222. Yes.", True),
        (1, "Let me check: 37*6=224. Yes.", False),
        (2, "So the answer is 234.", True),
        (2, "So the answer is 224.", False),
        (2, "", False),
    ],
)
def test_the_checker(index: int, text: str, right: bool) -> None:
    assert is_right(PROBLEM, index, text) is right
    less = GeneratedProblem("q", "3", "f", 1, "k", (Fact("7-4", 3),))
    assert not is_right(less, 0, "4-7=3.")


@pytest.mark.parametrize(
    ("judge", "digest"),
    [
        (True, "8b5c1291379ba38ddf147f4b3582004795d9b5d90056e18b0e792bf2c71b6bc3"),
        (False, "01676021b7524cd000a7b3a305ef1a32513672c928fbc0a2062199de1ef595e2"),
    ],
)
def test_documents_stay_the_same_from_version_to_version(judge: bool, digest: str) -> None:
    """The recipe is frozen: every branch, position, target and weight is pinned."""
    shipped = Tokenizer.from_file(str(MODELS / "small" / "tokenizer.json"))
    stream_of_documents = DocumentWriter(shipped, judge=judge).documents("train", 0)
    documents = [astuple(doc) for doc in islice(stream_of_documents, 300)]
    assert hashlib.sha256(json.dumps(documents).encode()).hexdigest() == digest


def test_wrong_steps_are_read_but_never_trained(tokenizer: Tokenizer) -> None:
    mistakes = [Mistakes(PROBLEM, {0: "37*6=999."}, {1: "222+12=888."}, [])]
    wrong = [tokenizer.encode(text).ids for text in ("=999.", "=888.")]
    seen = 0
    for doc in islice(
        DocumentWriter(tokenizer, judge=True, mistakes=mistakes).documents("train", 0), 300
    ):
        trained = [target for target in doc.targets if target >= 0]
        for ids in wrong:
            digits = ids[1:-1]
            seen += _contains(doc.tokens, ids[:-1])
            assert not _contains(trained, [ids[0], *digits])
    assert seen > 50


def _contains(haystack: list[int], needle: list[int]) -> bool:
    return any(haystack[i : i + len(needle)] == needle for i in range(len(haystack)))


REFLECTIONS = [
    Reflection(0, "37*6=999.", "Wait, 37*6=777, not 999.", right=False),
    Reflection(0, "37*6=999.", "Wait, 37*6=222, not 999.", right=True),
]


def test_branches_are_verdicts_on_what_was_said_or_right_repairs(tokenizer: Tokenizer) -> None:
    mistakes = [Mistakes(PROBLEM, {0: "37*6=999."}, {}, REFLECTIONS)]
    counts = {"9": 0, "0": 0, "repaired": 0}
    judged = {reflection.text: set[str]() for reflection in REFLECTIONS}
    for doc in islice(
        DocumentWriter(tokenizer, judge=True, mistakes=mistakes).documents("train", 3), 400
    ):
        for branch in set(doc.branches) - {0}:
            own = [i for i, b in enumerate(doc.branches) if b == branch]
            text = tokenizer.decode([doc.tokens[i] for i in own], skip_special_tokens=False)
            trained = tokenizer.decode([doc.targets[i] for i in own if doc.targets[i] >= 0])
            if documents.JUDGE_QUESTION in text:
                assert trained in ("0", "9")
                assert text.endswith(trained)
                counts[trained] += 1
                for reflection, digits in judged.items():
                    digits.update([trained] if reflection in text else [])
            else:
                assert reflects(trained)
                assert text.endswith(trained)
                counts["repaired"] += 1
    assert min(counts.values()) > 50
    assert list(judged.values()) == [{"0"}, {"9"}]


def test_a_follow_up_is_found_for_every_answer(tokenizer: Tokenizer) -> None:
    """After 0 only sums make sense, and all small ones may be in the parts kept out."""
    writer = DocumentWriter(tokenizer, judge=False)
    for number in range(3000):
        problem = GeneratedProblem("q", str(number % 2), "f", 1, f"key {number}", ())
        assert writer._follow_up(problem, random.Random(number)).tokens
