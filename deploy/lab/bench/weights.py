"""Types of weights side by side: how well a model predicts texts, and how long a pass takes.

Perplexity is that of the texts under the model, every token given those before it. One type after
the other is loaded, so their times are not of the same minute: look at ratios above a few percent.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from math import exp
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from deploy.lab.bench.rounds import Numbers, estimate
from workers.engine.loading import open_target
from workers.model.target import Target
from workers.model.tree import Tree

WIDTHS: Final = (1, 4, 8)  # tokens of the passes that are timed
PASSES: Final = 5  # of each width; the median counts
BEHIND: Final = 64  # cached tokens before them


def bench_weights(
    model: str,
    dtypes: Sequence[str],
    texts: Sequence[str],
    *,
    device: str = "cpu",
    threads: int | None = None,
    window: int = 512,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each type; ratios of perplexity are to the first's, with intervals over texts.

    Texts are cut at `window` tokens; those of fewer than two are left out.

    Raises:
        ConfigError: the model cannot be loaded in that type.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    rows: list[Row] = []
    first: Numbers | None = None
    for dtype in dtypes:
        tell(f"{dtype}, loading")
        loaded = open_target(model, device=device, dtype=dtype, slots=1)
        encoded = [list(loaded.tokenizer.encode(text)[:window]) for text in texts]
        encoded = [ids for ids in encoded if len(ids) > 1]
        scored = []
        for number, ids in enumerate(encoded):
            tell(f"{dtype}, text {number + 1} of {len(encoded)}")
            scored.append(_nll(loaded.target, ids))
        sums, counts = np.array(scored), np.array([len(ids) - 1 for ids in encoded], float)
        first = sums if first is None else first
        change = estimate("ratio", (sums - first, counts))
        tell(f"{dtype}, passes")
        rows.append(
            {
                "dtype": dtype,
                "texts": len(encoded),
                "tokens": int(counts.sum()),
                "perplexity": exp(sums.sum() / counts.sum()),
                **{name: exp(value) for name, value in change.items()},
                "pass_ms": {str(n): 1e3 * _seconds(loaded.target, n) for n in WIDTHS},
                "threads": torch.get_num_threads(),
            }
        )
        del loaded
        gc.collect()
    return rows


@torch.inference_mode()
def _nll(target: Target, ids: list[int]) -> float:
    """Summed negative log-likelihood of a text's tokens after its first."""
    target.cache.evict(0)
    logits = target.prefill(0, ids, num_logits=len(ids)).logits[0, :-1].float()
    wanted = torch.tensor(ids[1:], device=logits.device)
    return float(cross_entropy(logits, wanted, reduction="sum"))


@torch.inference_mode()
def _seconds(target: Target, tokens: int) -> float:
    """Median time of a pass over `tokens` tokens."""
    target.cache.evict(0)
    target.prefill(0, [1] * BEHIND, num_logits=0)
    tree, times = Tree.chain([1] * tokens), []
    for _ in range(1 + PASSES):
        began = perf_counter()
        float(target.forward([0], [tree]).logits[0, 0, 0])  # waits for a GPU
        times.append(perf_counter() - began)
    return float(np.median(times[1:]))


COLUMNS: list[Column] = [
    ("weights", lambda row: row["dtype"]),
    ("perplexity", lambda row: f"{row['perplexity']:.4g}"),
    (
        "to the first [95 %]",
        lambda row: f"{row['ratio']:.4f} [{row['ratio_low']:.4f}, {row['ratio_high']:.4f}]",
    ),
    *(
        (f"ms, {n} token{'s' * (n > 1)}", lambda row, n=n: f"{row['pass_ms'][str(n)]:.1f}")
        for n in WIDTHS
    ),
]


def about(model: str, rows: Sequence[Row]) -> str:
    """What was measured, in one sentence."""
    one: dict[str, Any] = rows[0]
    return (
        f"{model}, {one['threads']} threads; perplexity over {one['tokens']} tokens of "
        f"{one['texts']} texts; milliseconds of a pass over tokens after {BEHIND} others, the "
        f"median of {PASSES}."
    )
