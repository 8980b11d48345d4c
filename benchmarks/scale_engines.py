"""Scoring of parquet files by one process, Dask, Ray Data and Spark with the same detector, on one machine.

Run, where Ray, Spark (with Java) and Dask are installed, with

    python benchmarks/scale_engines.py --out results/bench/scale.json

Two workers score the same folder of parquet files with the same saved detector through `fvnce.detection.BatchScorer`.
Reported are CPU seconds of the program and of every process it starts, until the engine is ready and from then on until
the scores are available. The difference of the latter from that of one process is the overhead of the engine, mostly
the start of its workers, which import torch and load the detector. Scores are compared bit by bit. Rows per second are
wall-clock and depend on the load of the machine. Engines that are not installed are listed.

Takes about 4 minutes on two cores.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fvnce.paper.cells import made_by

COLUMNS = [f"x{i}" for i in range(20)]
WORKERS = 2
#: What each engine is imported as, and the package whose version is reported.
ENGINES = {"one process": "fvnce", "dask": "distributed", "ray": "ray", "spark": "pyspark"}
Ready = Callable[[], None]


def prepare(folder: Path, rows: int, files: int) -> None:
    """Save a detector with known outliers, and rows in several files."""
    import pandas as pd

    from fvnce.detection import NoiseContrastiveDetector

    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.normal(size=(2000, len(COLUMNS))), columns=COLUMNS)
    known = (np.arange(len(train)) < 40).astype(int)
    train.iloc[:40] += 2
    NoiseContrastiveDetector().fit(train, known).save(folder / "detector.safetensors")
    (folder / "rows").mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        table = pd.DataFrame(rng.normal(0, 1.5, size=(len(part), len(COLUMNS))), columns=COLUMNS)
        table.insert(0, "id", part)
        table.to_parquet(folder / "rows" / f"{number:03}.parquet")


def one_process(folder: Path, ready: Ready) -> Any:
    """Score in one process, file by file."""
    import pandas as pd

    from fvnce.detection import BatchScorer

    ready()
    scorer = BatchScorer(folder / "detector.safetensors", keep=["id"])
    return pd.concat([scorer(pd.read_parquet(path)) for path in sorted((folder / "rows").iterdir())])


def dask(folder: Path, ready: Ready) -> Any:
    """Score with ``map_partitions`` on a cluster of processes."""
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    from fvnce.detection import BatchScorer

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        ready()
        scorer = BatchScorer(folder / "detector.safetensors", keep=["id"])
        return dd.read_parquet(folder / "rows").map_partitions(scorer).compute()


def ray(folder: Path, ready: Ready) -> Any:
    """Score with ``map_batches`` and one actor per worker."""
    import ray

    from fvnce.detection import BatchScorer

    # One more than the actors, each of which occupies one: otherwise no CPU is left to read files, a deadlock.
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    ready()
    scored = ray.data.read_parquet(str(folder / "rows")).map_batches(
        BatchScorer,
        fn_constructor_args=(str(folder / "detector.safetensors"),),
        fn_constructor_kwargs={"keep": ["id"]},
        compute=ray.data.ActorPoolStrategy(size=WORKERS),
        batch_size=4096,
    )
    return scored.to_pandas()


def spark(folder: Path, ready: Ready) -> Any:
    """Score with ``mapInPandas`` of Spark."""
    from pyspark.sql import SparkSession

    from fvnce.detection import BatchScorer

    os.environ["PYSPARK_PYTHON"] = sys.executable  # otherwise whatever is called python3
    builder = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.ui.enabled", "false")
    # On this machine alone, whatever its name resolves to.
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g").getOrCreate()
    ready()
    scorer = BatchScorer(folder / "detector.safetensors", keep=["id"])
    scored = session.read.parquet(str(folder / "rows")).mapInPandas(
        lambda batches: map(scorer, batches), schema="id long, score double, probability double, outlier boolean"
    )
    table = scored.toPandas()
    session.stop()
    return table


RUN = {"one process": one_process, "dask": dask, "ray": ray, "spark": spark}


def work(engine: str, folder: Path) -> None:
    """Score with one engine, and report to the caller when it is ready and when it has the scores."""
    table = RUN[engine](folder, lambda: print("READY", flush=True))
    print("DONE", flush=True)
    table.sort_values("id").to_parquet(folder / "scores.parquet")


class CpuSeconds:
    """CPU seconds of a process and all its descendants, including ended ones, measured by polling."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._seen, self._stop = process, {}, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def look(self) -> float:
        """Return the CPU seconds up to now."""
        import psutil

        # Orphans become children of this program, see adopt.
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                continue  # it has just ended
        return float(sum(self._seen.values()))

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.look()

    def stop(self) -> None:
        """Stop the thread that measures."""
        self._stop.set()
        self._thread.join()


def adopt() -> None:
    """Become the parent of orphaned processes, so that their time is counted too (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def measure(engine: str, folder: Path) -> tuple[dict[str, Any], Any]:
    """Return the CPU seconds of an engine until it is ready and until it has the scores, and the scores."""
    import pandas as pd

    command = [sys.executable, __file__, "--work", engine, "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched = CpuSeconds(process)
    marks: dict[str, tuple[float, float]] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() in ("READY", "DONE"):
            marks[line.strip()] = (watched.look(), time.perf_counter())
    watched.stop()
    if process.wait() != 0:
        raise RuntimeError(f"{engine} ended with {process.returncode}")
    scores = pd.read_parquet(folder / "scores.parquet")
    cpu, clock = (marks["DONE"][i] - marks["READY"][i] for i in (0, 1))
    numbers = {
        "cpu seconds until ready": round(marks["READY"][0], 2),
        "cpu seconds of scoring": round(cpu, 2),
        "rows a second by the clock": round(len(scores) / clock),
    }
    return numbers, scores


def main() -> None:
    """Score with every engine, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--engines", default=",".join(ENGINES), help="names separated by commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.folder)
        return
    from importlib.metadata import version

    adopt()
    os.environ["OMP_NUM_THREADS"] = "1"
    engines = list(dict.fromkeys(["one process", *options.engines.split(",")]))
    record: dict[str, Any] = {
        **made_by(" ".join(["python", *sys.argv])),
        "rows": options.rows,
        "columns": len(COLUMNS),
        "files": options.files,
        "workers": WORKERS,
        "python": platform.python_version(),
        "engines": {},
    }
    begun = time.perf_counter()
    expected = None
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), options.rows, options.files)
        record["detector bytes"] = (Path(folder) / "detector.safetensors").stat().st_size
        for engine in engines:
            if importlib.util.find_spec(ENGINES[engine]) is None:
                record["engines"][engine] = {"not installed": ENGINES[engine]}
                print(f"{engine}: {ENGINES[engine]} is not installed")
                continue
            numbers, scores = measure(engine, Path(folder))
            expected = scores if expected is None else expected
            numbers["version"] = version(ENGINES[engine])
            numbers["same bits"] = all(
                np.array_equal(scores[name].to_numpy(), expected[name].to_numpy())
                for name in ("id", "score", "probability", "outlier")
            )
            alone = record["engines"].get("one process", numbers)["cpu seconds of scoring"]
            numbers["cpu against one process"] = round(numbers["cpu seconds of scoring"] / alone, 2)
            numbers["cpu seconds beyond one process"] = round(numbers["cpu seconds of scoring"] - alone, 2)
            record["engines"][engine] = numbers
            print(f"{engine}: {numbers}", flush=True)
    record["seconds"] = round(time.perf_counter() - begun, 1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
