"""Random numbers from a counter, not from a state; this module needs no torch.

The number behind a draw is a function of
(seed, absolute position, purpose). A call therefore draws the same tokens alone and in any batch,
and plain decoding draws them again when it is resumed half-way.

What a round drafts is keyed by the position at which the *round* begins, and so is a test that
looks further ahead than the token it decides: rejected drafts must say nothing about the numbers
of the next round, which covers some of their positions again.
"""

from __future__ import annotations

DRAW, DRAFT, ACCEPT = 0, 1, 2  # purposes; ACCEPT + i is the i-th test at a position
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
