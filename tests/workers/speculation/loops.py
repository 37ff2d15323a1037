"""Decoders over tiny models, rows on them, and what transformers and the model's law say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.types import Sampling
from tests.workers.conftest import head_folder, make_adapter, make_model, network_of
from workers.model.sampling import warp
from workers.model.target import Target
from workers.model.tree import NO_LIMIT, Row, Tree
from workers.speculation import build
from workers.speculation.decode import Decoder

DRAFTS: dict[str, dict[str, Any]] = {
    "same": {"seed": 0},
    "other": {"layers": 1, "width": 16, "seed": 7},
}
"""Draft models by the name that a method's `draft` gives them."""

tiny = cache(make_model)
"""A model that several decoders share: its weights are not to be changed."""


def decoder(
    method: str,
    options: Mapping[str, Any] | None = None,
    *,
    slots: int = 8,
    max_len: int = 64,
    network: Any = None,
    draft: Any = None,
    padded: int = 0,
    **sizes: Any,
) -> Decoder:
    """A loop over one method.

    Args:
        network: in place of the tiny model of those `sizes`; `draft`: in place of its draft model.
        padded: rows that the draft's vocabulary has beyond the target's.
    """
    vocabulary = sizes.setdefault("vocabulary", 400)
    network = tiny(**sizes) if network is None else network
    target = Target(network_of(network), slots=slots, max_len=max_len, vocabulary=vocabulary)
    options = dict(options or {})
    drafting = {method, options.get("base")}
    if "kangaroo" in drafting:
        options.setdefault("adapter", make_adapter())
    if "fspad" in drafting and "head" not in options:
        shape = sizes | {"vocabulary": network.config.vocab_size}
        options["head"] = head_folder(**shape)

    def load(name: str) -> Any:
        own = {**sizes, **DRAFTS[name], "vocabulary": vocabulary + padded}
        return network_of(tiny(**own) if draft is None else draft)

    return Decoder(target, {method: build(method, target, load, **options)})


def begin(
    loop: Decoder,
    slot: int,
    prompt: Sequence[int],
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    room: int = NO_LIMIT,
    **more: Any,
) -> Row:
    """Make a prompt a row."""
    seed = 50 + slot if sampling.seed is None else sampling.seed
    row = Row(slot, list(prompt), sampling, seed, room, **more)
    loop.target.cache.truncate(slot, row.ids, 0)
    loop.join(row, loop.target.prefill(slot, row.ids))
    return row


def finish(loop: Decoder, waiting: Iterable[Sequence[Any]] = ()) -> dict[int, list[int]]:
    """Step until all rows are full; `waiting` ones (as for `begin`) join, one a round.

    Returns each row's ids, the prompt included, by slot.
    """
    waiting, ended = deque(waiting), {}
    while waiting or loop.rows:
        if waiting:
            begin(loop, *waiting.popleft())
        for row in [row for row in loop.rows if row.remaining_tokens <= 0]:
            loop.leave(row)
            ended[row.slot] = row.ids
        if loop.rows:
            loop.step(loop.rows)
    return ended


def check_caches(loop: Decoder) -> None:
    """What is cached of the rows is what a prefill of their tokens would give."""
    drafter = getattr(loop.method, "drafter", None)
    drafts = [drafter.model] if drafter is not None and type(drafter.model) is Target else []
    for row in loop.rows:
        for model in (loop.target, *drafts):
            length = model.cache.lengths[row.slot]
            assert length == len(row.ids) - 1 or (model is not loop.target and length > 2)
            fresh = Target(model.model, slots=1, max_len=model.max_len)
            if model.early_exit is not None:
                fresh.add_early_exit(model.early_exit.adapter)
            fresh.prefill(0, row.ids[:length])
            held = model.cache.data[:, row.slot, :, :length]
            assert torch.allclose(held, fresh.cache.data[:, 0, :, :length], atol=1e-4)


def stock_tokens(model: Any, prompts: Iterable[Sequence[int]], count: int) -> list[list[int]]:
    """The greedy tokens of transformers' own loop."""
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
        outputs.append(made[0, len(prompt) :].tolist())
    return outputs


def law_of_three(model: Any, prompt: list[int], sampling: Sampling) -> NDArray[Any]:
    """[v, v, v] probabilities of the second to the fourth token behind a prompt.

    One pass over all beginnings of three tokens.
    """
    vocabulary = model.config.vocab_size
    target = Target(model, slots=vocabulary**3, max_len=16)
    beginnings = list(np.ndindex(*(vocabulary,) * 3))
    with torch.inference_mode():
        chains = [Tree.chain([*prompt, *map(int, b)]) for b in beginnings]
        logits = target.forward(list(range(len(chains))), chains).logits[:, len(prompt) - 1 :]
        laws = warp(logits, [sampling] * len(chains)).double().numpy()
    exact = np.zeros((vocabulary,) * 3)
    for (x, y, z), law in zip(beginnings, laws, strict=True):
        exact[y, z] += law[0][x] * law[1][y] * law[2][z] * law[3]
    assert abs(exact.sum() - 1) < 1e-4
    return exact / exact.sum()
