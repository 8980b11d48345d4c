"""Count how many two-process trainings exit.

    python -m tools.fuzz.exits --runs 60 --out results/bench/exits.json

Starts trainings on two processes one after the other, by Fabric and by torchrun in turn, and counts those that end
with exit code 0 within the limit. A training that does not is aborted, and the stacks of its threads are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fvnce._version import __version__

PROGRAM = """
import sys, torch, fvnce
from fvnce.training import FitOptions, fit
torch.manual_seed(0)
options = FitOptions(devices=2, strategy="ddp") if sys.argv[1] == "fabric" else FitOptions()
noise = fvnce.fit_gaussian(torch.randn(64, 2))
objective = fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
fit(objective, torch.randn(64, 2), epochs=2, batch_size=8, seed=1, accelerator="cpu", progress=False, options=options)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def one_run(folder: Path, launcher: str, limit: float) -> tuple[int | None, float, str]:
    """Return the exit code, None where it had to be aborted, the seconds taken, and what it wrote to standard error."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, *(TORCHRUN if launcher == "torchrun" else ()), str(program), launcher]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    started = time.perf_counter()
    with (folder / "stderr").open("w+") as errors:
        # A group of its own, so that both processes can be aborted.
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        code = None
        try:
            process.wait(limit)
            while time.perf_counter() - started < limit and _alive(process.pid):
                time.sleep(0.05)
            code = None if _alive(process.pid) else process.returncode
        except subprocess.TimeoutExpired:
            pass
        seconds = time.perf_counter() - started
        if code is None:
            os.killpg(process.pid, signal.SIGABRT)
            process.wait()
            time.sleep(2)
        errors.seek(0)
        return code, seconds, errors.read()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Run the trainings, and write what happened after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="Trainings.")
    parser.add_argument("--limit", type=float, default=120, help="Seconds after which a training is aborted.")
    parser.add_argument("--out", type=Path, default=Path("results/bench/exits.json"))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/fvnce-exits"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    seconds, failures = [], []
    for i in range(options.runs):
        launcher = ("fabric", "torchrun")[i % 2]
        code, took, text = one_run(options.folder, launcher, options.limit)
        seconds.append(round(took, 1))
        if code != 0:
            failures.append({"run": i, "launcher": launcher, "code": code, "stderr": text[-6000:]})
        content = {
            "command": f"python -m tools.fuzz.exits --runs {options.runs} --limit {options.limit:g}",
            "version": __version__,
            "runs": i + 1,
            "exited with 0": i + 1 - len(failures),
            "longest": max(seconds),
            "failures": failures,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{i + 1} {launcher}: {code}, {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
