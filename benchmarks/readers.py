"""Readers of text tables: import time, reading time and memory of pyarrow, polars and fvnce.

Run with

    python benchmarks/readers.py --gigabytes 1 --out results/bench/readers.json

Each measurement is a process of its own on one thread: processor seconds to import, processor seconds and peak memory
to go through a csv from front to back, its columns found by the reader (typed) or taken as text. The file is one block
of rows of 12 numbers, an amount, a date and two texts, written again and again. What each makes of a line with a field
too few, and with one too many, is noted, since a reader that fills the gap cannot be used to tell a broken file.

Takes about 3 minutes of one core for each gigabyte.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0
#: Rows of the block that is written again and again.
BLOCK = 50_000

PYARROW = """
import pyarrow
from pyarrow import csv
types = {types}
with csv.open_csv(sys.argv[1], read_options=csv.ReadOptions(use_threads=False),
                  convert_options=csv.ConvertOptions(column_types=types)) as reader:
    for batch in reader:
        rows += len(batch)
"""
POLARS = """
import polars
for batch in polars.scan_csv(sys.argv[1], infer_schema={infer}).collect_batches():
    rows += len(batch)
"""
FVNCE = """
from fvnce.tables import open_source
from fvnce.paper.cells import made_by
for part in open_source(sys.argv[1]).parts():
    rows += len(part.rows)
"""
READS = {
    "pyarrow, typed": PYARROW.format(types="None"),
    "pyarrow, text": PYARROW.format(types="dict.fromkeys(open(sys.argv[1]).readline().strip().split(','), 'string')"),
    "polars, typed": POLARS.format(infer=True),
    "polars, text": POLARS.format(infer=False),
    "polars, whole": "import polars\nrows = len(polars.read_csv(sys.argv[1]))\n",
    "fvnce": FVNCE,
}
IMPORTS = {"pyarrow": "import pyarrow.csv", "polars": "import polars", "narwhals": "import narwhals.stable.v1"}
BROKEN = {"a field too few": "a,b\n1,2\n3\n5,6\n", "a field too many": "a,b\n1,2\n3,4,5\n5,6\n"}
ONE = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "ARROW_NUM_THREADS"), "1")


def write_table(path: Path, size: int) -> int:
    """Write a csv of about the given bytes; return its number of rows."""
    rng = np.random.default_rng(SEED)
    numbers = rng.normal(size=(BLOCK, 12))
    lines = []
    for i, row in enumerate(numbers.tolist()):
        day = f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d} {i % 24:02d}:30:00"
        amount = f'"${abs(row[0]) * 1e4:,.2f}"'
        lines.append(",".join([*(f"{v:.6f}" for v in row), amount, day, f"town {i % 40}", "yes" if i % 3 else "no"]))
    block = ("\n".join(lines) + "\n").encode()
    times = max(1, size // len(block))
    names = [*(f"x{i}" for i in range(12)), "amount", "when", "town", "member"]
    with path.open("wb") as file:
        file.write((",".join(names) + "\n").encode())
        for _ in range(times):
            file.write(block)
    return times * BLOCK


def measure(code: str, *arguments: str) -> dict[str, Any]:
    """Processor seconds and peak memory of a process beyond those of one that does nothing but start."""
    program = f"import sys\nrows = 0\n{code}\nprint(rows)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wrapper = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-c', *sys.argv[1:]], capture_output=True, text=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)\n"
        "print(done.stdout.strip() if done.returncode == 0 else 'refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", wrapper, program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | ONE,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, rows = done.stdout.split("\n")[:2]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu seconds": round(seconds, 3), "peak MiB": int(peak), "rows": rows}


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5, help="of each import; the median is kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"start": {}, "reading": {}, "broken": {}}
    empty = sorted(measure("")["cpu seconds"] for _ in range(given.repeats))[given.repeats // 2]
    for name, code in IMPORTS.items():
        times = sorted(measure(code)["cpu seconds"] for _ in range(given.repeats))
        result["start"][name] = {"cpu seconds": round(times[given.repeats // 2] - empty, 3)}
        print(name, result["start"][name], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        rows = write_table(path, int(given.gigabytes * 1e9))
        result |= {"bytes": path.stat().st_size, "rows": rows}
        for name, code in READS.items():
            numbers = measure(code, str(path))
            if numbers.pop("rows") != str(rows):
                raise SystemExit(f"{name} did not read all rows")
            result["reading"][name] = numbers
            print(name, numbers, flush=True)
        for fault, text in BROKEN.items():
            path.write_text(text)
            rows_read = {name: measure(code, str(path))["rows"] for name, code in READS.items()}
            result["broken"][fault] = {n: "refused" if r == "refused" else f"{r} rows" for n, r in rows_read.items()}
            print(fault, result["broken"][fault], flush=True)
    from fvnce.paper.cells import made_by  # not before import times are measured

    result |= {
        **made_by(f"python benchmarks/readers.py --gigabytes {given.gigabytes:g} --repeats {given.repeats}"),
        "seed": SEED,
        "threads": 1,
        "versions": {name: version(name) for name in ("pyarrow", "polars", "narwhals", "numpy")},
        "processor": platform.machine(),
    }
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
