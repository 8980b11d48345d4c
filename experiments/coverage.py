"""Promises and how often they held: the rows of the table, their files, and the table itself.

A promise is anything that comes with an error, an interval, a probability or a guarantee. A study draws many data sets
whose truth is known, runs the code with its default settings and its default seed on each of them, and counts. Each
study is a program of its own (``experiments/coverage_*.py``) that writes ``results/coverage/NAME.json`` by `record`;
``docs/howto/reliability.md`` shows all of them.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import fvnce
from fvnce.serialization import write_text

FOLDER = Path(__file__).resolve().parent.parent / "results" / "coverage"

#: How a measured frequency is compared with the nominal one.
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
    """Write the rows of a study with its command, settings, version and duration; return the file's path.

    Args:
        name: the file's name without its ending.
        rows: what was counted.
        settings: everything a reader needs to run the study again, the seed among it.
        started: ``time.perf_counter()`` when the study began.
    """
    document = {
        "command": shlex.join(["python", "-m", f"experiments.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "version": fvnce.__version__,
        "settings": settings,
        "seconds": round(time.perf_counter() - started),
        "promises": [asdict(row) for row in rows],
    }
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path


def section(folder: Path = FOLDER) -> str:
    """The section of the page: one table for each file of results, empty if there is none."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        rows = [Promise(**row) for row in document["promises"]]
        parts.append("\n".join([f"`{document['command']}` (version {document['version']})", "", *_table(rows)]))
    if not parts:
        return ""
    opening = (
        "## Promises and how often they held\n\n"
        "Every p-value, interval, error and probability that the library reports, on data whose truth is known, with\n"
        "default settings and the default seed. *Measured* is a frequency over the data sets with its standard error;\n"
        "a promise is kept if it agrees with the nominal value within two of them."
    )
    return "\n\n".join([opening, *parts])


def _table(rows: Sequence[Promise]) -> list[str]:
    lines = ["| promise | data | nominal | measured | data sets | kept |", "|---|---|---:|---:|---:|---|"]
    for row in rows:
        nominal, measured = f"{SENSES[row.sense]} {row.nominal:.3g}", f"{row.measured:.3f} ± {row.error:.3f}"
        verdict = ("yes" if row.kept else "**no**") + (f": {row.note}" if row.note else "")
        lines.append(f"| {row.promise} | {row.setting} | {nominal} | {measured} | {row.data_sets:,} | {verdict} |")
    return lines
