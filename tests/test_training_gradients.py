"""A gradient that is not finite ends a run before the step, whatever the loss says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fvnce.training import NonFiniteLoss, fit, optimiser
from fvnce.training.checkpoint import Checkpoints
from training_runs import WIDTH, digest, rows


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
        {"kernel": None},
        {"kernel": lambda gradients, found: None},
    ],
    ids=["plain", "sparse", "clipped", "float64", "bfloat16", "no kernel", "a kernel with other arguments"],
)
def test_the_last_step_of_a_run_without_checkpoints(
    settings: dict[str, Any], bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing after the last step would notice its weights. They stay those before it."""
    settings = dict(settings)
    if "kernel" in settings:
        monkeypatch.setattr(optimiser, "_KERNEL", settings.pop("kernel"))
    sparse = settings.pop("sparse", False)
    how: dict[str, Any] = {"batch_size": 10, "seed": 1, "progress": False, **settings}
    before = Spoilt(step=99, sparse=sparse)
    fit(before, rows(60), epochs=1, **how)
    objective = Spoilt(step=11, bad=bad, sparse=sparse)
    kept: dict[str, str] = {}
    with pytest.raises(
        NonFiniteLoss, match=r"step 11 \(epoch 2\): the gradient of second.weight is not finite.*Batch:"
    ):
        fit(objective, rows(60), epochs=2, callbacks=[lambda run: kept.update(epoch=digest(run.objective))], **how)
    assert kept["epoch"] == digest(before)
    assert all(bool(torch.isfinite(value).all()) for value in objective.parameters())


def test_earlier_checkpoints_stay_and_are_named(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"step-000000007\.safetensors") as found:
        fit(Spoilt(7), rows(60), epochs=2, batch_size=10, seed=1, checkpoint_dir=tmp_path, checkpoint_every=1)
    assert str(Checkpoints(tmp_path).path(7)) in str(found.value)
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
        check = optimiser.GradientCheck(layer, torch.device("cpu"))
        assert check.note() == 0
        for value, parameter in zip(before, layer.parameters(), strict=True):
            assert torch.equal(value, parameter.grad)  # type: ignore[arg-type]
