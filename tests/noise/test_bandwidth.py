"""Selected bandwidths against SciPy's factors and a brute-force search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fvnce.noise import KernelDensity, bandwidth, select_bandwidth
from noise_contract import data


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_rules_of_thumb_are_scipys_factor_times_the_deviation(rule: str, width: int) -> None:
    X = data(120, width, torch.float64)
    peer = stats.gaussian_kde(X.numpy().T, bw_method=rule)
    np.testing.assert_allclose(select_bandwidth(X, rule).numpy(), peer.factor * X.std(0).numpy(), rtol=1e-12)


def likelihood(X: torch.Tensor, h: float) -> float:
    """Leave-one-out log likelihood, one row at a time."""
    total = 0.0
    for i in range(len(X)):
        others = torch.cat([X[:i], X[i + 1 :]])
        total += float(torch.logsumexp(-0.5 * ((X[i] - others) / h).square().sum(1), 0))
    return total - X.numel() * math.log(h)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 30])
@pytest.mark.parametrize(("block_bytes", "kept_bytes"), [(64 * 2**20, 2**30), (2**16, 2**30), (2**16, 0)])
def test_loo_maximises_the_leave_one_out_likelihood(
    monkeypatch, dtype, width: int, block_bytes: int, kept_bytes: int
) -> None:
    """It finds the maximum of a bounded search over the plain formula, whatever the blocks."""
    X = data(300, width, dtype)
    X[1] = X[0]
    monkeypatch.setattr(bandwidth, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(bandwidth, "KEPT_BYTES", kept_bytes)
    actual = float(select_bandwidth(X, "loo"))
    best = optimize.minimize_scalar(
        lambda log_h: -likelihood(X.double(), math.exp(log_h)),
        bounds=(math.log(actual) - 1, math.log(actual) + 1),
        method="bounded",
        options={"xatol": 1e-6},
    )
    assert actual == pytest.approx(math.exp(best.x), rel=1e-4)


def test_some_rows_left_out_say_what_all_say(monkeypatch) -> None:
    """The bandwidth from 250 of 1,000 rows is off by 5 % (the deviation over random subsets), and less with more."""
    X = data(1000, 5, torch.float64)
    every = float(select_bandwidth(X, "loo"))
    monkeypatch.setattr(bandwidth, "MOST_LEFT_OUT", 250)
    some = float(select_bandwidth(X, "loo"))
    assert some != every
    assert some == pytest.approx(every, rel=0.15)


def test_loo_does_not_depend_on_the_units() -> None:
    X = data(200, 4, torch.float64)
    assert float(select_bandwidth(1e6 * X + 3e7, "loo")) == pytest.approx(
        1e6 * float(select_bandwidth(X, "loo")), rel=1e-5
    )


def test_constant_columns_are_named_or_floored() -> None:
    X = data(50, 4, torch.float64)
    X[:, 2] = 7.0
    with pytest.raises(ValueError, match=r"X.*found 1.* 2; .*floor"):
        KernelDensity.from_data(X, "scott")
    spread = X.std(0)
    floored = KernelDensity.from_data(X, "scott", floor=0.01).bandwidth
    assert float(floored[2] / floored[0]) == pytest.approx(float(0.01 * spread.square().mean().sqrt() / spread[0]))
    assert math.isfinite(float(select_bandwidth(X, "loo")))


def test_duplicates_of_every_row_are_an_error_for_loo() -> None:
    X = data(40, 3, torch.float64)
    with pytest.raises(ValueError, match=r"bandwidth=.loo.*found"):
        select_bandwidth(torch.cat([X, X]), "loo")
    with pytest.raises(ValueError, match=r"floor.*found floor=0\.\d+ with 'loo'"):
        select_bandwidth(X, "loo", floor=0.1)
    with pytest.raises(ValueError, match=r"X.*n >= 2"):
        select_bandwidth(X[:1], "loo")
