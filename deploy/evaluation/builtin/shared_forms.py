"""Held-out problems that training saw in another writing.

The part is decided by the key, and several keys are writings of one calculation: 8+10 and 10+8, or
(3*4)+5 and 5+4*3. So a fifth of all keys was kept from training, and yet some of those calculations
were trained on. `normal_form` is the same for all writings; `shared_forms.bin` names the forms that
both a million training problems (the streams of the recipe's small and large model) and 200,000
held-out ones have (`deploy/lab/pair/shared_forms.py` writes it).
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
    """A key's calculation with operands in order and without brackets that change nothing."""
    return key if "=" in key else _form(ast.parse(key, mode="eval").body)


def is_shared(form: str) -> bool:
    """Whether training has a problem of this form."""
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
