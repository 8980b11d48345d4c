"""The loop of a run: epochs of steps, each followed by validation, callbacks and a checkpoint, until all is done.

A loss or a gradient that is not finite ends a run before the weights are spoilt. Ctrl-C, SIGTERM and SIGHUP end it
between two steps instead of inside one.
"""

from __future__ import annotations

import math
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks, _random
from ..objectives import Batch, Learned
from .batches import BatchStream
from .callbacks import Callback, NullProgress
from .checkpoint import Checkpoints, Saver
from .distributed import over_processes
from .evaluation import Step, StepOutput, describe_batch
from .history import History, Recorder
from .optimiser import GradientCheck, make_optimizer, make_schedule
from .resume import RunKey, resume

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .fitting import Settings

#: With several processes, how often they ask each other whether one was interrupted.
_STEPS_BETWEEN_QUESTIONS = 10
#: Numbers of the largest buffer that a batch is expected to change; a larger one is a table of constants.
_LARGEST_STATE = 2**14
#: What asks a process to end; Windows knows no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class NonFiniteLoss(RuntimeError):
    """The loss or a gradient became infinite or NaN; the message names the step, what, and the batch.

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
    fvnce.training.loop.NonFiniteLoss: step 0 (epoch 1): the loss is inf. ...
    """


class Interrupted(SystemExit):
    """Raised after a run was interrupted and its state was saved; ends a script quietly with the shell's exit code.

    Attributes:
        history: the record up to the interruption.

    >>> stopped = Interrupted(2, History())  # by Ctrl-C, signal 2
    >>> stopped.code, len(stopped.history.epochs)
    (130, 0)
    """

    def __init__(self, number: int, history: History) -> None:
        super().__init__(128 + number)
        self.history = history


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
        progress: NullProgress,
        seed_globals: bool,
    ) -> None:
        self.objective, self.settings, self.seed = objective, settings, seed
        self.seed_globals = seed_globals
        self.callbacks, self.fabric = callbacks, fabric
        self.world, self.is_main = fabric.world_size, fabric.is_global_zero
        self.device: torch.device = fabric.device
        self.step = self.epoch = self.position = 0
        self.stopped: str | None = None
        self.held_out = validation
        #: Epochs that were recorded when the noise in use took the place of another.
        self.noise_since: int | None = None
        precision = str(fabric.strategy.precision.precision)
        objective.to(self.device, torch.float64 if precision == "64-true" else None)
        # After the device has been started by the objective's arrival, so that its generator is seeded too.
        if seed_globals:
            _random.seed_everything(seed, _random.GLOBAL, fabric.global_rank)
        # The gradient scaler and a fused optimiser cannot both unscale what is to be clipped.
        scaled = precision == "16-mixed"
        fused = not (scaled and settings.grad_clip is not None)
        self.raw_optimizer = make_optimizer(settings.optimizer, objective, settings.lr, fused=fused)
        inner = Step(objective)
        self.module, self.optimizer = fabric.setup(inner, self.raw_optimizer)
        self.module.train()
        # With one device and full precision Fabric's wrappers have nothing to do, and cost what a small layer costs.
        self.direct = inner if self.world == 1 and precision in ("32-true", "64-true") else None
        self.parameters = [p for group in self.raw_optimizer.param_groups for p in group["params"]]
        objective.zero_grad()
        # What a batch changes before the optimiser's step.
        self.changing = [
            (f"{path}.{name}".lstrip("."), module, name)
            for path, module in objective.named_modules()
            for name in (*dict(module.named_buffers(recurse=False)), *["log_z"] * isinstance(module, Learned))
        ]
        # Loss scaling overflows on purpose, and leaves out such steps itself.
        self.gradients = None if scaled else GradientCheck(objective, self.device)
        self.history = History()
        self.recorder = Recorder(self.history, None if self.world == 1 else lambda t: over_processes(fabric, t, "mean"))
        self.progress = progress
        self.batches = BatchStream(
            data,
            inner,
            fabric,
            seed,
            batch_size=settings.batch_size,
            noise_pool=settings.noise_pool,
            progress=progress,
            notes=self.history.notes,
        )
        self.validation = None if validation is None else self.batches.held_out(validation, seed_globals=seed_globals)
        self.total_steps = None if self.batches.steps is None else self.batches.steps * settings.epochs
        self.scheduler = make_schedule(settings.schedule, self.raw_optimizer, self.total_steps)
        self.saver = Saver(self, checkpoints, None if checkpoints is None else RunKey(self))

    def stop(self, reason: str) -> None:
        """End training after this epoch."""
        self.stopped = reason

    def replace_noise(self, noise: Distribution) -> None:
        """Train against another p_n from the next step on; it is part of the checkpoints."""
        objective: Any = self.objective
        objective.replace_noise(noise)
        self.noise_since = len(self.history.epochs)
        self.batches.follow_noise(self.epoch)
        if self.validation is not None:
            self.validation = self.batches.held_out(self.held_out, seed_globals=self.seed_globals)
        self.saver.write_objective()

    def sample_rows(self, n: int, generator: torch.Generator) -> Tensor:
        """At most n rows of the training data."""
        return self.batches.sample_rows(n, generator)

    def train(self, how: bool | str | Path, *, accept_changes: bool) -> History:
        """All epochs that are left; ``how`` it resumes another run is told by :func:`fvnce.fit`."""
        resume(self, how, accept_changes=accept_changes)
        self.recorder.resume(self.epoch)
        for callback in self.callbacks:
            callback.start(self)
        self.progress.begin(self.settings.epochs, self.total_steps, self.step)
        with _Watch() as watch:
            while self.stopped is None and self.epoch < self.settings.epochs:
                self._one_epoch(watch)
            self.saver.save(final=True)
        for callback in self.callbacks:
            callback.end(self)
        return self.history

    def _one_epoch(self, watch: _Watch) -> None:
        every = self.settings.checkpoint_every
        self.recorder.begin_epoch()
        for batch, rows in self.batches.epoch(self.epoch, self.position):
            self._one_step(batch, rows)
            self._leave_if_interrupted(watch)
            # At the end of an epoch the checkpoint waits until the epoch has been validated and recorded.
            if every is not None and self.step % every == 0 and self.position != self.batches.steps:
                self.saver.save()
        self._end_epoch()
        if every is None or self.step % every == 0:
            self.saver.save()

    def _one_step(self, batch: Batch, rows: int) -> None:
        output = StepOutput(batch)
        tensors = {key: getattr(module, name) for key, module, name in self.changing}
        before = {key: value.detach().clone() for key, value in tensors.items() if value.numel() <= _LARGEST_STATE}
        try:
            with _checks.deferred(self.device.type != "cpu"):
                loss = self._evaluated(output)
            if self.direct is not None:
                loss.backward()
            else:
                self.fabric.backward(loss)
            value = self._checked(output)
        except BaseException:
            self.objective.load_state_dict(before, strict=False)
            self.objective.zero_grad()
            raise
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
        if self.step % self.settings.log_every == 0 or self.position + 1 == self.batches.steps:
            self.recorder.log(output.terms)
        self.step += 1
        self.position += 1
        self.progress.step(self.step, self.epoch, value, self.recorder.live, self.recorder.rate)

    def _evaluated(self, output: StepOutput) -> Tensor:
        try:
            loss: Tensor = (self.direct or self.module)(output)
        except ValueError as error:
            if self.step == 0:
                raise
            raise self.failure(output, f"the objective refused the batch: {error}") from error
        return loss

    def _checked(self, output: StepOutput) -> float:
        """The loss, if it and all gradients are finite; an accelerator is asked once, before the weights change."""
        assert output.loss is not None
        flags = [] if self.gradients is None else [self.gradients.note()]
        if self.device.type == "cpu":
            value, *bad = (number.item() for number in (output.loss, *flags))
        else:
            value, *bad = torch.stack([output.loss, *flags]).tolist()
        if not math.isfinite(value):
            if self.device.type != "cpu":
                with torch.no_grad():
                    self._evaluated(output)  # which raises the error of a check that was deferred
            raise self.failure(output, f"the loss is {value}")
        if any(bad):
            assert self.gradients is not None
            first, *others = self.gradients.names()
            more = f" and those of {len(others)} others" if others else ""
            raise self.failure(output, f"the gradient of {first}{more} is not finite")
        return value

    def _end_epoch(self) -> None:
        self.recorder.end_steps()
        found: dict[str, float] = {}
        if self.validation is not None and self.settings.validates_after(self.epoch):
            found = self.validation()
        self.recorder.close_epoch(self.epoch, self.step, found)
        # Losses against other noise do not compare; callbacks may put other noise in place, which is saved as well.
        losses = self.history.epochs["val_loss"][self.noise_since or 0 :] if "loss" in found else []
        is_best = bool(losses) and losses[-1] <= min((v for v in losses if not math.isnan(v)), default=-math.inf)
        with _random.preserve_rng_state(self.device, self.seed_globals):
            for callback in self.callbacks:
                callback.epoch(self)
        self.epoch += 1
        self.position = 0
        if is_best:
            self.saver.save_best()

    def failure(self, output: StepOutput | None, what: str) -> NonFiniteLoss:
        """The error that ends the run; names the step, the term and the batch."""
        about = ""
        if output is not None:
            if output.terms is not None:
                terms = {n: float(v) for n, v in output.terms.statistics.items() if n.endswith("_term")}
                bad = {name: value for name, value in terms.items() if not math.isfinite(value)}
                about = f" ({', '.join(f'{name} is {value:.4g}' for name, value in (bad or terms).items())})"
            about += f". Batch: {describe_batch(output.batch)}"
        latest = self.saver.latest()
        saved = "there is no checkpoint" if latest is None else f"the last good checkpoint is {latest}"
        return NonFiniteLoss(
            f"step {self.step} (epoch {self.epoch + 1}): {what}{about}. "
            f"Try a smaller learning rate or grad_clip; {saved}"
        )

    def _leave_if_interrupted(self, watch: _Watch) -> None:
        number = watch.received or 0
        if self.world > 1:
            if self.step % _STEPS_BETWEEN_QUESTIONS:
                return
            # All processes must leave after the same step, or those that stay wait forever.
            number = int(over_processes(self.fabric, torch.tensor(float(number)), "max"))
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


class _Watch:
    """While open, the first SIGINT, SIGTERM or SIGHUP is only noted; a second SIGINT interrupts at once.

    Signals belong to the main thread: elsewhere nothing is watched and Ctrl-C does what it always does.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Watch:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                # Somebody else's handler is not replaced, nor what nohup ignores; Python's own and the default are.
                if before in (signal.default_int_handler, signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
