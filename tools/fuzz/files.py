"""Fuzzing of saved files: count tries and failures. Writes results/bench/reliability-flips.json.

    python -m tools.fuzz.files --flips 400 --cuts 40 --mutants 400

One small file of every kind that the package writes is changed and read again. What must hold:

    flips     one byte is exchanged for another: the file is refused, or what is read is the same (a blank, or
              a last digit that no float64 can tell apart)
    cuts      the end is cut off: the file is refused
    mutants   a record whose checksum is right and whose content is not: one to three values are removed, exchanged or
              replaced. It is refused in one sentence, or read
    bombs     a record of a few hundred bytes that names layers of gigabytes: refused before memory is taken
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import fvnce  # noqa: E402
from damaged_files import BOMBS, KINDS, bomb, make_files, mutate  # noqa: E402
from fvnce.io import FileError, read_record, write_record  # noqa: E402
from fvnce.training.checkpoint import versions  # noqa: E402

#: What a bomb may add to the memory of the process, in bytes: the allowance and what Python itself takes.
ROOM = 512 * 2**20


def damaged(what: str, kind: str, path: Path, read: Callable[[Path], Any], times: int, seed: int) -> dict[str, Any]:
    """Read files with a byte exchanged, or with an end cut off; return a row of the table."""
    data, intact = path.read_bytes(), read(path)
    generator = random.Random(f"{what} {kind} {seed}")
    broken = path.with_name("broken")
    same, wrong = 0, []
    for _ in range(times):
        place = generator.randrange(len(data) - 1)
        end = bytes([data[place] ^ generator.randrange(1, 256)]) + data[place + 1 :] if what == "flips" else b""
        broken.write_bytes(data[:place] + end)
        try:
            content = read(broken)
        except FileError:
            continue
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a failure, and the next try is made)
            wrong.append(f"byte {place}: {type(error).__name__}: {error}")
            continue
        if content == intact and what == "flips":
            same += 1
        else:
            wrong.append(f"byte {place}: not noticed")
    return _row(what, kind, times, wrong) | {"harmless": same}


def mutants(kind: str, name: str, path: Path, read: Callable[[Path], Any], times: int, seed: int) -> dict[str, Any]:
    """Read records with a right checksum and a wrong content; return a row of the table."""
    content, tensors = read_record(path, name)
    generator = random.Random(f"mutants {kind} {seed}")
    place = path.with_name("noise.safetensors") if kind == "noise" else path.with_name("mutant")
    refused, wrong = 0, []
    for number in range(times):
        write_record(place, name, mutate(content, generator), tensors)
        try:
            read(place)
        except ValueError as error:
            refused += 1
            if not str(error) or "\n" in str(error):
                wrong.append(f"try {number}: {error!r}")
        except Exception as error:  # noqa: BLE001 (as above)
            wrong.append(f"try {number}: {type(error).__name__}: {error}")
    return _row("mutants", kind, times, wrong) | {"refused": refused}


def bombs(folder: Path) -> dict[str, Any]:
    """Read small records that name huge layers; return a row of the table."""
    wrong = []
    most = 0
    for name in BOMBS:
        content, tensors = bomb(name)
        path = folder / "bomb.safetensors"
        write_record(path, "objective", {"module": content}, tensors)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            fvnce.load(path)
            wrong.append(f"{name}: loaded")
        except FileError:
            pass
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        most = max(most, taken)
        if taken > ROOM:
            wrong.append(f"{name}: {taken:,} bytes")
    return _row("bombs", "an objective", len(BOMBS), wrong) | {"most bytes": most}


def _row(what: str, kind: str, tries: int, wrong: list[str]) -> dict[str, Any]:
    return {"what": what, "of": kind, "tries": tries, "failures": len(wrong), "first failures": wrong[:5]}


def main() -> None:
    """Run all tries, print a line for each kind, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, times in {"flips": 400, "cuts": 40, "mutants": 400}.items():
        parser.add_argument(f"--{name}", type=int, default=times, help="of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "reliability-flips.json")
    chosen = parser.parse_args()
    begun = time.perf_counter()
    table: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        table.append(row)
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that another version wrote a file
        tell(bombs(Path(home)))
        files = make_files(Path(home))
        for kind, (path, read, load) in files.items():
            tell(damaged("flips", kind, path, read, chosen.flips, chosen.seed))
            tell(damaged("cuts", kind, path, read, chosen.cuts, chosen.seed))
            tell(mutants(kind, KINDS[kind], path, load, chosen.mutants, chosen.seed))
    times = " ".join(f"--{name} {getattr(chosen, name)}" for name in ("flips", "cuts", "mutants"))
    record = {
        "command": f"python -m tools.fuzz.files {times} --seed {chosen.seed}",
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
