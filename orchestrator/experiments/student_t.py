"""The quantile of Student's t, in numpy."""

from __future__ import annotations

from math import log, pi
from typing import Any, Final

import numpy as np

_NODES: Final = 32
_LAGUERRE: Final = np.polynomial.laguerre.laggauss(_NODES)
_LEGENDRE: Final = np.polynomial.legendre.leggauss(_NODES)
_NEAR: Final = 4.5  # up to here the tail is 1/2 minus an integral from 0
_STEPS: Final = 30  # of Newton's method, which needs about seven


def student_quantile(normal: Any, freedom: Any) -> Any:
    """Return the value that Student's t exceeds as often as a normal variable exceeds `normal` > 0.

    Numbers or arrays; infinite if the value is too large for a float.

    Newton's method for the logarithm of the tail in the logarithm of t. That function is concave
    and falls, so the method converges from any start; this one is Cornish and Fisher's expansion.
    """
    z, freedom = np.broadcast_arrays(np.asarray(normal, float), np.asarray(freedom, float))
    wanted, _ = _log_tail(np.log(z), np.full(z.shape, 1e18))  # at 1e18 degrees t is normal
    first, second = (z**2 + 1) / 4, (5 * z**4 + 16 * z**2 + 3) / 96
    third = (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384
    more = 1 + first / freedom + second / freedom**2 + third / freedom**3
    at = np.array(np.log(z * np.where(freedom > z**2, more, 1.0)))
    left = np.ones(at.shape, dtype=bool)
    for _ in range(_STEPS):
        tail, density = _log_tail(at[left], freedom[left])
        step = (tail - wanted[left]) / np.exp(density + at[left] - tail)
        at[left] += step
        left[left] = np.abs(step) > 1e-8  # the next step would be about this squared
        if not left.any():
            break
    with np.errstate(over="ignore"):
        return np.exp(at)


def _log_tail(at: Any, freedom: Any) -> tuple[Any, Any]:
    """Return the logarithms of Student's tail beyond t = exp(`at`), and of its density: arrays.

    With y = freedom / 2 log(1 + t^2 / freedom) the tail is the integral of exp(-y) h(y) with a
    smooth h, which Gauss and Laguerre's nodes suit for every number of degrees of freedom.
    """
    constant = np.log(_gamma_ratio(freedom / 2) / np.sqrt(freedom * pi))
    y = freedom / 2 * np.logaddexp(0, 2 * at - np.log(freedom))
    density = constant - y * (1 + 1 / freedom)
    nodes, weights = _LAGUERRE
    scale = -2 / freedom[..., None]
    smooth = np.sqrt(scale / 2 / np.expm1(scale * (y[..., None] + nodes)))
    tail = np.asarray(constant - y + np.log(smooth @ weights))
    near = at < log(_NEAR)
    if near.any():
        nodes, weights = _LEGENDRE
        half, many = np.exp(at[near])[:, None] / 2, freedom[near][:, None]
        squares = (half * (1 + nodes)) ** 2 / many
        inside = half[:, 0] * (np.exp(-(many + 1) / 2 * np.log1p(squares)) @ weights)
        tail[near] = np.log(0.5 - np.exp(constant[near]) * inside)
    return tail, density


def _gamma_ratio(a: Any) -> Any:
    """Return Gamma(a + 1/2) / Gamma(a) for arrays, by Stirling's series from a + 10 on."""
    number, ratio = a + 10, 1.0
    for shift in range(10):
        ratio = ratio * (a + shift) / (a + shift + 0.5)
    inverse = 1 / number
    series = -inverse / 8 + inverse**3 / 192 - inverse**5 / 640 + 17 * inverse**7 / 14336
    return ratio * np.sqrt(number) * np.exp(series)
