"""Runs that are killed by what they have done and resumed, each life in a process of its own.

A life ends by SIGKILL at its n-th evaluation of the objective, or when it is about to open, rename or remove its n-th
file in the folder of the run; or the kernel ends it inside a write, after so many bytes. No clock has a say: what dies
where follows from the seed alone.

Importing torch takes longer than a life, so lives are forked from this process, which has imported all and computed
nothing.
Called with (folder, kills of each run, seed); prints, as JSON, what the run never killed found, what the resumed run
found, and how each life ended.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401
import torch
import torch._dynamo

from fvnce.training import fit
from fvnce.training.checkpoint import Checkpoints
from training_runs import KILLED, digest

#: Audit events of Python, by which a file in the folder of the run is touched.
FILES = ("open", "os.rename", "os.remove")


@dataclass(frozen=True)
class Death:
    """How a life ends: at its ``number``-th evaluation or file, or ``share`` of the way through a write."""

    at: str
    number: int
    share: float = 0.0


def counting(folder: Path, at: str, act: Callable[[int, Path], None]) -> None:
    """Call ``act`` with (how many, which) at each file that is about to be touched ("file") or written ("write")."""
    count = 0

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in FILES or not isinstance(arguments[0], str | Path) or Path(arguments[0]).parent != folder:
            return
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        # The lock is opened first and removed last; what is read need not be counted.
        if (event == "open" and not written) or (at == "write" and not written):
            return
        count += 1
        act(count, Path(arguments[0]))

    sys.addaudithook(hear)


def die_as(death: Death, folder: Path, objective: torch.nn.Module, size: int) -> None:
    """Arrange for this process to die."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if death.at == "evaluation":
        left = [death.number]

        def evaluate(*_: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                kill()

        objective.encoder.register_forward_pre_hook(evaluate)  # type: ignore[union-attr, operator]
    elif death.at == "file":
        counting(folder, "file", lambda number, _: kill() if number == death.number else None)
    else:
        # The kernel lets nothing be written beyond the limit, and ends whoever tries.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

        def limit(number: int, _: Path) -> None:
            if number == death.number:
                most = max(1, int(death.share * size))
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        counting(folder, "write", limit)


def live(name: str, folder: Path, result: Path, death: Death | None, size: int) -> None:
    """One life: resume, and if it lives to the end, leave the result."""
    torch.set_num_threads(1)
    objective, data, settings = KILLED[name](folder.parent)
    counts = {"evaluation": 0, "file": 0, "write": 0}
    if death is not None:
        die_as(death, folder, objective, size)
    else:
        for kind in ("file", "write"):
            counting(folder, kind, lambda number, _, kind=kind: counts.update({kind: number}))  # type: ignore[misc]
    history = fit(objective, data, seed=5, checkpoint_dir=folder, resume=True, progress=False, **settings)
    counts["evaluation"] = len(history.steps)
    found = {"digest": digest(objective), "losses": history.steps["loss"], "epochs": history["loss"]}
    hidden = result.with_suffix(".hidden")
    hidden.write_text(json.dumps({"found": found, "counts": counts}))
    hidden.replace(result)


def life(name: str, folder: Path, death: Death | None = None, size: int = 0) -> tuple[int, dict[str, Any] | None]:
    """(status, result) of one life; a life that fails ends everything."""
    result = folder.with_suffix(".json")
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            live(name, folder, result, death, size)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"{name}: a life failed that was to end by {death}")
    return status, json.loads(result.read_text()) if result.exists() else None


def killed(name: str, home: Path, number: int, kills: int, seed: int) -> dict[str, Any]:
    """A run never killed, and one that is killed so many times and then lives to its end."""
    _, never = life(name, home / f"never-{number}")
    assert never is not None
    size = max(path.stat().st_size for path in (home / f"never-{number}").iterdir())
    choose = random.Random(f"{name} {seed}")
    folder = home / f"killed-{number}"
    ends: list[dict[str, Any]] = []
    while len(ends) < kills:
        at = choose.choice(("evaluation", "file", "write"))
        # A few lives take the run to its end.
        most = max(2, 2 * never["counts"][at] // 3)
        death = Death(at, choose.randint(1, most), choose.random())
        status, _ = life(name, folder, death, size)
        if os.WIFSIGNALED(status):
            saved = max(Checkpoints(folder).steps(), default=0)
            ends.append({"at": at, "number": death.number, "signal": os.WTERMSIG(status), "saved": saved})
        else:  # it came to its end first: from the start again
            for path in folder.iterdir():
                path.unlink()
    _, resumed = life(name, folder)
    assert resumed is not None
    return {"name": name, "never": never["found"], "resumed": resumed["found"], "ends": ends}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    home = Path(sys.argv[1])
    for number, name in enumerate(KILLED):
        print(json.dumps(killed(name, home, number, int(sys.argv[2]), int(sys.argv[3]))), flush=True)


if __name__ == "__main__":
    main()
