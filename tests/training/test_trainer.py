"""``fit`` is a function of objective, data, settings and seed, and of nothing else; it refuses wrong ones by name."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader

from fvnce import training
from fvnce.training import Callback, FitOptions, Interrupted, NonFiniteLoss, fit
from fvnce.training.checkpoint import Checkpoints
from training_runs import WIDTH, contrastive, digest, kernels, rows, vae

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}


def trained(objective: nn.Module, data: object, **settings: Any) -> str:
    fit(objective, data, **{**SETTINGS, **settings})
    return digest(objective)


@pytest.mark.parametrize("make", [vae, contrastive, lambda: contrastive(noise=kernels(), partition="profiled")])
def test_the_seed_decides_every_bit(make: Any) -> None:
    first = trained(make(), rows(50))
    torch.rand(17)
    assert trained(make(), rows(50)) == first
    assert trained(make(), rows(50), seed=2) != first


def test_without_a_seed_torch_decides() -> None:
    torch.manual_seed(3)
    first = trained(vae(), rows(50), seed=None)
    assert trained(vae(), rows(50), seed=None) == first  # vae() seeds torch
    torch.manual_seed(4)


@pytest.mark.parametrize(
    "change",
    [
        {"validation": rows(20, seed=5)},
        {"options": FitOptions(log_every=1)},
        {"options": FitOptions(log_every=1000)},
        {"callbacks": [lambda run: torch.rand(3)]},
        {"options": FitOptions(checkpoint_every=1), "checkpoint_dir": True},
        {"progress": True},
    ],
    ids=["validation", "every step", "few steps", "callback", "checkpoints", "bar"],
)
def test_watching_changes_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    make = lambda: contrastive(noise=kernels(), partition="profiled")  # noqa: E731
    if "checkpoint_dir" in change:
        change = {**change, "checkpoint_dir": tmp_path}
    assert trained(make(), rows(50), **change) == trained(make(), rows(50))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup-cosine"])
def test_schedules_begin_and_end_where_they_say(schedule: str) -> None:
    history = fit(vae(), rows(64), epochs=5, batch_size=8, lr=0.1, schedule=schedule, seed=1)
    rates = history.steps["lr"]
    assert max(rates) == pytest.approx(0.1)
    assert rates[-1] < 0.01
    assert (rates[0] == pytest.approx(0.1)) == (schedule != "warmup-cosine")


def test_gradients_are_clipped() -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * torch.tensor([300.0, 400.0])).sum() + 0 * x.sum()

    objective = Steep()
    fit(objective, rows(4), epochs=1, batch_size=4, optimizer="sgd", lr=1.0, grad_clip=1.0, seed=1)
    assert torch.allclose(objective.weight, torch.tensor([-0.6, -0.8]), atol=1e-5)


def test_a_learned_log_z_has_its_own_rate() -> None:
    objective = contrastive(partition="learned")
    rates = {}

    class Look(Callback):
        def start(self, run: Any) -> None:
            rates.update({len(group["params"]): group["lr"] for group in run.raw_optimizer.param_groups})

    fit(objective, rows(20), lr=1e-3, callbacks=[Look()], **SETTINGS)
    assert rates[1] == pytest.approx(1e-2)


def test_it_learns_a_known_density() -> None:
    """Maximum likelihood of a linear Gaussian model by fvNCE at α = 0: the implied mean is the data's."""
    torch.manual_seed(0)
    data = rows(2000) + 1.0
    objective = contrastive(alpha=0.0, noise=Independent(Normal(data.mean(0), 2 * data.std(0)), 1))
    history = fit(objective, data, validation=rows(500, seed=0) + 1.0, epochs=12, batch_size=50, lr=1e-2, seed=1)
    assert history["val_loss"][-1] < history["val_loss"][0] - 0.3
    assert history["loss"][-1] < history["loss"][0]


class Poisoned(nn.Module):
    """A loss that is NaN at the fifth step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        loss = self.layer(x).square().mean()
        return loss * float("nan") if self.calls == 5 else loss


def test_a_loss_that_is_not_finite_ends_the_run_before_the_step(tmp_path: Path) -> None:
    options = FitOptions(checkpoint_every=1)
    with pytest.raises(NonFiniteLoss, match=r"step 4 \(epoch 2\): .*loss is nan.*x: shape \(10, 4\)") as e:
        fit(Poisoned(), rows(30), epochs=9, batch_size=10, seed=1, checkpoint_dir=tmp_path, options=options)
    assert str(Checkpoints(tmp_path).path(4)) in str(e.value)
    assert Checkpoints(tmp_path).steps()[-1] == 4


def test_a_diverging_objective_names_its_term(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"step \d+ \(epoch \d+\): .*(data_term|noise_term|refused)") as actual:
        fit(contrastive(), rows(64), epochs=60, batch_size=16, optimizer="sgd", lr=1e6, seed=1)
    assert "x_noise: shape (16, 4)" in str(actual.value)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    class Broken(nn.Module):
        """The loss is fine and its gradient is not: sqrt at 0."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.abs().sqrt() * 0 + x.mean()

    with pytest.raises(NonFiniteLoss, match="gradient of weight"):
        fit(Broken(), rows(10), epochs=1, batch_size=10, seed=1, checkpoint_dir=tmp_path)
    assert Checkpoints(tmp_path).steps() == []


@pytest.fixture
def plain_signals() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_and_leaves_with_one_line(tmp_path: Path, caplog: Any, plain_signals: None) -> None:
    class Press(Callback):
        def epoch(self, run: Any) -> None:
            if run.epoch == 1:
                os.kill(os.getpid(), signal.SIGINT)

    never = vae()
    fit(never, rows(40), epochs=4, batch_size=10, seed=1)
    with pytest.raises(Interrupted) as actual:
        fit(vae(), rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path, callbacks=[Press()])
    assert actual.value.code == 130
    assert len(actual.value.history.steps) == 9
    assert caplog.messages == [f"interrupted after step 9; saved in {tmp_path}, resume=True continues"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = vae(seed=3)
    fit(again, rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path, resume=True, callbacks=[_Nothing()])
    assert digest(again) == digest(never)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_asks_a_process_to_end_saves_first(tmp_path: Path, number: int, caplog: Any) -> None:
    """A cluster sends SIGTERM, a terminal that is closed SIGHUP."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted) as actual:
            fit(
                vae(),
                rows(40),
                epochs=4,
                batch_size=10,
                seed=1,
                checkpoint_dir=tmp_path,
                callbacks=[lambda run: os.kill(os.getpid(), number)],
            )
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert actual.value.code == 128 + number
    assert Checkpoints(tmp_path).steps() == [4, 5]
    assert [message.partition(";")[0] for message in caplog.messages] == ["interrupted after step 5"]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        history = fit(vae(), rows(20), callbacks=[lambda run: os.kill(os.getpid(), signal.SIGHUP)], **SETTINGS)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(history.epochs) == 2


class _Nothing(Callback):
    pass


_Nothing.__name__ = "Press"  # a resumed run has callbacks of the same names


# What is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must .*found 0"),
        ({"lr": -1.0}, "lr must .*found -1"),
        ({"optimizer": "adamm"}, "optimizer must .*found 'adamm'"),
        ({"schedule": "cos"}, "schedule must .*found 'cos'"),
        ({"precision": "16-true"}, "precision must .*found '16-true'"),
        ({"options": FitOptions(noise_pool=3)}, "noise_pool must .*16.*found 3"),
        ({"data": torch.zeros(0, WIDTH)}, r"data must .*found shape \(0, 4\)"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    chosen = {"data": rows(32), **SETTINGS, **settings}
    with pytest.raises(ValueError, match=words):
        fit(contrastive(), **chosen)


def test_wrong_objects_are_named() -> None:
    with pytest.raises(TypeError, match=r"objective must .*found function"):
        fit(lambda x: x.mean(), rows(10))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data must .*found str"):
        fit(vae(), "rows.csv")
    with pytest.raises(ValueError, match=r"objective must .*found none"):
        fit(nn.Identity(), rows(10))
    with pytest.raises(TypeError, match=r"objective must .*found shape \(10, 1\)"):
        fit(nn.Linear(WIDTH, 1), rows(10))
    with pytest.raises(TypeError, match=r"data must give tensors.*found dict"):
        fit(vae(), DataLoader([{"x": torch.zeros(4)}], batch_size=1))  # type: ignore[arg-type]


def test_what_a_function_of_the_user_returned_is_named() -> None:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(TypeError, match=r"schedule must return .* found ReduceLROnPlateau"):
        fit(vae(), rows(20), epochs=1, seed=1, schedule=lambda optimizer, steps: plateau(optimizer))


def test_options_that_were_keywords_of_fit_still_work_and_warn() -> None:
    old: dict[str, Any] = {"log_every": 3, "keep_last": 4}
    with pytest.warns(DeprecationWarning, match=r"fit\(keep_last, log_every\) .*FitOptions\(keep_last=4, "):
        before = fit(vae(), rows(40), validation=rows(5), **old, **SETTINGS)
    now = fit(vae(), rows(40), validation=rows(5), options=FitOptions(**old), **SETTINGS)
    assert before.steps["loss"] == now.steps["loss"]
    assert before["val_loss"] == pytest.approx(now["val_loss"], rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(("name", "words"), [("accept_changes", "load_weights"), ("log_evry", "unexpected keyword")])
def test_keywords_that_fit_does_not_have_are_refused(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*{words}|{words}.*{name}"):
        fit(vae(), rows(20), **{name: True}, **SETTINGS)


def test_fit_has_few_parameters_and_the_rest_in_one_place() -> None:
    names = inspect.signature(fit).parameters
    assert len(names) <= 18
    assert not set(names) & {field.name for field in dataclasses.fields(FitOptions)}


@pytest.mark.parametrize(("old", "new"), [("Table", "HistoryTable"), ("NormalisedSGD", "NormalizedSGD")])
def test_old_names_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(training, old) is getattr(training, new)


def test_the_old_name_of_an_optimizer_warns() -> None:
    with pytest.warns(DeprecationWarning, match="normalized-sgd"):
        fit(vae(), rows(20), optimizer="normalised-sgd", **SETTINGS)
