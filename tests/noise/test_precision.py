"""How exact densities are: far rows, the last places of float64, and half precision."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from exact_models import GaussianMixtureModel, LinearGaussianModel
from fvnce import (
    BernoulliDecoder,
    CategoricalEncoder,
    EnergyModel,
    GaussianDecoder,
    GaussianEncoder,
    KernelDensity,
    LatentVariableModel,
    NoiseMixture,
    PointEncoder,
    fit_gaussian,
    mlp,
)
from fvnce.models import (
    BinaryEncoder,
    ContinuousBernoulliDecoder,
    CoveringEncoder,
    KernelRatio,
    TelescopedRatio,
)
from fvnce.models.exact import RestrictedBoltzmannMachine
from fvnce.models.fixed import FixedDistribution


def exactly(x: Tensor, centres: Tensor, h: Tensor) -> mpmath.mpf:
    """log p_n of one point with 40 digits."""
    with mpmath.workdps(40):
        widths = [mpmath.mpf(float(width)) for width in h.expand(len(x))]
        scores = []
        for centre in centres.tolist():
            gaps = [
                (mpmath.mpf(a) - mpmath.mpf(c)) / width for a, c, width in zip(x.tolist(), centre, widths, strict=True)
            ]
            scores.append(-mpmath.fsum(gap**2 for gap in gaps) / 2)
        top = max(scores)
        total = top + mpmath.log(mpmath.fsum(mpmath.exp(score - top) for score in scores) / len(scores))
        return total - mpmath.fsum(map(mpmath.log, widths)) - len(x) * mpmath.log(2 * mpmath.pi) / 2


@pytest.mark.parametrize("rows", [1, 64, 3000])
@pytest.mark.parametrize("slope", [False, True])
def test_far_rows_in_single_precision(rows: int, slope: bool) -> None:
    """Where the scores of all centres are farther apart than e^margin can tell, the best one still counts."""
    centres = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    x = torch.full((rows, 5), 2e6, requires_grad=slope)
    actual = KernelDensity(centres, 0.1).log_prob(x)
    nearest = float((2e6 - centres.double()).square().sum(1).min()) / 0.02
    assert torch.allclose(actual.double(), torch.tensor(-nearest, dtype=torch.float64), rtol=1e-6)
    if slope:
        actual.sum().backward()
        assert torch.allclose(x.grad.double(), torch.tensor(-2e8, dtype=torch.float64), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("single_bandwidth", [True, False])
@pytest.mark.parametrize("spread", ["even", "uneven"])
@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (1, 1000), (3, 5), (3, 1000), (30, 500), (784, 1), (784, 5), (2000, 1), (2000, 5)]
)
def test_six_units_in_the_last_place(width: int, single_bandwidth: bool, size: int, spread: str) -> None:
    generator = torch.Generator().manual_seed(width + size)
    centres = torch.randn(size, width, generator=generator, dtype=torch.float64)
    h = 0.0227 * (1 + torch.rand(() if single_bandwidth else (width,), generator=generator, dtype=torch.float64))
    x = 1e6 * (1 + torch.rand(200, 1, generator=generator, dtype=torch.float64)).expand(200, width).clone()
    if spread == "uneven":
        x *= torch.randn(200, width, generator=generator, dtype=torch.float64)
    noise = KernelDensity(centres, h)
    # Few points and many take different routes, and so does a value with its gradient.
    actual = [noise.log_prob(x), noise.log_prob(x[:12]), noise.log_prob(x.clone().requires_grad_()).detach()]
    for row in range(3 if size * width > 10_000 else 12):
        expected = exactly(x[row], centres, h)
        unit = np.spacing(abs(float(expected)))
        for values in actual:
            assert abs(mpmath.mpf(float(values[row])) - expected) <= 6 * unit


def test_half_precision_leaves_noise_as_it_is() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)
    kernel = KernelDensity(torch.randn(30, 6, generator=generator), 0.3)
    noise = NoiseMixture([kernel, fit_gaussian(x)], [1, 2])
    fixed = FixedDistribution(noise)
    expected = noise.log_prob(x)
    for dtype in (torch.bfloat16, torch.float16):
        held = fixed.to(dtype).distribution
        assert torch.equal(held.log_prob(x), expected)
        assert held.log_prob(x.to(dtype)).dtype == torch.float32
        assert torch.equal(held.log_prob(x.to(dtype)), noise.log_prob(x.to(dtype).float()))
    assert isinstance(fixed.distribution, NoiseMixture)
    assert torch.equal(fixed.float().distribution.weights, noise.weights)
    doubled = fixed.double().distribution.log_prob(x.double())
    assert doubled.dtype == torch.float64
    assert torch.allclose(doubled.float(), expected, atol=1e-3)


def normal(width: int) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.full((width,), 1.3)), 1)


class Energy(nn.Module):
    """From x and z, each by itself, to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.z = nn.Linear(784, 1), nn.Linear(2, 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.x(x) + self.z(z)


JOINTS = {
    "gaussian": lambda: LatentVariableModel(normal(2), GaussianDecoder(nn.Linear(2, 784), scale=1 / 8)),
    "gaussian-learned": lambda: LatentVariableModel(
        normal(2), GaussianDecoder(nn.Linear(2, 784), scale=0.5, learned="shared")
    ),
    "bernoulli": lambda: LatentVariableModel(normal(2), BernoulliDecoder(nn.Linear(2, 784))),
    "grey": lambda: LatentVariableModel(normal(2), ContinuousBernoulliDecoder(nn.Linear(2, 784))),
    "energy": lambda: EnergyModel(mlp([786, 8, 1]), reference=normal(784)),
    "energy-separate": lambda: EnergyModel(Energy(), reference=normal(784), inputs="separate"),
    "linear": lambda: LinearGaussianModel(torch.randn(784, 2), torch.zeros(784), 0.5),
    "boltzmann": lambda: RestrictedBoltzmannMachine(torch.randn(784, 2), torch.zeros(784), torch.zeros(2)),
}


def rounded(module: nn.Module) -> nn.Module:
    """The module with its parameters rounded to half precision and back."""
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(value.bfloat16().float())
    return module


@pytest.mark.parametrize("make", JOINTS.values(), ids=JOINTS)
def test_joints_of_half_precision_networks_are_summed_in_single(make) -> None:
    """The same weights in float32 give the same density, to the rounding of the network's own output.

    A network's output is off by at most 2^-8 of itself in bfloat16; a sum over 784 pixels in bfloat16 would be off by
    2^-8 of the log-density, which is thousands of nats here.
    """
    torch.manual_seed(0)
    model = rounded(make())
    x = torch.randint(2, (6, 784)).float()
    z = torch.randn(6, 2).bfloat16().float()
    expected = model.log_joint(x, z)
    model.bfloat16()
    for given in (x, x.bfloat16()):
        for code in (z, z.bfloat16()):
            actual = model.log_joint(given, code)
            assert actual.dtype == torch.float32
            assert torch.allclose(actual, expected, rtol=1e-3, atol=0.1)
            assert not torch.equal(actual, actual.bfloat16().float())
    actual.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if isinstance(model, LatentVariableModel) and model.normalized:
        assert model.sample(3).shape == (3, 784)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PointEncoder(mlp([5, 4])),
        lambda: GaussianEncoder(mlp([5, 4])),
        lambda: CoveringEncoder(GaussianEncoder(mlp([5, 4])), normal(2)),
    ],
    ids=["point", "gaussian", "covering"],
)
def test_encoders_in_half_precision(make) -> None:
    torch.manual_seed(0)
    encoder = make().bfloat16()
    for x in (torch.randn(6, 5), torch.randn(6, 5).bfloat16()):
        q = encoder(x)
        z = q.rsample((3,))
        assert z.dtype == q.log_prob(z).dtype == torch.float32
        assert q.log_prob(z).shape == (3, 6)


def test_other_models_in_half_precision() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5).bfloat16()
    for encoder in (CategoricalEncoder(mlp([5, 4])), BinaryEncoder(mlp([5, 4]))):
        q = encoder.bfloat16()(x)
        assert torch.allclose(q.log_prob(q.enumerate_support()).logsumexp(0), torch.zeros(6), atol=1e-6)
    mixture = GaussianMixtureModel(torch.zeros(2), torch.randn(2, 5), torch.ones(2)).bfloat16()
    assert mixture.log_prob(x).dtype == torch.float32
    assert mixture.sample(4).shape == (4, 5)
    linear = LinearGaussianModel(torch.randn(5, 2), torch.zeros(5), 0.5).bfloat16()
    assert torch.allclose(
        linear.log_prob(x),
        linear.log_joint(x, z := linear.posterior(x).mean) - linear.posterior(x).log_prob(z),
        atol=1e-3,
    )
    ratio = KernelRatio(torch.randn(4, 5), torch.ones(4), 1.0).bfloat16()
    assert ratio.log_ratio(x).dtype == torch.float32
    chain = TelescopedRatio([nn.Linear(5, 1), nn.Linear(5, 1)], noise=normal(5)).bfloat16()
    assert chain.log_prob(x).dtype == torch.float32


def test_a_fixed_scale_is_not_rounded() -> None:
    decoder = GaussianDecoder(nn.Linear(2, 3), scale=1 / 7).bfloat16()
    assert float(decoder.scale) == pytest.approx(1 / 7, rel=1e-6)
    assert math.isclose(float(decoder.double().scale), 1 / 7, rel_tol=1e-6)
    assert decoder.log_scale.dtype == torch.float64
    assert "log_scale" in decoder.state_dict()
