"""Data and noise go through the networks together where each row is known to be treated by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from exact_models import GaussianMixtureModel
from fvnce import (
    NCE,
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
from fvnce.models import CategoricalEncoder, WithContext
from fvnce.objectives import Amortized, VariationalNCE

NOISE = Independent(Normal(torch.zeros(6), 2 * torch.ones(6)), 1)


def energy(sizes: list[int], **options: Any) -> EnergyModel:
    return EnergyModel(mlp(sizes, nn.Tanh), reference=NOISE, **options)


def latent() -> LatentVariableModel:
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    return LatentVariableModel(prior, GaussianDecoder(mlp([2, 8, 6], nn.Tanh)))


def mixture() -> GaussianMixtureModel:
    return GaussianMixtureModel(torch.zeros(3), torch.randn(3, 6), torch.ones(3))


OBJECTIVES: dict[str, Any] = {
    "nce": lambda: NCE(energy([6, 8, 1]), NOISE),
    "nce, learned": lambda: NCE(energy([6, 8, 1]), NOISE, partition="learned"),
    "nce, profiled": lambda: NCE(energy([6, 8, 1]), NOISE, PowerRule(0.5), partition="profiled"),
    "ranking": lambda: RankingNCE(energy([6, 8, 1]), noise=NOISE, noise_samples=2),
    "fvnce, point": lambda: FullyVariationalNCE(latent(), PointEncoder(mlp([6, 8, 2])), NOISE, PowerRule(0)),
    "fvnce, summed": lambda: FullyVariationalNCE(mixture(), CategoricalEncoder(mlp([6, 8, 3])), NOISE, PowerRule(0, 1)),
    "fvnce": lambda: FullyVariationalNCE(
        latent(), GaussianEncoder(mlp([6, 8, 4])), NOISE, PowerRule(0), latent_samples=3
    ),
    "fvnce, draws of a point": lambda: FullyVariationalNCE(
        latent(), PointEncoder(mlp([6, 8, 2])), NOISE, PowerRule(0), latent_samples=3
    ),
}


def made(make: Any, by_rows: bool) -> Any:
    torch.manual_seed(0)
    # Modules outside of fvnce are processed in one pass only with by_rows = True.
    kinds: tuple[Any, ...] = (
        (GaussianMixtureModel,) if by_rows else (GaussianMixtureModel, EnergyModel, LatentVariableModel)
    )
    for kind in kinds:
        kind.by_rows = by_rows
    try:
        return make()
    finally:
        for kind in kinds:
            del kind.by_rows


def passes(objective: Any, *batch: Tensor, **given: Tensor) -> list[int]:
    """Return the rows of every pass through the first layer of the networks that see x."""
    seen: list[int] = []
    parts = [objective.model.network if objective.encoder is None else objective.encoder.network]
    for part in parts:
        part.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    objective(*batch, **given)
    return seen


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_pass_gives_what_two_give(name: str) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(5, 6), 2 * torch.randn(7, 6)
    results = []
    for by_rows in (True, False):
        objective = made(OBJECTIVES[name], by_rows)
        torch.manual_seed(2)
        loss = objective(x, y)
        loss.backward()
        results.append([loss, *(p.grad for p in objective.parameters())])
        assert passes(objective, x, y) == ([12] if by_rows else [5, 7])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_contexts_go_along() -> None:
    torch.manual_seed(0)
    model = EnergyModel(WithContext(mlp([6 + 2, 8, 1])), reference=NOISE)
    objective = NCE(model, NOISE, partition=Amortized(mlp([2, 4, 1])))
    x, y, context = torch.randn(5, 6), torch.randn(5, 6), torch.randn(5, 2)
    terms = objective.terms(x, y, context=context)
    assert terms.ratios is not None
    for side, rows in zip(terms.ratios, (x, y), strict=True):
        log_z = objective.partition(context)
        expected = model.log_prob(rows, context) - NOISE.log_prob(rows) - log_z
        torch.testing.assert_close(side.values, expected)  # type: ignore[union-attr]


class Own(nn.Module):
    """A network that centers its batch: no row is treated by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp([6, 8, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x - x.mean(0))


def hooked(before: bool = False) -> nn.Module:
    """A network whose hook centers the batch, before or after its first layer."""
    network = mlp([6, 8, 1])
    if before:
        network[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(0),))
    else:
        network[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return network


@pytest.mark.parametrize(
    "network",
    [
        Own(),
        hooked(),
        hooked(before=True),
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(6, 8), nn.LogSoftmax(0), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(6, 8), nn.Softmax(-2), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 1)),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 1)),
    ],
    ids=[
        *(
            "own",
            "hook",
            "hook before",
            "spectral norm by hook",
            "softmax of rows",
            "softmax of the last dimension but one",
        ),
        *("batch norm", "dropout", "spectral norm"),
    ],
)
def test_networks_that_may_mix_rows_see_data_and_noise_apart(network: nn.Module) -> None:
    objective = NCE(EnergyModel(network, reference=NOISE), NOISE)
    assert passes(objective, torch.randn(5, 6), torch.randn(7, 6)) == [5, 7]


def test_encoders_that_differ_and_rules_without_a_bound_see_data_and_noise_apart() -> None:
    objectives = [
        VariationalNCE(latent(), GaussianEncoder(mlp([6, 4])), NOISE, importance_samples=2),
        FullyVariationalNCE(
            latent(), PointEncoder(mlp([6, 2])), NOISE, PowerRule(0), noise_encoder=PointEncoder(mlp([6, 2]))
        ),
    ]
    for objective, seen in zip(objectives, ([5, 7], [5]), strict=True):
        assert passes(objective, torch.randn(5, 6), torch.randn(7, 6)) == seen


def test_a_module_of_ones_own_says_that_it_treats_rows_by_themselves() -> None:
    network = Own()
    network.by_rows = True  # type: ignore[assignment]
    objective = NCE(EnergyModel(network, reference=NOISE), NOISE)
    assert passes(objective, torch.randn(5, 6), torch.randn(7, 6)) == [12]


def test_errors_name_the_side_and_its_row() -> None:
    objective, x, y = OBJECTIVES["nce"](), torch.randn(5, 6), torch.randn(7, 6)
    for side, rows in (("x", x), ("x_noise", y)):
        broken = rows.clone()
        broken[3] = torch.nan
        with pytest.raises(ValueError, match=rf"^{side} .*row 3"):
            objective(
                *((broken, y) if side == "x" else (x, broken)),
                log_noise_x=torch.zeros(5),
                log_noise_noise=torch.zeros(7),
            )


def test_rows_that_are_not_independent_are_never_left_out_of_a_pass() -> None:
    """Most noise is dead, and a pass over the rest alone would give these rows other values."""
    torch.manual_seed(0)
    noise = Independent(Normal(torch.zeros(6), 9 * torch.ones(6)), 1)
    objective = NCE(EnergyModel(Own(), reference=NOISE), noise, PowerRule(0.5))
    x, y = torch.randn(16, 6), torch.cat([torch.randn(4, 6), 50 * torch.randn(12, 6)])
    losses = [objective(x, y).item() for _ in range(2)]
    assert float(objective.live_fraction) == 0.25
    assert losses[0] == losses[1]
