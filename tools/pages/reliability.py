"""Generate the page of measured reliability: faults injected, number of tries, number of failures.

Every row comes from a file in ``results/bench`` that a program of ``tools.fuzz`` wrote: ``runs``, ``files``, and
``detector`` and ``readers`` for inputs. A file that is not there leaves its table out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.coverage import SENSES, Promise

from .detection import made_with

#: What each attack does, and what must hold.
ATTACKS = {
    "kills": "SIGKILL at an evaluation, between two files or inside a write: resumed, every bit is the same",
    "damage": "the newest checkpoint is damaged: reported, and resumed from the one before to the same bits",
    "signals": "SIGINT, SIGTERM or SIGHUP: saved, and resumed to the same bits",
    "disks": "the disk is full: every checkpoint that is left can be read, and with room again the bits are the same",
    "writers": "a second process wants the folder: refused, and the first ends as if alone",
    "flips": "one byte is exchanged for another: refused",
    "cuts": "the end is cut off: refused",
    "mutants": "the checksum is right and the content is not: refused in one sentence, or read",
    "bombs": "a few hundred bytes that name gigabytes: refused before memory is taken",
}
TARGETS = {
    "detector": "tables, labels, weights, settings and images that nobody would make on purpose",
    "readers": "damaged and crafted csv, npy, npz, png and toml files, and folders of runs",
}

OPENING = """# How reliable is it?

Made from `results/bench` by `make pages`; `make fuzz` and the programs in `tools` measure the numbers anew. A
*failure* is anything other than what the row says must hold: another result, a traceback, a message that does not say
what is wrong, a program that hangs.
"""

CLOSING = """
## What follows from it

- A run that is killed, or whose disk is full, is resumed with the same command and ends with the same bits
  ([saving and resuming](../../docs/models/train.md#interrupt-and-resume)).
- A run is resumed only as what it was: another rule, noise, model or setting is named and refused unless you accept it.
- A file from a stranger is data and never a program: `SECURITY.md` says what is promised.
- The same seed gives the same bits: the detector's in any number of threads, those of `fit` in the same number
  ([what that takes](../../docs/models/train.md#reproduce)).
"""


def page(results: Path) -> str:
    """Return the page, made from a folder of results."""
    parts = [part for part in (OPENING, _promises(results.parent / "coverage")) if part]
    runs, files = _read(results / "reliability-runs.json"), _read(results / "reliability-flips.json")
    if runs is not None:
        rows = [[ATTACKS[row["what"]], *_counts(row)] for row in runs["attacks"]]
        parts.append(_section("Runs", "what is done to a run, and what must hold", rows, runs["command"]))
    if files is not None:
        rows = [[f"{row['of']}: {ATTACKS[row['what']]}", *_counts(row)] for row in files["attacks"]]
        parts.append(_section("Files", "what is done to a file, and what must hold", rows, files["command"]))
    fuzzed = [record for target in TARGETS if (record := _read(results / f"fuzz-{target}.json")) is not None]
    if fuzzed:
        rows = [[TARGETS[row["target"]], f"{row['tries']:,}", str(len(row["failures"]))] for row in fuzzed]
        commands = "; ".join(record["command"] for record in fuzzed)
        parts.append(_section("Inputs", "a result or one clear sentence", rows, commands))
    return "\n\n".join([*(part.strip() for part in parts), CLOSING.lstrip()])


def _promises(folder: Path) -> str:
    """Return one table for each study in ``results/coverage``, or an empty text."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        rows = [Promise(**row) for row in document["promises"]]
        made = made_with(document)
        parts.append("\n".join([f"`{document['command']}`", "", made, "", *_promise_table(rows)]))
    if not parts:
        return ""
    opening = (
        "## Promises and how often they held\n\n"
        "Every p-value, interval, error and probability that the library reports, on data whose truth is known, with\n"
        "default settings and the default seed. *Measured* is a frequency over the data sets with its standard error;\n"
        "a promise is kept if it agrees with the nominal value within two of them."
    )
    return "\n\n".join([opening, *parts])


def _promise_table(rows: Sequence[Promise]) -> list[str]:
    lines = ["| promise | data | nominal | measured | data sets | kept |", "|---|---|---:|---:|---:|---|"]
    for row in rows:
        nominal, measured = f"{SENSES[row.sense]} {row.nominal:.3g}", f"{row.measured:.3f} ± {row.error:.3f}"
        verdict = ("yes" if row.kept else "**no**") + (f": {row.note}" if row.note else "")
        lines.append(f"| {row.promise} | {row.setting} | {nominal} | {measured} | {row.data_sets:,} | {verdict} |")
    return lines


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def _counts(row: dict[str, Any]) -> list[str]:
    return [f"{row['tries']:,}", str(row["failures"])]


def _section(title: str, what: str, rows: list[list[str]], command: str) -> str:
    lines = [f"## {title}", "", f"`{command}`", "", f"| {what} | tries | failures |", "|---|---:|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
