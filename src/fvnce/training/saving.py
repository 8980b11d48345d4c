"""Saving a run and taking it up again: all that the next step depends on, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import randomness
from .checkpoint import Checkpoints, read_checkpoint
from .files import BEST_NAME, OBJECTIVE_NAME, save, save_weights

if TYPE_CHECKING:
    from .loop import Run


class Saver:
    """Checkpoints of a run; without a folder, nothing is written."""

    def __init__(self, run: Run, checkpoints: Checkpoints | None) -> None:
        self.run = run
        self.checkpoints = checkpoints
        self._saved_at = -1

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
        if self._write(self._write_checkpoint, final=final):
            self._saved_at = run.step

    def save_best(self) -> None:
        """Write the objective as the best one so far."""
        if self.checkpoints is not None and self.run.is_main:
            path = self.checkpoints.folder / BEST_NAME
            self._write(lambda: save_weights(path, self.run.objective), final=False)

    def resume(self, resume: bool | str | Path) -> None:
        """Take up the run that a checkpoint holds."""
        run = self.run
        if self.checkpoints is not None:
            if run.is_main:
                self.checkpoints.prepare()
            run.fabric.barrier()
            latest = self.checkpoints.latest()
            if resume is False and latest is not None:
                raise FileExistsError(
                    f"checkpoint_dir must be without checkpoints, found {latest}; pass resume=True to continue that run"
                )
            if run.is_main and not (self.checkpoints.folder / OBJECTIVE_NAME).exists():
                self._write(self._write_objective, final=False)
        if resume is False:
            return
        path = self.latest() if resume is True else Path(resume)
        if path is None:
            return
        state, part = read_checkpoint(path, run.fabric.global_rank)
        self._check_settings(path, state["settings"])
        run.objective.load_state_dict(state["objective"])
        run.raw_optimizer.load_state_dict(state["optimizer"])
        if run.scheduler is not None:
            run.scheduler.load_state_dict(state["scheduler"])
        run.fabric.strategy.precision.load_state_dict(state["scaler"])
        run.history.load_state_dict(state["history"])
        for callback, saved in zip(run.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        run.step, run.epoch, run.position = state["step"], state["epoch"], state["position"]
        run.stopped = state["stopped"]
        own = part if part is not None else state["own"]
        run.feed.load_state_dict(own["feed"])
        randomness.restore(own["random"], run.device)
        self._saved_at = run.step if path == self.latest() else -1

    def _write(self, write: Callable[[], object], *, final: bool) -> bool:
        """Try to write. A full disk need not end a run that goes on: it is told of, and tried again later."""
        try:
            write()
        except OSError as error:
            if final:
                raise
            warnings.warn(
                f"step {self.run.step}: nothing could be saved ({error}); earlier files are intact", stacklevel=2
            )
            return False
        return True

    def _write_objective(self) -> None:
        assert self.checkpoints is not None
        # An objective with parts of the user's own classes cannot be rebuilt from a file; its weights are kept all the
        # same.
        with suppress(TypeError):
            save(self.checkpoints.folder / OBJECTIVE_NAME, self.run.objective)

    def _write_checkpoint(self) -> None:
        run, checkpoints = self.run, self.checkpoints
        assert checkpoints is not None
        own = {"feed": run.feed.state_dict(), "random": randomness.capture(run.device)}
        parts: dict[int, str] = {}
        if run.world > 1:
            parts = self._write_parts(checkpoints, own)
        if run.is_main:
            checkpoints.write(run.step, {**self._state(), "own": own}, parts)

    def _write_parts(self, checkpoints: Checkpoints, own: dict[str, Any]) -> dict[int, str]:
        rank = self.run.fabric.global_rank
        written: str | None = ""
        failure: OSError | None = None
        if rank:
            try:
                written = checkpoints.write_rank(self.run.step, rank, own)
            except OSError as error:
                written, failure = None, error
        everyone: list[str | None] = [None] * self.run.world
        torch.distributed.all_gather_object(everyone, written)
        if failure is not None:
            raise failure
        parts: dict[int, str] = {}
        for number, checksum in enumerate(everyone):
            if checksum is None:
                raise OSError(f"process {number} could not write its part of the checkpoint")
            if number:
                parts[number] = checksum
        return parts

    def _state(self) -> dict[str, Any]:
        run = self.run
        return {
            "settings": self._identity(),
            "described": str(run.objective),
            "rule": repr(getattr(run.objective, "rule", None)),
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

    def _identity(self) -> dict[str, Any]:
        """What a resumed run must share with the one it continues."""
        run = self.run
        return {
            **run.settings.that_matter(),
            "seed": run.seed,
            "objective": type(run.objective).__name__,
            "processes": run.world,
            "precision": str(run.fabric.strategy.precision.precision),
            "data": run.feed.fingerprint,
            "callbacks": [type(callback).__name__ for callback in run.callbacks],
        }

    def _check_settings(self, path: Path, saved: dict[str, Any]) -> None:
        now = self._identity()
        for name in sorted(now.keys() & saved.keys()):
            if now[name] != saved[name]:
                raise ValueError(
                    f"{name} must be what it was in the run that wrote {path}, {saved[name]!r}, found {now[name]!r}"
                )

    def _check_finite(self) -> None:
        """A gradient may turn infinite while the loss does not: such weights are no good checkpoint."""
        for name, value in self.run.objective.named_parameters():
            if not bool(torch.isfinite(value.detach()).all()):
                raise self.run.failure(None, f"parameter {name} is not finite")


def _without_functions(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state without what the settings give again and JSON cannot hold."""
    return {name: value for name, value in state.items() if not callable(value)}
