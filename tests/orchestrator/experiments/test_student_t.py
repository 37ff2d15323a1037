"""The quantile of Student's t against published tables and against scipy."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from orchestrator.experiments.student_t import student_quantile

FREEDOM = (1.0, 1.5, 2.0, 4.7, 30.0, 1000.0, 1e6, 1e9)


@pytest.mark.parametrize(
    ("freedom", "share", "value"),
    [
        (1, 0.975, 12.706205),
        (3, 0.975, 3.182446),
        (10, 0.95, 1.812461),
        (30, 0.995, 2.749996),
        (120, 0.975, 1.979930),
    ],
)
def test_quantiles_of_students_t_are_those_of_its_table(
    freedom: float, share: float, value: float
) -> None:
    assert student_quantile(NormalDist().inv_cdf(share), freedom) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("freedom", FREEDOM)
def test_students_t_is_scipys(freedom: float) -> None:
    normal = np.array([1e-3, 0.5, 1.2, 2.0, 3.0, 4.49, 4.51, 5.0, 10.0, 20.0])
    expected = stats.t.isf(stats.norm.sf(normal), freedom)
    assert student_quantile(normal, freedom) == pytest.approx(expected, rel=1e-10)


def test_quantiles_of_arrays_are_those_of_numbers() -> None:
    normal, freedom = np.array([[2.0], [9.0]]), np.array([1.0, 8.0, 5000.0])
    found = student_quantile(normal, freedom)
    assert found.shape == (2, 3)
    for row in range(2):
        for column in range(3):
            one = student_quantile(normal[row, 0], freedom[column])
            assert found[row, column] == pytest.approx(float(one), rel=1e-13)


def test_a_quantile_beyond_all_numbers_is_infinite() -> None:
    assert student_quantile(600.0, 1.0) == np.inf
    assert 100 < student_quantile(50.0, 1000.0) < 110  # the normal tail is below every float
