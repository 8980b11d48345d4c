r"""Cells, the parts of an item for each row and seed: trained in parallel, cached on disk, compared by paired seeds.

Two processes of one thread use two cores better than one process of two threads. A piece of work gives the same result
in any process: it receives all inputs as arguments, runs on one thread, and writes its result to disk, usually as a
cell, so that a run can be stopped and continued.

All rows of a seed start from the same weights and use the same noise, so two rows are compared by paired differences
d_s over seeds s. A difference is reported as found if its mean d̄ is outside the 95 % interval of zero,

    |d̄| > t_{0.975, n−1} · sd(d) / √n,

with Student's t, as n is small. Nothing is claimed from one seed. The number compared is *data − noise*, which can grow
because noise falls or data rises, and can shrink because the data term falls; both terms are reported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config
from scipy import stats

from .._version import __version__
from ..io import decode, write_text

#: Seconds after which an idle process exits, and between two checks that its parent is alive. On a busy machine work
#: may take seconds to arrive. If a process exits meanwhile, loky warns, which fails the run if warnings are errors.
_IDLE_SECONDS, _WATCH_SECONDS = 30, 0.5


class Cells:
    """Folder of JSON files, one for each finished cell. The file name depends on the settings."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        text = json.dumps(settings, sort_keys=True, default=str)
        self.settings = json.loads(text)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:12]

    def path(self, name: str, suffix: str = ".json") -> Path:
        """Return the path of a cell, or of a file next to it."""
        return self.folder / f"{name}-{self.key}{suffix}"

    def read(self, name: str) -> dict[str, Any]:
        """Read a cell from disk."""
        path = self.path(name)
        return dict(decode(path.read_bytes(), path))

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a cell with its settings and the version that made it."""
        write_json(self.path(name), {**content, "settings": self.settings, "version": __version__})

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the cell of this name from disk, or make and write it."""
        if not self.path(name).exists():
            self.write(name, make())
        return self.read(name)


def write_json(path: Path, content: object) -> Path:
    """Write a JSON file atomically; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def made_by(command: str) -> dict[str, Any]:
    """Return the first entries of every file of results: the command, the versions and, in a checkout, the commit.

    A commit ends in ``-dirty`` if code differs from it; other results may differ.
    """
    root = Path(__file__).resolve().parents[3]
    made = {"command": command, "version": __version__, "torch": torch.__version__}
    if not (root / ".git").exists():
        return made

    def git(*arguments: str) -> str:
        called = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return called.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks", "experiments")
    return made | {"commit": git("rev-parse", "--short", "HEAD") + "-dirty" * bool(changed)}


def measured(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell without the entries that all cells share."""
    return {name: value for name, value in cell.items() if name not in ("settings", "version")}


# Work shared by several processes.


@dataclass(frozen=True)
class Work:
    """Piece of work: a module-level function, its arguments, and a name for the user."""

    name: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()


class WorkError(RuntimeError):
    """Raised if a piece of work fails; the message names it and the cause."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch in the block, and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def do_all(pieces: Sequence[Work], jobs: int, say: Callable[[str], None] = lambda text: None) -> None:
    """Do all pieces of work, ``jobs`` at a time, and report progress.

    Args:
        pieces: the work.
        jobs: number of processes.
        say: called with a line about each finished piece.

    Raises:
        WorkError: if, with several jobs, a piece fails or its process dies. The others are stopped; finished results
            remain. With one job a piece raises its own error.
    """
    start = time.perf_counter()
    waiting = [piece.name for piece in pieces]

    def finished(name: str, seconds: float) -> None:
        waiting.remove(name)
        done = len(pieces) - len(waiting)
        say(f"{name}: {seconds:.0f} s ({done} of {len(pieces)}, {time.perf_counter() - start:.0f} s in all)")

    if jobs == 1 or len(pieces) < 2:
        for piece in pieces:
            begun = time.perf_counter()
            with one_thread():
                piece.function(*piece.arguments)
            finished(piece.name, time.perf_counter() - begun)
        return
    with parallel_config(backend="loky", inner_max_num_threads=1, idle_worker_timeout=_IDLE_SECONDS):
        crew = Parallel(n_jobs=min(jobs, len(pieces)), batch_size=1, return_as="generator_unordered")
        results = crew(delayed(_do)(os.getpid(), piece) for piece in pieces)
        try:
            for name, seconds, problem in results:
                if problem is not None:
                    raise WorkError(f"{name}: {problem}")
                finished(name, seconds)
        except BrokenProcessPool as error:
            codes = re.findall(r"\w+\((-?\d+)\)", str(error))
            code = f" with code {', '.join(codes)}" if codes else ""
            # Work is started in order, so the running pieces are the first unfinished ones.
            raise WorkError(f"{' or '.join(waiting[:jobs])}: its process ended{code} before it was done") from None
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about canceled work, which is intended
                results.close()


def _do(parent: int, piece: Work) -> tuple[str, float, str | None]:
    """Do a piece of work in a worker process; return its name, its seconds, and its error or None."""
    _prepare(parent)
    begun = time.perf_counter()
    problem = None
    try:
        piece.function(*piece.arguments)
    except Exception as error:  # noqa: BLE001  reported by the other process, with the name of the work
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
    return piece.name, time.perf_counter() - begun, problem


@cache
def _prepare(parent: int) -> None:
    """Initialize a worker process: use one thread, ignore Ctrl-C, and exit when the parent does."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Statistics over a few seeds.


def mean_and_error(values: Sequence[float], digits: int = 0) -> str:
    """Format mean ± standard error, the error with at least one decimal.

    >>> mean_and_error([1.0, 3.0]), mean_and_error([1.0, 3.0], 2), mean_and_error([2.0])
    ('2 ± 1.0', '2.00 ± 1.00', '2')
    """
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{max(digits, 1)}f}"


def beyond_error(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the mean paired difference ``one`` − ``other`` differs from zero at the 95 % level.

    >>> beyond_error([3.0, 4.0, 5.0], [1.0, 2.1, 2.9]), beyond_error([3.0, 1.0, 5.0], [1.0, 3.0, 2.0])
    (True, False)
    >>> beyond_error([9.0], [1.0])
    False
    """
    steps = [a - b for a, b in zip(one, other, strict=True)]
    if len(steps) < 2:
        return False
    error = statistics.stdev(steps) / math.sqrt(len(steps))
    return abs(statistics.fmean(steps)) > float(stats.t.ppf(0.975, len(steps) - 1)) * error


def ordered(values: Mapping[str, Sequence[float]]) -> str:
    """Format the order of rows by mean, with ≈ between neighbors that do not differ at the 95 % level.

    >>> ordered({"b": [5.0, 6.0, 7.1], "a": [1.0, 2.1, 3.0], "c": [5.5, 5.9, 7.3]})
    'a < b ≈ c'
    """
    rows = sorted(values, key=lambda row: statistics.fmean(values[row]))
    text = rows[0]
    for low, high in itertools.pairwise(rows):
        text += f" {'<' if beyond_error(values[high], values[low]) else '≈'} {high}"
    return text
