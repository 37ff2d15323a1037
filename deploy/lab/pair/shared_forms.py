"""Write `shared_forms.bin` again: `python -m deploy.lab.pair.shared_forms` (some 5 minutes)."""

from __future__ import annotations

import zlib
from array import array
from itertools import islice

from deploy.evaluation.builtin.problems import Part, stream
from deploy.evaluation.builtin.shared_forms import FILE, normal_form
from deploy.lab.pair.recipe import RECIPES

TRAINED, HELD_OUT = 500_000, 200_000


def _forms(part: Part, seed: int, count: int) -> set[str]:
    return {normal_form(problem.key) for problem in islice(stream(part, seed), count)}


def write() -> None:
    """Write the forms that training and the held-out part share."""
    trained = set().union(
        *(_forms("train", RECIPES[name].seed, TRAINED) for name in ("small", "large"))
    )
    shared = trained & _forms("heldout", 0, HELD_OUT)
    FILE.write_bytes(array("I", sorted(zlib.crc32(form.encode()) for form in shared)).tobytes())
    print(f"{FILE}: {len(shared)} forms")


if __name__ == "__main__":
    write()
