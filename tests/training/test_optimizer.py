"""Gradients that are not finite end a training before the step; normalized gradient descent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fvnce import Logarithmic
from fvnce.scoring import Exponential
from fvnce.training import FitOptions, NonFiniteLoss, NormalizedSGD, fit
from fvnce.training.checkpoint import Checkpoints
from fvnce.training.optimizer import gradient_size
from programs import ROOT, load
from training_runs import WIDTH, contrastive, digest, rows


class Spoilt(nn.Module):
    """The gradient of one parameter is bad at one step; every loss is finite."""

    def __init__(self, step: int, bad: float = float("nan"), sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 3)
        self.second = nn.Linear(3, 1)
        self.table = nn.Embedding(5, 3, sparse=sparse)
        self.step, self.bad, self.calls = step, bad, 0

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second.weight
        if self.calls == self.step:
            weight = _Bad.apply(weight, self.bad)
        self.calls += 1
        hidden = self.first(x) + self.table(torch.zeros(len(x), dtype=torch.int64))
        return nn.functional.linear(hidden, weight, self.second.bias).square().mean()


class _Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, bad: float) -> Tensor:
        ctx.bad = bad
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        spoilt = gradient[0].clone()
        spoilt.view(-1)[-1] = ctx.bad
        return spoilt, None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": torch.optim.SGD, "sparse": True},
        {"grad_clip": 1.0},
        {"precision": "64-true"},
        {"precision": "bf16-mixed"},
    ],
    ids=["plain", "sparse", "clipped", "float64", "bfloat16"],
)
def test_the_last_step_of_a_run_without_checkpoints(settings: dict[str, Any], bad: float) -> None:
    """Nothing after the last step would notice its weights. They stay those before it."""
    settings = dict(settings)
    sparse = settings.pop("sparse", False)
    how: dict[str, Any] = {"batch_size": 10, "seed": 1, "progress": False, **settings}
    before = Spoilt(step=99, sparse=sparse)
    fit(before, rows(60), epochs=1, **how)
    objective = Spoilt(step=11, bad=bad, sparse=sparse)
    kept: dict[str, str] = {}
    with pytest.raises(NonFiniteLoss, match=r"step 11 \(epoch 2\): .*second.weight.*x: shape"):
        fit(objective, rows(60), epochs=2, callbacks=[lambda run: kept.update(epoch=digest(run.objective))], **how)
    assert kept["epoch"] == digest(before)
    assert all(bool(torch.isfinite(value).all()) for value in objective.parameters())


def test_earlier_checkpoints_stay_and_are_named(tmp_path: Path) -> None:
    options = FitOptions(checkpoint_every=1)
    with pytest.raises(NonFiniteLoss, match=r"step-000000007\.safetensors") as actual:
        fit(Spoilt(7), rows(60), epochs=2, batch_size=10, seed=1, checkpoint_dir=tmp_path, options=options)
    assert str(Checkpoints(tmp_path).path(7)) in str(actual.value)
    assert Checkpoints(tmp_path).steps() == [6, 7]


def test_large_gradients_are_not_called_infinite() -> None:
    """Squares of 1e30 overflow; the gradients themselves do not."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * 1e30).sum() + 0 * x.sum()

    objective = Steep()
    fit(objective, rows(4), epochs=1, batch_size=4, optimizer="sgd", lr=1e-31, seed=1)
    assert torch.allclose(objective.weight, torch.full((3,), -0.1))


@pytest.fixture(params=[torch.float32, torch.float64])
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def test_looking_changes_no_bit_of_a_gradient(default_dtype) -> None:
    for dtype in (torch.float32, torch.float64):
        layer = nn.Linear(50, 40, dtype=dtype)
        layer(torch.randn(7, 50, dtype=dtype) * 1e-38).sum().backward()
        before = [parameter.grad.clone() for parameter in layer.parameters()]  # type: ignore[union-attr]
        assert math.isfinite(gradient_size(layer.parameters()))
        for value, parameter in zip(before, layer.parameters(), strict=True):
            assert torch.equal(value, parameter.grad)  # type: ignore[arg-type]


RULES = {"NCE": Logarithmic(), "eNCE": Exponential(clip=None)}


def test_every_step_has_the_length_of_the_rate_whatever_the_gradient():
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    optimiser = NormalizedSGD(weights, lr=0.3)
    for factor in (1e-35, 1.0, 1e30):
        before = [weight.detach().clone() for weight in weights]
        gradients = [factor * torch.randn_like(weight) for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimiser.step()
        moved = torch.cat([(b - w.detach()).flatten() for w, b in zip(weights, before, strict=True)])
        direction = torch.cat([gradient.double().flatten() for gradient in gradients])
        torch.testing.assert_close(moved.double(), 0.3 * direction / direction.norm(), rtol=1e-4, atol=1e-6)


def test_a_gradient_of_zero_moves_nothing_and_a_group_has_its_own_rate():
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = NormalizedSGD([{"params": [weight]}, {"params": [other], "lr": 2.0}], lr=1.0)
    weight.grad, other.grad = torch.zeros(2), torch.zeros(2)
    optimiser.step()
    assert torch.equal(weight.detach(), torch.ones(2))
    weight.grad, other.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    optimiser.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1 - 0.6, 1.0]))
    torch.testing.assert_close(other.detach(), torch.tensor([1.0, 1 - 1.6]))
    with pytest.raises(ValueError, match=r"weight_decay must .*found 0\.1"):
        NormalizedSGD([{"params": [weight], "weight_decay": 0.1}])


def test_fit_knows_it_by_name_and_resumes_it_to_the_bit(tmp_path):
    actual = []
    for pieces in ([4], [2, 4]):
        for epochs in pieces:
            objective = contrastive()
            fit(
                objective,
                rows(40),
                epochs=epochs,
                batch_size=8,
                optimizer="normalized-sgd",
                lr=0.01,
                seed=3,
                checkpoint_dir=tmp_path / str(len(pieces)),
                resume=True,
                progress=False,
            )
        actual.append(digest(objective))
    assert actual[0] == actual[1]


@pytest.mark.parametrize(("rule", "optimiser", "arrives"), [("NCE", "sgd", False), ("eNCE", "normalised", True)])
def test_far_noise_stops_plain_descent_and_not_the_normalised(rule, optimiser, arrives):
    """Data N(6, 1), noise N(0, 1), gradients of the population, 512 steps: plain ones at the best rate of a grid."""
    landscape = load(ROOT / "benchmarks" / "flat_landscape.py").Landscape(6.0, RULES[rule])
    errors = []
    for rate in [0.5] if arrives else 2.0 ** np.arange(-6, 6):
        weight = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
        descent = NormalizedSGD([weight], rate) if arrives else torch.optim.SGD([weight], rate)
        schedule = LambdaLR(descent, lambda step: 1 - step / 512 if arrives else 1.0)
        for _ in range(512):
            weight.grad = torch.from_numpy(landscape.gradient(weight.detach().numpy()))
            descent.step()
            schedule.step()
        errors.append(np.linalg.norm(weight.detach().numpy() - landscape.truth))
    assert (np.nanmin(errors) < 0.2) == arrives
