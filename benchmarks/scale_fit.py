"""Memory of training on a file of 10,000,000 rows of 20 columns: memory-mapped npy, parquet and csv.

Run with

    python benchmarks/scale_fit.py --out results/bench/scale-fit.json

Files are written in parts. Each training is a process of its own, `NoiseContrastiveDetector().fit` on a memory map and
`python -m fvnce fit FILE`, and reported are the largest memory that it ever held (resident, mapped pages included) and
its CPU seconds. The wanted limit is 1.5 GB. Numbers in the csv file have 7 digits.

Takes about 8 minutes on two cores, and 6 GB of disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = [f"x{i}" for i in range(20)]
LIMIT = 1.5e9
PART = 100_000
ON_MAP = """
import sys
import numpy as np
from fvnce.detection import NoiseContrastiveDetector
NoiseContrastiveDetector(verbose=1).fit(np.load(sys.argv[1], mmap_mode="r"))
"""


def parts(rows: int) -> Iterator[NDArray[np.float64]]:
    """Yield rows of a Gaussian with correlated columns, of which one in a thousand is far away."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(len(COLUMNS), len(COLUMNS))) / 4
    for start in range(0, rows, PART):
        part = rng.normal(size=(min(PART, rows - start), len(COLUMNS))) @ mix
        part[::1000] += 3
        yield part


def write(path: Path, rows: int) -> None:
    """Write the rows in the format of the file's suffix."""
    if path.suffix == ".npy":
        whole = np.lib.format.open_memmap(path, "w+", np.float64, (rows, len(COLUMNS)))
        for number, part in enumerate(parts(rows)):
            whole[number * PART : number * PART + len(part)] = part
        whole.flush()
        return
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema = pa.schema([(name, pa.float64()) for name in COLUMNS])
    make = pyarrow.parquet.ParquetWriter if path.suffix == ".parquet" else pyarrow.csv.CSVWriter
    with make(str(path), schema) as writer:
        for part in parts(rows):
            digits = part if path.suffix == ".parquet" else np.round(part, 6)
            writer.write_table(pa.table(dict(zip(COLUMNS, digits.T, strict=True)), schema=schema))


def measure(command: list[str], log: Path) -> dict[str, Any]:
    """Largest resident memory and CPU seconds of a process, as the system counted them at its end.

    A process begins with the peak of the one that started it: this program stays small, and others write the files.
    """
    with log.open("wb") as file:
        handle = os.posix_spawn(
            sys.executable,
            [sys.executable, *command],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)],
        )
        _, status, used = os.wait4(handle, 0)
    code = os.waitstatus_to_exitcode(status)
    record: dict[str, Any] = {
        "peak bytes": used.ru_maxrss * 1024,
        "within the limit": used.ru_maxrss * 1024 <= LIMIT,
        "cpu seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    if code != 0:
        record["failed"] = log.read_text("utf-8", "replace").strip()[-500:]
    return record


def main() -> None:
    """Write the files, train on each, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kinds", default="map,npy,parquet,csv", help="names separated by commas")
    parser.add_argument("--folder", type=Path, help="where files are written, kept and found again")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.rows)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    from fvnce.paper.cells import made_by  # torch counts as memory

    record: dict[str, Any] = {
        **made_by(" ".join(["python", *sys.argv])),
        "rows": options.rows,
        "columns": len(COLUMNS),
        "limit": LIMIT,
        "python": platform.python_version(),
        "runs": {},
    }
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in options.kinds.split(","):
            path = folder / f"rows-{options.rows}.{'npy' if kind == 'map' else kind}"
            if kind in ("parquet", "csv") and importlib.util.find_spec("pyarrow") is None:
                record["runs"][kind] = {"not installed": "pyarrow"}
                continue
            if not path.exists():
                subprocess.run(
                    [sys.executable, __file__, "--rows", str(options.rows), "--write", str(path)], check=True
                )
            out = Path(temporary) / f"run-{kind}"
            command = (
                ["-c", ON_MAP, str(path)] if kind == "map" else ["-m", "fvnce", "fit", str(path), "--out", str(out)]
            )
            numbers = {"file bytes": path.stat().st_size, **measure(command, Path(temporary) / "log")}
            record["runs"][kind] = numbers
            print(f"{kind}: {numbers}", flush=True)
    record["seconds"] = round(time.perf_counter() - begun, 1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
