"""Steps of several batches, and optimizers and schedulers of torch as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fvnce import NCE, EnergyModel, FullyVariationalNCE, PowerRule, fit, fit_gaussian, mlp
from fvnce.training import Callback, FitOptions, NonFiniteLoss
from training_runs import WIDTH, normal, rows, vae


class Regression(nn.Module):
    """A loss that is a mean over rows and draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = mlp([WIDTH, 5, 1])

    def forward(self, x: Tensor) -> Tensor:
        return (self.network(x) - x.sum(1, keepdim=True)).square().mean()


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def trained(module: nn.Module, data: Any, accumulate: int, **options: Any) -> tuple[Tensor, Any]:
    chosen = FitOptions(accumulate=accumulate, checkpoint_every=options.pop("checkpoint_every", None))
    history = fit(module, data, **({"epochs": 3, "lr": 0.01, "seed": 3, "options": chosen} | options))
    return weights(module), history


@pytest.mark.parametrize("count", [54, 48], ids=["with a remainder", "without"])
@pytest.mark.parametrize("schedule", [None, "cosine"])
def test_parts_of_a_batch_make_the_step_of_the_whole(count: int, schedule: str | None) -> None:
    """16 rows at once, or 4 batches of 4: at the end of an epoch a step has the batches that are left."""
    whole, one = trained(Regression(), rows(count), 1, batch_size=16, schedule=schedule)
    parts, other = trained(Regression(), rows(count), 4, batch_size=4, schedule=schedule)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    for column in ("step", "rows", "lr"):
        assert one.steps[column] == other.steps[column]
    torch.testing.assert_close(torch.tensor(one.steps["loss"]), torch.tensor(other.steps["loss"]))


def test_a_loader_gives_the_batches_of_a_step() -> None:
    loader = DataLoader(TensorDataset(rows(54)), batch_size=4)
    whole, _ = trained(Regression(), DataLoader(TensorDataset(rows(54)), batch_size=16), 1)
    torch.testing.assert_close(trained(Regression(), loader, 4)[0], whole, rtol=1e-4, atol=1e-6)


class Stop(Exception):
    """What ends a run in the middle."""


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Any, batch: Any) -> None:
        if trainer.step == self.step:
            raise Stop


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_run_ends_with_the_bits_of_a_whole_one(loader: bool, stop: int, tmp_path: Path) -> None:
    def run(folder: str, at: int, resume: bool = False) -> Tensor:
        noise = fit_gaussian(rows(60))
        torch.manual_seed(0)
        objective = NCE(EnergyModel(mlp([WIDTH, 5, 1]), reference=noise), noise, partition="learned")
        shuffled = DataLoader(TensorDataset(rows(50)), batch_size=8, shuffle=True)
        data, settings = shuffled if loader else rows(50), {"batch_size": 8, "checkpoint_every": 1}
        place = tmp_path / folder
        return trained(objective, data, 3, checkpoint_dir=place, callbacks=[StopAt(at)], resume=resume, **settings)[0]

    whole = run("whole", -1)
    with pytest.raises(Stop):
        run("stopped", stop)
    assert torch.equal(run("stopped", -1, resume=True), whole)


def test_a_run_is_not_resumed_with_other_steps(tmp_path: Path) -> None:
    trained(Regression(), rows(32), 2, batch_size=8, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="accumulate was 2, is 4"):
        trained(Regression(), rows(32), 4, batch_size=8, checkpoint_dir=tmp_path, resume=True, epochs=4)


def test_a_part_that_is_not_finite_changes_nothing() -> None:
    data = rows(16)
    data[-1] = torch.inf
    module = Regression()
    before = weights(module)
    with pytest.raises(NonFiniteLoss):
        trained(module, DataLoader(TensorDataset(data), batch_size=4), 4)
    assert torch.equal(weights(module), before)
    assert all(p.grad is None or not p.grad.any() for p in module.parameters())


def test_what_cannot_be_accumulated_is_refused() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(rows(16))

    with pytest.raises(ValueError, match="accumulate must be 1 for data of unknown length, found 2"):
        trained(Regression(), DataLoader(Stream(), batch_size=4), 2)
    with pytest.raises(ValueError, match="accumulate must be an integer >= 1, found 0"):
        FitOptions(accumulate=0)
    inner = vae()
    objective = FullyVariationalNCE(inner.model, inner.encoder, normal(WIDTH), PowerRule(0), log_scale="auto")
    with pytest.raises(ValueError, match="accumulate must be 1 for log_scale='auto', found 2"):
        trained(objective, rows(16), 2)


def test_an_optimizer_a_class_and_a_function_are_the_same_optimizer() -> None:
    module = Regression()
    instance, _ = trained(module, rows(32), 1, optimizer=torch.optim.RAdam(module.parameters(), lr=0.01))
    for optimizer in (torch.optim.RAdam, lambda groups: torch.optim.RAdam(groups, lr=0.01)):
        assert torch.equal(trained(Regression(), rows(32), 1, optimizer=optimizer)[0], instance)


def test_a_scheduler_of_torch_is_stepped_as_it_is(tmp_path: Path) -> None:
    module = Regression()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    chosen: dict[str, Any] = {"optimizer": optimizer, "schedule": ExponentialLR(optimizer, 0.5), "batch_size": 16}
    expected, history = trained(module, rows(32), 1, checkpoint_dir=tmp_path, **chosen)
    assert history.steps["lr"] == pytest.approx([0.01 * 0.5**step for step in range(6)])
    function, other = trained(
        *(Regression(), rows(32), 1), optimizer="sgd", schedule=lambda o, _: ExponentialLR(o, 0.5), batch_size=16
    )
    assert other.steps["lr"] == history.steps["lr"]
    torch.testing.assert_close(function, expected)
    _, cycle = trained(
        *(Regression(), rows(32), 1), optimizer="sgd", schedule=lambda o, n: OneCycleLR(o, 0.1, n), batch_size=16
    )
    assert max(cycle.steps["lr"]) == pytest.approx(0.1, rel=0.1)


def test_a_run_of_an_optimizer_as_it_is_can_be_resumed(tmp_path: Path) -> None:
    def run(folder: str, at: int, resume: bool = False) -> Tensor:
        module = Regression()
        optimizer = torch.optim.RAdam(module.parameters(), lr=0.01)
        chosen: dict[str, Any] = {"optimizer": optimizer, "schedule": ExponentialLR(optimizer, 0.9), "batch_size": 8}
        chosen |= {"checkpoint_dir": tmp_path / folder, "callbacks": [StopAt(at)], "resume": resume}
        return trained(module, rows(32), 1, checkpoint_every=1, **chosen)[0]

    whole = run("whole", -1)
    with pytest.raises(Stop):
        run("stopped", 5)
    assert torch.equal(run("stopped", -1, resume=True), whole)


def test_an_optimizer_or_a_scheduler_of_something_else_is_refused() -> None:
    module, other = Regression(), torch.optim.SGD(Regression().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizer must be of parameters of the objective"):
        fit(module, rows(8), optimizer=other)
    with pytest.raises(ValueError, match="schedule must be of the optimizer"):
        fit(module, rows(8), schedule=ExponentialLR(other, 0.5))
    mine = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="found ReduceLROnPlateau"):
        fit(module, rows(8), optimizer=mine, schedule=ReduceLROnPlateau(mine))
