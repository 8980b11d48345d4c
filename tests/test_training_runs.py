"""``fit`` is a function of objective, data, settings and seed, and of nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, Uniform
from torch.utils.data import DataLoader

from fvnce import KernelDensity
from fvnce._random import order
from fvnce.objectives import Batch
from fvnce.training import Callback, EarlyStopping, Interrupted, NonFiniteLoss, fit
from fvnce.training.callbacks import Bar
from fvnce.training.checkpoint import Checkpoints
from training_runs import WIDTH, contrastive, digest, kernels, mapped, rows, vae

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
        {"log_every": 1},
        {"log_every": 1000},
        {"callbacks": [lambda run: torch.rand(3)]},
        {"checkpoint_every": 1},
        {"progress": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_watching_changes_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    make = lambda: contrastive(noise=kernels(), partition="profiled")  # noqa: E731
    where = {"checkpoint_dir": tmp_path} if "checkpoint_every" in change else {}
    assert trained(make(), rows(50), **change, **where) == trained(make(), rows(50))


def test_tensor_array_and_memory_map_are_the_same_data(tmp_path: Path) -> None:
    first = trained(contrastive(noise=kernels()), rows(50))
    assert trained(contrastive(noise=kernels()), rows(50).numpy()) == first
    assert trained(contrastive(noise=kernels()), mapped(tmp_path, 50)) == first
    assert trained(contrastive(noise=kernels()), rows(50).double()) == first


def test_a_memory_map_is_read_by_batches(tmp_path: Path) -> None:
    """A map of 4 GiB of zeros, sparse on the disk: reading it whole would need the memory, its rows do not."""
    path = tmp_path / "big.dat"
    big = np.memmap(path, dtype=np.float32, mode="w+", shape=(2**22, 256))
    torch.manual_seed(0)
    seen = []

    class Stop(Exception):
        pass

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 1)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            if len(seen) > 3:
                raise Stop
            return self.layer(x).square().mean()

    with pytest.raises(Stop):
        fit(Look(), big, epochs=1, batch_size=32, seed=1)
    assert seen == [(32, 256)] * 4


def test_every_row_is_seen_once_an_epoch_in_a_new_order() -> None:
    seen: list[Tensor] = []

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return (self.weight * x).square().mean()

    data = torch.arange(10.0).unsqueeze(1)
    fit(Look(), data, epochs=2, batch_size=4, seed=1)
    assert [len(x) for x in seen] == [4, 4, 2] * 2
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert torch.equal(first.sort(0).values, data)
    assert torch.equal(second.sort(0).values, data)
    assert not torch.equal(first, second)
    assert torch.equal(first[:, 0].long(), order(1, 0, 10))


def test_every_row_comes_with_its_own_density() -> None:
    seen = []
    objective = contrastive(noise=kernels())
    plain = objective.terms_of

    def spy(batch: Batch) -> Any:
        seen.append((batch.x, batch.log_noise_x, batch.x_noise, batch.log_noise_noise))
        return plain(batch)

    objective.terms_of = spy
    fit(objective, rows(50), epochs=2, batch_size=16, seed=1, noise_pool=40)
    assert len(seen) == 8
    for x, log_x, noise, log_noise in seen:
        assert len(noise) == len(x)
        assert torch.allclose(log_x, kernels().log_prob(x), atol=1e-5)
        assert torch.allclose(log_noise, kernels().log_prob(noise), atol=1e-5)


def test_noise_that_misses_a_row_names_it() -> None:
    box = Independent(Uniform(torch.full((WIDTH,), -1e3), torch.full((WIDTH,), 1e3)), 1)
    data = rows(20)
    data[13] += 1e4
    with pytest.raises(ValueError, match=r"noise must cover the data.*row 13"):
        fit(contrastive(noise=box), data, **SETTINGS)


def test_cheap_noise_is_fresh_and_expensive_noise_is_pooled() -> None:
    drawn = []

    class Counted(KernelDensity):
        def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
            drawn.append(n)
            return super().draw_with_log_prob(n, generator)

    fit(contrastive(noise=Counted(rows(1), 1.0)), rows(32), epochs=1, batch_size=16, seed=1)
    assert drawn == [16, 16]
    drawn.clear()
    fit(contrastive(noise=Counted(rows(5000), 1.0)), rows(32), epochs=1, batch_size=16, seed=1)
    assert sum(drawn) >= 8192


def test_a_pool_is_renewed_only_while_noise_is_live() -> None:
    """Where the density of the noise is e^80 times the model's, r^(1+α) is zero: nothing can be learnt by heart."""

    def renewed(noise: KernelDensity) -> int:
        pools = []

        class Look(Callback):
            def start(self, run: Any) -> None:
                pools.append(run.batches.noise_sampler.pool)

        objective = contrastive(alpha=0.5, noise=noise)
        fit(objective, rows(100), epochs=20, batch_size=20, seed=1, noise_pool=64, callbacks=[Look()])
        return int(pools[0].renewed)

    assert renewed(KernelDensity(rows(100), 1.0)) > 0
    assert renewed(KernelDensity(rows(100), 1e-9)) == 0


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


# Ending a run


def test_early_stopping_keeps_the_best_weights() -> None:
    best: dict[float, str] = {}

    def note(run: Any) -> None:
        best[run.history["val_loss"][-1]] = digest(run.objective)

    objective = vae()
    stopping = EarlyStopping(3)
    history = fit(
        objective,
        rows(64),
        validation=rows(64, seed=3),
        epochs=200,
        batch_size=16,
        lr=0.1,
        seed=1,
        early_stopping=stopping,
        callbacks=[note],
    )
    assert len(history.epochs) < 200
    assert len(history.epochs) - 1 - stopping.best_epoch == 3
    assert digest(objective) == best[min(best)]


def test_early_stopping_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"monitor must be a column of the epochs .*found 'val_loss'"):
        fit(vae(), rows(20), early_stopping=2, **SETTINGS)


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
    with pytest.raises(
        NonFiniteLoss, match=r"step 4 \(epoch 2\): the loss is nan. Batch: x: shape \(10, 4\), min "
    ) as e:
        fit(Poisoned(), rows(30), epochs=9, batch_size=10, seed=1, checkpoint_dir=tmp_path, checkpoint_every=1)
    assert f"the last good checkpoint is {Checkpoints(tmp_path).path(4)}" in str(e.value)
    assert Checkpoints(tmp_path).steps()[-1] == 4


def test_a_diverging_objective_names_its_term(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"step \d+ \(epoch \d+\): .*(data_term|noise_term|refused)") as found:
        fit(contrastive(), rows(64), epochs=60, batch_size=16, optimizer="sgd", lr=1e6, seed=1)
    assert "x_noise: shape (16, 4)" in str(found.value)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    class Broken(nn.Module):
        """The loss is fine and its gradient is not: sqrt at 0."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.abs().sqrt() * 0 + x.mean()

    with pytest.raises(NonFiniteLoss, match="the gradient of weight is not finite"):
        fit(Broken(), rows(10), epochs=1, batch_size=10, seed=1, checkpoint_dir=tmp_path)
    assert Checkpoints(tmp_path).steps() == []


@pytest.fixture
def plain_signals() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_and_leaves_with_one_line(tmp_path: Path, capfd: Any, plain_signals: None) -> None:
    class Press(Callback):
        def epoch(self, run: Any) -> None:
            if run.epoch == 1:
                os.kill(os.getpid(), signal.SIGINT)

    never = vae()
    fit(never, rows(40), epochs=4, batch_size=10, seed=1)
    with pytest.raises(Interrupted) as found:
        fit(vae(), rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path, callbacks=[Press()])
    assert found.value.code == 130
    assert len(found.value.history.steps) == 9
    assert capfd.readouterr().err == f"interrupted after step 9; saved in {tmp_path}, resume=True continues\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = vae(seed=3)
    fit(again, rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path, resume=True, callbacks=[_Nothing()])
    assert digest(again) == digest(never)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_asks_a_process_to_end_saves_first(tmp_path: Path, number: int, capfd: Any) -> None:
    """A cluster sends SIGTERM, a terminal that is closed SIGHUP."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted) as found:
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
    assert found.value.code == 128 + number
    assert Checkpoints(tmp_path).steps() == [4, 5]
    assert "interrupted after step 5; saved in" in capfd.readouterr().err


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


def test_it_is_quiet_without_a_terminal_and_shows_a_bar_when_asked(capfd: Any) -> None:
    fit(contrastive(), rows(40), **SETTINGS)
    assert capfd.readouterr() == ("", "")
    fit(contrastive(noise=kernels()), rows(400), epochs=3, batch_size=4, seed=1, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    for word in ("epoch 3/3", "loss", "live noise", "samples/s", "left"):
        assert word in shown.err


def test_the_bar_ends_with_the_last_step_however_fast_it_came(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fvnce.training.callbacks._SECONDS_BETWEEN", float("inf"))
    fit(vae(), rows(40), progress=True, **SETTINGS)
    assert "epoch 2/2" in capfd.readouterr().err


# What is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must be an integer >= 1, found 0"),
        ({"lr": -1.0}, "lr must be a finite number >= 0"),
        ({"optimizer": "adamm"}, "optimizer must be one of 'adam'"),
        ({"schedule": "cos"}, "schedule must be one of 'constant', 'cosine'"),
        ({"precision": "16-true"}, "precision must be one of '32-true'"),
        ({"noise_pool": 3}, "noise_pool must hold the 16 noise samples of a step, found 3"),
        ({"data": torch.zeros(0, WIDTH)}, r"data must have at least one row, found shape \(0, 4\)"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    chosen = {"data": rows(32), **SETTINGS, **settings}
    with pytest.raises(ValueError, match=words):
        fit(contrastive(), **chosen)


def test_wrong_objects_are_named() -> None:
    with pytest.raises(TypeError, match="objective must be a torch module"):
        fit(lambda x: x.mean(), rows(10))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data must be a tensor"):
        fit(vae(), "rows.csv")
    with pytest.raises(ValueError, match="objective must have parameters to train"):
        fit(nn.Identity(), rows(10))
    with pytest.raises(TypeError, match=r"objective must return a scalar tensor, found shape \(10, 1\)"):
        fit(nn.Linear(WIDTH, 1), rows(10))
    with pytest.raises(TypeError, match="a DataLoader must give a tensor"):
        fit(vae(), DataLoader([{"x": torch.zeros(4)}], batch_size=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"schedule": "sine"}, {"resume": "nowhere.safetensors"}], ids=str)
def test_a_run_that_is_refused_leaves_no_bar_behind(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that still runs redraws itself from a thread and hides the cursor."""
    closed, close = [], Bar.close

    def noted(bar: Bar) -> None:
        closed.append(bar)
        close(bar)

    monkeypatch.setattr(Bar, "close", noted)
    with pytest.raises((ValueError, FileNotFoundError)):
        fit(contrastive(noise=kernels()), rows(20), epochs=1, seed=1, progress=True, **wrong)
    assert len(closed) == 1


def test_what_a_function_or_a_method_of_the_user_returned_is_named() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.shift).square().mean()

        def terms(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self(x)}

    with pytest.raises(TypeError, match=r"objective.terms must return something with a loss .* found dict"):
        fit(Other(), rows(20), epochs=1, seed=1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(TypeError, match="schedule must return a scheduler that is stepped by steps alone"):
        fit(vae(), rows(20), epochs=1, seed=1, schedule=lambda optimizer, steps: plateau(optimizer))
