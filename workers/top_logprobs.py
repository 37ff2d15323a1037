"""Estimates from the log-probabilities, by token id, that a server or vLLM returns for a position.

They cover only the likeliest tokens and the drawn one, so estimates are bounds unless the others
can be looked up: a server that may draw only certain tokens returns the drawn one's log-probability
under the whole distribution. (vLLM's `logprob_token_ids` would return them at once, but in vLLM
0.32 it takes the likeliest tokens away from all other requests of that pass.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from secrets import randbits

from orchestrator.types import Sampling
from workers.backend import Scoring
from workers.rng import uniform
from workers.text.verification import Scores

Lookup = Callable[[Collection[int]], Awaitable[tuple[int, float]]]
"""Returns the likeliest of the given tokens and its log-probability."""
MAX_LOOKUPS = 4  # of stop tokens that are not among those shown
_NEGLIGIBLE = 1e-3
_FLOOR = -9999.0  # how vLLM spells minus infinity in JSON
_ROUNDING = 1e-6  # rounding error of a sum of probabilities


def probability(logprob: float) -> float:
    return exp(min(0.0, logprob)) if logprob > _FLOOR else 0.0


def stop_nll(logprobs: Mapping[int, float], stop_token_ids: Collection[int]) -> float:
    """Return the negative log-likelihood that the next token is any of `stop_token_ids`.

    Only ids that are shown count. If none is, return a lower bound: a stop token is no likelier
    than the least likely token shown, nor than all that is not shown.
    """
    if not stop_token_ids:
        return inf
    if shown := [logprobs[i] for i in stop_token_ids if i in logprobs]:
        best = max(shown)
        if best == -inf:
            return inf
        return max(0.0, -best - log(sum(exp(logprob - best) for logprob in shown)))
    shares = [probability(logprob) for logprob in logprobs.values()]
    return -log(max(_ROUNDING, min(*shares, 1.0 - sum(shares))))


def negligible(tokens: Collection[int], shown: Mapping[int, float]) -> bool:
    """Whether the `tokens` that are not `shown` add a negligible share to their probability."""
    own = [probability(shown[i]) for i in tokens if i in shown]
    each = probability(min(shown.values(), default=0.0))
    all_ = 1.0 - sum(map(probability, shown.values())) + _ROUNDING
    return min((len(tokens) - len(own)) * each, all_) <= _NEGLIGIBLE * sum(own)


async def whole_stop_nll(
    shown: Mapping[int, float], stop_token_ids: Collection[int], lookup: Lookup | None
) -> float:
    """Return `stop_nll` after looking up the likeliest stop tokens that are not `shown`.

    Stop once the rest is negligible, or after `MAX_LOOKUPS`: the rest is less likely than each
    token that was looked up.
    """
    if lookup is None:
        return stop_nll(shown, stop_token_ids)
    known = {token: shown[token] for token in stop_token_ids if token in shown}
    rest = set(stop_token_ids) - known.keys()
    if negligible(stop_token_ids, shown):
        return stop_nll(known, stop_token_ids)
    for _ in range(MAX_LOOKUPS):
        if not rest:
            break
        token, logprob = await lookup(rest)
        known[token] = logprob
        rest.remove(token)
        if logprob + log(len(rest) + 1) < max(known.values()) + log(_NEGLIGIBLE):
            break
    return stop_nll(known, stop_token_ids)


@dataclass(frozen=True, slots=True)
class Known:
    """Log-probabilities at some places of a prompt and at the place after them."""

    own: Sequence[float]  # that of the prompt's id at each place
    shown: Sequence[Mapping[int, float]]  # those by id, at each place and at the one after
    made: int | None  # the token generated after them, if they end the prompt


async def estimate(known: Known, wanted: Scoring, lookup: Lookup | None) -> Scores:
    """Estimate the scores that are wanted, except labels; `lookup` is for the place after."""
    *positions, after = known.shown
    scores = Scores(nll=[-logprob for logprob in known.own])
    scores.ending = await whole_stop_nll(after, wanted.ends, lookup)
    if wanted.sampling is not None and wanted.part is not None and known.made is not None:
        scores.choices = [*choices(positions, wanted.sampling, wanted.part.start), known.made]
        chosen = zip(scores.choices, known.shown, strict=True)
        scores.logprobs = [here[token] for token, here in chosen]
        if wanted.top:
            ranked = [sorted(here.items(), key=lambda one: -one[1]) for here in known.shown]
            scores.top = [rank[: wanted.top] for rank in ranked]
    return scores


def choices(positions: Sequence[Mapping[int, float]], sampling: Sampling, first: int) -> list[int]:
    """Choose a token at each position, counted from `first`.

    A seed draws the same tokens as in a local worker with the same probabilities.
    """
    if sampling.is_greedy:
        return [max(logprobs, key=lambda i: logprobs[i]) for logprobs in positions]
    seed = randbits(63) if sampling.seed is None else sampling.seed
    return [
        _draw(logprobs, sampling, uniform(seed, position))
        for position, logprobs in enumerate(positions, first)
    ]


def _draw(logprobs: Mapping[int, float], sampling: Sampling, number: float) -> int:
    """Invert the distribution function at `number` in [0, 1), with tokens in the order of ids.

    Temperature applies first, then top-k, then top-p (the smallest set that reaches it).
    """
    ranked = sorted(logprobs, key=lambda i: (-logprobs[i], i))[: sampling.top_k or None]
    best = logprobs[ranked[0]]
    weights = {i: exp((logprobs[i] - best) / sampling.temperature) for i in ranked}
    if sampling.top_p < 1:
        total, before = sum(weights.values()), 0.0
        for rank, i in enumerate(ranked):
            if rank and before >= sampling.top_p * total:
                del weights[i]
            else:
                before += weights[i]
    remaining = number * sum(weights.values())
    for i in sorted(weights):
        remaining -= weights[i]
        if remaining < 0:
            return i
    return max(i for i, weight in weights.items() if weight)  # the sum was rounded
