"""Mixtures, draws of any distribution, rows outside the support, fitted Gaussians, binary noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.covariance import ledoit_wolf
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from fvnce.noise import (
    BernoulliNoise,
    KernelDensity,
    NoiseMixture,
    draw,
    draw_with_log_prob,
    fit_gaussian,
    log_prob_of_rows,
    log_prob_or_minus_inf,
    smoothed,
)
from noise_contract import data, mixture


def box(low: float, high: float, width: int = 2) -> Independent:
    return Independent(Uniform(torch.full((width,), float(low)), torch.full((width,), float(high))), 1)


def test_components_are_drawn_in_proportion() -> None:
    """Chi-square of the counts of components, which where a draw lies tells; false alarms 1e-4."""
    noise = NoiseMixture([box(0, 1), box(2, 3), box(4, 5), box(6, 7)], [1, 2, 0, 5])
    component = (noise.draw(20_000, torch.Generator().manual_seed(0)) / 2).floor()[:, 0].long()
    counts = torch.bincount(component, minlength=4)
    assert counts[2] == 0
    assert stats.chisquare(counts[[0, 1, 3]], 20_000 * np.array([1, 2, 5]) / 8).pvalue > 1e-4
    # Components come in random order, not sorted: neighbours are equal as often as independence has it.
    same = float((component[1:] == component[:-1]).double().mean())
    assert same == pytest.approx((1 + 4 + 25) / 64, abs=5 * math.sqrt(0.25 / 20_000))


def test_density_outside_a_bounded_component_is_that_of_the_others() -> None:
    wide = MultivariateNormal(torch.zeros(2), torch.eye(2))
    noise = NoiseMixture([box(0, 1), wide], [1, 3])
    x = torch.tensor([[0.5, 0.5], [0.5, 2.0]])
    expected = torch.stack([(0.25 + 0.75 * wide.log_prob(x[0]).exp()).log(), math.log(0.75) + wide.log_prob(x[1])])
    assert torch.allclose(noise.log_prob(x), expected)
    assert NoiseMixture([box(0, 1), box(2, 3)]).log_prob(torch.tensor([[1.5, 1.5]])).tolist() == [-math.inf]
    assert noise.support.check(x).tolist() == [True, True]
    assert NoiseMixture([box(0, 1), box(2, 3)]).support.check(x).tolist() == [True, False]


def test_gradient_is_finite_where_one_component_is_zero() -> None:
    wide = MultivariateNormal(torch.zeros(2), torch.eye(2))
    x = torch.tensor([[0.5, 2.0]], requires_grad=True)
    NoiseMixture([box(0, 1), wide]).log_prob(x).sum().backward()
    assert torch.allclose(x.grad, -x.detach())


@pytest.mark.parametrize(
    ("components", "weights", "error", "message"),
    [
        ([], None, ValueError, "components must hold at least one distribution"),
        (
            [box(0, 1), 3],
            None,
            TypeError,
            r"components\[1\].*found 3",
        ),
        ([Normal(torch.zeros(2), 1.0)], None, ValueError, r"components\[0\].*found.*\(2,\).*Independent"),
        (
            [box(0, 1), box(0, 1, 3)],
            None,
            ValueError,
            r"components\[1\].*\(2,\).*found \(3,\)",
        ),
        ([box(0, 1)], [-1.0], ValueError, r"weights.*found -1\.0.* 0"),
    ],
)
def test_wrong_components_are_named(components, weights, error, message: str) -> None:
    with pytest.raises(error, match=message):
        NoiseMixture(components, weights)


def test_rows_without_density_are_named() -> None:
    X = torch.full((30, 2), 0.5)
    X[17, 1] = 3.0
    X[25, 1] = 3.0
    with pytest.raises(ValueError, match=r"X.*found.*-inf.*row 17"):
        log_prob_of_rows(box(0, 1), X)
    with pytest.raises(ValueError, match=r"X.*\(n, 2\).*found.*\(30, 3\)"):
        log_prob_of_rows(box(0, 1), torch.zeros(30, 3))
    X[17, 1] = math.nan
    with pytest.raises(ValueError, match=r"X.*found nan.*row 17, column 1"):
        log_prob_of_rows(box(0, 1), X)


def test_many_rows_are_tabulated_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, X = mixture(2, torch.float64), data(100, 2, torch.float64)
    monkeypatch.setattr("fvnce.noise.base._ROWS_AT_ONCE", 33)
    assert torch.allclose(log_prob_of_rows(noise, X), noise.log_prob(X), rtol=1e-13)
    assert log_prob_of_rows(noise, X[:0]).shape == (0,)


def test_a_plain_torch_distribution_is_seeded_by_the_generator() -> None:
    """Equal seeds, equal draws; successive draws of one generator differ; its law is unchanged (KS, 1e-4)."""
    noise = Independent(Normal(torch.zeros(1), 2.0), 1)
    generator = torch.Generator().manual_seed(3)
    first, second = draw(noise, 4000, generator), draw(noise, 4000, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, draw(noise, 4000, torch.Generator().manual_seed(3)))
    assert stats.kstest(torch.cat([first, second])[:, 0].numpy(), stats.norm(scale=2).cdf).pvalue > 1e-4


def test_full_gaussian_shrinks_like_ledoit_and_wolf() -> None:
    X = data(40, 12, torch.float64)
    expected, _ = ledoit_wolf(X.numpy())
    assert np.allclose(fit_gaussian(X, "full").covariance_matrix.numpy(), expected, rtol=1e-10)
    sample = np.cov(X.numpy().T, bias=True)
    half = fit_gaussian(X, "full", shrinkage=0.5).covariance_matrix.numpy()
    assert np.allclose(half, 0.5 * sample + 0.5 * np.trace(sample) / 12 * np.eye(12))
    halves = fit_gaussian(X, shrinkage=0.5).variance.numpy()
    assert np.allclose(halves, 0.5 * np.diag(sample) + 0.5 * np.trace(sample) / 12)


def test_singular_fits_are_errors() -> None:
    X = data(40, 3, torch.float64)
    X[:, 1] = 2.0
    with pytest.raises(ValueError, match=r"X.*found 1.* 1; .*shrinkage"):
        fit_gaussian(X)
    with pytest.raises(ValueError, match=r"X.*found.*shrinkage=0"):
        fit_gaussian(X, "full", shrinkage=0.0)
    with pytest.raises(ValueError, match=r"X.*found"):
        fit_gaussian(torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"covariance.*'diagonal', 'full'.*found 'low'"):
        fit_gaussian(X, "low")


def test_smoothed_uses_distinct_rows_and_all_if_few() -> None:
    X = torch.arange(100.0)[:, None]
    some = smoothed(X, 1.0, max_centres=40, generator=torch.Generator().manual_seed(0)).centres
    assert len(some.unique()) == 40
    assert set(some[:, 0].tolist()) <= set(range(100))
    assert torch.equal(smoothed(X, 1.0).centres, X)


def test_bernoulli_at_the_edge_and_its_errors() -> None:
    noise = BernoulliNoise(torch.tensor([0.0, 1.0, 0.5]))
    assert noise.log_prob(torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])).tolist() == [
        pytest.approx(math.log(0.5)),
        -math.inf,
    ]
    with pytest.raises(ValueError, match=r"x.*found 0\.5"):
        noise.log_prob(torch.tensor([[0.0, 0.5, 1.0]]))
    with pytest.raises(ValueError, match=r"probs.*found 1\.5.* 1"):
        BernoulliNoise(torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"log p_n = -inf at row 1"):
        log_prob_of_rows(noise, torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    assert log_prob_or_minus_inf(noise, torch.tensor([[0.0, 0.5, 1.0]])).tolist() == [-math.inf]


def test_draws_of_a_mixture_know_their_density() -> None:
    noise = mixture(3, torch.float64)
    x, log_prob = draw_with_log_prob(noise, 500, torch.Generator().manual_seed(0))
    assert torch.allclose(log_prob, noise.log_prob(x), rtol=1e-12)


def test_a_kernel_density_is_at_home_in_a_mixture_of_dtypes() -> None:
    noise = NoiseMixture([KernelDensity(torch.zeros(2, 2, dtype=torch.float64), 1.0), box(0, 1)])
    x = draw(noise, 50, torch.Generator().manual_seed(0))
    assert x.dtype == torch.float64
    assert bool(torch.isfinite(noise.log_prob(x)).all())


def test_a_component_without_draws_costs_nothing() -> None:
    """Few draws often leave a component out, and one of weight 0 always is: no points are asked of anyone."""
    parts = [MultivariateNormal(torch.zeros(2), torch.eye(2)), KernelDensity(torch.zeros(3, 2), 1.0), box(-9, 9)]
    noise = NoiseMixture(parts, [0.9, 0.1, 0.0])
    for n in (0, 1, 2):
        for seed in range(10):
            x, log_prob = draw_with_log_prob(noise, n, torch.Generator().manual_seed(seed))
            assert x.shape == (n, 2)
            assert log_prob.shape == (n,)
            assert torch.allclose(log_prob, noise.log_prob(x), atol=1e-5)
    assert draw_with_log_prob(parts[0], 0)[1].shape == (0,)
    assert log_prob_or_minus_inf(box(0, 1), torch.zeros(4, 0, 2)).shape == (4, 0)
