"""Run the fuzzers: thousands of odd inputs, and a count of failures.

    python -m tools.fuzz detector --tries 10000 --seed 0

Each target is a module of this package with a function of the target's name, (seed, tries, first) → failures, one line
each. What was done and found is written to ``results/bench/fuzz-TARGET.json``; the exit code says whether any failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

#: Targets, and the module of each.
TARGETS = {"detector": "tools.fuzz.detector", "readers": "tools.fuzz.readers"}
ROOT = Path(__file__).resolve().parents[2]
#: Tries between two lines of progress.
PART = 250


def run(target: str, seed: int, tries: int, first: int = 0) -> list[str]:
    """Return the failures of a target."""
    failures: list[str] = getattr(importlib.import_module(TARGETS[target]), target)(seed, tries, first)
    return failures


def bounded(memory: int | None) -> None:
    """Limit the address space of this process to the given gigabytes, on Linux."""
    if memory is not None and sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory * 2**30, memory * 2**30))


def main(arguments: list[str] | None = None) -> int:
    """Run one target, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first try, to repeat one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--memory", type=int, help="gigabytes of address space of a process; more is a failure")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench", help="folder of the results")
    chosen = parser.parse_args(arguments)
    failed = 0
    for target in chosen.targets:
        if target not in TARGETS:
            parser.error(f"targets must be among {', '.join(TARGETS)}, found {target!r}")
        result = measured(target, chosen.seed, chosen.tries, chosen.first, chosen.jobs, chosen.memory)
        failed += len(result["failures"])
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"fuzz-{target}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def measured(target: str, seed: int, tries: int, first: int, jobs: int, memory: int | None = None) -> dict[str, Any]:
    """Run tries in several processes with progress; return settings and failures."""
    begun = time.perf_counter()
    failures: list[str] = []
    starts = range(first, first + tries, PART)
    sizes = [min(PART, first + tries - start) for start in starts]
    with ProcessPoolExecutor(jobs, initializer=bounded, initargs=(memory,)) as pool:
        for done, failed in enumerate(
            pool.map(run, *zip(*[(target, seed, n, s) for n, s in zip(sizes, starts, strict=True)], strict=True)), 1
        ):
            failures += failed
            print(*failed, sep="\n", end="\n" if failed else "")
            print(f"{target}: {sum(sizes[:done])} tries, {len(failures)} failures", flush=True)
    return {
        "command": f"python -m tools.fuzz {target} --tries {tries} --seed {seed} --first {first}",
        "target": target,
        "seed": seed,
        "tries": tries,
        "failures": failures,
        "seconds": round(time.perf_counter() - begun, 1),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
