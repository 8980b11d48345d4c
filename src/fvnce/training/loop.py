"""``fit``: train an objective, watch it, stop it, resume it.

A run is a function of (objective, data, settings, seed). All that it depends on is in its checkpoints, so a run that is
killed and resumed ends with the bits of one that never was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .. import _checks
from . import randomness
from .callbacks import Callback, EarlyStopping
from .checkpoint import Checkpoints
from .batch_stream import Feed
from .gradients import GradientCheck
from .history import History
from .interrupt import Interrupted, Watch
from .optimiser import OptimizerLike, ScheduleLike, make_optimizer, make_schedule
from .distributed import make_fabric, on_main
from .progress import make_progress
from .recorder import Recorder
from .saving import Saver
from .settings import Settings
from .step import Inputs, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: With several processes, how often they ask each other whether one was interrupted.
_STEPS_BETWEEN_QUESTIONS = 10


class NonFiniteLoss(RuntimeError):
    """The loss or a gradient became infinite or NaN; the message names the step, what, and the batch."""


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
    seed_globals: bool = True,
    noise_pool: int | None = None,
    early_stopping: int | EarlyStopping | None = None,
    callbacks: Iterable[Callback | Callable[[Any], None]] = (),
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep_last: int = 2,
    resume: bool | str | Path = False,
    accept_changes: bool = False,
    progress: bool | None = None,
    log_every: int = 50,
    validate_every: int = 1,
    accelerator: str = "auto",
    devices: int | str | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: Any = "auto",
    precision: str | None = None,
    timeout: float | None = None,
) -> History:
    """Train ``objective`` in place and return what happened.

    Args:
        objective: a module from a batch of rows to a scalar loss. One with a distribution ``noise`` is also handed
            noise samples and log densities, as ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.
        data: rows as a tensor, an array, a memory map, or a DataLoader that gives tensors or lists that begin with one.
        validation: held-out rows, not a DataLoader; the history gains columns ``val_…``.
        epochs: passes over the data.
        batch_size: rows of a step on each process; a DataLoader has its own.
        optimizer: "adam", "adamw", "sgd", or a function from parameter groups to an optimiser.
        lr: learning rate.
        schedule: None, "cosine", "linear", "warmup-cosine", or a function (optimizer, total steps) → LRScheduler,
            stepped every step.
        grad_clip: the largest norm of the gradient.
        seed: an integer; by default drawn from torch's global generator. The caller's random states are the same after
            as before.
        seed_globals: False leaves the global generators of torch, numpy and Python alone, neither seeded nor read: for
            objectives that draw from generators of their own, and for runs in several threads, which share them. Then
            a seed must be given, data must be rows, and there are no checkpoints.
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        early_stopping: epochs without a better ``val_loss`` after which to stop and take the best weights, or an
            :class:`EarlyStopping`.
        callbacks: :class:`Callback` objects, or functions that are called with the run after each epoch.
        checkpoint_dir: folder for the checkpoints of this run.
        checkpoint_every: steps between checkpoints, by default an epoch.
        keep_last: checkpoints kept.
        resume: True continues from the newest checkpoint in ``checkpoint_dir`` that can be read, if there is one, and
            warns of those that cannot; a path, from that file. Objective, data and settings must be those of the run.
        accept_changes: resume although they are not; a warning says what differs. The weights and the optimiser's
            moments are those of the checkpoint, all else is as asked for now.
        progress: show a bar; by default if standard error is a terminal.
        log_every: steps between two that record the objective's statistics, beside the last of each epoch. The loss is
            recorded at each.
        validate_every: epochs between validations.
        accelerator: "auto", "cpu", "cuda", "mps", …, as Lightning Fabric has it.
        devices: how many devices of this machine, or which; 1 by default, under torchrun its number of processes.
        num_nodes: number of machines; under torchrun found from its environment.
        strategy: "auto" or "ddp".
        precision: "32-true", "64-true", "bf16-mixed" or "16-mixed".
        timeout: seconds that a process waits for the others before it gives up, by default half an hour. It holds from
            the moment processes join, so for all runs of a script.

    Raises:
        NonFiniteLoss: the loss or a gradient became infinite or NaN. The last checkpoint is from before; on a CPU the
            weights are those before the step.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP ended the run, after its state was saved; a script exits with the
            shell's code.
        FolderInUse: another process writes to ``checkpoint_dir``.

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
        raise TypeError(f"objective must be a torch module with parameters to train, found {type(objective).__name__}")
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
    checkpoints = None if checkpoint_dir is None else Checkpoints(checkpoint_dir, _checks.count("keep_last", keep_last))
    if resume and checkpoints is None and resume is True:
        raise ValueError("checkpoint_dir must be given to resume from its newest checkpoint, found None")
    chosen = [callback if isinstance(callback, Callback) else _Each(callback) for callback in callbacks]
    if early_stopping is not None:
        chosen.append(early_stopping if isinstance(early_stopping, EarlyStopping) else EarlyStopping(early_stopping))
    if not seed_globals:
        _check_own_generators(seed, data, checkpoints)
    with ExitStack() as held:
        if seed_globals:
            held.enter_context(randomness.alone())
        # Filters of warnings and levels of loggers belong to the whole process: two threads would leave them changed.
        with randomness.alone():
            fabric = make_fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=num_nodes,
                strategy=strategy,
                precision=precision,
                timeout=timeout,
            )
        if seed is None:
            seed = fabric.broadcast(int(torch.randint(2**31 - 1, ())))
        seed = _checks.count("seed", seed, low=0)
        held.enter_context(randomness.preserve_rng_state(fabric.device, seed_globals))
        if checkpoints is not None:
            on_main(fabric, lambda: held.enter_context(checkpoints.locked()))
        run = Run(objective, data, validation, settings, seed, chosen, checkpoints, fabric, progress, seed_globals)
        return run.train(resume, accept_changes=accept_changes)


def _check_own_generators(seed: int | None, data: object, checkpoints: Checkpoints | None) -> None:
    """What needs the global generators is refused where they are to be left alone."""
    if seed is None:
        raise ValueError("seed must be given where seed_globals is False, found None")
    if isinstance(data, DataLoader):
        raise ValueError("data must be rows where seed_globals is False, found a DataLoader, which draws its own seed")
    if checkpoints is not None:
        raise ValueError(
            f"checkpoint_dir must be None where seed_globals is False, found {checkpoints.folder}: it would not hold "
            "an objective's own generators"
        )


class Run:
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
        seed_globals: bool = True,
    ) -> None:
        self.objective, self.settings, self.seed = objective, settings, seed
        self.seed_globals = seed_globals
        self.callbacks, self.fabric = callbacks, fabric
        self.world, self.is_main = fabric.world_size, fabric.is_global_zero
        self.device: torch.device = fabric.device
        self.step = self.epoch = self.position = 0
        self.stopped: str | None = None
        precision = str(fabric.strategy.precision.precision)
        objective.to(self.device, torch.float64 if precision == "64-true" else None)
        # After the device has been started by the objective's arrival, so that its generator is seeded too.
        if seed_globals:
            randomness.seed_everything(seed, randomness.GLOBAL, fabric.global_rank)
        # The gradient scaler and a fused optimiser cannot both unscale what is to be clipped.
        scaled = precision == "16-mixed"
        fused = not (scaled and settings.grad_clip is not None)
        self.raw_optimizer = make_optimizer(settings.optimizer, objective, settings.lr, fused=fused, scaled=scaled)
        inner = Step(objective)
        self.module, self.optimizer = fabric.setup(inner, self.raw_optimizer)
        self.module.train()
        # With one device and full precision Fabric's wrappers have nothing to do, and cost what a small layer costs.
        self.direct = inner if self.world == 1 and precision in ("32-true", "64-true") else None
        self.parameters = [p for group in self.raw_optimizer.param_groups for p in group["params"]]
        # Loss scaling overflows on purpose, and leaves out such steps itself.
        self.gradients = None if scaled else GradientCheck(objective, self.device)
        self.history = History()
        self.recorder = Recorder(self.history, None if self.world == 1 else lambda t: self._over_processes(t, "mean"))
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
            if self.validation is not None:
                self.validation.seed_globals = seed_globals
        except BaseException:
            self.progress.close()
            raise
        self.total_steps = None if self.feed.steps is None else self.feed.steps * settings.epochs
        self.scheduler = make_schedule(settings.schedule, self.raw_optimizer, self.total_steps)
        self.saver = Saver(self, checkpoints)

    def stop(self, reason: str) -> None:
        """End training after this epoch."""
        self.stopped = reason

    def train(self, resume: bool | str | Path, *, accept_changes: bool = False) -> History:
        """All epochs that are left."""
        self.saver.resume(resume, accept_changes=accept_changes)
        self.recorder.resume(self.epoch)
        try:
            for callback in self.callbacks:
                callback.start(self)
            self.progress.begin(self.settings.epochs, self.total_steps, self.step)
            with Watch() as watch:
                while self.stopped is None and self.epoch < self.settings.epochs:
                    self._one_epoch(watch)
                self.saver.save(final=True)
            for callback in self.callbacks:
                callback.end(self)
        finally:
            self.progress.close()
        return self.history

    def _one_epoch(self, watch: Watch) -> None:
        every = self.settings.checkpoint_every
        self.recorder.begin_epoch()
        for inputs, rows in self.feed.epoch(self.epoch, self.position):
            self._one_step(inputs, rows)
            self._leave_if_interrupted(watch)
            # At the end of an epoch the checkpoint waits until the epoch has been validated and recorded.
            if every is not None and self.step % every == 0 and self.position != self.feed.steps:
                self.saver.save()
        self._end_epoch()
        if every is None or self.step % every == 0:
            self.saver.save()

    def _one_step(self, inputs: Inputs, rows: int) -> None:
        try:
            loss: Tensor = (self.direct or self.module)(inputs)
        except ValueError as error:
            if self.step == 0:
                raise
            raise self.failure(inputs, f"the objective refused the batch: {error}") from error
        if self.direct is not None:
            loss.backward()
        else:
            self.fabric.backward(loss)
        # An accelerator is not made to wait for a number at every step.
        assert inputs.loss is not None
        value: float | Tensor = inputs.loss.item() if self.device.type == "cpu" else inputs.loss
        if isinstance(value, float) and not math.isfinite(value):
            raise self.failure(inputs, f"the loss is {value}")
        self._check_gradients(inputs)
        if self.settings.grad_clip is not None:
            self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.settings.grad_clip, error_if_nonfinite=False
            )
        (self.raw_optimizer if self.direct is not None else self.optimizer).step()
        for parameter in self.parameters:
            parameter.grad = None
        row = {
            "step": float(self.step),
            "epoch": float(self.epoch),
            "rows": float(rows),
            "lr": float(self.raw_optimizer.param_groups[0]["lr"]),
        }
        if self.scheduler is not None:
            self.scheduler.step()
        self.recorder.step(row, value)
        logged = self.step % self.settings.log_every == 0 or self.position + 1 == self.feed.steps
        if logged and self.recorder.log(inputs.terms) is not None:
            raise self.failure(inputs, "the loss is not finite")
        self.step += 1
        self.position += 1
        if isinstance(value, float):
            self.progress.step(self.step, self.epoch, value, self.recorder.live, self.recorder.rate)

    def _check_gradients(self, inputs: Inputs) -> None:
        if self.gradients is None:
            return
        self.gradients.note()
        # An accelerator is asked once an epoch: its weights are spoilt by then, but neither saved nor returned.
        if self.device.type == "cpu" and self.gradients.found():
            first, *others = self.gradients.names()
            more = f" and those of {len(others)} others" if others else ""
            raise self.failure(inputs, f"the gradient of {first}{more} is not finite")

    def _end_epoch(self) -> None:
        if self.gradients is not None and self.gradients.found():
            raise self.failure(None, "a gradient of this epoch was not finite")
        self.recorder.end_steps()
        found: dict[str, float] = {}
        due = (self.epoch + 1) % self.settings.validate_every == 0 or self.epoch + 1 == self.settings.epochs
        if self.validation is not None and due:
            found = self.validation(self.fabric.autocast, lambda t: self._over_processes(t, "sum"))
        self.recorder.close_epoch(self.epoch, self.step, found)
        with randomness.preserve_rng_state(self.device, self.seed_globals):
            for callback in self.callbacks:
                callback.epoch(self)
        self.epoch += 1
        self.position = 0
        if "loss" in found:
            losses = self.history.epochs["val_loss"]
            if found["loss"] <= min(value for value in losses if not math.isnan(value)):
                self.saver.save_best()

    def failure(self, inputs: Inputs | None, what: str) -> NonFiniteLoss:
        """The error that ends the run; names the step, the term and the batch."""
        about = ""
        if inputs is not None:
            if inputs.terms is not None:
                terms = {n: float(v) for n, v in inputs.terms.statistics.items() if n.endswith("_term")}
                bad = {name: value for name, value in terms.items() if not math.isfinite(value)}
                about = f" ({', '.join(f'{name} is {value:.4g}' for name, value in (bad or terms).items())})"
            about += f". Batch: {inputs.summary()}"
        latest = self.saver.latest()
        saved = "there is no checkpoint" if latest is None else f"the last good checkpoint is {latest}"
        return NonFiniteLoss(
            f"step {self.step} (epoch {self.epoch + 1}): {what}{about}. "
            f"Try a smaller learning rate or grad_clip; {saved}"
        )

    def _leave_if_interrupted(self, watch: Watch) -> None:
        number = watch.received or 0
        if self.world > 1:
            if self.step % _STEPS_BETWEEN_QUESTIONS:
                return
            # All processes must leave after the same step, or those that stay wait forever.
            number = int(self._over_processes(torch.tensor(float(number)), "max"))
        if not number:
            return
        self.recorder.flush()
        line = f"interrupted after step {self.step}"
        if self.saver.checkpoints is not None:
            self.saver.save(final=True)
            line += f"; saved in {self.saver.checkpoints.folder}, resume=True continues"
        self.progress.close()
        if self.is_main:
            self.progress.say(line)
        raise Interrupted(number, self.history)

    def _over_processes(self, value: Tensor, how: str) -> Tensor:
        result = self.fabric.all_reduce(value.to(self.device), reduce_op=how)
        assert isinstance(result, Tensor)
        return result


class _Each(Callback):
    """A function called after each epoch."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function

    def epoch(self, run: Any) -> None:
        """Call it."""
        self.function(run)
