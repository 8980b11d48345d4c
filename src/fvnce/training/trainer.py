"""``fit`` and its trainer: epochs of steps, each epoch followed by validation, callbacks and a checkpoint.

A training is a function of (objective, data, settings, seed). All that it depends on is in its checkpoints, so one that
is killed and resumed ends with the bits of one that never was. A loss or a gradient that is not finite ends a training
before it changes the weights. Ctrl-C, SIGTERM and SIGHUP end it between two steps instead of inside one.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from .. import _random, _validation
from ..io import describe, reading, rebuild
from ..models import GaussianDecoder
from ..objectives import Batch, Learned
from .batches import BatchStream
from .budget import with_budget
from .callbacks import Callback, EarlyStopping, FunctionCallback, Progress
from .checkpoint import (
    BEST_NAME,
    OBJECTIVE_NAME,
    Checkpoints,
    check_same_run,
    current_values,
    find_checkpoint,
    objective_facts,
    restore_states,
    save,
    save_weights,
    states_of,
)
from .ddp import first_failure, make_fabric, noted_signals, on_main, over_processes
from .evaluation import EvaluatedBatch, Step, Validation, describe_batch
from .history import History, Recorder
from .optimizer import (
    OptimizerLike,
    ScheduleLike,
    gradient_size,
    make_optimizer,
    make_schedule,
    non_finite_gradients,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

P = ParamSpec("P")
R = TypeVar("R")

#: With several processes, how often they ask each other whether one was interrupted.
_STEPS_BETWEEN_QUESTIONS = 10
#: Numbers of the largest buffer that a batch is expected to change; a larger one is a table of constants.
_LARGEST_STATE = 2**14
_COUNTERS = ("step", "epoch", "position", "stopped", "noise_since")
#: Settings that change no bit of the weights, or that are compared under another name.
_NO_EFFECT = (
    *("checkpoint_every", "keep_last", "log_every", "seed_globals", "devices", "num_nodes", "strategy", "timeout"),
    *("optimizer.lr", "optimizer.foreach", "optimizer.fused", "schedule.base_lrs", "schedule.lr_lambdas"),
)


class NonFiniteLoss(RuntimeError):
    """Raised if the loss or a gradient becomes infinite or NaN; the message names the step, the term and the batch.

    >>> import fvnce
    >>> class Broken(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.zeros(()))
    ...     def forward(self, x):
    ...         return self.weight * x.sum() + torch.inf
    >>> fvnce.fit(Broken(), torch.ones(4, 2), epochs=1)
    Traceback (most recent call last):
        ...
    fvnce.training.trainer.NonFiniteLoss: step 0 (epoch 1): the loss is inf. ...
    """


class Interrupted(SystemExit):
    """Raised after a signal ended a training and its state was saved; ends a script with the shell's exit code.

    Attributes:
        history: the record up to the interruption.

    Args:
        number: of the signal.
        history: the record.

    >>> stopped = Interrupted(2, History())  # by Ctrl-C, signal 2
    >>> stopped.code, len(stopped.history.epochs)
    (130, 0)
    """

    def __init__(self, number: int, history: History) -> None:
        super().__init__(128 + number)
        self.history = history


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Less common options of :func:`fvnce.fit`.

    Args:
        noise_pool: rows of the pool of noise, 0 for fresh noise at every step, None to choose by cost.
        accumulate: batches whose gradients are averaged, each by its number of rows, for one step: for a batch that
            does not fit into memory. Statistics are those of the last. A profiled log Z is profiled on each of them.
        checkpoint_every: steps between checkpoints, by default an epoch.
        keep_last: how many checkpoints are kept.
        log_every: steps between records of the objective's statistics; the last step of an epoch is always recorded.
            The loss is recorded at every step.
        seed_globals: False neither seeds nor reads the global generators of torch, NumPy and Python: for objectives
            that draw from generators of their own, and for trainings in several threads, which share them. Then a seed
            must be given, data must be rows, and there are no checkpoints.
        devices: how many devices of this machine, or which; 1 by default, under torchrun its number of processes.
        num_nodes: number of machines; under torchrun read from its environment.
        strategy: "auto" or "ddp".
        timeout: seconds that a process waits for the others before it gives up, by default half an hour. It holds from
            the moment processes join, so for all trainings of a script.

    >>> FitOptions(noise_pool=-1)
    Traceback (most recent call last):
    ValueError: noise_pool must be an integer >= 0, found -1
    """

    noise_pool: int | None = None
    accumulate: int = 1
    checkpoint_every: int | None = None
    keep_last: int = 2
    log_every: int = 50
    seed_globals: bool = True
    devices: int | str | list[int] | None = None
    num_nodes: int | None = None
    strategy: Any = "auto"
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("noise_pool", "accumulate", "checkpoint_every", "keep_last", "log_every"):
            if getattr(self, name) is not None:
                _validation.count(name, getattr(self, name), low=0 if name == "noise_pool" else 1)
        if self.timeout is not None:
            _validation.number("timeout", self.timeout, low=0.0, open_low=True)


@dataclass(frozen=True)
class TrainerSettings(FitOptions):
    """All settings of a training: the options, and the arguments of :func:`fvnce.fit` of these names."""

    epochs: int
    batch_size: int
    optimizer: OptimizerLike
    lr: float
    schedule: ScheduleLike
    grad_clip: float | None

    def __post_init__(self) -> None:  # the options were checked when they were made
        _validation.count("epochs", self.epochs)
        _validation.count("batch_size", self.batch_size)
        _validation.number("lr", self.lr, low=0.0)
        if self.grad_clip is not None:
            _validation.number("grad_clip", self.grad_clip, low=0.0, open_low=True)


def _accepts_old_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``fit`` take its options as keywords of its own for one more version, with a DeprecationWarning."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.pop("accept_changes", False):
            raise TypeError("accept_changes must be left out; call load_weights and fit into another folder instead")
        old: Any = {name: kwargs.pop(name) for name in FitOptions.__dataclass_fields__ if name in kwargs}
        if old:
            kwargs["options"] = replace(kwargs.get("options") or FitOptions(), **old)  # type: ignore[type-var]
            new = ", ".join(f"{name}={value!r}" for name, value in old.items())
            text = f"fit({', '.join(old)}) is deprecated and will be removed in the next version"
            warnings.warn(
                f"{text}; use fit(options=fvnce.training.FitOptions({new}))", DeprecationWarning, stacklevel=2
            )
        return function(*args, **kwargs)

    return call


@_accepts_old_keywords
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
    early_stopping: int | EarlyStopping | None = None,
    callbacks: Iterable[Callback | Callable[[Any], None]] = (),
    checkpoint_dir: str | Path | None = None,
    resume: bool | str | Path = False,
    progress: bool | None = None,
    accelerator: str = "auto",
    precision: str | None = None,
    options: FitOptions | None = None,
) -> History:
    """Train ``objective`` in place and return the history.

    Args:
        objective: a module from a batch of rows to a scalar loss. One with a distribution ``noise`` also receives
            noise samples and log densities, as ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.
        data: rows as a tensor, an array, a memory map, or a DataLoader that gives tensors. For an objective that takes
            a context, pairs (x, context): a tuple of two of these, a TensorDataset, or a DataLoader that gives pairs.
        validation: held-out rows or pairs, not a DataLoader; the history gains columns ``val_…``.
        epochs: passes over the data.
        batch_size: rows of a step on each process; a DataLoader has its own.
        optimizer: "adam", "adamw", "sgd", "normalized-sgd", a function from parameter groups to an optimizer, such as
            ``torch.optim.RAdam``, or an optimizer of the objective's parameters, which has its own rate.
        lr: learning rate.
        schedule: None or "constant", "cosine", "linear", "warmup-cosine", a function (optimizer, total steps) →
            LRScheduler, or an LRScheduler of the optimizer that is given; stepped every step.
        grad_clip: the largest norm of the gradient.
        seed: an integer; by default drawn from torch's global generator. The caller's random states are the same after
            as before.
        early_stopping: epochs without a better ``val_loss`` after which to stop and restore the best weights, or an
            :class:`EarlyStopping`.
        callbacks: :class:`Callback` objects, or functions that are called with the trainer after each epoch. For an
            objective with ``log_scale="auto"``, an :class:`ErrorBudget` is added if there is none.
        checkpoint_dir: folder for the checkpoints of this run.
        resume: True continues from the newest checkpoint in ``checkpoint_dir`` that can be read, if there is one, and
            warns of those that cannot; a path, from that file. Objective, data and settings must be those of the run.
        progress: whether to show a bar, by default if standard error is a terminal.
        accelerator: "cpu", "cuda", "mps", …, the names of Lightning Fabric, or "auto": CUDA where there is a device,
            else the CPU. MPS has no float64, so kernel densities cannot run on it, and "auto" does not choose it.
        precision: "32-true", "64-true" or "bf16-mixed".
        options: a :class:`FitOptions` with pools of noise, intervals of checkpoints and logs, and several processes.

    Returns:
        The record of steps and epochs.

    Raises:
        NonFiniteLoss: the loss or a gradient became infinite or NaN. The weights and the last checkpoint are from
            before the step.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP ended the training, after its state was saved; a script exits with the
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
    options = options or FitOptions()
    settings = TrainerSettings(epochs, batch_size, optimizer, lr, schedule, grad_clip, **vars(options))
    if resume is True and checkpoint_dir is None:
        raise ValueError("checkpoint_dir must be given to resume from its newest checkpoint, found None")
    if not options.seed_globals:  # nothing may need the global generators
        where = "where seed_globals is False, found"
        if seed is None:
            raise ValueError(f"seed must be given {where} None")
        if isinstance(data, DataLoader):
            raise ValueError(f"data must be rows {where} a DataLoader")
        if checkpoint_dir is not None:
            raise ValueError(f"checkpoint_dir must be None {where} {checkpoint_dir}")
    checkpoints = None if checkpoint_dir is None else Checkpoints(checkpoint_dir, options.keep_last)
    all_callbacks = [each if isinstance(each, Callback) else FunctionCallback(each) for each in callbacks]
    if isinstance(early_stopping, EarlyStopping):
        all_callbacks.append(early_stopping)
    elif early_stopping is not None:
        all_callbacks.append(EarlyStopping(early_stopping))
    all_callbacks = with_budget(objective, all_callbacks)
    if any(tensor.is_inference() for tensor in (*objective.parameters(), *objective.buffers())):
        raise ValueError(
            "objective must be made outside of torch.inference_mode, found tensors of it, which cannot be trained"
        )
    with ExitStack() as held:
        held.enter_context(_random.plain_mode())
        # Filters of warnings and levels of loggers belong to the whole process: two threads would leave them changed.
        with _random.alone():
            fabric = make_fabric(
                accelerator, precision, options.devices, options.num_nodes, options.strategy, options.timeout
            )
            if seed is None:
                seed = fabric.broadcast(int(torch.randint(2**31 - 1, ())))
        seed = _validation.count("seed", seed, low=0)
        held.enter_context(_random.preserve_rng_state(fabric.device, options.seed_globals))
        if checkpoints is not None:
            on_main(fabric, lambda: held.enter_context(checkpoints.locked()))
        bar = Progress(progress if fabric.is_global_zero else False)
        held.callback(bar.close)
        trainer = Trainer(objective, data, validation, settings, seed, all_callbacks, checkpoints, fabric, bar)
        return trainer.train(resume)


class Trainer:
    """Train one objective, for one call of ``fit``.

    Callbacks receive the trainer; :class:`~fvnce.training.Callback` lists what they may use.
    """

    def __init__(
        self,
        objective: nn.Module,
        data: object,
        validation: object,
        settings: TrainerSettings,
        seed: int,
        callbacks: list[Callback],
        checkpoints: Checkpoints | None,
        fabric: Fabric,
        progress: Progress,
    ) -> None:
        self.objective, self.settings, self.seed, self.callbacks = objective, settings, seed, callbacks
        self.checkpoints, self.fabric, self.progress = checkpoints, fabric, progress
        self.world, self.is_main = fabric.world_size, fabric.is_global_zero
        self.device: torch.device = fabric.device
        self.step = self.epoch = self.position = 0  # position: steps done in this epoch
        self.stopped: str | None = None
        #: Epochs that were recorded when the noise was last replaced.
        self.noise_since: int | None = None
        self._saved_at = -1
        precision = str(fabric.strategy.precision.precision)
        objective.to(self.device, torch.float64 if precision == "64-true" else None)
        # After the objective has started the device, so that the device's generator is seeded too.
        if settings.seed_globals:
            _random.seed_everything(seed, _random.GLOBAL, fabric.global_rank)
        self.raw_optimizer = make_optimizer(settings.optimizer, objective, settings.lr)
        step = Step(objective)
        # With one device and full precision Fabric's wrappers have nothing to do, and cost what a small layer costs.
        self.direct = self.world == 1 and precision != "bf16-mixed"
        self.module: Any = step
        self.optimizer: Any = self.raw_optimizer
        if not self.direct:
            self.module, self.optimizer = fabric.setup(step, self.raw_optimizer)
        self.module.train()
        self.parameters = list(objective.parameters())
        objective.zero_grad()
        # What a batch may change before the optimizer's step; the fixed σ of a decoder it does not.
        self.changing = [
            (f"{path}.{name}".lstrip("."), module, name)
            for path, module in objective.named_modules()
            if type(module) is not GaussianDecoder
            for name in (*dict(module.named_buffers(recurse=False)), *["log_z"] * isinstance(module, Learned))
        ]
        self.history = History()
        self.recorder = Recorder(self.history, None if self.world == 1 else lambda t: over_processes(fabric, t, "mean"))
        noise: Any = objective.noise if step.takes_noise else None
        size, pool, takes_context = settings.batch_size, settings.noise_pool, step.takes_context
        self.batches = BatchStream(
            data, objective, noise, size, pool, seed, fabric, progress, takes_context=takes_context
        )
        self.sample_rows = self.batches.sample_rows
        self.validation = None
        if validation is not None:
            self.validation = Validation(validation, step, self.batches, seed_globals=settings.seed_globals)
        self.history.notes = self.batches.notes
        self.steps_of_epoch = None if self.batches.steps is None else -(-self.batches.steps // settings.accumulate)
        if self.steps_of_epoch is None and settings.accumulate > 1:
            raise ValueError(f"accumulate must be 1 for data of unknown length, found {settings.accumulate}")
        self.total_steps = None if self.steps_of_epoch is None else self.steps_of_epoch * settings.epochs
        self.scheduler = make_schedule(settings.schedule, self.raw_optimizer, self.total_steps)

    def train(self, resume: bool | str | Path) -> History:
        """Train for all epochs that are left, and return the history."""
        self._resume(resume)
        self._call("start")
        self.progress.begin(self.settings.epochs, self.total_steps, self.step)
        with noted_signals() as signals:
            while self.stopped is None and self.epoch < self.settings.epochs:
                self._train_epoch(signals)
            self._save(final=True)
        self._call("end")
        return self.history

    def _call(self, method: str) -> None:
        """Call a method of all callbacks; what they draw from the global generators changes nothing."""
        if not self.callbacks:
            return
        with _random.preserve_rng_state(self.device, self.settings.seed_globals):
            for callback in self.callbacks:
                getattr(callback, method)(self)

    def _train_epoch(self, signals: list[int]) -> None:
        every = self.settings.checkpoint_every
        self._call("before_epoch")
        self.recorder.begin_epoch()
        count = self.settings.accumulate
        batches = self.batches.epoch(self.epoch, self.position * count)
        while group := list(islice(batches, count)):
            self._train_step(group)
            self._leave_if_interrupted(signals)
            # At the end of an epoch the checkpoint waits until the epoch has been validated and recorded.
            if every is not None and self.step % every == 0 and self.position != self.steps_of_epoch:
                self._save()
        self._end_epoch()
        if every is None or self.step % every == 0:
            self._save()

    def _train_step(self, group: list[tuple[Batch, int]]) -> None:
        rows, value = sum(count for _, count in group), 0.0
        tensors = {key: getattr(module, name) for key, module, name in self.changing}
        before = {key: value.detach().clone() for key, value in tensors.items() if value.numel() <= _LARGEST_STATE}
        try:
            for batch, count in group:
                evaluated = EvaluatedBatch(batch)
                with _validation.deferred(self.device.type != "cpu"):
                    loss = self._evaluate(evaluated, self.callbacks)
                loss = loss if count == rows else loss * (count / rows)
                (Tensor.backward if self.direct else self.fabric.backward)(loss)
                value += self._finite_loss(evaluated) * (count / rows)
        except BaseException:
            self.objective.load_state_dict(before, strict=False)
            self.objective.zero_grad()
            raise
        lr = float(self.raw_optimizer.param_groups[0]["lr"])
        self.descend(self.module, self.optimizer, self.scheduler)
        logged = self.step % self.settings.log_every == 0 or self.position + 1 == self.steps_of_epoch
        row = {"step": float(self.step), "epoch": float(self.epoch), "rows": float(rows), "loss": value, "lr": lr}
        self.recorder.step(row, evaluated.terms, logged=logged)
        self.step += 1
        self.position += 1
        for callback in self.callbacks:
            callback.after_step(self, evaluated.batch)
        self.progress.step(self.step, self.epoch, value, self.recorder.live, self.recorder.rate)

    def _evaluate(self, evaluated: EvaluatedBatch, callbacks: Iterable[Callback] = ()) -> Tensor:
        try:
            for callback in callbacks:
                evaluated.batch = callback.before_step(self, evaluated.batch)
            # To call a module costs more than a small layer; only Fabric's wrappers need it.
            loss: Tensor = self.module.forward(evaluated) if self.direct else self.module(evaluated)
        except ValueError as error:
            if self.step == 0:
                raise
            raise self._failure(f"the objective refused the batch: {error}", evaluated) from error
        return loss

    def _finite_loss(self, evaluated: EvaluatedBatch) -> float:
        """Return the loss if it and all gradients are finite; an accelerator is read once, before weights change."""
        assert evaluated.loss is not None
        numbers = [evaluated.loss, gradient_size(self.parameters)]
        on_cpu = self.device.type == "cpu"
        value, size = [number.item() for number in numbers] if on_cpu else torch.stack(numbers).tolist()
        if not math.isfinite(value):
            if not on_cpu:
                with torch.no_grad():
                    self._evaluate(evaluated)  # which raises the error of a check that was deferred
            raise self._failure(f"the loss is {value}", evaluated)
        # Where all gradients are finite, the norm or the sum of huge ones may still be infinite.
        if not math.isfinite(size) and (bad := non_finite_gradients(self.objective)):
            more = f" and those of {len(bad) - 1} others" if len(bad) > 1 else ""
            raise self._failure(f"the gradient of {bad[0]}{more} is not finite", evaluated)
        return value

    def _failure(self, what: str, evaluated: EvaluatedBatch | None = None) -> NonFiniteLoss:
        """Return the error that ends the training; it names the step, the term, the batch and the last checkpoint."""
        about = ""
        if evaluated is not None:
            if evaluated.terms is not None:
                terms = {n: float(v) for n, v in evaluated.terms.statistics.items() if n.endswith("_term")}
                bad = {name: value for name, value in terms.items() if not math.isfinite(value)}
                about = f" ({', '.join(f'{name} is {value:.4g}' for name, value in (bad or terms).items())})"
            about += f". Batch: {describe_batch(evaluated.batch)}"
        latest = None if self.checkpoints is None else self.checkpoints.latest()
        saved = "there is no checkpoint" if latest is None else f"the last good checkpoint is {latest}"
        where = f"step {self.step} (epoch {self.epoch + 1})"
        return NonFiniteLoss(f"{where}: {what}{about}. Try a smaller learning rate or grad_clip; {saved}")

    def _end_epoch(self) -> None:
        validated = {} if self.validation is None else self.validation()
        self.recorder.close_epoch(self.epoch, self.step, validated)
        # Losses against other noise do not compare; callbacks may replace the noise, which is saved as well.
        losses = self.history.epochs["val_loss"][self.noise_since or 0 :] if "loss" in validated else []
        is_best = bool(losses) and losses[-1] <= min((v for v in losses if not math.isnan(v)), default=-math.inf)
        self._call("epoch")
        self.epoch += 1
        self.position = 0
        if is_best:
            self._save_file(BEST_NAME, save_weights)

    # What callbacks may ask for.

    def descend(self, module: Any, optimizer: Any, scheduler: LRScheduler | None) -> None:
        """Clip the gradients as the settings say, take a step of the optimizer and of the schedule, and clear them."""
        clip = self.settings.grad_clip
        if clip is not None:
            self.fabric.clip_gradients(module, optimizer, max_norm=clip, error_if_nonfinite=False)
        optimizer.step()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        if scheduler is not None:
            scheduler.step()

    def stop(self, reason: str) -> None:
        """End training after this epoch."""
        self.stopped = reason

    def replace_noise(self, noise: Distribution) -> None:
        """Train against another p_n from the next step on; it is part of the checkpoints."""
        objective: Any = self.objective
        objective.replace_noise(noise)
        self.noise_since = len(self.history.epochs)
        self.batches.use_noise(objective.noise, self.epoch + 1)
        if self.validation is not None:
            self.validation.use_noise()
        self._save_file(OBJECTIVE_NAME, save)

    # Checkpoints.

    def _resume(self, resume: bool | str | Path) -> None:
        checkpoints = self.checkpoints
        if checkpoints is None and resume is False:
            return
        if checkpoints is not None:
            on_main(self.fabric, lambda: checkpoints.prepare(resumes=resume is not False))
        self.settings_facts, self.facts = self._settings_facts(), objective_facts(self.objective)
        checkpoint = find_checkpoint(checkpoints, resume, self.fabric)
        if checkpoint is not None:
            check_same_run(*checkpoint[:2], self.settings_facts, self.facts)
        if checkpoints is not None and not (checkpoints.folder / OBJECTIVE_NAME).exists():
            self._save_file(OBJECTIVE_NAME, save)
        if checkpoint is not None:
            path, state, rank_state = checkpoint
            with reading(path):
                self._load_state(path, state, rank_state)
            self._saved_at = self.step if checkpoints is not None and path == checkpoints.latest() else -1

    def _save(self, *, final: bool = False) -> None:
        """Write a checkpoint, unless there is one of this step; a full disk is an error only at the end."""
        if self.checkpoints is None or self._saved_at == self.step:
            return
        self.recorder.flush()
        for name, value in self.objective.named_parameters():
            if not bool(torch.isfinite(value.detach()).all()):
                raise self._failure(f"parameter {name} is not finite")
        rank_state = {"batches": self.batches.state_dict(), "random": _random.capture(self.device)}
        write = functools.partial(self.checkpoints.write, self.step, self._state(), rank_state, self.fabric)
        # All processes must know of a failure, or one would end and another wait for it.
        failure = first_failure(self.fabric, self._failure_of(write))
        if failure is None:
            self._saved_at = self.step
        elif final:
            raise failure

    def _save_file(self, name: str, write: Callable[[Path, nn.Module], object]) -> None:
        """Write the objective or its weights into the folder of the run, if there is one."""
        if self.checkpoints is not None and self.is_main:
            path = self.checkpoints.folder / name
            try:
                self._failure_of(lambda: write(path, self.objective))
            except TypeError:
                # Parts of a user's classes cannot be rebuilt from a file; checkpoints keep their weights. An older file
                # would rebuild another objective.
                path.unlink(missing_ok=True)

    def _failure_of(self, write: Callable[[], object]) -> OSError | None:
        """Write a file, and warn of a full disk: training goes on, and the next checkpoint tries again."""
        try:
            write()
        except OSError as error:
            text = f"step {self.step}: nothing could be saved ({error}); earlier files are intact"
            warnings.warn(text, stacklevel=4)
            return error
        return None

    def _settings_facts(self) -> dict[str, Any]:
        """Return what decides the bits of a training, besides its objective."""
        facts = {name: _name(value) for name, value in vars(self.settings).items() if name not in _NO_EFFECT}
        facts |= {
            "seed": self.seed,
            "processes": self.world,
            "precision": str(self.fabric.strategy.precision.precision),
            "data": self.batches.fingerprint,
            "validation": None if self.validation is None else self.validation.rows.fingerprint(),
            "callbacks": [type(callback).__name__ for callback in self.callbacks],
        }
        # A user's function is known by its name, and by what it made.
        made = {f"optimizer.{name}": value for name, value in self.raw_optimizer.defaults.items()}
        if self.scheduler is None:
            del facts["epochs"]
        else:
            made |= {f"schedule.{name}": value for name, value in self.scheduler.state_dict().items() if name[0] != "_"}
        return facts | {name: repr(value) for name, value in made.items() if name not in _NO_EFFECT}

    def _stateful(self) -> dict[str, Any]:
        """Return the parts of the training that keep their state themselves."""
        return {
            "objective": self.objective,
            "optimizer": self.raw_optimizer,
            "scheduler": self.scheduler,
            "history": self.history,
        }

    def _state(self) -> dict[str, Any]:
        values = current_values(self.objective)
        unchanged = {name: text for name, text in self.facts["values"].items() if values.get(name) == text}
        return {
            **states_of(self._stateful()),
            **{name: getattr(self, name) for name in _COUNTERS},
            "settings": self.settings_facts,
            "facts": {**self.facts, "values": unchanged},
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "noise": None if self.noise_since is None else describe(self.objective.noise),
        }

    def _load_state(self, path: Path, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if state["noise"] is not None:
            content, tensors = state["noise"]
            self.replace_noise(rebuild(content, tensors, Distribution, what=path))
        for name in _COUNTERS:
            setattr(self, name, state[name])
        restore_states(self._stateful(), state)
        self.recorder.resume(self.epoch)
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        _random.restore(rank_state["random"], self.device)
        self.batches.load_state_dict(rank_state["batches"])

    def _leave_if_interrupted(self, signals: list[int]) -> None:
        number = signals[-1] if signals else 0
        if self.world > 1:
            if self.step % _STEPS_BETWEEN_QUESTIONS:
                return
            # All processes must leave after the same step, or those that stay wait forever.
            number = int(over_processes(self.fabric, torch.tensor(float(number)), "max"))
        if not number:
            return
        self.recorder.flush()
        line = f"interrupted after step {self.step}"
        if self.checkpoints is not None:
            self._save(final=True)
            line += f"; saved in {self.checkpoints.folder}, resume=True continues"
        self.progress.close()
        if self.is_main:
            logging.getLogger("fvnce").warning(line)
        raise Interrupted(number, self.history)


def _name(value: object) -> object:
    named = callable(value) or isinstance(value, Optimizer | LRScheduler)
    return getattr(value, "__qualname__", type(value).__name__) if named else value
