"""Mutual information against the estimators of benchmark-mi, on its tasks, where the truth is known.

    pip install --target /tmp/bmi benchmark-mi
    OMP_NUM_THREADS=1 python benchmarks/mutual_information.py --bmi /tmp/bmi --out results/bench/mutual_information.json

All estimators are given the same rows. Peers keep their defaults, but for the number of steps of the neural ones
(``--steps``) and for the neighborhood of KSG, 10. A peer that fails has no number. On a task ours is *near the best* if
its mean absolute error over the seeds exceeds the smallest by no more than the mean error that it reports.

Takes about 30 minutes of one core, the neural peers nearly all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fvnce.paper.cells import made_by, write_json
from fvnce.ratio import mutual_information

TASKS = (
    *("1v1-normal-0.75", "1v1-additive-0.1", "1v1-additive-0.75", "1v1-bimodal-0.75", "wiggly-1v1-normal-0.75"),
    *("student-identity-1-1-1", "swissroll_x-normal_cdf-1v1-normal-0.75", "multinormal-dense-2-2-0.5"),
    *("multinormal-dense-5-5-0.5", "multinormal-dense-25-25-0.5", "multinormal-sparse-3-3-2-2.0"),
    *("multinormal-sparse-5-5-2-2.0", "student-identity-2-2-1", "student-identity-3-3-2", "student-identity-5-5-2"),
    *("half_cube-multinormal-sparse-5-5-2-2.0", "spiral-multinormal-sparse-3-3-2-2.0"),
    *("spiral-multinormal-sparse-5-5-2-2.0", "spiral-normal_cdf-multinormal-sparse-3-3-2-2.0"),
    *("asinh-student-identity-2-2-1", "normal_cdf-multinormal-sparse-5-5-2-2.0"),
)
OURS = "fvnce"
NEURAL = "InfoNCE", "NWJ", "Donsker-Varadhan", "MINE"


def peers(steps: int) -> dict[str, Callable[[], Any]]:
    """Return makers of the estimators of benchmark-mi."""
    import bmi.estimators as theirs

    neural = {"max_n_steps": steps, "verbose": False}
    return {
        "KSG": lambda: theirs.KSGEnsembleFirstEstimator(neighborhoods=(10,)),
        "CCA": theirs.CCAMutualInformationEstimator,
        "InfoNCE": lambda: theirs.InfoNCEEstimator(**neural),
        "NWJ": lambda: theirs.NWJEstimator(**neural),
        "Donsker-Varadhan": lambda: theirs.DonskerVaradhanEstimator(**neural),
        "MINE": lambda: theirs.MINEEstimator(**neural),
    }


def samples(name: str, rows: int, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the truth and rows of a task."""
    import bmi.benchmark

    task = bmi.benchmark.BENCHMARK_TASKS[name]
    x, y = (np.array(part, dtype=np.float64) for part in task.sample(rows, seed))
    return float(task.mutual_information), x, y


def of_peer(make: Callable[[], Any], x: np.ndarray, y: np.ndarray) -> float | None:
    """Return a peer's estimate, or None where it fails."""
    try:
        value = float(make().estimate(x, y))
    except Exception as failure:  # noqa: BLE001  of others' programs anything may be expected
        print(f"failed: {failure}"[:200], file=sys.stderr)
        return None
    return value if math.isfinite(value) else None


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each task the mean absolute error of each estimator, and how often ours is the best or near it."""
    tasks: dict[str, Any] = {}
    for name in dict.fromkeys(record["task"] for record in records):
        own = [record for record in records if record["task"] == name]
        off = {
            key: [
                abs(record["estimates"][key] - record["truth"])
                for record in own
                if record["estimates"].get(key) is not None
            ]
            for key in own[0]["estimates"]
        }
        means = {key: statistics.mean(values) for key, values in off.items() if values}
        best = min(means, key=means.__getitem__)
        errors = [record["error"] for record in own if record["error"] is not None]
        near = means[OURS] - means[best] <= statistics.mean(errors) if errors else best == OURS
        tasks[name] = {
            "truth": own[0]["truth"],
            "mean_absolute_error": means,
            "error": statistics.mean(errors) if errors else None,
            "best": best,
            "near_the_best": near,
        }
    trusted = [record for record in records if record["error"] is not None]
    return {
        "tasks": tasks,
        "best": sum(task["best"] == OURS for task in tasks.values()),
        "near_the_best": sum(task["near_the_best"] for task in tasks.values()),
        "of": len(tasks),
        "covered": sum(abs(record["estimates"][OURS] - record["truth"]) <= record["error"] for record in trusted),
        "with_an_error": len(trusted),
        "estimates": len(records),
    }


def main() -> None:
    """Measure, print and write: peers first, as they take longest and do not change with our code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bmi", type=Path, help="folder of benchmark-mi and of what it needs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--neural-seeds", type=int, default=3, help="the first of the seeds, for neural peers")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the neural peers")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--resume", action="store_true", help="keep the estimates of peers that --out has")
    options = parser.parse_args()
    if options.bmi is not None:
        sys.path.append(str(options.bmi))
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    settings = {key: value for key, value in vars(options).items() if key not in ("bmi", "out", "resume")}
    start = {**made_by(" ".join(["python", *sys.argv])), "settings": settings}
    records = [
        {"task": name, "seed": seed, "estimates": {}, "seconds": {}}
        for seed in range(options.seeds)
        for name in options.tasks
    ]
    if options.resume:
        before = json.loads(options.out.read_text("utf-8"))
        if any(before["settings"][key] != settings[key] for key in ("rows", "steps")):
            raise SystemExit(f"--out must have the same rows and steps, found {before['settings']}; do not --resume")
        kept = {(record["task"], record["seed"]): record for record in before["records"]}
        records = [kept.get((record["task"], record["seed"]), record) for record in records]

    def measure(record: dict[str, Any], name: str, estimate: Callable[[np.ndarray, np.ndarray], Any]) -> Any:
        record["truth"], x, y = samples(record["task"], options.rows, record["seed"])
        at = time.process_time()
        value = estimate(x, y)
        record["seconds"][name] = time.process_time() - at
        return value

    def keep() -> None:
        if options.out is not None:
            took = {"cpu_seconds": sum(sum(record["seconds"].values()) for record in records)}
            counted = summary(records) if all(OURS in record["estimates"] for record in records) else {}
            write_json(options.out, {**start, **took, **counted, "records": records})

    makers = peers(options.steps)
    for record in records:
        for peer, make in makers.items():
            if peer not in record["estimates"] and not (peer in NEURAL and record["seed"] >= options.neural_seeds):
                record["estimates"][peer] = measure(record, peer, partial(of_peer, make))
        print(record, flush=True)
        keep()
    for record in records:
        ours = measure(record, OURS, mutual_information)
        record["estimates"][OURS], record["model"], record["reason"] = ours.value, ours.model, ours.reason
        record["error"] = ours.error if math.isfinite(ours.error) else None
    keep()
    print({key: value for key, value in summary(records).items() if isinstance(value, int)})


if __name__ == "__main__":
    main()
