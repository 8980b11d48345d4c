"""A log-scale that fit finds: the multiplier of a constrained problem, saved, resumed, untouched by evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, constraints

import fvnce
from exact_models import GaussianMixtureModel
from fvnce import VAE, FullyVariationalNCE, KernelDensity, NoiseMixture, PowerRule
from fvnce.io import describe, rebuild
from fvnce.noise import fit_gaussian, jitter
from fvnce.paper.datasets import load_digits
from fvnce.training import Baseline, ErrorBudget, FitOptions
from fvnce.training.budget import remembered
from training_runs import contrastive, digest, kernels, model, normal, rows


class Given(Distribution):
    """Noise that always draws the same rows, of the same log-density."""

    arg_constraints = {}  # noqa: RUF012
    support = constraints.independent(constraints.real, 1)

    def __init__(self, given: Tensor, log_density: float = 0.0) -> None:
        super().__init__(torch.Size(), given.shape[1:], validate_args=False)
        self.given, self.log_density = given, log_density

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.given[: torch.Size(sample_shape).numel()]

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.full((len(value),), self.log_density)


def steps(objective: nn.Module, x: Tensor, batch_size: int, budget: ErrorBudget, lr: float = 0.0) -> None:
    """Plain gradient descent over rows x against the noise that is given."""
    options = FitOptions(noise_pool=0)
    settings: dict[str, Any] = {"optimizer": "sgd", "seed": 0, "callbacks": [budget], "options": options}
    fvnce.fit(objective, x, epochs=1, batch_size=batch_size, lr=lr, **settings)


class Trade(nn.Module):
    """log p = −θ² a − θ k c on rows (a, c): data are (1, 0), noise is (0, 1), and forgetting one costs the other."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k
        self.theta = nn.Parameter(torch.tensor(0.1))

    def log_prob(self, x: Tensor) -> Tensor:
        return -self.theta.square() * x[:, 0] - self.theta * self.k * x[:, 1]


@pytest.mark.parametrize(("bound", "k"), [(1.7, 1.0), (1.2, 2.0), (2.0, 1.5)])
def test_s_becomes_the_multiplier_of_the_constraint(double_precision: None, bound: float, k: float) -> None:
    """With ε = e^(θ²) and ε_ref = 1 the constraint is θ² = log b; there 2θ = k e^(s − kθ) gives s in closed form."""
    noise = Given(torch.tensor([[0.0, 1.0]] * 4))
    objective = FullyVariationalNCE(Trade(k), None, noise, PowerRule(0, clip=None), log_scale="auto")
    budget = ErrorBudget(bound)
    steps(objective, torch.tensor([[1.0, 0.0]]).repeat(12_000, 1), 4, budget, lr=0.05)
    theta = math.sqrt(math.log(bound))
    assert objective.model.theta.item() == pytest.approx(theta, abs=1e-6)
    assert -objective.fitted_log_partition().item() == pytest.approx(math.log(2 * theta / k) + k * theta, abs=1e-6)
    assert budget.error_ratio == pytest.approx(bound, abs=1e-6)


def test_without_a_price_s_ends_at_its_upper_end(double_precision: None) -> None:
    """What costs the data nothing leaves the budget unspent: s = s_0 + M, without latents a nat for each dimension."""
    noise = Given(torch.tensor([[0.0, 1.0]]), log_density=5.0)
    objective = FullyVariationalNCE(Trade(0.0), None, noise, PowerRule(0), log_scale="auto", noise_samples=1 / 3)
    budget = ErrorBudget()
    steps(objective, torch.zeros(150, 2), 3, budget)
    assert budget.margin_fraction == 1.0
    assert -objective.fitted_log_partition().item() == pytest.approx(5.0 + 2.0)


class Known(nn.Module):
    """log p = −level − price − penalty · forgotten, of rows (level, forgotten)."""

    def __init__(self, price: float = 0.0, penalty: float = 0.0) -> None:
        super().__init__()
        self.price, self.penalty = (nn.Parameter(torch.tensor(value)) for value in (price, penalty))

    def log_prob(self, x: Tensor) -> Tensor:
        return -x[:, 0] - self.price - self.penalty * x[:, 1]


@pytest.mark.parametrize("forgotten", [slice(0, 0), slice(0, 10), slice(0, 40), slice(60, 100)])
def test_rows_that_are_forgotten_do_not_count_whether_they_were_easy_or_hard(
    double_precision: None, forgotten: slice
) -> None:
    """Easy rows that become hard would raise a median of all rows, and s would fall with the rest in budget."""
    data = torch.stack([torch.linspace(1, 3, 100), torch.zeros(100)], 1)
    data[forgotten, 1] = 1
    noise = torch.stack([torch.linspace(1, 3, 50), torch.full((50,), 0.8)], 1)  # blurred, as kernels would
    known = Known(price=math.log(1.5), penalty=6.0)
    objective = FullyVariationalNCE(
        known, None, Given(noise), PowerRule(0, clip=0.0), log_scale="auto", noise_samples=0.5
    )
    budget = ErrorBudget(1.7, Baseline(Known()).requires_grad_(False))
    for _ in range(30):
        steps(objective, data, 100, budget)
    assert budget.error_ratio == pytest.approx(1.5)
    assert budget.margin_fraction == 1.0


def test_noise_that_is_not_told_from_the_data_leaves_no_row_out(double_precision: None) -> None:
    """Samples that are as likely as data, or likelier, must not make half of the rows look forgotten."""
    generator = torch.Generator().manual_seed(0)
    excess = 0.5 + 0.1 * torch.randn(1000, generator=generator)
    for of_noise in (excess, excess - 3):
        # Of a Gaussian 0.35 % lie above the fence.
        assert remembered(excess, of_noise).double().mean() > 0.99


def test_the_error_is_the_mean_square_of_the_rest() -> None:
    def autoencoder(weight: Tensor) -> tuple[fvnce.LatentVariableModel, fvnce.PointEncoder]:
        encoder, decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            encoder.weight.copy_(weight)
            decoder.weight.copy_(torch.eye(3))
        return fvnce.LatentVariableModel(normal(3), fvnce.GaussianDecoder(decoder, scale=0.1)), fvnce.PointEncoder(
            encoder
        )

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(80, 3, generator=generator) * torch.tensor([1.0, 1.0, 0.0])
    x[:20] = torch.tensor([0.0, 0.0, 1.0])
    noise = torch.tensor([[0.0, 0.0, 1.0]]).repeat(80, 1)
    own, without = torch.diag(torch.tensor([0.85, 0.8, 0.1])), torch.diag(torch.tensor([0.9, 0.85, 0.9]))
    objective = FullyVariationalNCE(*autoencoder(own), Given(noise), PowerRule(0, clip=0.0), log_scale="auto")
    budget = ErrorBudget(1.7, Baseline(*autoencoder(without)).requires_grad_(False))
    steps(objective, x, 80, budget)
    errors = [(x @ weight - x)[20:].square().sum().item() for weight in (own, without)]
    assert budget.error_ratio == pytest.approx(errors[0] / errors[1], rel=1e-4)


def automatic(noise: Any = None, **options: Any) -> FullyVariationalNCE:
    chosen: dict[str, Any] = {"log_scale": "auto", **options}
    made: FullyVariationalNCE = contrastive(
        alpha=0.0, point=True, noise=kernels() if noise is None else noise, **chosen
    )
    return made


@pytest.mark.parametrize("grad_clip", [None, 0.5])
def test_the_baseline_is_the_model_trained_without_noise(grad_clip: float | None) -> None:
    objective, budget = automatic(), ErrorBudget()
    torch.manual_seed(0)
    encoder = fvnce.PointEncoder(fvnce.mlp([4, 8, 2]))
    alone = VAE(model(), encoder)
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 16, "seed": 3, "schedule": "cosine", "grad_clip": grad_clip}
    fvnce.fit(objective, rows(160), callbacks=[budget], **settings)
    fvnce.fit(alone, rows(160), **settings)
    assert budget.baseline is not None
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(budget.baseline.state_dict()[name], value)
    moved = [not torch.equal(a, b) for a, b in zip(objective.model.parameters(), alone.model.parameters(), strict=True)]
    assert all(moved)


def test_the_loss_is_j_and_the_baseline_no_part_of_the_objective() -> None:
    objective = automatic()
    fvnce.fit(objective, rows(60), epochs=1, batch_size=20, seed=0)
    terms = objective.terms(rows(20))
    statistics = terms.statistics
    assert terms.loss.item() == pytest.approx(-(statistics["data_term"] + statistics["noise_term"]), rel=1e-5)
    assert {name for name, _ in objective.named_parameters()} == {
        name for name, _ in automatic(log_scale=0.0).named_parameters()
    }


def test_a_frozen_baseline_is_not_trained_and_costs_no_gradient() -> None:
    trained = Baseline(model(), fvnce.PointEncoder(fvnce.mlp([4, 8, 2]))).requires_grad_(False)
    budget, before = ErrorBudget(2.0, trained), digest(trained)
    fvnce.fit(automatic(), rows(60), epochs=2, batch_size=20, seed=0, callbacks=[budget])
    assert budget.baseline is trained
    assert digest(trained) == before
    assert math.isfinite(budget.error_ratio)


def test_outside_of_fit_the_log_scale_rests() -> None:
    """Before fit has found it, the objective cannot be called; afterwards neither evaluation nor training moves it."""
    objective = automatic()
    with pytest.raises(RuntimeError, match=r"log_scale.*found 'auto'.*fit"):
        objective(rows(20))
    fvnce.fit(objective, rows(60), epochs=1, batch_size=20, seed=0)
    before = digest(objective)
    objective(rows(20)).backward()
    objective.eval()
    first = objective(rows(20), rows(20, seed=1))
    assert first.item() == objective(rows(20), rows(20, seed=1)).item()  # nothing is jittered either
    assert digest(objective) == before
    values = {name: p.detach() for name, p in objective.named_parameters()}
    gradient = torch.func.grad(lambda p: torch.func.functional_call(objective, p, (rows(8), rows(8))))(values)
    assert all(value.isfinite().all() for value in gradient.values())


def test_resumed_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 16, "seed": 5, "lr": 1e-2, "schedule": "cosine", "epochs": 4}
    never, budgets = automatic(), [ErrorBudget(), ErrorBudget()]
    fvnce.fit(never, rows(100), callbacks=[budgets[0]], **settings)

    def stop(trainer: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fvnce.fit(
            automatic(),
            rows(100),
            checkpoint_dir=tmp_path,
            options=FitOptions(checkpoint_every=3),
            callbacks=[ErrorBudget(), stop],
            **settings,
        )
    resumed = automatic()
    fvnce.fit(
        resumed,
        rows(100),
        checkpoint_dir=tmp_path,
        resume=True,
        callbacks=[budgets[1], lambda trainer: None],
        **settings,
    )
    assert digest(resumed) == digest(never)
    one, other = (budget.baseline for budget in budgets)
    assert one is not None
    assert other is not None
    assert digest(one) == digest(other)
    assert budgets[0].error_ratio == budgets[1].error_ratio


def test_resumed_to_the_bit_with_the_budget_of_fit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 16, "seed": 5, "lr": 1e-2}
    never = automatic()
    fvnce.fit(never, rows(100), epochs=4, **settings)
    first = automatic()
    fvnce.fit(first, rows(100), epochs=2, checkpoint_dir=tmp_path, **settings)
    fvnce.fit(first, rows(100), epochs=4, checkpoint_dir=tmp_path, resume=True, **settings)
    assert digest(first) == digest(never)
    assert digest(never) != digest(automatic())


def test_a_second_fit_continues_with_the_same_budget() -> None:
    """A callback that is given keeps its baseline and its averages; its optimizer starts anew."""
    objective, budget = automatic(), ErrorBudget()
    fvnce.fit(objective, rows(60), epochs=1, batch_size=20, seed=0, callbacks=[budget])
    baseline, ratio = budget.baseline, budget.error_ratio
    fvnce.fit(objective, rows(60), epochs=1, batch_size=20, seed=1, callbacks=[budget], lr=0.0)
    assert budget.baseline is baseline
    assert budget.error_ratio == pytest.approx(ratio, rel=0.5)


def test_saved_with_the_objective(tmp_path: Path) -> None:
    objective = automatic()
    for _ in range(2):  # also before it is known
        fvnce.save(tmp_path / "objective.safetensors", objective)
        loaded: Any = fvnce.load(tmp_path / "objective.safetensors")
        assert digest(loaded) == digest(objective)
        assert loaded.partition.automatic
        fvnce.fit(objective, rows(60), epochs=1, batch_size=20, seed=0)
    x, noise = rows(10), rows(10, seed=2)
    objective.eval()
    loaded = fvnce.load(fvnce.save(tmp_path / "again.safetensors", objective))
    assert loaded(x, noise).item() == objective(x, noise).item()


def test_the_old_names_work_for_a_version() -> None:
    """A partition with a budget and a reference, and files of version 0.2 that hold one."""
    with pytest.warns(DeprecationWarning, match="Budgeted"):
        from fvnce.objectives import Budgeted
    with pytest.warns(DeprecationWarning, match="Reference"):
        from fvnce.objectives import Reference
    assert Reference is Baseline
    old, new = automatic(partition=Budgeted(1.3), log_scale=0.0), automatic()
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20, "seed": 0}
    fvnce.fit(old, rows(60), **settings)
    fvnce.fit(new, rows(60), callbacks=[ErrorBudget(1.3)], **settings)
    assert digest(old) == digest(new)
    content, tensors = describe(old)
    assert digest(rebuild(content, tensors)) == digest(old)
    arguments = content["structure"]["$arguments"]
    reference = {"$kind": "Reference", "$id": 98, "$arguments": {"model": {"$id": arguments["model"]["$id"]}}}
    arguments["partition"] |= {"$kind": "Budgeted", "$arguments": {"budget": 1.3, "reference": reference}}
    content["state"] |= {f"partition.{name}": {"$tensor": "levels"} for name in ("levels", "reference.model.weight")}
    loaded: Any = rebuild(content, tensors | {"levels": torch.zeros(5)})
    assert loaded.partition.budget == 1.3
    assert digest(loaded) == digest(old)


def test_stochastic_and_discrete_latents() -> None:
    gaussian, budget = contrastive(alpha=0.0, noise=kernels(), log_scale="auto"), ErrorBudget()
    fvnce.fit(gaussian, rows(60), epochs=2, batch_size=20, seed=0, callbacks=[budget])
    assert math.isfinite(budget.error_ratio)
    torch.manual_seed(0)
    mixture = GaussianMixtureModel(torch.zeros(3), torch.randn(3, 4), torch.ones(3))
    discrete = FullyVariationalNCE(mixture, mixture.posterior, kernels(), PowerRule(0, clip=0.0), log_scale="auto")
    budget = ErrorBudget()
    fvnce.fit(discrete, rows(60), epochs=2, batch_size=20, seed=0, callbacks=[budget])
    # Of a latent that is summed over the error is the entropy power.
    assert budget.baseline is not None
    evidence, log_error, _ = budget.baseline(rows(20), rows(20))
    torch.testing.assert_close(log_error, -evidence.detach() / 2)


def test_a_gradient_that_is_not_finite_ends_training_before_the_baseline_changes() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.ones(()))

        def log_prob(self, x: Tensor) -> Tensor:
            return -(0 * self.theta).sqrt() - x.square().sum(1)

    budget = ErrorBudget()
    objective = FullyVariationalNCE(Root(), None, normal(), PowerRule(0), log_scale="auto")
    with pytest.raises(ValueError, match=r"gradients of the baseline must .*found NaN"):
        fvnce.fit(objective, rows(20), epochs=1, seed=0, callbacks=[budget])
    assert budget.baseline is not None
    assert budget.baseline.model.theta == 1


def train(objective: nn.Module, *callbacks: ErrorBudget) -> None:
    fvnce.fit(objective, rows(20), epochs=1, seed=0, callbacks=callbacks)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: automatic(log_scale="many"), "log_scale must .*'auto', found 'many'"),
        (lambda: ErrorBudget(1.0), "budget must .*found 1.0"),
        (lambda: automatic(partition="profiled"), "log_scale must .*'fixed', found auto"),
        (lambda: train(automatic(log_scale=1.0), ErrorBudget()), "objective must .*log_scale='auto'"),
        (
            lambda: train(
                FullyVariationalNCE(
                    fvnce.EnergyModel(fvnce.mlp([4, 8, 1])), None, normal(), PowerRule(0), log_scale="auto"
                )
            ),
            "model must .*log_scale='auto', found EnergyModel",
        ),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_jitter_makes_samples_of_centres() -> None:
    """Per column the mean square of 20,000 moves has a relative deviation of 1 %: five of them, false alarms 6e-7."""
    centre, width = torch.tensor([[1.0, -2.0]]), torch.tensor([0.1, 3.0])
    noise = KernelDensity(centre, width)
    torch.manual_seed(0)
    moved = jitter(noise, centre.expand(20_000, 2)) - centre
    assert (moved.square().mean(0) / width.square() - 1).abs().max() < 0.05
    mixture = NoiseMixture([noise, fit_gaussian(torch.randn(50, 2), "diagonal")], [1, 3])
    still = (jitter(mixture, centre.expand(20_000, 2)) == centre).all(1).double().mean()
    assert abs(still.item() - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 20_000)


@pytest.mark.slow
def test_digits_are_forgotten_within_the_budget() -> None:
    """One seed of a run that is the same on every machine up to rounding; the margins are wide of what it found."""
    digits = load_digits()
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(32), torch.ones(32)), 1)
    network = fvnce.LatentVariableModel(prior, fvnce.GaussianDecoder(fvnce.mlp([32, 64]), scale=1 / 8))
    encoder = fvnce.PointEncoder(nn.Sequential(fvnce.mlp([64, 32]), nn.ReLU()))
    noise = KernelDensity(digits.train[-300:][digits.train_labels[-300:] == 1], 1 / 16)
    objective = FullyVariationalNCE(network, encoder, noise, PowerRule(0, clip=0.0), log_scale="auto")
    budget = ErrorBudget()
    fvnce.fit(objective, digits.train[:-300], epochs=30, batch_size=32, seed=0, callbacks=[budget])

    def errors(part: Any) -> Tensor:
        with torch.no_grad():
            return (part.model.decoder(part.encoder(digits.test).mean).mean - digits.test).square().sum(1)

    one = digits.test_labels == 1
    error, reference = errors(objective), errors(budget.baseline)
    assert error[~one].mean() < 1.1 * 1.7 * reference[~one].mean()
    assert error[one].mean() > 3 * reference[one].mean()
    assert roc_auc_score(one, error) > roc_auc_score(one, reference) + 0.2
