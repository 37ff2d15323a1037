"""A sequence whose longer versions share it."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest

from orchestrator.persistent import PersistentSequence


def numbers(count: int) -> PersistentSequence[int]:
    return PersistentSequence(range(count))


def test_it_reads_like_a_tuple() -> None:
    for size in (0, 1, 5):
        sequence, same = numbers(size), tuple(range(size))
        assert (tuple(sequence), len(sequence), bool(sequence)) == (same, size, bool(size))
        assert tuple(reversed(sequence)) == same[::-1]
        for start in (None, *range(-7, 8)):
            for stop in (None, *range(-7, 8)):
                for step in (None, 2, -1):
                    assert sequence[start:stop:step] == same[start:stop:step]
        for index in range(-size, size):
            assert sequence[index] == same[index]
        for index in (size, -size - 1):
            with pytest.raises(IndexError, match=f"a sequence of {size}"):
                sequence[index]
    assert 3 in numbers(5)
    assert repr(numbers(2)) == "PersistentSequence([0, 1])"


def test_a_version_stays_as_it_is_whatever_grows_out_of_it() -> None:
    base = numbers(3)
    left, right = base.plus("l").plus("ll"), base.plus("r")
    assert (base, left, right) == ((0, 1, 2), (0, 1, 2, "l", "ll"), (0, 1, 2, "r"))
    assert left.first(3) == base
    assert left.first(0) == numbers(0)
    assert left.first(9) == left


def test_equal_items_make_equal_sequences() -> None:
    assert numbers(3) == numbers(2).plus(2) == (0, 1, 2)
    assert hash(numbers(3)) == hash(numbers(2).plus(2)) == hash((0, 1, 2))
    assert numbers(3) != numbers(4)
    assert numbers(3) != numbers(2).plus(9)
    assert numbers(3) != [0, 1, 2]
    assert numbers(0) == ()


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [
        (numbers(0), numbers(3), 0),
        (numbers(3), numbers(3), 3),  # equal, and nothing shared in memory
        (numbers(3).plus(7), numbers(3).plus(8), 3),
        (numbers(9), numbers(3).plus(8).plus(4), 3),
        (PersistentSequence((5, 1)), numbers(2), 0),
    ],
)
def test_what_two_begin_with(
    left: PersistentSequence[int], right: PersistentSequence[int], shared: int
) -> None:
    assert left.shared(right) == right.shared(left) == shared
    assert left.plus(1).plus(2).shared(left.plus(1)) == len(left) + 1
    assert left.plus(1).shared(left.plus(2)) == len(left)


def test_a_fold_takes_each_item_once() -> None:
    taken = []

    def add(total: int, item: int) -> int:
        taken.append(item)
        return total + item

    base = numbers(4)
    assert base.fold(add, 0) == 6
    assert base.plus(10).fold(add, 0) == 16
    assert base.plus(20).plus(1).fold(add, 0) == 27
    assert base.fold(add, 0) == 6
    assert taken == [0, 1, 2, 3, 10, 20, 1]
    assert numbers(0).fold(add, 5) == 5


def test_a_long_one_can_be_pickled_copied_and_dropped() -> None:
    long = numbers(100_000)
    for again in (pickle.loads(pickle.dumps(long)), deepcopy(long)):
        assert again == long
        assert type(again) is PersistentSequence
    del long, again
