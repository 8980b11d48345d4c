"""fit on pairs (x, context): the forms that data may have, validation, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.utils.data import DataLoader, TensorDataset

from fvnce import (
    NCE,
    VAE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PowerRule,
    RankingNCE,
    fit,
    mlp,
)
from fvnce.models import WithContext
from fvnce.objectives import Amortized, Objective
from fvnce.training import Callback, FitOptions

X, C, ROWS = 3, 2, 50


def normal(width: int) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.full((width,), 1.5)), 1)


class Ignoring(nn.Module):
    """A network that takes a context and makes nothing of it."""

    by_rows = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.network(x)


class Shifted(nn.Module):
    """p_n(x|c), with a weight that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(C, X)

    def forward(self, context: Tensor) -> Distribution:
        return Independent(Normal(self.linear(context), 2.0), 1)

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        """A module may have this without being a distribution."""
        return self(context).log_prob(x)


def pairs(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(rows, C, generator=generator)
    return torch.randn(rows, X, generator=generator) + context.sum(1, keepdim=True), context


def objective_of(name: str, wrap: Any = WithContext, width: int = C) -> Objective:
    torch.manual_seed(0)
    decoder, encoder = wrap(mlp([2 + width, 6, X])), wrap(mlp([X + width, 6, 4]))
    model = LatentVariableModel(normal(2), GaussianDecoder(decoder)), GaussianEncoder(encoder)
    energy = EnergyModel(wrap(mlp([X + width, 6, 1])), reference=normal(X))
    made: dict[str, Any] = {
        "vae": lambda: VAE(*model),
        "fvnce": lambda: FullyVariationalNCE(*model, normal(X), PowerRule(0), noise_ratio=2.0),
        "variance reduced": lambda: FullyVariationalNCE(*model, normal(X), PowerRule(0), variance_reduced=True),
        "nce": lambda: NCE(energy, normal(X), partition="learned", noise_ratio=1.5),
        "amortized": lambda: NCE(energy, normal(X), partition=Amortized(mlp([C, 4, 1]))),
        "conditional noise": lambda: NCE(energy, Shifted(), partition="learned", noise_ratio=2.0),
        "ranking": lambda: RankingNCE(energy, noise=normal(X), noise_samples=3),
        "ranking, conditional noise": lambda: RankingNCE(energy, noise=Shifted(), noise_samples=3),
    }
    return made[name]()


NAMES = ["vae", "fvnce", "variance reduced", "nce", "amortized", "conditional noise", "ranking"]
every = pytest.mark.parametrize("name", [*NAMES, "ranking, conditional noise"])


def weights(objective: nn.Module) -> list[Tensor]:
    return [value.clone() for value in objective.state_dict().values()]


def trained(objective: Objective, data: Any, **options: Any) -> tuple[list[Tensor], Any]:
    history = fit(objective, data, **({"epochs": 2, "batch_size": 16, "seed": 5} | options))
    return weights(objective), history


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every
def test_a_pair_a_dataset_and_arrays_train_to_the_same_bits(name: str) -> None:
    x, context = pairs()
    validation = pairs(20, seed=1)
    first, history = trained(objective_of(name), (x, context), validation=validation)
    assert not same(first, weights(objective_of(name)))
    assert same(first, trained(objective_of(name), TensorDataset(x, context), validation=validation)[0])
    arrays = x.numpy(), context.numpy()
    again, other = trained(objective_of(name), arrays, validation=TensorDataset(*validation))
    assert same(first, again)
    assert history.epochs["val_loss"] == other.epochs["val_loss"]
    # Contexts of other rows are other data.
    assert not same(first, trained(objective_of(name), (x, context.flip(0)))[0])


@pytest.mark.parametrize("name", ["vae", "fvnce", "variance reduced", "nce", "ranking"])
def test_contexts_that_change_nothing_change_no_bit(name: str) -> None:
    x, context = pairs()
    held_out = pairs(20, seed=1)
    plain, history = trained(objective_of(name, lambda network: network, 0), x, validation=held_out[0])
    ignored, other = trained(objective_of(name, Ignoring, 0), (x, context), validation=held_out)
    assert same(plain, ignored)
    assert history.epochs["val_loss"] == other.epochs["val_loss"]


@every
def test_a_loader_of_pairs_gives_contexts(name: str) -> None:
    x, context = pairs()
    losses: list[float] = []

    class Watched(Callback):
        def after_step(self, trainer: Any, batch: Any) -> None:
            rows = [int((x == row).all(1).nonzero()[0]) for row in batch.x]
            losses.append(float((batch.context - context[rows]).abs().max()))

    loader = DataLoader(TensorDataset(x, context), batch_size=16, shuffle=True)
    trained(objective_of(name), loader, callbacks=[Watched()])
    assert losses == [0.0] * 8


class Stop(Exception):
    """What ends a run in the middle."""


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Any, batch: Any) -> None:
        if trainer.step == self.step:
            raise Stop


@every
def test_a_resumed_run_ends_with_the_bits_of_a_whole_one(name: str, tmp_path: Path) -> None:
    data, options = pairs(), FitOptions(checkpoint_every=1)
    same_settings: dict[str, Any] = {"validation": pairs(20, seed=1), "options": options}
    whole, history = trained(
        objective_of(name), data, checkpoint_dir=tmp_path / "a", callbacks=[StopAt(-1)], **same_settings
    )
    with pytest.raises(Stop):
        trained(objective_of(name), data, checkpoint_dir=tmp_path / "b", callbacks=[StopAt(6)], **same_settings)
    resumed, other = trained(
        objective_of(name), data, checkpoint_dir=tmp_path / "b", resume=True, callbacks=[StopAt(-1)], **same_settings
    )
    assert same(whole, resumed)
    assert history.epochs["val_loss"] == other.epochs["val_loss"]


def test_a_run_is_not_resumed_with_other_contexts(tmp_path: Path) -> None:
    x, context = pairs()
    trained(objective_of("vae"), (x, context), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="data"):
        trained(objective_of("vae"), (x, context + 1), checkpoint_dir=tmp_path, resume=True, epochs=3)


@pytest.mark.parametrize("name", ["conditional noise", "ranking, conditional noise"])
def test_validation_draws_the_same_noise_at_every_epoch(name: str) -> None:
    _, history = trained(objective_of(name), pairs(), validation=pairs(20, seed=1), lr=0.0)
    first, second = history.epochs["val_loss"]
    assert first == second


def test_conditional_noise_is_not_trained() -> None:
    objective: Any = objective_of("conditional noise")
    before = objective.noise.linear.weight.clone()
    trained(objective, pairs())
    assert torch.equal(before, objective.noise.linear.weight)
    assert not any("linear" in name for name, _ in objective.named_parameters())


class Distance(nn.Module):
    """A module of the user's own that takes a context."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return (x - self.weight * context.sum(1, keepdim=True)).square().mean()


def test_a_module_with_a_context_is_given_it() -> None:
    module = Distance()
    fit(module, pairs(2000), validation=pairs(20, seed=1), epochs=5, lr=0.05, seed=0)
    assert abs(module.weight.item() - 1.0) < 0.1  # standard error 0.01


@pytest.mark.parametrize("data", [pairs(), TensorDataset(*pairs())], ids=["pair", "dataset"])
def test_contexts_that_nothing_takes_are_refused(data: Any) -> None:
    plain = objective_of("vae", lambda network: network, 0)
    with pytest.raises(ValueError, match=r"data must be rows x .* found pairs"):
        fit(plain, data)
    with pytest.raises(ValueError, match=r"validation must be rows x .* found pairs"):
        fit(plain, pairs()[0], validation=data)


def test_a_loader_whose_other_items_nothing_takes_says_that_they_are_ignored() -> None:
    x, context = pairs()
    plain = objective_of("vae", lambda network: network, 0)
    with pytest.warns(FutureWarning, match=r"data must give x alone .* found 2 items"):
        labelled, _ = trained(plain, DataLoader(TensorDataset(x, context), batch_size=16))
    alone = trained(objective_of("vae", lambda network: network, 0), DataLoader(TensorDataset(x), batch_size=16))[0]
    assert same(labelled, alone)


def test_data_of_another_form_are_refused() -> None:
    x, context = pairs()
    with pytest.raises(ValueError, match=r"data must be x or a pair .* found 3 items"):
        fit(objective_of("vae"), (x, context, context))
    with pytest.raises(ValueError, match="a context for each of 50 rows, found 49"):
        fit(objective_of("vae"), (x, context[1:]))
    with pytest.raises(ValueError, match="found 3 items"):
        fit(objective_of("vae"), DataLoader(TensorDataset(x, context, context), batch_size=16))


def test_a_log_scale_is_not_found_for_contexts() -> None:
    model = LatentVariableModel(normal(2), GaussianDecoder(WithContext(mlp([2 + C, X]))))
    objective = FullyVariationalNCE(model, GaussianEncoder(mlp([X, 4])), normal(X), PowerRule(0), log_scale="auto")
    with pytest.raises(ValueError, match=r"log_scale must be a number .* context, found 'auto'"):
        fit(objective, pairs())
