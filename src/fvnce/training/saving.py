"""Saving a run and taking it up again: all that the next step depends on, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..serialization import RecordError
from . import randomness
from .checkpoint import (
    BEST_NAME,
    OBJECTIVE_NAME,
    UNREADABLE,
    Checkpoints,
    read_checkpoint,
    save,
    save_weights,
)
from .distributed import first_failure, on_main
from .optimiser import take_over
from .resume_key import ObjectiveKey, compare, listed, settings_facts

if TYPE_CHECKING:
    from .loop import Run


class Saver:
    """Checkpoints of a run; without a folder, nothing is written."""

    def __init__(self, run: Run, checkpoints: Checkpoints | None) -> None:
        self.run = run
        self.checkpoints = checkpoints
        self._saved_at = -1
        self._settings: dict[str, Any] = {}
        self._key: ObjectiveKey | None = None

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return None if self.checkpoints is None else self.checkpoints.latest()

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint of the run as it stands, unless there is one of this step."""
        run = self.run
        if self.checkpoints is None or self._saved_at == run.step:
            return
        run.recorder.flush()
        self._check_finite()
        # Whoever could not write, all know it: else one process would end and another wait for it.
        failure = first_failure(run.fabric, self._try(self._write_checkpoint))
        if failure is None:
            self._saved_at = run.step
        elif final:
            raise failure
        else:
            self._warn(failure)

    def save_best(self) -> None:
        """Write the objective as the best one so far."""
        if self.checkpoints is not None and self.run.is_main:
            path = self.checkpoints.folder / BEST_NAME
            self._warn(self._try(lambda: save_weights(path, self.run.objective)))

    def resume(self, resume: bool | str | Path, *, accept_changes: bool = False) -> None:
        """Take up the run that a checkpoint holds.

        Args:
            resume: see :func:`fvnce.fit`.
            accept_changes: go on, with a warning, although objective or settings are not those of the checkpoint.
        """
        run = self.run
        if self.checkpoints is not None:
            on_main(run.fabric, self.checkpoints.prepare)
            latest = self.checkpoints.latest()
            if resume is False and latest is not None:
                raise FileExistsError(
                    f"checkpoint_dir must be without checkpoints, found {latest}; pass resume=True to continue that run"
                )
            # One that lies there without a checkpoint is of a run that died before its first.
            if run.is_main and (latest is None or not (self.checkpoints.folder / OBJECTIVE_NAME).exists()):
                self._warn(self._try(self._write_objective))
        if self.checkpoints is not None or resume is not False:
            self._settings, self._key = settings_facts(run), ObjectiveKey(run.objective)
        found = self._find(resume)
        if found is None:
            return
        path, state, own = found
        changes = self._changes(state)
        if changes and not accept_changes:
            raise ValueError(
                f"{path} is of another run: {listed(changes)}. Pass what that run had, or accept_changes=True to go on "
                "from its weights all the same"
            )
        if changes:
            warnings.warn(f"{path} is of another run, and it goes on as this one: {listed(changes, 99)}", stacklevel=4)
        run.objective.load_state_dict(state["objective"])
        run.step, run.epoch, run.position = state["step"], state["epoch"], state["position"]
        run.stopped = state["stopped"]
        run.history.load_state_dict(state["history"])
        run.fabric.strategy.precision.load_state_dict(state["scaler"])
        randomness.restore(own["random"], run.device)
        same_callbacks = state["settings"]["callbacks"] == [type(callback).__name__ for callback in run.callbacks]
        for callback, saved in zip(run.callbacks, state["callbacks"] if same_callbacks else (), strict=False):
            callback.load_state_dict(saved)
        if changes:
            # Rates, schedule and noise are those that were asked for now, as they would be at this step.
            take_over(run.raw_optimizer, run.scheduler, state["optimizer"], run.step)
            run.stopped = None
            if self.checkpoints is not None and run.is_main:
                self._warn(self._try(self._write_objective))
            return
        run.raw_optimizer.load_state_dict(state["optimizer"])
        if run.scheduler is not None:
            run.scheduler.load_state_dict(state["scheduler"])
        run.batches.load_state_dict(own["batches"])
        self._saved_at = run.step if path == self.latest() else -1

    def _find(self, resume: bool | str | Path) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
        """The checkpoint to go on from: its path, its state, and the part of this process."""
        if resume is False:
            return None
        if resume is not True:
            return self._read(Path(resume))
        assert self.checkpoints is not None
        bad: list[int] = []
        why: Exception | None = None
        for step in reversed(self.checkpoints.steps()):
            failure: Exception | None = None
            try:
                found = self._read(self.checkpoints.path(step))
            except (RecordError, FileNotFoundError) as error:
                failure = error
            # One process that cannot read its part is enough.
            failure = first_failure(self.run.fabric, failure)
            if failure is None:
                if bad:
                    self._set_aside(bad, found[0], why)
                return found
            bad.append(step)
            why = why or failure
        if why is not None:
            raise why
        return None

    def _read(self, path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        state, part = read_checkpoint(path, self.run.fabric.global_rank)
        return path, state, state["own"] if part is None else part

    def _set_aside(self, steps: list[int], good: Path, why: Exception | None) -> None:
        checkpoints = self.checkpoints
        assert checkpoints is not None
        names = ", ".join(checkpoints.path(step).name for step in steps)
        warnings.warn(
            f"{names} cannot be read ({why}); the run goes on from {good.name}, and what cannot be read is kept as "
            f"*{UNREADABLE}",
            stacklevel=5,
        )
        on_main(self.run.fabric, lambda: checkpoints.set_aside(steps))

    def _changes(self, state: dict[str, Any]) -> list[str]:
        assert self._key is not None
        return compare(state["settings"], self._settings) + self._key.differences(state["objective_key"])

    def _try(self, write: Callable[[], object]) -> OSError | None:
        try:
            write()
        except OSError as error:
            return error
        return None

    def _warn(self, failure: Exception | None) -> None:
        """A full disk need not end a run that goes on: it is told of, and tried again later."""
        if failure is not None:
            warnings.warn(
                f"step {self.run.step}: nothing could be saved ({failure}); earlier files are intact", stacklevel=3
            )

    def _write_objective(self) -> None:
        assert self.checkpoints is not None
        path = self.checkpoints.folder / OBJECTIVE_NAME
        try:
            save(path, self.run.objective)
        except TypeError:
            # An objective with parts of the user's own classes cannot be rebuilt from a file; its weights are kept all
            # the same. A file of another run would rebuild another objective.
            path.unlink(missing_ok=True)

    def _write_checkpoint(self) -> None:
        run, checkpoints = self.run, self.checkpoints
        assert checkpoints is not None
        own = {"batches": run.batches.state_dict(), "random": randomness.capture(run.device)}
        parts: dict[int, str] = {}
        if run.world > 1:
            parts = self._write_parts(checkpoints, own)
        if run.is_main:
            checkpoints.write(run.step, {**self._state(), "own": own}, parts)

    def _write_parts(self, checkpoints: Checkpoints, own: dict[str, Any]) -> dict[int, str]:
        rank = self.run.fabric.global_rank
        written = ""
        failure: Exception | None = None
        if rank:
            try:
                written = checkpoints.write_rank(self.run.step, rank, own)
            except OSError as error:
                failure = error
        failure = first_failure(self.run.fabric, failure)
        if failure is not None:
            raise failure
        everyone = [""] * self.run.world
        torch.distributed.all_gather_object(everyone, written)
        return {number: checksum for number, checksum in enumerate(everyone) if number}

    def _state(self) -> dict[str, Any]:
        run = self.run
        assert self._key is not None
        return {
            "settings": self._settings,
            "objective_key": self._key.state(),
            "step": run.step,
            "epoch": run.epoch,
            "position": run.position,
            "stopped": run.stopped,
            "objective": dict(run.objective.state_dict()),
            "optimizer": run.raw_optimizer.state_dict(),
            "scheduler": None if run.scheduler is None else _without_functions(run.scheduler.state_dict()),
            "scaler": run.fabric.strategy.precision.state_dict(),
            "history": run.history.state_dict(),
            "callbacks": [callback.state_dict() for callback in run.callbacks],
        }

    def _check_finite(self) -> None:
        """A gradient may turn infinite while the loss does not: such weights are no good checkpoint."""
        for name, value in self.run.objective.named_parameters():
            if not bool(torch.isfinite(value.detach()).all()):
                raise self.run.failure(None, f"parameter {name} is not finite")


def _without_functions(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state without what the settings give again and JSON cannot hold."""
    return {name: value for name, value in state.items() if not callable(value)}
