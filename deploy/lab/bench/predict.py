"""Both models' distributions along what plain decoding wrote, and what they predict of a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from deploy.lab.bench.candidates import DecodingCandidate, SpeculationCandidate
from deploy.lab.bench.expected import DraftPosition, along
from deploy.lab.bench.rounds import Estimate, Row, estimate, pooled
from orchestrator.types import Sampling
from workers.engine.loading import LoadedTarget
from workers.model.sampling import warp
from workers.model.target import Target

POSITIONS = 2500
"""So many positions are enough for the second digit; they are whole texts, the first ones."""

BASIS = (
    "Predicted: acceptance lengths from the distributions of both models along {texts} texts of "
    "plain decoding in this run ({positions} positions, full vocabulary). chain, block, spectr, "
    "recursive-c and greedy-multi: closed forms, rounds summed as a Markov chain over the "
    "positions; of a rejected sibling before a third one the 12 likeliest are distinguished. "
    "Others (recursive-s, traversal): trees drawn by the method, what its rule accepts of them "
    "summed exactly."
)


def predictions(
    candidates: Sequence[DecodingCandidate],
    loaded: LoadedTarget,
    draft: str,
    prompts: Sequence[list[int]],
    texts: Sequence[tuple[int, list[int]]],
    temperature: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Estimate], Row]:
    """Mean acceptance length by label, and the chance of a token of the draft model itself."""
    ours = [one for one in candidates if isinstance(one, SpeculationCandidate)]
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
        if used >= POSITIONS or len(output) < 2:
            continue
        tell("distributions")
        positions = list(_positions(networks, prompts[prompt], output, temperature))
        used += len(positions)
        overlaps.append(
            (sum(float(np.minimum(p.target, p.draft).sum()) for p in positions), len(positions))
        )
        for one in ours:
            if one.entry.parameter("threshold"):
                continue  # its depth depends on the text: no closed form
            needed = along(one.entry.method, _complete(one), positions)
            if needed is not None:
                emitted[one.entry.label].append((len(positions), needed))
    lengths = pooled(emitted)
    for one in ours:
        label = one.entry.label
        if label not in lengths and one.entry.method != "vanilla" and temperature == 1.0:
            tell(label)
            value = _drawn(one, prompts)
            if value is not None:
                lengths[label] = value
    counted = np.array(overlaps)
    acceptance = estimate((counted[:, 0], counted[:, 1]))
    about = {"texts": len(overlaps), "places": used, **acceptance.keys("draft_acceptance")}
    return lengths, about | {"told": BASIS.format(texts=len(overlaps), positions=used)}


def _positions(
    networks: Sequence[Target], prompt: Sequence[int], output: Sequence[int], temperature: float
) -> Iterator[DraftPosition]:
    """The positions after the first token, which the pass over the prompt gives."""
    ids = [*prompt, *output[:-1]]
    distributions = [
        _distributions(network, ids, len(output) - 1, temperature) for network in networks
    ]
    for target, draft, token in zip(*distributions, output[1:], strict=True):
        yield DraftPosition(target, draft, token)


@torch.inference_mode()
def _distributions(network: Target, ids: list[int], last: int, temperature: float) -> Any:
    """[last, vocabulary] distributions behind the last ids, in float64."""
    network.cache.evict(0)
    logits = network.prefill(0, ids, num_logits=last).logits[0]
    probs = warp(logits[None], [Sampling(temperature)])[0].double()
    return (probs / probs.sum(-1, keepdim=True)).cpu().numpy()


def _complete(one: SpeculationCandidate) -> Row:
    """An entry's parameters with the method's defaults for what closed forms read."""
    method, parameters = one.decoder.method, dict(one.entry.parameters)
    for name in ("gamma", "count", "branching"):
        if hasattr(method, name):
            parameters.setdefault(name, getattr(method, name))
    return parameters


def _drawn(one: SpeculationCandidate, prompts: Sequence[list[int]]) -> Estimate | None:
    """Mean over prompts of the enumerated acceptance length of the trees a method draws."""
    slots = one.decoder.target.cache.slots
    sums = [
        one.enumerated(list(prompts[at : at + slots]), seed=at)
        for at in range(0, len(prompts), slots)
    ]
    pairs = np.array([pair for pair in sums if pair is not None], float)
    return estimate((pairs[:, 0], pairs[:, 1])) if len(pairs) else None
