"""Held-out criteria: whole sets at once, comparable across rules, the same draws every time; and precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from exact_models import LinearGaussianModel
from fvnce import PowerRule
from fvnce.models import GaussianEncoder
from fvnce.objectives import NCE, Batch
from fvnce.training import fit
from fvnce.training.evaluation import comparable, evaluate
from training_runs import WIDTH, contrastive, kernels, normal, rows, vae


def split(x: Tensor, log_noise: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(x, size), torch.split(log_noise, size), strict=True))


def test_log_q_is_computed_in_float32_whatever_the_network_works_in() -> None:
    """A sum over 512 latents near 500 has a spacing of 2 in bfloat16."""
    torch.manual_seed(0)
    encoder = GaussianEncoder(nn.Linear(4, 1024))
    with torch.autocast("cpu", torch.bfloat16):
        q = encoder(torch.randn(8, 4))
        z, log_q = q.rsample_from(q.base_sample())
    expected = Independent(Normal(q.mean.double(), q.stddev.double()), 1).log_prob(z.double())
    assert log_q.dtype == torch.float32
    torch.testing.assert_close(log_q.double(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("partition", ["fixed", "learned", "profiled"])
@pytest.mark.parametrize("rule", [PowerRule(0), PowerRule(0.2), PowerRule(0.3, 0.5)], ids=str)
def test_batches_of_any_size_give_the_same_value(partition: Any, rule: PowerRule) -> None:
    """Above all where the value is the log of a mean: the mean over batches of such logs is another number."""
    torch.manual_seed(0)
    model = LinearGaussianModel(torch.randn(WIDTH, 2), torch.zeros(WIDTH), 0.7).double()
    noise = Independent(Normal(torch.zeros(WIDTH, dtype=torch.float64), 2.0), 1)
    objective = NCE(model, noise, rule, partition=partition).eval()
    x, y = rows(60).double(), noise.sample((45,))
    log_x, log_y = noise.log_prob(x), noise.log_prob(y)
    whole = objective.terms(x, y, log_noise_x=log_x, log_noise_noise=log_y)
    for size in (7, 60):
        actual = evaluate(objective, split(x, log_x, size), split(y, log_y, size))
        assert float(actual.loss) == pytest.approx(float(whole.loss.detach()), rel=1e-12)
        assert float(actual.evidence.mean()) == pytest.approx(float(whole.evidence.mean()), rel=1e-12)
        for name, value in whole.statistics.items():
            assert float(actual.statistics[name]) == pytest.approx(float(value), rel=1e-10, abs=1e-12)


def test_the_bound_estimates_the_divergence_for_every_rule() -> None:
    """With the true model, E[Δ⁰] − c − e^(−c) E_noise[e^Δ⁰] + 1 is KL(p_d‖p_n), whatever α and whatever the scale.

    Two Gaussians: the KL is known. 200,000 samples; five standard errors, which a right value misses once in a million.
    """
    torch.manual_seed(0)
    model = LinearGaussianModel(torch.randn(WIDTH, 2) * 0.7, torch.ones(WIDTH) * 0.3, 0.8).double()
    noise = Independent(Normal(torch.zeros(WIDTH, dtype=torch.float64), 1.5), 1)
    n = 200_000
    x, y = model.sample(n).double(), noise.sample((n,))
    log_x, log_y = noise.log_prob(x), noise.log_prob(y)
    with torch.no_grad():
        ratio = model.log_prob(x) - log_x
        back = (model.log_prob(y) - log_y).exp()
        error = math.sqrt(float(ratio.var() + back.var()) / n)
        covariance = model.weight @ model.weight.T + (2 * model.log_scale).exp() * torch.eye(WIDTH).double()
        truth = torch.distributions.MultivariateNormal(model.bias, covariance)
        other = torch.distributions.MultivariateNormal(torch.zeros(WIDTH).double(), 1.5**2 * torch.eye(WIDTH).double())
        divergence = float(torch.distributions.kl_divergence(truth, other))
    for alpha in (0.0, 0.3):
        for partition in ("fixed", "profiled"):
            objective = NCE(model, noise, PowerRule(alpha, clip=None), partition=partition).eval()  # type: ignore[arg-type]
            terms = evaluate(objective, split(x, log_x, 50_000), split(y, log_y, 50_000))
            actual = comparable(objective, terms)
            assert abs(actual["bound"] - divergence) < 5 * error
            best = (torch.nn.functional.softplus(-ratio).mean() + torch.log1p(back).mean()).item()
            assert actual["log_loss"] == pytest.approx(best, abs=0.01)


def test_a_worse_model_has_a_worse_bound_and_log_loss_under_every_rule() -> None:
    torch.manual_seed(0)
    true = LinearGaussianModel(torch.randn(WIDTH, 2), torch.zeros(WIDTH), 0.7)
    x = true.sample(4000)
    noise = normal(scale=2.0)
    y = noise.sample((4000,))
    for alpha in (0.0, 0.1):
        actual = []
        for shift in (0.0, 0.5, 1.0):
            wrong = LinearGaussianModel(true.weight.detach(), true.bias.detach() + shift, 0.7)
            objective = NCE(wrong, noise, PowerRule(alpha), partition="profiled").eval()
            actual.append(
                comparable(objective, evaluate(objective, [(x, noise.log_prob(x))], [(y, noise.log_prob(y))]))
            )
        assert [f["bound"] for f in actual] == sorted((f["bound"] for f in actual), reverse=True)
        assert [f["log_loss"] for f in actual] == sorted(f["log_loss"] for f in actual)


def test_without_learning_every_validation_finds_the_same() -> None:
    """The noise and the latents of validation are drawn alike at every epoch."""
    for objective in (contrastive(noise=kernels(), partition="profiled"), vae()):
        history = fit(objective, rows(30), validation=rows(25, seed=2), epochs=3, lr=0.0, seed=1)
        assert len(set(history["val_loss"])) == 1
        assert history["val_loss"][0] != history["loss"][0]


def test_validation_of_a_mean_is_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fvnce.training.evaluation._CHUNK", 10)

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.shift).square().mean()

    data = rows(25, seed=2)
    history = fit(Mean(), rows(30), validation=data, epochs=1, lr=0.0, seed=1)
    assert history["val_loss"][0] == pytest.approx(float(data.square().mean()), rel=1e-6)


def test_a_validation_that_is_no_number_is_recorded_and_is_not_the_best(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            loss = (x - self.shift).square().mean()
            return loss if self.training else loss * math.nan

    history = fit(Broken(), rows(30), validation=rows(5), epochs=2, seed=1, checkpoint_dir=tmp_path)
    assert all(math.isnan(value) for value in history["val_loss"])
    assert not (tmp_path / "best.safetensors").exists()


@pytest.mark.parametrize("partition", ["fixed", "profiled"])
def test_bfloat16_keeps_densities_and_ratios_in_float32(partition: Any) -> None:
    """log p_n near −900 has a spacing of 4 in bfloat16; here it reaches the objective with every bit."""
    seen: list[tuple[Tensor, ...]] = []
    products: set[torch.dtype] = set()
    objective = contrastive(noise=normal(scale=0.1), partition=partition)
    plain = objective.terms_of

    def spy(batch: Batch) -> Any:
        terms = plain(batch)
        seen.append((batch.x, batch.log_noise_x, terms.loss, terms.delta_data, terms.delta_noise))
        return terms

    objective.terms_of = spy
    objective.encoder.network[0].register_forward_hook(lambda *args: products.add(args[2].dtype))
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}
    history = fit(objective, rows(40), precision="bf16-mixed", validation=rows(10), **settings)
    assert products == {torch.bfloat16}
    for x, log_noise, loss, *deltas in seen:
        assert {t.dtype for t in (x, log_noise, loss, *deltas)} == {torch.float32}
        assert torch.equal(log_noise, normal(scale=0.1).log_prob(x))
    assert {p.dtype for p in objective.parameters()} == {torch.float32}
    full = contrastive(noise=normal(scale=0.1), partition=partition)
    reference = fit(full, rows(40), validation=rows(10), **settings)
    assert history.steps["loss"] == pytest.approx(reference.steps["loss"], rel=0.05)


def test_double_precision_is_double_throughout() -> None:
    objective = contrastive(noise=kernels())
    fit(objective, rows(20), epochs=1, seed=1, precision="64-true")
    assert {p.dtype for p in objective.parameters()} == {torch.float64}
