"""Fault injection into training runs: count tries and failures. Writes results/bench/reliability-runs.json.

    python -m tools.fuzz.runs --kills 20 --damage 200 --signals 30 --disks 30 --writers 10

Each try is a small run in a folder of its own. What must hold:

    kills     a life ends by SIGKILL at an evaluation or a file, or inside a write; resumed, every bit is the same
    damage    bits of the newest checkpoint are flipped or its end is cut off: the run goes on from the one before, says
              so, and ends with the same bits; named, the file is refused
    signals   SIGINT, SIGTERM or SIGHUP at some step: saved after it, and resumed to the same bits
    disks     no file may grow beyond some bytes: the run goes on with a warning or ends with an error, every checkpoint
              that is left can be read, and with room again the run ends with the same bits
    writers   a second process wants the folder: it is refused, and the first ends as if alone
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import torch  # noqa: E402

from fvnce.training import FileError, FitOptions, FolderInUse, Interrupted, fit  # noqa: E402
from fvnce.training.checkpoint import Checkpoints, read_checkpoint, versions  # noqa: E402
from killed_runs import killed  # noqa: E402
from training_runs import KILLED, digest, rows, vae  # noqa: E402

SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 20,
    "seed": 1,
    "progress": False,
    "options": FitOptions(checkpoint_every=1),
}
RARELY = FitOptions(checkpoint_every=100)
STEPS = 6


def run(folder: Path | None = None, **settings: Any) -> str:
    """Train, and return the digest of the weights."""
    objective = vae()
    resume = folder is not None
    fit(objective, rows(40), checkpoint_dir=folder, **{"resume": resume, **SETTINGS, **settings})
    return digest(objective)


def damage(folder: Path, choose: random.Random, never: str) -> str | None:
    """Return the failure as text, or None."""
    run(folder)
    path = Checkpoints(folder).path(STEPS)
    content = bytearray(path.read_bytes())
    if choose.random() < 0.3:
        del content[choose.randrange(len(content)) :]
    else:
        for _ in range(choose.choice((1, 1, 1, 8))):
            content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)
    try:
        run(resume=path)
        return "a damaged file was taken"
    except FileError:
        pass
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if run(folder) != never:
            return "other bits"
    return None if any("cannot be read" in str(item.message) for item in warned) else "not a word"


def signals(folder: Path, choose: random.Random, never: str) -> str | None:
    """Return the failure as text, or None."""
    number = choose.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    step = choose.randrange(STEPS)
    objective = vae()
    evaluations = iter(range(STEPS))

    def send(*_: Any) -> None:
        if next(evaluations, None) == step:
            os.kill(os.getpid(), number)

    objective.encoder.register_forward_pre_hook(send)
    try:
        fit(objective, rows(40), checkpoint_dir=folder, **{**SETTINGS, "options": RARELY})
        return "not interrupted"
    except Interrupted as stopped:
        if stopped.code != 128 + number:
            return f"code {stopped.code}"
    if Checkpoints(folder).steps() != [step + 1]:
        return "not saved after the step"
    return None if run(folder, options=RARELY) == never else "other bits"


def disks(folder: Path, choose: random.Random, never: str) -> str | None:
    """Return the failure as text, or None."""
    run(folder, epochs=1)
    size = Checkpoints(folder).path(2).stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (choose.randrange(1, size + size // 4), limit[1]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(folder)
    except OSError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for step in Checkpoints(folder).steps():
        read_checkpoint(Checkpoints(folder).path(step))
    return None if run(folder) == never else "other bits"


def writers(folder: Path, choose: random.Random, never: str) -> str | None:
    """Return the failure as text, or None."""
    step = choose.randrange(STEPS)
    outcomes: list[str] = []

    def second(*_: Any) -> None:
        if len(outcomes) == step:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    run(folder, seed=2)
                except FolderInUse:
                    code = 0
                finally:
                    os._exit(code)
            outcomes.append("refused" if os.waitpid(pid, 0)[1] == 0 else "let in")
        else:
            outcomes.append("")

    objective = vae()
    objective.encoder.register_forward_pre_hook(second)
    fit(objective, rows(40), checkpoint_dir=folder, **SETTINGS)
    if outcomes[step] != "refused":
        return "a second writer was let in"
    return None if digest(objective) == never else "other bits"


def tried(what: Callable[..., str | None], times: int, seed: int, home: Path) -> dict[str, Any]:
    """Make the given tries; return a row of the table."""
    never = run()
    wrong: list[str] = []
    for number in range(times):
        try:
            failure = what(home / f"{what.__name__}-{number}", random.Random(f"{what.__name__} {seed} {number}"), never)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a failure, and the next try is made)
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            wrong.append(f"try {number}: {failure}")
    return {"what": what.__name__, "tries": times, "failures": len(wrong), "first failures": wrong[:5]}


def kills(times: int, seed: int, home: Path) -> dict[str, Any]:
    """Kill training runs the given number of times, five kills to an end; return a row of the table."""
    wrong: list[str] = []
    counts: dict[str, int] = {}
    done = 0
    for round_ in range(-(-times // 5)):
        for number, name in enumerate(KILLED):
            place = home / f"kills-{round_}"
            place.mkdir(exist_ok=True)
            failure = killed(name, place, number, 5, seed + round_)
            done += len(failure["ends"])
            for end in failure["ends"]:
                counts[end["at"]] = counts.get(end["at"], 0) + 1
            if failure["never"] != failure["resumed"]:
                wrong.append(f"{name}, seed {seed + round_}")
    return {"what": "kills", "tries": done, "failures": len(wrong), "first failures": wrong[:5], "ended at": counts}


def main() -> None:
    """Run all tries, print a line for each kind, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each of the three runs")
    for name, times in {"damage": 200, "signals": 30, "disks": 30, "writers": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=times)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "reliability-runs.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # nohup and shells in the background have signals ignored, and what is ignored does not interrupt a run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    begun = time.perf_counter()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        # Lives are forked: they come first, while this process has computed nothing.
        table.append(kills(chosen.kills, chosen.seed, Path(folder)))
        print(json.dumps(table[-1]), flush=True)
        for what in (damage, signals, disks, writers):
            table.append(tried(what, getattr(chosen, what.__name__), chosen.seed, Path(folder)))
            print(json.dumps(table[-1]), flush=True)
    times = " ".join(f"--{name} {getattr(chosen, name)}" for name in ("kills", "damage", "signals", "disks", "writers"))
    record = {
        "command": f"python -m tools.fuzz.runs {times} --seed {chosen.seed}",
        "seed": chosen.seed,
        "duration": round(time.perf_counter() - begun, 1),
        "versions": versions(),
        "attacks": table,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if any(row["failures"] for row in table):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
