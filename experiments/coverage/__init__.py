"""Coverage studies: how often guarantees hold, one study per file, and the shared form of results.

A promise is anything that comes with an error, an interval, a probability or a guarantee. A study draws many data sets
whose truth is known, runs the code with its default settings and its default seed on each of them, and counts. Each
study is a program of its own (``experiments/coverage/*.py``) that writes ``results/coverage/NAME.json`` by `record`;
``results/coverage/README.md`` shows all of them.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fvnce.io import write_text
from fvnce.paper.cells import made_by

FOLDER = Path(__file__).resolve().parents[2] / "results" / "coverage"

#: How a measured frequency is compared with the nominal one, and the sign of that.
SENSES = {"at least": "≥", "at most": "≤", "equal": "="}


@dataclass(frozen=True)
class Promise:
    """One row of the table: a promise in one setting.

    Args:
        promise: what is promised, by its public name, e.g. ``"p_value: P(p ≤ .2)"``.
        setting: the data sets, in a few words, e.g. ``"200 × 2 normal rows, none known"``.
        nominal: the frequency or value that is promised.
        sense: ``"at least"``, ``"at most"`` or ``"equal"``: how the measured one must compare with it.
        measured: the frequency or value that was counted.
        error: its standard error over data sets.
        data_sets: how many were drawn.
        note: what the table says where the promise is not kept, or is kept only in part; empty otherwise.
    """

    promise: str
    setting: str
    nominal: float
    sense: str
    measured: float
    error: float
    data_sets: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.sense not in SENSES:
            raise ValueError(f"sense must be one of {', '.join(SENSES)}, found {self.sense!r}")

    @property
    def kept(self) -> bool:
        """Whether the measured value agrees with the nominal one within two standard errors."""
        excess = self.measured - self.nominal
        return {
            "at least": excess >= -2 * self.error,
            "at most": excess <= 2 * self.error,
            "equal": abs(excess) <= 2 * self.error,
        }[self.sense]


def record(name: str, rows: Sequence[Promise], *, settings: dict[str, object], started: float) -> Path:
    """Write the rows of a study with its command, settings, version, commit and duration; return the file's path.

    Args:
        name: the file's name without its ending.
        rows: what was counted.
        settings: everything a reader needs to run the study again, the seed among it.
        started: ``time.perf_counter()`` when the study began.
    """
    document = {
        **made_by(shlex.join(["python", "-m", f"experiments.coverage.{Path(sys.argv[0]).stem}", *sys.argv[1:]])),
        "settings": settings,
        "seconds": round(time.perf_counter() - started),
        "promises": [asdict(row) for row in rows],
    }
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path
