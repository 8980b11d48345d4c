"""The contract of tests/support/noise_contract.py, run over every member."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fvnce.noise import draw, draw_with_log_prob, load_noise, log_prob_or_minus_inf, save_noise
from noise_contract import CONTINUOUS, MEMBERS, Member

every_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
every_continuous = pytest.mark.parametrize("member", CONTINUOUS, ids=lambda member: member.name)
FALSE_ALARM = 1e-4


def grid(width: int, steps: int) -> tuple[torch.Tensor, float]:
    axis = torch.linspace(-10.0, 12.0, steps, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * width).reshape(-1, width), float(axis[1] - axis[0]) ** width


@pytest.mark.slow
@every_continuous
@pytest.mark.parametrize(("width", "steps"), [(1, 100_001), (2, 901)])
def test_integrates_to_one(member: Member, width: int, steps: int) -> None:
    points, cell = grid(width, steps)
    total = float(member.make(width, torch.float64).log_prob(points).exp().sum()) * cell
    # A jump costs a sum over a grid one cell's width of it; smooth densities converge faster than any power.
    assert total == pytest.approx(1.0, abs=1e-8 if member.smooth else 0.2 * 2 * 9 / steps)


def test_binary_noise_sums_to_one() -> None:
    for member in MEMBERS:
        if member.binary:
            corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=10)), dtype=torch.float64)
            assert float(member.make(10, torch.float64).log_prob(corners).exp().sum()) == pytest.approx(1.0, abs=1e-12)


@every_continuous
def test_integrates_to_one_in_ten_dimensions(member: Member) -> None:
    """Importance sampling: within 5 standard errors of 1 (false alarms: 6e-7), each below 3 %."""
    noise, generator = member.make(10, torch.float64), torch.Generator().manual_seed(11)
    pilot = draw(noise, 4000, generator)
    proposal = torch.distributions.MultivariateNormal(pilot.mean(0), 1.7 * torch.cov(pilot.T))
    x = draw(proposal, 60_000, generator)
    ratio = (log_prob_or_minus_inf(noise, x) - proposal.log_prob(x)).exp()
    error = float(ratio.std()) / math.sqrt(len(ratio))
    assert error < 0.03
    assert abs(float(ratio.mean()) - 1) < 5 * error


@every_continuous
@pytest.mark.parametrize("way", ["draw", "sample"])
def test_samples_follow_the_density_on_a_line(member: Member, way: str) -> None:
    """Kolmogorov-Smirnov against the integrated density, false alarms: 1e-4."""
    noise = member.make(1, torch.float64)
    points, cell = grid(1, 100_001)
    cumulative = np.cumsum(noise.log_prob(points).exp().numpy()) * cell
    if way == "draw":
        x = draw(noise, 20_000, torch.Generator().manual_seed(2))
    else:
        torch.manual_seed(2)
        x = noise.sample((20_000,))
    result = stats.kstest(x[:, 0].numpy(), lambda at: np.interp(at, points[:, 0].numpy(), cumulative))
    assert result.pvalue > FALSE_ALARM


@pytest.mark.slow
@every_continuous
def test_samples_follow_the_density_in_the_plane(member: Member) -> None:
    """Chi-square over a grid of cells whose probabilities come from quadrature, false alarms: 1e-4."""
    noise = member.make(2, torch.float64)
    points, cell = grid(2, 881)
    mass = noise.log_prob(points).exp().numpy() * cell
    edges = [-10.0125, -1.0125, -0.4875, 0.0125, 0.5125, 1.0125, 1.5125, 2.0125, 12.0125]
    expected, *_ = np.histogram2d(points[:, 0], points[:, 1], bins=[edges, edges], weights=mass)
    x = draw(noise, 20_000, torch.Generator().manual_seed(4)).numpy()
    observed, *_ = np.histogram2d(x[:, 0], x[:, 1], bins=[edges, edges])
    usual = expected * len(x) >= 5
    seen, wanted = observed[usual], expected[usual] * len(x)
    seen, wanted = np.append(seen, len(x) - seen.sum()), np.append(wanted, len(x) - wanted.sum())
    assert usual.sum() > 20
    # A jump inside a cell of the quadrature moves a little mass: the discontinuous member gets 1 % per cell.
    slack = 0.0 if member.smooth else 0.01
    statistic = float((np.maximum(np.abs(seen - wanted) - slack * wanted, 0) ** 2 / wanted).sum())
    assert stats.chi2.sf(statistic, len(seen) - 1) > FALSE_ALARM


@every_member
def test_samples_have_the_right_mean(member: Member) -> None:
    """Each of 6 means within 5 standard errors of the member's own; false alarms below 4e-6."""
    noise = member.make(6, torch.float64)
    x = draw(noise, 20_000, torch.Generator().manual_seed(8))
    error = x.std(0) / math.sqrt(len(x))
    assert bool(((x.mean(0) - noise.mean).abs() < 5 * error).all())


@every_member
@pytest.mark.parametrize("width", [1, 3, 40])
def test_log_prob_matches_the_textbook_in_double(member: Member, width: int) -> None:
    noise, x = member.make(width, torch.float64), member.points(width, torch.float64)
    np.testing.assert_allclose(noise.log_prob(x).numpy(), member.formula(noise, x.numpy()), rtol=1e-10, atol=1e-10)


@every_member
@pytest.mark.parametrize("width", [1, 3, 40])
def test_log_prob_matches_the_textbook_in_single(member: Member, width: int) -> None:
    noise, x = member.make(width, torch.float32), member.points(width, torch.float32)
    actual = noise.log_prob(x)
    expected = member.formula(noise, x.double().numpy())
    assert actual.dtype == torch.float32
    room = np.maximum(1e-3, 2 * np.spacing(np.abs(expected).astype(np.float32)))
    assert (np.abs(actual.double().numpy() - expected) <= room).all()


@every_continuous
def test_gradient_matches_finite_differences(member: Member) -> None:
    noise, x = member.make(3, torch.float64), member.points(3, torch.float64, n=7)
    assert torch.autograd.gradcheck(noise.log_prob, (x.requires_grad_(),), eps=1e-6, atol=1e-6)


@every_member
def test_leading_shapes_are_kept(member: Member) -> None:
    noise, x = member.make(3, torch.float64), member.points(3, torch.float64, n=12)
    flat = noise.log_prob(x)
    assert torch.equal(noise.log_prob(x.reshape(2, 2, 3, 3)), flat.reshape(2, 2, 3))
    assert noise.log_prob(x[0]).shape == ()
    assert torch.allclose(noise.log_prob(x[0]), flat[0], rtol=1e-13)
    assert noise.sample((4, 2)).shape == (4, 2, 3)
    assert draw(noise, 0).shape == (0, 3)


@every_member
def test_equal_seeds_give_equal_draws_and_leave_the_global_state(member: Member) -> None:
    noise = member.make(4, torch.float64)
    state = torch.get_rng_state()
    first, second, other = (draw(noise, 50, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    samples = []
    for _ in range(2):
        torch.manual_seed(7)
        samples.append(noise.sample((20,)))
    assert torch.equal(*samples)


@every_member
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_come_with_their_density(member: Member, dtype: torch.dtype) -> None:
    noise = member.make(5, dtype)
    x, log_prob = draw_with_log_prob(noise, 300, torch.Generator().manual_seed(1))
    expected = member.formula(noise, x.double().numpy())
    np.testing.assert_allclose(
        log_prob.double().numpy(), expected, rtol=2e-7, atol=1e-3 if dtype == torch.float32 else 1e-8
    )


@every_member
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_and_loaded_bit_for_bit(member: Member, dtype: torch.dtype, tmp_path) -> None:
    noise, x = member.make(4, dtype), member.points(4, dtype)
    save_noise(noise, tmp_path / "deep" / "run")
    back = load_noise(tmp_path / "deep" / "run")
    assert type(back) is type(noise)
    assert torch.equal(back.log_prob(x), noise.log_prob(x))
    draws = [draw(n, 30, torch.Generator().manual_seed(0)) for n in (noise, back)]
    assert torch.equal(*draws)
    assert [p.name for p in (tmp_path / "deep" / "run").iterdir()] == ["noise.safetensors"]


@pytest.mark.parametrize(
    "member", [m for m in MEMBERS if not m.name.startswith("gaussian")], ids=lambda member: member.name
)
def test_bad_points_are_named(member: Member) -> None:
    noise = member.make(3, torch.float32)
    with pytest.raises(ValueError, match=r"x.*3\).*found.*\(5, 4\)"):
        noise.log_prob(torch.zeros(5, 4))
    bad = torch.zeros(5, 3)
    bad[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"x.*found nan.*row 3, column 1"):
        noise.log_prob(bad)
    with pytest.raises(TypeError, match=r"x.*found"):
        noise.log_prob(torch.zeros(5, 3, dtype=torch.int64))
