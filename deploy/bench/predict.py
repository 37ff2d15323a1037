"""Both models' laws along what plain decoding wrote, and what they predict of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from deploy.bench.contenders import Contender, Ours
from deploy.bench.expected import Place, along
from deploy.bench.rounds import Estimate, Row, estimate, pooled
from orchestrator.types import Sampling
from workers.engine.loading import LoadedTarget
from workers.model.sampling import warp
from workers.model.target import Target

PLACES = 2500
"""So many places are enough for the second digit; they are whole texts, the first ones."""

TOLD = (
    "Predicted: acceptance lengths from the laws of both models along {texts} texts of plain "
    "decoding in this run ({places} places, full vocabulary). chain, block, spectr, recursive-c "
    "and greedy-multi: closed forms, rounds summed as a Markov chain over the places; of a "
    "rejected sibling before a third one the 12 likeliest are told apart. Others (recursive-s, "
    "traversal): trees drawn by the method, what its rule accepts of them summed exactly."
)


def predictions(
    contenders: Sequence[Contender],
    loaded: LoadedTarget,
    draft: str,
    prompts: Sequence[list[int]],
    texts: Sequence[tuple[int, list[int]]],
    temperature: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Estimate], Row]:
    """Mean acceptance length by label, and the chance of a token of the draft model itself."""
    ours = [one for one in contenders if isinstance(one, Ours)]
    slots, longest = 1, loaded.target.max_len
    model = loaded.load_draft(draft)
    networks = [
        Target(one, slots=slots, max_len=longest, vocabulary=loaded.target.vocabulary)
        for one in (loaded.target.model, model)
    ]
    emitted: dict[str, list[tuple[float, float]]] = {one.entry.label: [] for one in ours}
    overlaps: list[tuple[float, float]] = []
    used = 0
    for prompt, output in texts:
        if used >= PLACES or len(output) < 2:
            continue
        tell("laws")
        places = list(_places(networks, prompts[prompt], output, temperature))
        used += len(places)
        overlaps.append(
            (sum(float(np.minimum(p.target, p.draft).sum()) for p in places), len(places))
        )
        for one in ours:
            if one.entry.parameter("threshold"):
                continue  # its depth depends on the text: no closed form
            needed = along(one.entry.method, _complete(one), places)
            if needed is not None:
                emitted[one.entry.label].append((len(places), needed))
    found = pooled(emitted)
    for one in ours:
        label = one.entry.label
        if label not in found and one.entry.method != "vanilla" and temperature == 1.0:
            tell(label)
            value = _drawn(one, prompts)
            if value is not None:
                found[label] = value
    counted = np.array(overlaps)
    acceptance = estimate((counted[:, 0], counted[:, 1]))
    about = {"texts": len(overlaps), "places": used, **acceptance.keys("draft_acceptance")}
    return found, about | {"told": TOLD.format(texts=len(overlaps), places=used)}


def _places(
    networks: Sequence[Target], prompt: Sequence[int], output: Sequence[int], temperature: float
) -> Iterator[Place]:
    """The places after the first token, which the pass over the prompt gives."""
    ids = [*prompt, *output[:-1]]
    laws = [_laws(network, ids, len(output) - 1, temperature) for network in networks]
    for target, draft, token in zip(*laws, output[1:], strict=True):
        yield Place(target, draft, token)


@torch.inference_mode()
def _laws(network: Target, ids: list[int], last: int, temperature: float) -> Any:
    """[last, vocabulary] laws behind the last ids, in float64."""
    network.cache.lengths[0] = 0
    logits = network.prefill(0, ids, num_logits=last).logits[0]
    law = warp(logits[None], [Sampling(temperature)])[0].double()
    return (law / law.sum(-1, keepdim=True)).cpu().numpy()


def _complete(one: Ours) -> Row:
    """An entry's parameters with the method's defaults for what closed forms read."""
    method, told = one.decoder.method, dict(one.entry.parameters)
    for name in ("gamma", "count", "branching"):
        if hasattr(method, name):
            told.setdefault(name, getattr(method, name))
    return told


def _drawn(one: Ours, prompts: Sequence[list[int]]) -> Estimate | None:
    """Mean over prompts of the enumerated acceptance length of the trees a method draws."""
    slots = one.decoder.target.cache.slots
    sums = [
        one.enumerated(list(prompts[at : at + slots]), seed=at)
        for at in range(0, len(prompts), slots)
    ]
    pairs = np.array([pair for pair in sums if pair is not None], float)
    return estimate((pairs[:, 0], pairs[:, 1])) if len(pairs) else None
