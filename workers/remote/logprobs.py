"""What follows from the log-probabilities by token id that a server shows at a position.

A server shows the likeliest tokens alone (and the one that was drawn), so estimates are bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import exp, inf, log
from secrets import randbits

from orchestrator.types import Sampling
from workers.model.rng import uniform

_FLOOR = -9999.0  # how vLLM spells minus infinity in JSON
_ROUNDING = 1e-6  # what a sum of probabilities may be wrong by


def probability(logprob: float) -> float:
    return exp(min(0.0, logprob)) if logprob > _FLOOR else 0.0


def entropy(law: Mapping[int, float], shown: int) -> float:
    """An estimate, in nats, of the entropy of a law of which a server shows the likeliest tokens.

    All that is not among the `shown` likeliest counts as one token. So it is never above the
    entropy, and below it by at most r * ln(n), r being the probability of those n other tokens.
    """
    likeliest = sorted(law.values(), reverse=True)[:shown]  # whatever else was drawn and told
    shares = [probability(logprob) for logprob in likeliest]
    shares.append(max(0.0, 1.0 - sum(shares)))
    return max(0.0, -sum(share * log(share) for share in shares if share > 0))


def ending(law: Mapping[int, float], ends: Collection[int]) -> float:
    """The surprise at any of `ends` under a law of which a server shows the likeliest tokens.

    Of several ends those count that are shown. Where it shows none of them, this is the least
    surprise that is possible: an end is then no likelier than the last token shown, nor than all
    that is not shown.
    """
    if not ends:
        return inf
    if shown := [law[i] for i in ends if i in law]:
        best = max(shown)
        return max(0.0, -best - log(sum(exp(logprob - best) for logprob in shown)))
    shares = [probability(logprob) for logprob in law.values()]
    return -log(max(_ROUNDING, min(*shares, 1.0 - sum(shares))))


def choices(laws: Sequence[Mapping[int, float]], sampling: Sampling, first: int) -> list[int]:
    """A choice at each of several positions, of which `first` is the first.

    A seed draws the same choices as a local worker would from the same probabilities.
    """
    if sampling.is_greedy:
        return [max(law, key=lambda i: law[i]) for law in laws]
    seed = randbits(63) if sampling.seed is None else sampling.seed
    return [_draw(law, sampling, uniform(seed, at)) for at, law in enumerate(laws, first)]


def _draw(law: Mapping[int, float], sampling: Sampling, number: float) -> int:
    """The token at `number` in [0, 1) of the distribution function, in the order of ids.

    Temperature comes first, then top-k, then top-p, the smallest set that reaches it.
    """
    ranked = sorted(law, key=lambda i: (-law[i], i))[: sampling.top_k or None]
    best = law[ranked[0]]
    weights = {i: exp((law[i] - best) / sampling.temperature) for i in ranked}
    if sampling.top_p < 1:
        total, before = sum(weights.values()), 0.0
        for rank, i in enumerate(ranked):
            if rank and before >= sampling.top_p * total:
                del weights[i]
            else:
                before += weights[i]
    left = number * sum(weights.values())
    for i in sorted(weights):
        left -= weights[i]
        if left < 0:
            return i
    return max(i for i, weight in weights.items() if weight)  # the sum was rounded
