"""What objectives take and give: batches in parts, terms and their statistics, one calling convention, old names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Independent, Normal

import fvnce
from contracts import DOUBLE
from exact_models import GaussianMixtureModel
from fvnce import (
    IWAE,
    NCE,
    VAE,
    Autoencoder,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    PowerRule,
    RankingNCE,
    VariationalNCE,
    mlp,
)
from fvnce.io import describe, rebuild
from fvnce.models import LatentVariableModel, PointEncoder
from fvnce.objectives import Batch, BatchPart, Learned, Objective
from fvnce.objectives.batch import LogRatio, effective_fraction, ratio_statistics

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
    "snce": lambda: NCE(energy(), normal(WIDTH, 2.0), PowerRule(0.5), noise_ratio=3.0),
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
        part = BatchPart(2 * (data[1] - data[0]) / 7, 2 * (other[1] - other[0]) / 5)
        losses.append(objective.terms_of(Batch(x[rows], y[draws], part=part)).loss)
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
    actual = objective.terms_of(Batch(x, y, log_x, log_y))
    terms = objective.terms(x, y, log_noise_x=log_x, log_noise_noise=log_y)
    assert torch.equal(actual.loss, terms.loss)
    assert torch.equal(actual.loss, objective(x, y, log_noise_x=log_x, log_noise_noise=log_y))
    assert actual.statistics == terms.statistics


def standard(d: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


def test_statistics_against_their_definitions():
    delta_data = torch.tensor([3.0, 1.0, -2.0], dtype=DOUBLE)
    delta_noise = torch.tensor([-1.0, -60.0, -2000.0, 30.0], dtype=DOUBLE)
    alpha = 0.25
    actual = ratio_statistics(PowerRule(alpha), delta_data, delta_noise)
    threshold = torch.finfo(DOUBLE).eps * (alpha * delta_data).exp().mean()
    weights = ((1 + alpha) * delta_noise).clamp(max=10).exp()  # above the clip a slope is that at the clip
    assert actual["live_noise"] == (weights >= threshold).double().mean() == 0.5
    assert actual["zero_noise"] == 0.25
    assert actual["ess_noise"] == pytest.approx(float(weights.sum() ** 2 / (4 * (weights**2).sum())), rel=1e-12)
    data_weights = (alpha * delta_data).exp()
    expected = float(data_weights.sum() ** 2 / (3 * (data_weights**2).sum()))
    assert actual["ess_data"] == pytest.approx(expected, rel=1e-12)
    assert actual["clipped_noise"] == 0.25
    assert actual["clipped_data"] == 0


def test_effective_fraction_has_its_limits():
    assert effective_fraction(torch.full((7,), -900.0)) == pytest.approx(1.0)
    assert effective_fraction(torch.tensor([0.0, -900.0, -900.0, -900.0])) == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["terms", "forward"])
def test_a_method_that_training_would_pass_over_is_refused(name):
    with pytest.raises(TypeError, match=rf"Penalised must define terms_of\(batch\), found {name}"):
        type("Penalised", (VAE,), {name: lambda self, x: x.mean()})


def test_terms_name_what_they_hold():
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6])))
    objective = FullyVariationalNCE(model, GaussianEncoder(mlp([6, 4])), standard(6, 2.0), PowerRule(0))
    terms = objective.terms(torch.randn(9, 6), torch.randn(4, 6))
    assert terms.data.shape == terms.evidence.shape == terms.delta_data.shape == (9,)
    assert terms.noise.shape == terms.delta_noise.shape == (4,)
    assert {"data_term", "noise_term", "evidence", "live_noise", "ess_noise", "log_scale", "value"} <= set(
        terms.statistics
    )
    assert -terms.loss.item() == pytest.approx(terms.statistics["value"], rel=1e-6)


@pytest.mark.parametrize("name", ["VAE", "IWAE", "Autoencoder", "NCE", "NCE, rule", "VariationalNCE", "FullyVNCE"])
def test_one_calling_convention(name):
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 6])))
    encoder = GaussianEncoder(mlp([6, 4]))
    mixture = GaussianMixtureModel(torch.zeros(2), torch.randn(2, 6), torch.ones(2))
    objective = {
        "VAE": lambda: VAE(model, encoder),
        "IWAE": lambda: IWAE(model, encoder),
        "Autoencoder": lambda: Autoencoder(model, encoder),
        "NCE": lambda: NCE(mixture, standard(6)),
        "NCE, rule": lambda: NCE(mixture, standard(6), PowerRule(0.5)),
        "VariationalNCE": lambda: VariationalNCE(model, encoder, standard(6)),
        "FullyVNCE": lambda: FullyVariationalNCE(model, encoder, standard(6), PowerRule(0)),
    }[name]()
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    for arguments, keywords in (
        ((x,), {}),
        ((x, y), {}),
        ((x, y), {"log_noise_x": standard(6).log_prob(x), "log_noise_noise": standard(6).log_prob(y)}),
    ):
        loss = objective(*arguments, **keywords)
        assert loss.shape == ()
        loss.backward()
        terms = objective.terms(*arguments, **keywords)
        assert all(math.isfinite(v) for v in terms.statistics.values())
    assert sum(len(g["params"]) for g in objective.parameter_groups(0.1)) == len(list(objective.parameters()))


def test_no_mean_of_ratios_forgets_its_graph():
    """First computed without gradients, it still has a graph where they are enabled, and the other way round."""
    values = torch.randn(4, 3, requires_grad=True)
    ratio = LogRatio(values, torch.full((4, 3), -math.log(4)))
    with torch.no_grad():
        assert not ratio.mean.requires_grad
    assert ratio.mean.requires_grad
    with torch.no_grad():
        assert not ratio.mean.requires_grad


# Old names and orders of arguments, for one version.


@pytest.mark.parametrize("home", [fvnce, fvnce.objectives])
def test_snce_is_nce_with_a_rule(home: Any) -> None:
    with pytest.warns(DeprecationWarning, match="SNCE.*objectives.NCE"):
        old = home.SNCE
    assert old is NCE


def test_a_file_that_names_snce_is_read() -> None:
    objective = NCE(energy(), normal(WIDTH, 2.0), PowerRule(0.5), log_scale=2.5)
    content, tensors = describe(objective)
    content["structure"]["$kind"] = "SNCE"
    loaded: Any = rebuild(content, tensors)
    assert isinstance(loaded, NCE)
    assert loaded.rule == objective.rule
    assert describe(loaded)[0]["structure"]["$kind"] == "NCE"
    assert loaded.fitted_log_partition() == -2.5


def test_ranking_nce_takes_the_encoder_before_the_noise() -> None:
    model, encoder = latent()
    with pytest.warns(DeprecationWarning, match="RankingNCE.*encoder, noise"):
        old = RankingNCE(model, normal(WIDTH), encoder, 2)  # type: ignore[arg-type]
    new = RankingNCE(model, encoder, normal(WIDTH), noise_samples=2)
    for made in (old, new):
        assert made.encoder is encoder
        assert made.noise_samples == 2
    with pytest.raises(TypeError, match=r"noise must .*found None"):
        RankingNCE(model)
