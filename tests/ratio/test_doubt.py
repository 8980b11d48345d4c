"""What a ratio misses: found on held-out rows where it is wrong, not found where it is right, and never passed over."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, Uniform

from fvnce import telescope
from fvnce.ratio import BridgeReport, Gain, Telescope, multinomial_bridges
from fvnce.ratio.chain import gain_over, missed, rows_that_count

NOISE = Independent(Normal(torch.zeros(10), torch.ones(10)), 1)


def signed_pairs(n, seed):
    """Five pairs (a, ±(0.9a + √0.19 e)): uncorrelated, and 2.04 nats from N(0, I)."""
    generator = torch.Generator().manual_seed(seed)
    a, e = (torch.randn(n, 5, generator=generator) for _ in range(2))
    sign = 2.0 * torch.randint(0, 2, (n, 5), generator=generator) - 1
    return torch.stack([a, sign * (0.9 * a + math.sqrt(0.19) * e)], -1).reshape(n, 10)


def normal(n, d, seed, mean=0.0, scale=1.0):
    return mean + scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_a_ratio_that_learned_nothing_says_so():
    """The truth is 2.04 nats, the estimate 0, the effective share of the noise near 1: none of this is health."""
    ratio = telescope(signed_pairs(600, 0), NOISE, epochs=6, folds=2, copies=2)
    learned = [report.learned for report in ratio.reports if not report.exact]
    assert not any(gain.significant for gain in learned)
    assert str(max(learned)) in ratio.advice[0]
    assert ratio.missed.significant
    assert math.isnan(ratio.error)
    assert any(str(ratio.missed) in line for line in ratio.doubts)


@pytest.mark.slow
def test_so_does_a_softmax():
    ratio = multinomial_bridges(signed_pairs(1000, 0), NOISE, epochs=3, copies=1)
    assert not ratio.learned.significant or ratio.missed.significant
    assert ratio.advice


def test_trees_find_what_is_missed():
    rows, drawn = signed_pairs(400, 0), normal(1600, 10, 1)
    gain = missed(rows, drawn, torch.zeros(1600), 0)
    assert gain.significant
    assert 0.1 < gain.value < 2.04
    assert missed(rows, drawn, torch.zeros(1600), 0) == gain


@pytest.mark.slow
def test_trees_rarely_find_what_is_not_there():
    """N(½, 1) against N(0, 1) with the true weights x/2 − 1/8: at a rate of 2.5%, more than two of 16 have P = 0.7%."""
    alarms = 0
    for seed in range(16):
        drawn = normal(400, 1, 1000 + seed)
        alarms += missed(normal(200, 1, seed, 0.5), drawn, drawn[:, 0] / 2 - 1 / 8, 0).significant
    assert alarms <= 2


def test_the_gain_over_what_is_known():
    """N(1, 1) over N(0, 1): KL = ½, all of it over a constant and none over itself."""
    num, den = normal(20_000, 1, 0, 1.0)[:, 0] - 0.5, normal(20_000, 1, 1)[:, 0] - 0.5
    gain = gain_over(num, den, torch.zeros_like(num), torch.zeros_like(den), 1)
    assert abs(gain.value - 0.5) < 4 * gain.error
    assert gain.error < 0.03
    assert gain_over(num, den, num, den, 1) == Gain(0.0, 0.0)
    # The same rows four times over know no more.
    again = gain_over(*(v.repeat(4) for v in (num, den, 0 * num, 0 * den)), 4)
    assert again.error == pytest.approx(gain.error, rel=1e-3)
    assert gain_over(num[:1], den[:1], num[:1], den[:1], 1).error == math.inf


def test_few_rows_carry_the_mean_square_of_heavy_tails():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=generator)
    heavy = x / torch.randn(1000, 3, generator=generator).square().mean(1, keepdim=True).sqrt()
    assert rows_that_count(heavy) < 10 < 100 < rows_that_count(x)
    # No scale, shift or column that repeats another changes it.
    same = torch.cat([7 + 1e3 * x, x[:, :1]], 1)
    assert rows_that_count(same) == pytest.approx(rows_that_count(x), rel=1e-3)


def test_even_weights_are_not_health():
    constant = BridgeReport(live_noise=1.0, ess_noise=1.0, gain=0.0, learned=Gain(0.001, 0.002))
    assert constant.alive
    ratio = Telescope(None, (constant,), (0.0, 1.0), 0.1)
    assert "0.00 ± 0.00" in ratio.advice[0]


@pytest.mark.slow
def test_heavy_tails_and_dead_bridges_have_no_error():
    generator = torch.Generator().manual_seed(0)
    heavy = torch.randn(200, 1, generator=generator) / torch.randn(200, 1, generator=generator).abs()
    noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    ratio = telescope(heavy, noise, bridges=2, epochs=1, folds=2)
    assert math.isnan(ratio.error)
    assert any(f"{rows_that_count(heavy):.0f} rows" in line for line in ratio.doubts)
    far = telescope(normal(200, 1, 0, 3.0, 0.1), noise, bridges=1, epochs=20, folds=2)
    assert math.isnan(far.error)
    assert any("bridges=2" in line for line in far.doubts)


def test_progress_is_shown_if_wanted(capfd):
    x, noise = normal(60, 1, 0), Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    for work in (telescope, multinomial_bridges):
        work(x, noise, epochs=1)
        assert capfd.readouterr().err == ""
        work(x, noise, epochs=1, progress=True)
        assert capfd.readouterr().err != ""


@pytest.mark.parametrize("validate", [True, False])
def test_noise_that_is_zero_where_the_reference_is_not(validate):
    """Uniform noise: draws of the data's Gaussian outside it have no weight. Data outside it are refused."""
    box = Uniform(torch.full((2,), -1.0), torch.full((2,), 2.0), validate_args=validate)
    noise = Independent(box, 1, validate_args=validate)
    x = torch.rand(150, 2, generator=torch.Generator().manual_seed(0))
    ratio = telescope(x, noise, bridges=2, epochs=1, folds=2)
    assert math.isfinite(ratio.missed.value)
    assert ratio.model.log_prob(x).isfinite().all()
    for bridges in (1, 2):
        with pytest.raises(ValueError, match=r"noise.*x"):
            telescope(x + 1.5, noise, bridges=bridges)
    with pytest.raises(TypeError, match=r"noise.*None"):
        telescope(x, None)


@pytest.mark.parametrize("bridges", ["auto", 2])
def test_what_to_try_for_long_bridges_is_not_what_was_done(bridges, monkeypatch):
    monkeypatch.setattr("fvnce.ratio.chain.ALIVE", 2.0)  # no bridge is
    monkeypatch.setattr("fvnce.ratio.chain.MOST_BRIDGES", 2)
    noise = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    ratio = telescope(normal(60, 1, 0), noise, bridges=bridges, epochs=1, folds=2)
    (doubt,) = (line for line in ratio.doubts if f"bridges={len(ratio.reports) + 1}" in line)
    assert ("'auto'" in doubt) == (bridges != "auto")
