"""Counter-based random numbers, without torch.

A random number is a function of (seed, absolute position, purpose), not of a generator's state.
So a request draws by the same numbers alone and in any batch, and plain decoding draws by them
again when it is resumed half-way. A server's generator does have a state: `reseeded`.

Drafts are keyed by the position at which their *step* begins, and so is an acceptance test that
looks further ahead than the token it decides: the next step covers the positions of rejected
drafts again, and its numbers must be independent of theirs.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.types import Sampling

DRAW, DRAFT, ACCEPT = 0, 1, 2  # purposes; ACCEPT + i is the i-th test at a position
RESEED = (1 << 64) - 1  # another one, which no test reaches
_MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters bits."""
    x = (x + STEP) & _MASK
    x = ((x ^ (x >> 30)) * FIRST) & _MASK
    x = ((x ^ (x >> 27)) * SECOND) & _MASK
    return x ^ (x >> 31)


def key(seed: int, *counters: int) -> int:
    """64 random bits that depend on the arguments only."""
    x = _mix(seed & _MASK)
    for counter in counters:
        x = _mix(x ^ counter)
    return x


def uniform(seed: int, position: int, purpose: int = DRAW, *counters: int) -> float:
    """A number in [0, 1) that depends on its arguments only."""
    return (key(seed, position, purpose, *counters) >> 11) * 2.0**-53


def reseeded(sampling: Sampling, position: int) -> Sampling:
    """The sampling of a call whose first token is at `position`, for a fresh generator.

    Without this, the second half of a text that is made by two calls would repeat the first one's
    draws.
    """
    if sampling.seed is None:
        return sampling
    seed = key(sampling.seed, position, RESEED) >> 11  # a JSON number holds it exactly
    return replace(sampling, seed=seed)
