"""Memory of scoring and of monitoring files of 5,000,000 rows of 20 columns. Writes results/bench/load.json.

    python benchmarks/load.py
    python benchmarks/load.py --rows 100000

Each file is read by a process of its own, whose peak resident memory is measured. The detector has few trees
(n_trees=20), which makes it faster and does not change how files are read. Needs 3 GB of disk.

Takes about 20 minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fvnce.paper.cells import made_by, write_json

COLUMNS, PART = 20, 100_000


def write(folder: Path, rows: int) -> None:
    """Write the training file and both files of new rows, in parts."""
    schema = pa.schema([(f"c{i}", pa.float64()) for i in range(COLUMNS)])
    rng = np.random.default_rng(0)
    make = lambda n: pa.table(dict(zip(schema.names, rng.normal(size=(COLUMNS, n)).round(4), strict=True)))  # noqa: E731
    pyarrow.csv.write_csv(make(20_000), folder / "train.csv")
    with (
        pyarrow.csv.CSVWriter(folder / "new.csv", schema) as text,
        pyarrow.parquet.ParquetWriter(folder / "new.parquet", schema) as columns,
    ):
        for start in range(0, rows, PART):
            part = make(min(PART, rows - start))
            text.write_table(part)
            columns.write_table(part)


def measured(arguments: list[str]) -> dict[str, float]:
    """Run the command line and return its CPU seconds, peak memory and exit code."""
    process = subprocess.Popen([sys.executable, "-m", "fvnce", *arguments], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"exit": code, "cpu seconds": round(used.ru_utime + used.ru_stime, 1), "peak MB": used.ru_maxrss // 1024}


def main() -> None:
    """Measure, and write what there is after each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    options = parser.parse_args()
    path = Path(__file__).resolve().parents[1] / "results" / "bench" / "load.json"
    with tempfile.TemporaryDirectory() as place:
        folder, found, started = Path(place), {}, time.perf_counter()
        write(folder, options.rows)
        measured(["fit", str(folder / "train.csv"), "--out", str(folder / "run"), "--set", "n_trees=20", "-q"])
        for command in (["score", "--out", str(folder / "scores.csv")], ["monitor", "--quiet"]):
            for name in ("new.csv", "new.parquet"):
                call = [command[0], str(folder / "run"), str(folder / name), *command[1:]]
                found[f"{command[0]} {name}"] = measured(call)
                content = {**made_by("python benchmarks/load.py"), "rows": options.rows}
                content |= {"columns": COLUMNS, "measured": found, "seconds": round(time.perf_counter() - started)}
                write_json(path, content)
                print(name, found[f"{command[0]} {name}"], flush=True)


if __name__ == "__main__":
    main()
