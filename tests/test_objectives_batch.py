"""A batch in parts: each part knows its share, and the average of the parts is the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import Independent, Normal

from fvnce import NCE, SNCE, Autoencoder, EnergyModel, FullyVariationalNCE, GaussianDecoder, PowerRule, mlp
from fvnce.models import LatentVariableModel, PointEncoder
from fvnce.objectives import Batch, BatchShare, Learned, Objective

WIDTH = 3


def normal(width: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(width).double(), torch.full((width,), scale).double()), 1)


def energy() -> EnergyModel:
    return EnergyModel(mlp([WIDTH, 5, 1], torch.nn.SiLU), reference=normal(WIDTH, 2.0))


def latent() -> tuple[LatentVariableModel, PointEncoder]:
    return LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 4, WIDTH]))), PointEncoder(mlp([WIDTH, 4, 2]))


#: Nothing in them is drawn, and every term is a mean over samples.
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "autoencoder": lambda: Autoencoder(*latent()),
    "snce": lambda: SNCE(energy(), normal(WIDTH, 2.0), PowerRule(0.5), noise_ratio=3.0),
    "nce": lambda: NCE(energy(), normal(WIDTH, 2.0), partition=Learned(start=0.3)),
    "fvnce": lambda: FullyVariationalNCE(*latent(), normal(WIDTH, 2.0), PowerRule(0), log_scale=0.5),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_average_of_weighted_parts_is_the_whole(name: str) -> None:
    torch.manual_seed(0)
    objective = OBJECTIVES[name]().double()
    noise = normal(WIDTH, 2.0)
    x, y = torch.randn(7, WIDTH).double(), 2 * torch.randn(5, WIDTH).double()
    whole = Batch(x, y, noise.log_prob(x), noise.log_prob(y))
    loss = objective.terms_of(whole).loss
    losses = []
    for data, other in (((0, 5), (0, 1)), ((5, 7), (1, 5))):
        rows, draws = slice(*data), slice(*other)
        share = BatchShare(2 * (data[1] - data[0]) / 7, 2 * (other[1] - other[0]) / 5)
        losses.append(objective.terms_of(Batch(x[rows], y[draws], share=share)).loss)
    parts = (losses[0] + losses[1]) / 2
    torch.testing.assert_close(parts, loss, rtol=1e-12, atol=0)
    parameters = list(objective.parameters())
    for one, two in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(parts, parameters), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_is_what_the_arguments_say(name: str) -> None:
    torch.manual_seed(0)
    objective = OBJECTIVES[name]().double()
    noise = normal(WIDTH, 2.0)
    x, y = torch.randn(7, WIDTH).double(), 2 * torch.randn(5, WIDTH).double()
    log_x, log_y = noise.log_prob(x) + 0.25, noise.log_prob(y) - 0.5
    found = objective.terms_of(Batch(x, y, log_x, log_y))
    terms = objective.terms(x, y, log_noise_x=log_x, log_noise_noise=log_y)
    assert torch.equal(found.loss, terms.loss)
    assert torch.equal(found.loss, objective(x, y, log_noise_x=log_x, log_noise_noise=log_y))
    assert found.statistics == terms.statistics
