"""Arguments of the wrong shape or support that once gave a finite loss: refused in words, or of density zero."""

import math
import re

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce import (
    IWAE,
    NCE,
    VAE,
    Autoencoder,
    BernoulliDecoder,
    ConditionalNCE,
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
from fvnce.models import BinaryEncoder, CoveringEncoder
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
        FullyVariationalNCE(model, point, standard(*shape), PowerRule(0, clip=0.0), log_scale="auto"),
        RankingNCE(model, encoder(width), standard(*shape)),
    ]


@pytest.mark.parametrize(
    ("given", "x"),
    [((28, 28), (28, 28)), ((1, 28, 28), (1, 28, 28)), ((7, 28, 28), (7, 28, 28)), ((28,), (28, 28, 28))],
)
def test_a_batch_is_not_one_image(given: tuple[int, ...], x: tuple[int, ...]) -> None:
    """28 rows of 28 columns are no image of 28 × 28, and 28 draws for 28 images no lines of them."""
    for decoder in (GaussianDecoder(Images(*given)), BernoulliDecoder(Images(*given))):
        for objective in objectives(LatentVariableModel(standard(LATENT), decoder), x[1:]):
            with pytest.raises(ValueError, match=rf"x .*{re.escape(str(given))}.*found x.*{re.escape(str(x))}"):
                objective(torch.ones(x))


def test_a_column_is_not_one_row() -> None:
    class Scalar(nn.Module):
        def forward(self, x: Tensor) -> Distribution:
            return Independent(Normal(x.unsqueeze(-1).expand(-1, LATENT), 1.0), 1)

    model = LatentVariableModel(standard(LATENT), GaussianDecoder(nn.Linear(LATENT, 28)))
    with pytest.raises(ValueError, match=r"x .*\(28,\).*found x.*\(28,\)"):
        VAE(model, Scalar())(torch.rand(28))


@pytest.mark.parametrize(("rows", "draws"), [(28, 28), (28, 2), (2, 28), (1, 28), (5, 5)])
@pytest.mark.parametrize("reference", [None, standard(28)])
def test_joined_energies_are_of_vectors(rows: int, draws: int, reference: Distribution | None) -> None:
    model = EnergyModel(mlp([28 + LATENT, 4, 1]), latent_reference=standard(LATENT), reference=reference)
    objective = FullyVariationalNCE(model, encoder(784), standard(28, 28), PowerRule(0), latent_samples=draws)
    with pytest.raises(ValueError, match=rf"x .*found.* \({rows}, 28, 28\)"):
        objective(torch.rand(rows, 28, 28))


def test_joined_energies_have_latents_for_each_row() -> None:
    model = EnergyModel(mlp([3 + LATENT, 4, 1]))
    with pytest.raises(ValueError, match=r"z .*found.* \(1, 2\)"):
        model.log_joint(torch.rand(4, 3), torch.rand(1, LATENT))


BOUNDED = {
    "Exponential": D.Exponential(torch.ones(LATENT)),
    "Gamma": D.Gamma(torch.full((LATENT,), 2.0), torch.ones(LATENT)),
    "HalfNormal": D.HalfNormal(torch.ones(LATENT)),
    "LogNormal": D.LogNormal(torch.zeros(LATENT), 1.0),
    "Beta": D.Beta(torch.full((LATENT,), 2.0), 2.0),
    "Uniform": D.Uniform(torch.zeros(LATENT), 1.0),
    "Pareto": D.Pareto(torch.full((LATENT,), 0.5), 1.0),
}
DISCRETE = {
    "Bernoulli": D.Bernoulli(torch.full((LATENT,), 0.5)),
    "Poisson": D.Poisson(torch.ones(LATENT)),
    "Geometric": D.Geometric(torch.full((LATENT,), 0.5)),
    "Categorical": D.Categorical(torch.ones(LATENT, 4)),
}
POINTS = torch.tensor([[0.7, 0.8], [-0.1, 0.8], [-3.0, -4.0]])


@pytest.mark.parametrize("name", BOUNDED)
def test_priors_and_references_are_zero_outside_their_support(name: str) -> None:
    given = Independent(BOUNDED[name], 1)

    class Learned(nn.Module):
        def forward(self) -> Distribution:
            return given

    for prior in (given, Learned()):
        model = LatentVariableModel(prior, GaussianDecoder(nn.Linear(LATENT, 5)))
        x, z = torch.zeros(3, 5), POINTS.clone().requires_grad_()
        actual = model.log_joint(x, z) - model.log_likelihood(x, z)
        assert actual[1:].tolist() == [-math.inf, -math.inf]
        torch.testing.assert_close(actual[0], given.log_prob(POINTS[0]))
    energy = EnergyModel(nn.Linear(LATENT, 1), reference=given)
    assert energy.log_prob(POINTS)[1:].tolist() == [-math.inf, -math.inf]
    covered = CoveringEncoder(GaussianEncoder(nn.Linear(5, 2 * LATENT)), given)
    q = covered.encoder(torch.zeros(3, 5))
    torch.testing.assert_close(covered(torch.zeros(3, 5)).log_prob(POINTS)[1:], q.log_prob(POINTS)[1:] + math.log(0.5))


@pytest.mark.parametrize("name", [*BOUNDED, *DISCRETE])
def test_objectives_refuse_latents_outside_the_priors_support(name: str) -> None:
    torch.manual_seed(5)
    prior = Independent((BOUNDED | DISCRETE)[name], 1)
    model = LatentVariableModel(prior, GaussianDecoder(nn.Linear(LATENT, 5)))
    words = "encoder.*discrete.*found DiagonalNormal" if name in DISCRETE else "found .*inf"
    x = torch.randn(64, 5)
    for objective in (VAE(model, encoder(5)), FullyVariationalNCE(model, encoder(5), standard(5), PowerRule(0))):
        with pytest.raises(ValueError, match=words):
            objective(x)
    # Some of 64 rows have all three draws outside.
    with pytest.raises(ValueError, match=words):
        IWAE(model, encoder(5), latent_samples=3)(x)


@pytest.mark.parametrize("name", BOUNDED)
def test_noise_outside_the_priors_support_leaves_no_gradient_behind(name: str) -> None:
    """Data have latents inside, noise samples have not: their ratio is 0."""

    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Distribution:
            sign = 2 * (x[:, :1] > 0).to(x) - 1
            return Independent(Normal(self.weight * 0.7 * sign.expand(-1, LATENT), 1e-3), 1)

    model = LatentVariableModel(Independent(BOUNDED[name], 1), GaussianDecoder(nn.Linear(LATENT, 5)))
    objective = FullyVariationalNCE(model, Signed(), standard(5), PowerRule(0))
    objective(torch.ones(4, 5), x_noise=-torch.ones(4, 5)).backward()
    for parameter in objective.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_data_outside_the_references_support_are_refused() -> None:
    for reference in (D.Exponential(torch.ones(3)), D.Bernoulli(torch.full((3,), 0.5))):
        model = EnergyModel(mlp([3, 4, 1]), reference=Independent(reference, 1))
        with pytest.raises(ValueError, match=r"found -inf.*row \d+ of x"):
            NCE(model, standard(3))(torch.randn(16, 3))


def test_latents_inside_the_priors_support_pass() -> None:
    """Rounding is not the edge of a support: shares of 500 parts in float32 need not sum to one."""
    concentration = torch.ones(500)

    class Shares(nn.Module):
        def forward(self, x: Tensor) -> Distribution:
            return D.Dirichlet(concentration.expand(len(x), -1), validate_args=False)

    torch.manual_seed(0)
    model = LatentVariableModel(D.Dirichlet(concentration), GaussianDecoder(nn.Linear(500, 5)))
    assert VAE(model, Shares(), closed_form=False)(torch.randn(64, 5)).isfinite()
    bits = LatentVariableModel(Independent(DISCRETE["Bernoulli"], 1), GaussianDecoder(nn.Linear(LATENT, 5)))
    assert VAE(bits, BinaryEncoder(nn.Linear(5, LATENT)))(torch.randn(8, 5)).isfinite()


@pytest.mark.parametrize("rows", [1, 28])
def test_a_learned_prior_is_one_distribution(rows: int) -> None:
    class Prior(nn.Module):
        def __init__(self, *batch: int) -> None:
            super().__init__()
            self.loc = nn.Parameter(torch.randn(*batch, LATENT))

        def forward(self) -> Distribution:
            return Independent(Normal(self.loc, torch.ones_like(self.loc)), 1)

    for batch in ((28,), (1,)):
        model = LatentVariableModel(Prior(*batch), GaussianDecoder(nn.Linear(LATENT, 5)))
        for objective in objectives(model, (5,))[:4]:
            with pytest.raises(ValueError, match=rf"prior .*found.* \({batch[0]},\)"):
                objective(torch.randn(rows, 5))
    assert VAE(LatentVariableModel(Prior(), GaussianDecoder(nn.Linear(LATENT, 5))), encoder(5))(torch.randn(rows, 5))


def test_conditional_nce_keeps_the_spread_of_scalar_rows() -> None:
    class Scalar(nn.Module):
        def log_prob(self, x: Tensor) -> Tensor:
            return -x.square() / 2

    torch.manual_seed(0)
    objective = ConditionalNCE(Scalar())
    new = objective.state_dict()
    objective(x := torch.randn(100))
    objective(100 * x)
    torch.testing.assert_close(objective.spread, x.std())
    other = ConditionalNCE(Scalar())
    other.load_state_dict(objective.state_dict())
    other(100 * x)
    torch.testing.assert_close(other.spread, x.std())
    other.load_state_dict(new)
    other(100 * x)
    torch.testing.assert_close(other.spread, 100 * x.std())


@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), standard(2, 2)])
def test_a_covering_encoder_is_of_vectors(prior: Distribution) -> None:
    """A scalar prior once gave all rows one draw."""
    with pytest.raises(ValueError, match=rf"prior .*vectors.*{re.escape(str(tuple(prior.event_shape)))}"):
        CoveringEncoder(encoder(5), prior)


class Separate(nn.Module):
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        energy = x.flatten(1).square().sum(-1) / 2 + z.square().sum(-1)
        return energy.unsqueeze(-1) if self.last else energy


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_separate_energies_of_one_row_and_several_draws(rows: int, draws: int) -> None:
    x = torch.rand(rows, 1, 2, 2)
    z = torch.rand(rows, LATENT) if draws == 1 else torch.rand(draws, rows, LATENT)
    expected = -x.flatten(1).square().sum(-1) / 2 - z.square().sum(-1)
    for last in (False, True):
        network = Separate(last)
        torch.testing.assert_close(EnergyModel(network, inputs="separate").log_joint(x, z), expected)
        objective = FullyVariationalNCE(
            EnergyModel(network, inputs="separate", latent_reference=standard(LATENT)),
            encoder(4),
            standard(1, 2, 2),
            PowerRule(0),
            latent_samples=draws,
        )
        assert objective(x).isfinite()
