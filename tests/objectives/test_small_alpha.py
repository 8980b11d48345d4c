"""The profiled form keeps its digits as α tends to 0, in single precision and wherever the ratios lie."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, OneHotCategorical

from fvnce import NCE, FullyVariationalNCE, PowerRule
from fvnce._stats import log_power_mean
from fvnce.objectives import Profiled


class Energy(nn.Module):
    """An unnormalised density whose logarithm is ``slope`` times a cubic of the row."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(1.5, dtype=dtype))

    def log_prob(self, x: Tensor) -> Tensor:
        return self.slope * (x[:, 0] - 0.3 * x[:, 1] ** 2)


class Switch(nn.Module):
    """The same with a latent of three values, of which each adds its own to the energy."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.energy = Energy(dtype)
        self.encoder = nn.Parameter(torch.tensor([0.5, 0.0, -1.0], dtype=dtype))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        return self.energy.log_prob(x) + z @ torch.tensor([0.0, 1.0, -2.0], dtype=x.dtype)


def found(alpha: float, dtype: torch.dtype, latent: bool) -> tuple[float, list[float]]:
    """J and its gradient on one batch."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(100, 2, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    noise = Independent(Normal(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype)), 1)
    how = {"rule": PowerRule(alpha), "partition": Profiled(momentum=0)}
    if latent:
        model = Switch(dtype)
        objective = FullyVariationalNCE(
            model, lambda x: OneHotCategorical(logits=model.encoder.expand(len(x), 3)), noise, **how
        )
    else:
        objective = NCE(Energy(dtype), noise, **how)
    loss = objective(x, y)
    loss.backward()
    return loss.item(), [g for p in objective.parameters() for g in p.grad.flatten().tolist()]


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("alpha", [1e-40, 1e-8, 1e-6, 1e-4, 1e-3, 0.015, 0.016])
def test_single_precision_agrees_with_double(alpha, latent):
    loss, gradient = found(alpha, torch.float32, latent)
    exact, direction = found(alpha, torch.float64, latent)
    assert loss == pytest.approx(exact, rel=1e-5)
    assert gradient == pytest.approx(direction, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("latent", [False, True])
def test_the_limit_is_that_of_alpha_zero(latent):
    loss, gradient = found(1e-9, torch.float64, latent)
    limit, direction = found(0.0, torch.float64, latent)
    assert loss == pytest.approx(limit, rel=1e-7)
    assert gradient == pytest.approx(direction, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("power", [1e-3, 1e-2, 0.5])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 50.0, 150.0, 1e4])
def test_a_power_mean_is_its_definition(power, spread):
    """On both sides of where all values are within 1/power, with gradients; equal weights are the default."""
    generator = torch.Generator().manual_seed(1)
    values = (7 + spread * torch.rand(40, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    logits = torch.randn(40, 3, generator=generator, dtype=torch.float64).requires_grad_()

    def weighted(function):
        result = function(values, power, logits.log_softmax(0))
        return result, *torch.autograd.grad(result.sum(), (values, logits))

    def definition(values, power, log_weights):
        return (power * values + log_weights).logsumexp(0) / power

    for one, other in zip(weighted(log_power_mean), weighted(definition), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    equal = torch.full_like(values, -math.log(40))
    torch.testing.assert_close(log_power_mean(values, power), definition(values, power, equal), rtol=1e-9, atol=1e-9)


def test_values_far_apart_have_finite_gradients():
    values = torch.tensor([-1e30, -1e4, 0.0, 1e4], requires_grad=True)
    log_power_mean(values, 1e-3).backward()
    assert torch.isfinite(values.grad).all()
    assert values.grad.sum() == pytest.approx(1, abs=1e-6)
