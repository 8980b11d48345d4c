"""``fit``: train an objective, watch it, stop it, resume it.

A run is a function of (objective, data, settings, seed). All that it depends on is in its checkpoints, so a run that is killed and
resumed ends with the bits of one that never was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import _checks
from . import randomness
from .callbacks import Callback, EarlyStopping
from .checkpoint import Checkpoints, read_checkpoint
from .feed import Feed
from .history import History
from .interrupt import Interrupted, Watch
from .optimisation import OptimizerLike, ScheduleLike, make_optimizer, make_schedule
from .processes import make_fabric
from .progress import make_progress
from .recorder import Recorder
from .registry import save
from .step import Inputs, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: With several processes, how often they ask each other whether one was interrupted.
_STEPS_BETWEEN_QUESTIONS = 10


class NonFiniteLoss(RuntimeError):
    """The loss became infinite or NaN; the message names the step, the term and the batch."""


@dataclass(frozen=True)
class Settings:
    """What a run is a function of, beside objective and data. See :func:`fit`."""

    epochs: int
    batch_size: int
    optimizer: OptimizerLike
    lr: float
    schedule: ScheduleLike
    grad_clip: float | None
    noise_pool: int | None
    log_every: int
    validate_every: int
    checkpoint_every: int | None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "log_every", "validate_every"):
            _checks.count(name, getattr(self, name))
        _checks.number("lr", self.lr, low=0.0)
        if self.grad_clip is not None:
            _checks.number("grad_clip", self.grad_clip, low=0.0, open_low=True)
        if self.noise_pool is not None:
            _checks.count("noise_pool", self.noise_pool, low=0)
        if self.checkpoint_every is not None:
            _checks.count("checkpoint_every", self.checkpoint_every)

    def that_matter(self) -> dict[str, Any]:
        """Settings that a resumed run must share with the one it continues."""
        named: dict[str, Any] = {
            "batch_size": self.batch_size,
            "optimizer": _text(self.optimizer),
            "lr": float(self.lr),
            "schedule": _text(self.schedule),
            "grad_clip": self.grad_clip,
            "noise_pool": self.noise_pool,
        }
        if self.schedule not in (None, "constant"):
            named["epochs"] = self.epochs
        return named


def fit(
    objective: nn.Module,
    data: object,
    *,
    validation: object = None,
    epochs: int = 10,
    batch_size: int = 128,
    optimizer: OptimizerLike = "adam",
    lr: float = 1e-3,
    schedule: ScheduleLike = None,
    grad_clip: float | None = None,
    seed: int | None = None,
    noise_pool: int | None = None,
    early_stopping: int | EarlyStopping | None = None,
    callbacks: Iterable[Callback | Callable[[Any], None]] = (),
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep_last: int = 2,
    resume: bool | str | Path = False,
    progress: bool | None = None,
    log_every: int = 50,
    validate_every: int = 1,
    accelerator: str = "auto",
    devices: int | str | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: Any = "auto",
    precision: str | None = None,
) -> History:
    """Train ``objective`` in place and return what happened.

    Args:
        objective: a module from a batch of rows to a scalar loss. One with a distribution ``noise`` is also handed noise samples
            and log densities, as ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.
        data: rows as a tensor, an array, a memory map, or a DataLoader that gives tensors or lists that begin with one.
        validation: held-out rows, not a DataLoader; the history gains columns ``val_…``.
        epochs: passes over the data.
        batch_size: rows of a step on each process; a DataLoader has its own.
        optimizer: "adam", "adamw", "sgd", or a function from parameter groups to an optimiser.
        lr: learning rate.
        schedule: None, "cosine", "linear", "warmup-cosine", or a function (optimizer, total steps) → LRScheduler, stepped every step.
        grad_clip: the largest norm of the gradient.
        seed: an integer; by default drawn from torch's global generator. The caller's random states are the same after as before.
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        early_stopping: epochs without a better ``val_loss`` after which to stop and take the best weights, or an :class:`EarlyStopping`.
        callbacks: :class:`Callback` objects, or functions that are called with the run after each epoch.
        checkpoint_dir: folder for the checkpoints of this run.
        checkpoint_every: steps between checkpoints, by default an epoch.
        keep_last: checkpoints kept.
        resume: True continues from the newest checkpoint in ``checkpoint_dir`` if there is one; a path, from that file.
        progress: show a bar; by default if standard error is a terminal.
        log_every: steps between two that record the objective's statistics, beside the last of each epoch. The loss is recorded at each.
        validate_every: epochs between validations.
        accelerator: "auto", "cpu", "cuda", "mps", …, as Lightning Fabric has it.
        devices: how many devices of this machine, or which; 1 by default, under torchrun its number of processes.
        num_nodes: number of machines; under torchrun found from its environment.
        strategy: "auto" or "ddp".
        precision: "32-true", "64-true", "bf16-mixed" or "16-mixed".

    Raises:
        NonFiniteLoss: the loss became infinite or NaN. The last checkpoint is from before.
        Interrupted: Ctrl-C or SIGTERM ended the run, after its state was saved; a script exits with the shell's code.

    >>> class Mean(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean = nn.Parameter(torch.zeros(()))
    ...
    ...     def forward(self, x):
    ...         return ((x - self.mean) ** 2).mean()
    >>> objective = Mean()
    >>> history = fit(objective, torch.full((100, 1), 3.0), epochs=50, batch_size=10, lr=0.1, seed=0)
    >>> round(objective.mean.item(), 2)
    3.0
    """
    if not isinstance(objective, nn.Module):
        raise TypeError(
            f"objective must be a torch module with parameters to train, found {type(objective).__name__}"
        )
    settings = Settings(
        epochs,
        batch_size,
        optimizer,
        lr,
        schedule,
        grad_clip,
        noise_pool,
        log_every,
        validate_every,
        checkpoint_every,
    )
    checkpoints = (
        None if checkpoint_dir is None else Checkpoints(checkpoint_dir, _checks.count("keep_last", keep_last))
    )
    if resume and checkpoints is None and resume is True:
        raise ValueError("checkpoint_dir must be given to resume from its newest checkpoint, found None")
    fabric = make_fabric(
        accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy, precision=precision
    )
    if seed is None:
        seed = fabric.broadcast(int(torch.randint(2**31 - 1, ())))
    seed = _checks.count("seed", seed, low=0)
    chosen = [callback if isinstance(callback, Callback) else _Each(callback) for callback in callbacks]
    if early_stopping is not None:
        chosen.append(
            early_stopping if isinstance(early_stopping, EarlyStopping) else EarlyStopping(early_stopping)
        )
    with randomness.borrowed(fabric.device):
        run = _Run(objective, data, validation, settings, seed, chosen, checkpoints, fabric, progress)
        return run.train(resume)


class _Run:
    """One call of ``fit``."""

    def __init__(
        self,
        objective: nn.Module,
        data: object,
        validation: object,
        settings: Settings,
        seed: int,
        callbacks: list[Callback],
        checkpoints: Checkpoints | None,
        fabric: Fabric,
        progress: bool | None,
    ) -> None:
        self.objective, self.settings, self.seed = objective, settings, seed
        self.callbacks, self.checkpoints, self.fabric = callbacks, checkpoints, fabric
        self.world, self.is_main = fabric.world_size, fabric.is_global_zero
        self.device: torch.device = fabric.device
        self.step = self.epoch = self.position = 0
        self.stopped: str | None = None
        self._saved_at = -1
        randomness.seed_everything(seed, randomness.GLOBAL, fabric.global_rank)
        precision = str(fabric.strategy.precision.precision)
        objective.to(self.device, torch.float64 if precision == "64-true" else None)
        # The gradient scaler and a fused optimiser cannot both unscale what is to be clipped.
        fused = not (precision == "16-mixed" and settings.grad_clip is not None)
        self.raw_optimizer = make_optimizer(settings.optimizer, objective, settings.lr, fused=fused)
        inner = Step(objective)
        self.module, self.optimizer = fabric.setup(inner, self.raw_optimizer)
        self.module.train()
        self.history = History()
        average = None if self.world == 1 else lambda t: fabric.all_reduce(t.to(self.device), reduce_op="mean")
        self.recorder = Recorder(self.history, average)
        self.progress = make_progress(progress, main_process=self.is_main)
        try:
            self.feed = Feed(
                data,
                inner,
                fabric,
                seed,
                batch_size=settings.batch_size,
                noise_pool=settings.noise_pool,
                progress=self.progress,
                notes=self.history.notes,
            )
            self.validation = None if validation is None else self.feed.held_out(validation)
        except BaseException:
            self.progress.close()
            raise
        self.total_steps = None if self.feed.steps is None else self.feed.steps * settings.epochs
        self.scheduler = make_schedule(settings.schedule, self.raw_optimizer, self.total_steps)

    def stop(self, reason: str) -> None:
        """End training after this epoch."""
        self.stopped = reason

    def train(self, resume: bool | str | Path) -> History:
        """All epochs that are left."""
        self._resume(resume)
        self.recorder.resume(self.epoch)
        try:
            for callback in self.callbacks:
                callback.start(self)
            self.progress.begin(self.settings.epochs, self.total_steps, self.step)
            with Watch() as watch:
                while self.stopped is None and self.epoch < self.settings.epochs:
                    self._one_epoch(watch)
                if self._saved_at != self.step:
                    self._save(final=True)
            for callback in self.callbacks:
                callback.end(self)
        finally:
            self.progress.close()
        return self.history

    def _one_epoch(self, watch: Watch) -> None:
        every = self.settings.checkpoint_every
        for inputs, rows in self.feed.epoch(self.epoch, self.position):
            self._one_step(inputs, rows)
            self._leave_if_interrupted(watch)
            # At the end of an epoch the checkpoint waits until the epoch has been validated and recorded.
            if every is not None and self.step % every == 0 and self.position != self.feed.steps:
                self._save()
        self._end_epoch()
        if every is None or self.step % every == 0:
            self._save()

    def _one_step(self, inputs: Inputs, rows: int) -> None:
        try:
            loss: Tensor = self.module(inputs)
        except ValueError as error:
            if self.step == 0:
                raise
            raise self._failure(inputs, f"the objective refused the batch: {error}") from error
        self.fabric.backward(loss)
        # An accelerator is not made to wait for a number at every step.
        value: float | Tensor = loss.item() if self.device.type == "cpu" else loss.detach()
        if isinstance(value, float) and not math.isfinite(value):
            raise self._failure(inputs, f"the loss is {value}")
        if self.settings.grad_clip is not None:
            self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.settings.grad_clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        row = {
            "step": float(self.step),
            "epoch": float(self.epoch),
            "rows": float(rows),
            "lr": float(self.raw_optimizer.param_groups[0]["lr"]),
        }
        if self.scheduler is not None:
            self.scheduler.step()
        self.recorder.step(row, value)
        if self.step % self.settings.log_every == 0 or self.position + 1 == self.feed.steps:
            self.recorder.log(inputs.terms)
            if not math.isfinite(self.history.steps.last()["loss"]):
                raise self._failure(inputs, "the loss is not finite")
        self.step += 1
        self.position += 1
        if isinstance(value, float):
            self.progress.step(self.step, self.epoch, value, self.recorder.live, self.recorder.rate)

    def _end_epoch(self) -> None:
        self.recorder.flush()
        found: dict[str, float] = {}
        due = (self.epoch + 1) % self.settings.validate_every == 0 or self.epoch + 1 == self.settings.epochs
        if self.validation is not None and due:
            found = self.validation(self.fabric.autocast, lambda t: self.fabric.all_reduce(t, reduce_op="sum"))
        self.recorder.close_epoch(self.epoch, self.step, found)
        for callback in self.callbacks:
            callback.epoch(self)
        self.epoch += 1
        self.position = 0
        if self.checkpoints is not None and self.is_main and "loss" in found:
            losses = self.history.epochs["val_loss"]
            if found["loss"] <= min(value for value in losses if not math.isnan(value)):
                best = self.checkpoints.folder / "best.safetensors"
                self._write(lambda: save(best, self.objective, weights_only_if_unknown=True), final=False)

    def _failure(self, inputs: Inputs, what: str) -> NonFiniteLoss:
        term = ""
        if inputs.terms is not None:
            named = {
                name: float(value) for name, value in inputs.terms.statistics.items() if name.endswith("_term")
            }
            bad = [f"{name} is {value}" for name, value in named.items() if not math.isfinite(value)]
            term = f" ({', '.join(bad)})" if bad else f" ({', '.join(f'{n} {v:.4g}' for n, v in named.items())})"
        latest = None if self.checkpoints is None else self.checkpoints.latest()
        saved = f"the last good checkpoint is {latest}" if latest is not None else "there is no checkpoint"
        return NonFiniteLoss(
            f"step {self.step} (epoch {self.epoch + 1}): {what}{term}. Batch: {inputs.summary()}. "
            f"Try a smaller learning rate or grad_clip; {saved}"
        )

    def _leave_if_interrupted(self, watch: Watch) -> None:
        number = watch.received or 0
        if self.world > 1:
            if self.step % _STEPS_BETWEEN_QUESTIONS:
                return
            # All processes must leave after the same step, or those that stay wait forever.
            number = int(self.fabric.all_reduce(torch.tensor(float(number)), reduce_op="max"))
        if not number:
            return
        self.recorder.flush()
        line = f"interrupted after step {self.step}"
        if self.checkpoints is not None:
            self._save(final=True)
            line += f"; saved in {self.checkpoints.folder}, resume=True continues"
        self.progress.close()
        if self.is_main:
            self.progress.say(line)
        raise Interrupted(number, self.history)

    def _save(self, *, final: bool = False) -> None:
        if self.checkpoints is None or self._saved_at == self.step:
            return
        self.recorder.flush()
        own = {"feed": self.feed.state_dict(), "random": randomness.capture(self.device)}
        written = self._write(lambda: self._write_checkpoint(own), final=final)
        if written:
            self._saved_at = self.step

    def _write_checkpoint(self, own: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        rank = self.fabric.global_rank
        parts: dict[int, str] = {}
        if self.world > 1:
            mine = self.checkpoints.write_rank(self.step, rank, own) if rank else ""
            everyone: list[Any] = [None] * self.world
            torch.distributed.all_gather_object(everyone, mine)
            parts = {number: checksum for number, checksum in enumerate(everyone) if number}
        if rank == 0:
            self.checkpoints.write(self.step, {**self._state(), "own": own}, parts)

    def _write(self, write: Callable[[], object], *, final: bool) -> bool:
        """Try to write. A full disk must not end a run that may go on: it is told of, and tried again later."""
        try:
            write()
        except OSError as error:
            if final:
                raise
            warnings.warn(
                f"step {self.step}: nothing could be saved ({error}); earlier files are intact", stacklevel=2
            )
            return False
        return True

    def _state(self) -> dict[str, Any]:
        return {
            "settings": {**self.settings.that_matter(), **self._identity()},
            "described": str(self.objective),
            "rule": str(getattr(self.objective, "rule", "")),
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "stopped": self.stopped,
            "objective": dict(self.objective.state_dict()),
            "optimizer": self.raw_optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else _plain(self.scheduler.state_dict()),
            "scaler": self.fabric.strategy.precision.state_dict(),
            "history": self.history.state_dict(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "objective": type(self.objective).__name__,
            "processes": self.world,
            "precision": str(self.fabric.strategy.precision.precision),
            "data": self.feed.fingerprint,
        }

    def _resume(self, resume: bool | str | Path) -> None:
        if self.checkpoints is not None:
            if self.is_main:
                self.checkpoints.prepare()
            self.fabric.barrier()
            if resume is False and self.checkpoints.latest() is not None:
                raise FileExistsError(
                    f"checkpoint_dir must be without checkpoints, found {self.checkpoints.latest()}; pass resume=True to "
                    "continue that run"
                )
        if resume is False:
            return
        path = self.checkpoints.latest() if resume is True and self.checkpoints is not None else Path(str(resume))
        if path is None:
            return
        state, part = read_checkpoint(path, self.fabric.global_rank)
        self._check_settings(path, state["settings"])
        self.objective.load_state_dict(state["objective"])
        self.raw_optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.fabric.strategy.precision.load_state_dict(state["scaler"])
        self.history.load_state_dict(state["history"])
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        self.step, self.epoch, self.position = state["step"], state["epoch"], state["position"]
        self.stopped = state["stopped"]
        own = part if part is not None else state["own"]
        self.feed.load_state_dict(own["feed"])
        randomness.restore(own["random"], self.device)
        self._saved_at = self.step if resume is True else -1

    def _check_settings(self, path: Path, saved: dict[str, Any]) -> None:
        now = {**self.settings.that_matter(), **self._identity()}
        for name in now.keys() & saved.keys():
            if now[name] != saved[name]:
                raise ValueError(
                    f"{name} must be what it was in the run that wrote {path}, {saved[name]!r}, found {now[name]!r}"
                )


class _Each(Callback):
    """A function called after each epoch."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function

    def epoch(self, run: Any) -> None:
        """Call it."""
        self.function(run)


def _text(value: object) -> str | None:
    return (
        value if value is None or isinstance(value, str) else getattr(value, "__qualname__", type(value).__name__)
    )


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state without what cannot be stored: functions, which the settings give again."""
    return {name: value for name, value in state.items() if not callable(value)}
