"""Pools: the law of fresh draws, renewal that is deterministic, states that resume bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.distributions import Independent, MultivariateNormal, Normal

from fvnce.noise import KernelDensity, NoisePool, draw, row_flops
from noise_contract import data, mixture


def line() -> KernelDensity:
    return KernelDensity(data(200, 1, torch.float64), 0.3)


@pytest.mark.parametrize("refresh", [0, 37.5, None])
def test_batches_have_the_law_of_fresh_draws(refresh: float | None) -> None:
    """Two-sample Kolmogorov-Smirnov of one pass over the pool against fresh draws, false alarms 1e-4."""
    pool = NoisePool(line(), 5000, torch.Generator().manual_seed(1), refresh=refresh)
    seen = torch.cat([pool.batch(100)[0] for _ in range(50)])
    fresh = draw(line(), 20_000, torch.Generator().manual_seed(2))
    assert stats.ks_2samp(seen[:, 0].numpy(), fresh[:, 0].numpy()).pvalue > 1e-4


def test_renewed_rows_have_the_law_of_fresh_draws() -> None:
    pool = NoisePool(line(), 1000, torch.Generator().manual_seed(1), refresh=1000)
    seen = torch.cat([pool.batch(1000)[0] for _ in range(20)])
    fresh = draw(line(), 20_000, torch.Generator().manual_seed(2))
    assert len(seen.unique()) > 18_000
    assert stats.ks_2samp(seen[:, 0].numpy(), fresh[:, 0].numpy()).pvalue > 1e-4


@pytest.mark.parametrize("refresh", [0, 5, None])
def test_log_densities_stay_with_their_samples(refresh: float | None) -> None:
    noise = mixture(3, torch.float64)
    pool = NoisePool(noise, 300, torch.Generator().manual_seed(0), refresh=refresh)
    for _ in range(40):
        x, log_prob = pool.batch(64)
        assert torch.allclose(log_prob, noise.log_prob(x), rtol=1e-12)


def test_one_pass_hands_out_every_row_once() -> None:
    pool = NoisePool(line(), 120, torch.Generator().manual_seed(0), refresh=0)
    passes = [torch.cat([pool.batch(40)[0] for _ in range(3)]) for _ in range(2)]
    assert len(passes[0].unique()) == 120
    assert torch.equal(passes[0].sort(0).values, passes[1].sort(0).values)
    assert not torch.equal(passes[0], passes[1])
    assert pool.renewed == 0


def test_batches_that_are_to_renew_nothing_leave_the_pool_as_it_is() -> None:
    pool = NoisePool(line(), 500, torch.Generator().manual_seed(0), refresh=64)
    before = pool.state_dict()["x"]
    for _ in range(5):
        pool.batch(10, renew=False)
    assert torch.equal(pool.state_dict()["x"], before)
    pool.batch(10)
    assert pool.renewed == 64


def test_as_many_rows_are_renewed_as_asked_for() -> None:
    pool = NoisePool(line(), 500, torch.Generator().manual_seed(0), refresh=2.5)
    before = pool.state_dict()["x"]
    for _ in range(101):
        pool.batch(10)
    after = pool.state_dict()["x"]
    assert pool.renewed == 250 // 64 * 64
    assert int((before != after).any(1).sum()) == pool.renewed


def test_the_default_renewal_follows_the_cost_model() -> None:
    """Renewal costs a share s of all operations: r · row = s/(1 − s) · step."""
    noise = KernelDensity(torch.zeros(5000, 10), 1.0)
    assert row_flops(noise) == 2 * 5000 * 10
    pool = NoisePool(noise, 100, torch.Generator().manual_seed(0), refresh_share=0.2, step_flops=4e6)
    renewal = pool.refresh_rows(50) * row_flops(noise)
    assert renewal / (renewal + 4e6) == pytest.approx(0.2)
    cheap = NoisePool(Independent(Normal(torch.zeros(10), 1.0), 1), 100, torch.Generator().manual_seed(0))
    assert cheap.refresh_rows(50) == 50
    assert NoisePool(noise, 100, torch.Generator().manual_seed(0), refresh_share=0.0).refresh_rows(50) == 0
    unknown = MultivariateNormal(torch.zeros(2), torch.eye(2))
    flow = torch.distributions.TransformedDistribution(unknown, [])
    assert NoisePool(flow, 100, torch.Generator().manual_seed(0)).refresh_rows(40) == pytest.approx(10)


def test_equal_seeds_give_equal_batches_and_a_resumed_pool_continues() -> None:
    def make(seed: int) -> NoisePool:
        return NoisePool(mixture(2, torch.float32), 200, torch.Generator().manual_seed(seed), refresh=30)

    first, second = make(5), make(5)
    for _ in range(9):
        assert all(torch.equal(a, b) for a, b in zip(first.batch(64), second.batch(64), strict=True))
    third = make(6)
    third.load_state_dict(second.state_dict())
    assert third.batches == 9
    for _ in range(20):
        a, b = first.batch(64), third.batch(64)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
    assert first.renewed == third.renewed > 0


def test_a_pool_without_generator_follows_the_global_seed() -> None:
    batches = []
    for _ in range(2):
        torch.manual_seed(4)
        batches.append(NoisePool(line(), 50).batch(50)[0])
    assert torch.equal(*batches)


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    pool = NoisePool(line(), 9000, torch.Generator().manual_seed(0), refresh=64, progress=lambda *at: seen.append(at))
    assert seen == [(8192, 9000), (9000, 9000)]
    assert len(pool) == 9000


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"size.*found 0"):
        NoisePool(line(), 0)
    with pytest.raises(ValueError, match=r"refresh_share.*found 1\.0"):
        NoisePool(line(), 10, refresh_share=1.0)
    pool = NoisePool(line(), 10, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"n .*10.*found 11"):
        pool.batch(11)
    state = pool.state_dict()
    with pytest.raises(ValueError, match=r"x .*\(20, 1\).*found \(10, 1\)"):
        NoisePool(line(), 20).load_state_dict(state)
    for name, wrong in (("order", r"\(3,\)"), ("log_prob", r"\(3,\)"), ("counters", r"\(3,\)")):
        with pytest.raises(ValueError, match=rf"{name}.*found {wrong}"):
            pool.load_state_dict(state | {"x": torch.full((10, 1), 7.0), name: state[name][:3]})
    assert not bool((pool.batch(10)[0] == 7).any())  # nothing of a wrong state was taken
    state.pop("due")
    with pytest.raises(ValueError, match=r"state.*found no 'due'"):
        pool.load_state_dict(state)
    assert math.isfinite(float(pool.batch(10)[1].sum()))
