"""Estimates from the log-probabilities by token id that a server or vLLM shows at a position.

They show the likeliest tokens alone (and the one that was drawn), so estimates are bounds unless
the others can be looked up: a server that is made to draw one of a few tokens gives its
log-probability under the whole distribution. (vLLM's `logprob_token_ids` would show them at once,
but in vLLM 0.32 takes the likeliest tokens away from all other requests of that pass.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from secrets import randbits
from typing import Final

from orchestrator.types import Sampling
from workers.backend import Scoring
from workers.rng import uniform
from workers.text.verification import Scores

Lookup = Callable[[Collection[int]], Awaitable[tuple[int, float]]]
"""From tokens to the likeliest of them and its log-probability."""
MAX_LOOKUPS: Final = 4
"""Ends of the turn, not among the tokens shown, whose likelihood is asked for one by one."""
_NEGLIGIBLE: Final = 1e-3
_FLOOR = -9999.0  # how vLLM spells minus infinity in JSON
_ROUNDING = 1e-6  # rounding error of a sum of probabilities


def probability(logprob: float) -> float:
    return exp(min(0.0, logprob)) if logprob > _FLOOR else 0.0


def likeliest(
    positions: Sequence[Mapping[int, float]], count: int
) -> list[list[tuple[int, float]]]:
    """The `count` likeliest tokens at each position, likeliest first."""
    return [sorted(logprobs.items(), key=lambda one: -one[1])[:count] for logprobs in positions]


def stop_nll(logprobs: Mapping[int, float], stop_token_ids: Collection[int]) -> float:
    """The negative log-likelihood that the next token is any of `stop_token_ids`.

    The ids that are shown count. If none is shown, this is a lower bound: a stop
    token is then no likelier than the last token shown, nor than all that is not shown.
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
    """Whether those of `tokens` that are not among the likeliest, `shown`, have next to nothing of
    what all of them have together."""
    own = [probability(shown[i]) for i in tokens if i in shown]
    each = probability(min(shown.values(), default=0.0))
    all_ = 1.0 - sum(map(probability, shown.values())) + _ROUNDING
    return min((len(tokens) - len(own)) * each, all_) <= _NEGLIGIBLE * sum(own)


async def whole_stop_nll(
    shown: Mapping[int, float], stop_token_ids: Collection[int], lookup: Lookup
) -> float:
    """`stop_nll` if tokens that are not `shown` can be looked up.

    The likeliest of them are, until the next adds nothing, or `MAX_LOOKUPS` have been: what is left
    out is then less likely than each of them.
    """
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
    """What is shown of some places of a prompt, and of the place after them.

    Attributes:
        own: the log-probability of the id at each place.
        shown: those shown at each place and after them.
        made: the token made after them, if they are the prompt's end.
    """

    own: Sequence[float]
    shown: Sequence[Mapping[int, float]]
    made: int | None


async def estimate(known: Known, wanted: Scoring, lookup: Lookup | None) -> Scores:
    """The scores that are wanted, but for labels; `lookup` is for the place after."""
    *positions, after = known.shown
    scores = Scores(nll=[-logprob for logprob in known.own])
    if lookup is None:
        scores.ending = stop_nll(after, wanted.ends)
    else:
        scores.ending = await whole_stop_nll(after, wanted.ends, lookup)
    if wanted.sampling is not None and wanted.part is not None and known.made is not None:
        scores.choices = [*choices(positions, wanted.sampling, wanted.part.start), known.made]
        chosen = zip(scores.choices, known.shown, strict=True)
        scores.logprobs = [here[token] for token, here in chosen]
        scores.top = likeliest(known.shown, wanted.top) if wanted.top else []
    return scores


def choices(positions: Sequence[Mapping[int, float]], sampling: Sampling, first: int) -> list[int]:
    """A token at each of several positions, the first of which is number `first`.

    A seed draws the same tokens as a local worker would from the same probabilities.
    """
    if sampling.is_greedy:
        return [max(logprobs, key=lambda i: logprobs[i]) for logprobs in positions]
    seed = randbits(63) if sampling.seed is None else sampling.seed
    return [
        _draw(logprobs, sampling, uniform(seed, position))
        for position, logprobs in enumerate(positions, first)
    ]


def _draw(logprobs: Mapping[int, float], sampling: Sampling, number: float) -> int:
    """The token at `number` in [0, 1) of the distribution function, in the order of ids.

    Temperature comes first, then top-k, then top-p, the smallest set that reaches it.
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
