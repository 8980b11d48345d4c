"""Noise and chains over arrays of any rank: the law is that of the same numbers as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Distribution, Independent, Normal

from fvnce import KernelDensity, NoiseMixture, PowerRule, fit
from fvnce.models import EnergyModel, mlp
from fvnce.noise import (
    BernoulliNoise,
    EmpiricalNoise,
    NoisePool,
    draw,
    draw_with_log_prob,
    fit_gaussian,
    load_noise,
    log_prob_of_rows,
    log_prob_or_minus_inf,
    save_noise,
    select_bandwidth,
    smoothed,
)
from fvnce.objectives import NCE
from fvnce.sampling import annealed_log_partition, langevin
from noise_contract import data

SHAPES = [(2, 3, 4), (1, 24), (24,), (3, 8)]
WIDTH = 24

Make = Callable[[torch.Tensor], Distribution]


def weighted(x: torch.Tensor) -> KernelDensity:
    widths = torch.linspace(0.4, 0.9, WIDTH, dtype=x.dtype).reshape(x.shape[1:])
    return KernelDensity(x, widths, torch.linspace(0.0, 1.0, len(x)))


MEMBERS: dict[str, Make] = {
    "kernel": lambda x: KernelDensity(x, 0.8),
    "kernel-weighted": weighted,
    "kernel-scott": lambda x: KernelDensity.from_data(x, "scott"),
    "kernel-loo": lambda x: KernelDensity.from_data(x, "loo"),
    "smoothed": lambda x: smoothed(x, 0.8, max_centres=25, generator=torch.Generator().manual_seed(3)),
    "gaussian": fit_gaussian,
    "mixture": lambda x: NoiseMixture([KernelDensity(x, 0.6), fit_gaussian(x)], [0.7, 0.3]),
    "bernoulli": lambda x: BernoulliNoise.from_data((x > 0).to(x.dtype)),
    "rows": EmpiricalNoise,
}
every_member = pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)


@every_member
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_have_the_law_of_their_numbers(make: Make, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = data(60, WIDTH, dtype)
    flat, noise = make(x), make(x.reshape(60, *shape))
    assert noise.event_shape == shape
    assert noise.batch_shape == ()
    at = draw(flat, 40, torch.Generator().manual_seed(1))
    assert torch.equal(noise.log_prob(at.reshape(5, 8, *shape)), flat.log_prob(at).reshape(5, 8))
    assert noise.log_prob(at[0].reshape(shape)).shape == ()
    assert log_prob_or_minus_inf(noise, at[:0].reshape(0, *shape)).shape == (0,)
    assert torch.equal(draw(noise, 40, torch.Generator().manual_seed(1)), at.reshape(40, *shape))
    pairs = [draw_with_log_prob(n, 40, torch.Generator().manual_seed(2)) for n in (flat, noise)]
    assert torch.equal(pairs[1][0], pairs[0][0].reshape(40, *shape))
    assert torch.equal(pairs[1][1], pairs[0][1])
    assert noise.sample((3, 2)).shape == (3, 2, *shape)
    assert bool(noise.support.check(at.reshape(40, *shape)).all())
    assert noise.support.check(at.reshape(40, *shape)).shape == (40,)


@every_member
def test_moments_and_storage_keep_the_shape(make: Make, tmp_path) -> None:
    x = data(60, WIDTH, torch.float64)
    flat, noise = make(x), make(x.reshape(60, 2, 3, 4))
    if not isinstance(noise, EmpiricalNoise):
        assert torch.equal(noise.mean, flat.mean.reshape(2, 3, 4))
    save_noise(noise, tmp_path)
    back, at = load_noise(tmp_path), draw(noise, 9, torch.Generator().manual_seed(0))
    assert back.event_shape == (2, 3, 4)
    assert torch.equal(back.log_prob(at), noise.log_prob(at))


@pytest.mark.parametrize("n", [3, 2000])
def test_gradients_of_arrays(n: int) -> None:
    """Both routes, few numbers and tiles: gradients are those of the vectors, and match finite differences."""
    centres = data(n, WIDTH, torch.float64)
    noise = KernelDensity(centres.reshape(n, 2, 3, 4), 0.7)
    x = data(7, WIDTH, torch.float64, seed=1)
    one, two = x.clone().requires_grad_(), x.reshape(7, 2, 3, 4).clone().requires_grad_()
    weight = torch.linspace(1, 2, 7, dtype=torch.float64)
    (KernelDensity(centres, 0.7).log_prob(one) * weight).sum().backward()
    (noise.log_prob(two) * weight).sum().backward()
    assert torch.equal(two.grad, one.grad.reshape(7, 2, 3, 4))
    at = x[:2].reshape(2, 2, 3, 4).clone().requires_grad_()
    assert torch.autograd.gradcheck(noise.log_prob, (at,), eps=1e-6, atol=1e-6)
    each = torch.func.vmap(torch.func.grad(noise.log_prob))(two.detach())
    assert torch.allclose(each * weight.reshape(7, 1, 1, 1), two.grad, rtol=1e-12)


@pytest.mark.parametrize("rule", ["scott", "silverman", "loo"])
def test_selected_bandwidths(rule: str) -> None:
    x = data(200, WIDTH, torch.float64)
    flat, actual = select_bandwidth(x, rule), select_bandwidth(x.reshape(200, 2, 3, 4), rule)
    assert torch.equal(actual, flat if rule == "loo" else flat.reshape(2, 3, 4))


def test_arrays_are_pooled_tabulated_and_trained_on() -> None:
    x = data(64, WIDTH, torch.float32).reshape(64, 2, 3, 4)
    noise = NoiseMixture([KernelDensity(x, 0.8), fit_gaussian(x)])
    assert torch.equal(log_prob_of_rows(noise, x), noise.log_prob(x))
    drawn, log_prob = NoisePool(noise, 64, torch.Generator().manual_seed(0)).batch(32)
    assert torch.allclose(noise.log_prob(drawn), log_prob, atol=1e-3)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(-3), mlp([WIDTH, 8, 1]))
    objective = NCE(EnergyModel(network), noise, PowerRule(0), partition="profiled")
    history = fit(objective, x, validation=x[:16], epochs=2, batch_size=16, seed=0)
    assert all(math.isfinite(value) for value in history["loss"])


def test_wrong_shapes_are_named() -> None:
    noise = KernelDensity(torch.zeros(5, 2, 3, 4), 1.0)
    assert repr(noise) == "KernelDensity(centres: 5 x 2 x 3 x 4, bandwidth: 1)"
    with pytest.raises(ValueError, match=r"x.*2, 3, 4.*found.*\(7, 24\)"):
        noise.log_prob(torch.zeros(7, 24))
    with pytest.raises(ValueError, match=r"bandwidth.*\(2, 3, 4\).*found.*\(24,\)"):
        KernelDensity(torch.zeros(5, 2, 3, 4), torch.ones(24))
    with pytest.raises(ValueError, match=r"found 0.0 at position \(1, 2\)"):
        KernelDensity(torch.zeros(5, 2, 3), torch.tensor([[1.0, 1, 1], [1, 1, 0]]))
    with pytest.raises(ValueError, match=r"centres.*found"):
        KernelDensity(torch.zeros(5, 0, 3), 1.0)
    bad = torch.zeros(7, 2, 3, 4)
    bad[3, 1, 2, 0] = math.nan
    with pytest.raises(ValueError, match=r"x.*found nan.*\(3, 1, 2\).* 0"):
        noise.log_prob(bad)


class Tilted(torch.nn.Module):
    """exp(−|x − 1|²/2 − |z − mean x|²/2), over arrays x or the same numbers as vectors."""

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        return -(x.flatten(1) - 1).square().sum(-1) / 2

    def log_joint(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.log_prob(x) - (z.flatten(1) - x.flatten(1).mean(1, keepdim=True)).square().sum(-1) / 2


@pytest.mark.parametrize("latent", [None, (3,), (3, 1)])
def test_chains_of_arrays_are_those_of_vectors(latent: tuple[int, ...] | None) -> None:
    start = torch.zeros(50, 6, dtype=torch.float64)
    z = None if latent is None else torch.zeros(50, *latent, dtype=torch.float64)
    flat_z = None if z is None else z.flatten(1)
    options = {"steps": 20, "step_size": 0.5}
    one = langevin(Tilted(), start, flat_z, generator=torch.Generator().manual_seed(0), **options)
    two = langevin(Tilted(), start.reshape(50, 1, 2, 3), z, generator=torch.Generator().manual_seed(0), **options)
    assert two.x.shape == (50, 1, 2, 3)
    assert torch.equal(two.x.flatten(1), one.x)
    assert two.accepted == one.accepted
    assert (two.z is None) == (z is None)
    if two.z is not None and one.z is not None and z is not None:
        assert two.z.shape == z.shape
        assert torch.equal(two.z.flatten(1), one.z)


@pytest.mark.parametrize("latent", [False, True])
def test_annealing_of_arrays_finds_log_z(latent: bool) -> None:
    """Z = (2π)^(D/2), with three latents (2π)^((D+3)/2); within 5 standard errors (false alarms: 6e-7)."""
    normal = Independent(Normal(torch.zeros(1, 2, 2).double(), torch.full((1, 2, 2), 1.3).double()), 3)
    code = Independent(Normal(torch.zeros(3).double(), torch.full((3,), 1.5).double()), 1) if latent else None
    value, error = annealed_log_partition(
        Tilted(), normal, code, chains=4000, temperatures=30, generator=torch.Generator().manual_seed(0)
    )
    assert error < 0.05
    assert abs(float(value) - (4 + 3 * latent) / 2 * math.log(2 * math.pi)) < 5 * float(error)


def test_annealing_from_a_kernel_density_of_arrays() -> None:
    """A kernel density has a gradient: log Z of a unit bell in 6 dimensions, within 5 standard errors."""
    centres = 1 + torch.randn(200, 1, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    value, error = annealed_log_partition(
        Tilted(), KernelDensity(centres, 0.6), chains=1000, temperatures=10, generator=torch.Generator().manual_seed(0)
    )
    assert error < 0.05
    assert abs(float(value) - 3 * math.log(2 * math.pi)) < 5 * float(error)
