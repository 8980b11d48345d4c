"""Arguments of the wrong shape or support that once gave a finite loss: refused in words, or of density zero."""

import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce import (
    IWAE,
    VAE,
    Autoencoder,
    BernoulliDecoder,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    PowerRule,
    RankingNCE,
    mlp,
)
from fvnce.objectives import Objective

LATENT = 2


def standard(*shape: int) -> Distribution:
    return Independent(Normal(torch.zeros(shape), torch.ones(shape)), len(shape))


class Images(nn.Module):
    """From codes to images of a shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(LATENT, math.prod(shape))

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(z).unflatten(-1, self.shape)


def encoder(inputs: int) -> GaussianEncoder:
    return GaussianEncoder(nn.Sequential(nn.Flatten(), nn.Linear(inputs, 2 * LATENT)))


def objectives(model: LatentVariableModel, shape: tuple[int, ...]) -> list[Objective]:
    width = math.prod(shape)
    point = PointEncoder(nn.Sequential(nn.Flatten(), nn.Linear(width, LATENT)))
    return [
        VAE(model, encoder(width)),
        IWAE(model, encoder(width), latent_samples=28),
        Autoencoder(model, point),
        FullyVariationalNCE(model, encoder(width), standard(*shape), PowerRule(0)),
        RankingNCE(model, standard(*shape), encoder(width)),
    ]


@pytest.mark.parametrize(
    ("given", "x"),
    [((28, 28), (28, 28)), ((1, 28, 28), (1, 28, 28)), ((7, 28, 28), (7, 28, 28)), ((28,), (28, 28, 28))],
)
def test_a_batch_is_not_one_image(given: tuple[int, ...], x: tuple[int, ...]) -> None:
    """28 rows of 28 columns are no image of 28 × 28, and 28 draws for 28 images no lines of them."""
    for decoder in (GaussianDecoder(Images(*given)), BernoulliDecoder(Images(*given))):
        for objective in objectives(LatentVariableModel(standard(LATENT), decoder), x[1:]):
            with pytest.raises(
                ValueError, match=rf"x must .*{re.escape(str(given))}, found x of shape {re.escape(str(x))}"
            ):
                objective(torch.ones(x))


def test_a_column_is_not_one_row() -> None:
    class Scalar(nn.Module):
        def forward(self, x: Tensor) -> Distribution:
            return Independent(Normal(x.unsqueeze(-1).expand(-1, LATENT), 1.0), 1)

    model = LatentVariableModel(standard(LATENT), GaussianDecoder(nn.Linear(LATENT, 28)))
    with pytest.raises(ValueError, match=r"x must .*\(28,\), found x of shape \(28,\)"):
        VAE(model, Scalar())(torch.rand(28))


@pytest.mark.parametrize(("rows", "draws"), [(28, 28), (28, 2), (2, 28), (1, 28), (5, 5)])
@pytest.mark.parametrize("reference", [None, standard(28)])
def test_joined_energies_are_of_vectors(rows: int, draws: int, reference: Distribution | None) -> None:
    model = EnergyModel(mlp([28 + LATENT, 4, 1]), latent_reference=standard(LATENT), reference=reference)
    objective = FullyVariationalNCE(model, encoder(784), standard(28, 28), PowerRule(0), latent_samples=draws)
    with pytest.raises(ValueError, match=rf"x must .*found shape \({rows}, 28, 28\)"):
        objective(torch.rand(rows, 28, 28))


def test_joined_energies_have_latents_for_each_row() -> None:
    model = EnergyModel(mlp([3 + LATENT, 4, 1]))
    with pytest.raises(ValueError, match=r"z must .*found shape \(1, 2\)"):
        model.log_joint(torch.rand(4, 3), torch.rand(1, LATENT))
