"""An immutable sequence whose longer versions share the shorter ones.

A request's transcript grows step by step, while the policy, the record and a busy worker keep
earlier versions. A step costs only what it adds, whatever the length before it. Values derived from
the items (their tokens, their ids in a prompt) grow the same way, by `fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")


class _Node(Generic[T]):
    """The last item of a version, the node of the version before it, and its folds by function."""

    __slots__ = ("before", "folds", "item", "size")

    def __init__(self, before: _Node[T] | None, item: T) -> None:
        self.before, self.item = before, item
        self.size: int = 1 if before is None else before.size + 1
        self.folds: dict[Any, Any] = {}


class PersistentSequence(Sequence[T]):
    """An immutable sequence, a list linked from its end: `plus` takes constant time.

    An index costs its distance from the end. It equals a sequence or a tuple of equal items.
    """

    __slots__ = ("_last",)
    _last: _Node[T] | None

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._last = None
        for item in items:
            self._last = _Node(self._last, item)

    def plus(self, item: Any) -> Self:
        return self._ending(_Node(self._last, item))

    def first(self, count: int) -> Self:
        """Return the first `count` items, shared."""
        node = self._last
        while node is not None and node.size > count:
            node = node.before
        return self._ending(node)

    def shared(self, other: PersistentSequence[T]) -> int:
        """Return the length of the common beginning; quick if one has grown out of the other."""
        least = min(len(self), len(other))
        mine, theirs = self.first(least)._last, other.first(least)._last
        while mine is not theirs:  # of one length, so both end at once
            assert mine is not None
            assert theirs is not None
            mine, theirs = mine.before, theirs.before
        count = 0 if mine is None else mine.size
        for own, its in zip(self[count:least], other[count:least], strict=True):
            if own != its:
                break
            count += 1
        return count

    def fold(self, function: Callable[[V, T], V], start: V) -> V:
        """Return `function(function(start, item 0), item 1)` and so on, cached for longer versions.

        `function` must be pure, and always come with the same `start`.
        """
        todo, node = [], self._last
        while node is not None and function not in node.folds:
            todo.append(node)
            node = node.before
        value: V = start if node is None else node.folds[function]
        for node in reversed(todo):
            value = node.folds[function] = function(value, node.item)
        return value

    def __len__(self) -> int:
        return 0 if self._last is None else self._last.size

    def __reversed__(self) -> Iterator[T]:
        node = self._last
        while node is not None:
            yield node.item
            node = node.before

    def __iter__(self) -> Iterator[T]:
        return reversed(list(reversed(self)))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        size = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(size)
            if step != 1:
                return tuple(self)[index]
            tail = tuple(islice(reversed(self), size - start))[::-1]
            return tail[: max(0, stop - start)]
        from_end = size - 1 - index if index >= 0 else -1 - index
        if not 0 <= from_end < size:
            raise IndexError(f"no item {index} in a sequence of {size}")
        return next(islice(reversed(self), from_end, None))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PersistentSequence):
            return len(self) == len(other) == self.shared(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self),)

    @classmethod
    def _ending(cls, last: _Node[Any] | None) -> Self:
        made = cls.__new__(cls)
        made._last = last
        return made
