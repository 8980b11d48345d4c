"""Runs: what ``fvnce fit --out`` and ``fvnce.fit(checkpoint_dir=…)`` left behind, opened by one function."""

from .app.runs import FittedRun, Run, RunError, load

__all__ = ["FittedRun", "Run", "RunError", "load"]
