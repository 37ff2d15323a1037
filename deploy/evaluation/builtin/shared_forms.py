"""Held-out problems that training has in another notation.

A problem's key decides its part, and several keys may be one calculation: 8+10 and 10+8, or
(3*4)+5 and 5+4*3. So some calculations of held-out keys were trained on all the same. `normal_form`
is equal for all notations of one calculation. `shared_forms.bin` has the forms that are both in a
million training problems (the streams of the recipe's small and large model) and in 200,000
held-out ones. It was written once, for the frozen recipe.
"""

from __future__ import annotations

import ast
import zlib
from array import array
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("shared_forms.bin")
"""The crc32 of every shared form, ascending, four bytes each, little-endian."""


def normal_form(key: str) -> str:
    """Return a key's calculation with sorted operands and without needless brackets."""
    return key if "=" in key else _form(ast.parse(key, mode="eval").body)


def is_shared(form: str) -> bool:
    """Return whether training has a problem of this form."""
    return zlib.crc32(form.encode()) in _shared()


@cache
def _shared() -> frozenset[int]:
    numbers = array("I")
    numbers.frombytes(FILE.read_bytes())
    return frozenset(numbers)


def _form(node: ast.expr) -> str:
    """List the operands of sums and products: first those added, then those subtracted."""
    if not isinstance(node, ast.BinOp):
        return ast.unparse(node)
    for forth, back, signs in ((ast.Add, ast.Sub, "+-"), (ast.Mult, ast.Div, "*/")):
        if isinstance(node.op, (forth, back)):
            operands: dict[bool, list[str]] = {True: [], False: []}
            todo: list[tuple[ast.expr, bool]] = [(node, True)]
            while todo:
                one, forward = todo.pop()
                if isinstance(one, ast.BinOp) and isinstance(one.op, (forth, back)):
                    todo += [(one.left, forward), (one.right, forward == isinstance(one.op, forth))]
                else:
                    operands[forward].append(_form(one))
            first = signs[0].join(sorted(operands[True]))
            return f"({first}{''.join(signs[1] + one for one in sorted(operands[False]))})"
    return f"({_form(node.left)}%{_form(node.right)})"
