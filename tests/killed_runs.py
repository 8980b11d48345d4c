"""Runs that are killed with SIGKILL at random moments and resumed, each life in a process of its own.

Importing torch takes longer than a life, so lives are forked from this process, which has imported all and computed
nothing.
Called with a folder; prints, as JSON, the digest of the run never killed, that of the resumed run, and the kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import lightning_fabric  # noqa: F401
import torch
import torch._dynamo

from fvnce.training import fit
from fvnce.training.checkpoint import Checkpoints
from training_runs import KILLED, digest


def live(name: str, folder: Path, result: Path) -> None:
    """One life: resume, and if it lives to the end, leave the result."""
    torch.set_num_threads(1)
    objective, data, settings = KILLED[name](folder.parent)
    history = fit(objective, data, seed=5, checkpoint_dir=folder, resume=True, progress=False, **settings)
    found = {"digest": digest(objective), "losses": history.steps["loss"], "epochs": history["loss"]}
    hidden = result.with_suffix(".hidden")
    hidden.write_text(json.dumps(found))
    hidden.replace(result)


def start(name: str, folder: Path, result: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            live(name, folder, result)
            code = 0
        finally:
            os._exit(code)
    return pid


def until_done(name: str, folder: Path, kills: int) -> tuple[dict[str, object], list[int]]:
    """Kill that many lives, then let one live to its end; also tells which step each had saved when it died."""
    result = folder.with_suffix(".json")
    clock = random.Random(name)
    saved: list[int] = []
    longest = 0.4
    while len(saved) < kills:
        pid = start(name, folder, result)
        time.sleep(clock.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            saved.append(max(Checkpoints(folder).steps(), default=0))
        elif os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"{name}: a resumed run failed")
        if result.exists():
            # It outran the clock: from the start again, and shorter lives.
            result.unlink()
            for path in folder.iterdir():
                path.unlink()
            longest *= 0.7
    pid = start(name, folder, result)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(f"{name}: a resumed run failed")
    return json.loads(result.read_text()), saved


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    home = Path(sys.argv[1])
    for number, name in enumerate(KILLED):
        reference, _ = until_done(name, home / f"never-{number}", 0)
        resumed, saved = until_done(name, home / f"killed-{number}", int(sys.argv[2]))
        print(json.dumps({"name": name, "never": reference, "resumed": resumed, "saved": saved}), flush=True)


if __name__ == "__main__":
    main()
