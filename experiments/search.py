"""Search over choices that the paper does not state: which setting comes closest to its table in all cells?

    python -m experiments.search --out out/search --json results/paper-mnist/search.json

Rounds on MNIST, each with one seed. ``screen`` starts from the setting ``BASE`` and changes one choice at a time,
on the smaller network and with few epochs. ``combine`` puts together, in every way, those changes that brought the
numbers closer. ``verify`` trains the best few for longer on both networks. ``decide`` trains the best two of these for
as long as the paper does, on the smaller network, unless the first is far ahead. No choice is made for a row by itself.

The distance to the paper is the root mean square, in nats, over the data and the noise column of all cells measured;
the data column is taken from training and from test images, as the paper does not say which it reports. Finished cells
are kept in ``--out``, so that the search can be stopped and taken up again. :mod:`experiments.search_deep` looks at the
cell that is then farthest from the paper.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fvnce import __version__
from fvnce.paper.cells import do_all, write_json
from fvnce.paper.datasets import fetch_mnist
from fvnce.paper.setting import Setting, make_pair
from fvnce.paper.table import Key, measure, missing, named, rows

Changes = dict[str, Any]

#: Where the search starts. Not the setting that it led to, so that running it again is the same search.
BASE = Setting()

#: One change at a time; where a change needs another, both.
CHANGES: tuple[Changes, ...] = (
    {"encoder": "gaussian"},
    {"code_activation": "relu"},
    {"code_activation": "decoder-relu"},
    {"output": "sigmoid"},
    {"init": "glorot"},
    {"init": "he"},
    {"pixels": "symmetric"},
    {"pixels": "standardised"},
    {"lr": 3e-4},
    {"lr": 3e-3},
    {"batch_size": 64},
    {"batch_size": 256},
    {"batch_size": 1000},
    {"centres": 10_000},
    {"centres": 1000},
)

#: How many times the winner's distance the next one's must be for longer training to be spared.
FAR_AHEAD = 1.4

#: Choices that are combined at most: 2^3 settings.
MOST_COMBINED = 3


@dataclass(frozen=True)
class Round:
    """Settings of one round of the search."""

    base: Setting
    name: str
    networks: tuple[tuple[int, ...], ...]
    rows: tuple[str, ...]
    epochs: int

    def setting(self, changes: Changes) -> Setting:
        """Return the setting with these changes, as measured in this round."""
        return replace(self.base, networks=self.networks, epochs=self.epochs, **changes)


def name_of(changes: Changes) -> str:
    """Return the name of a variant."""
    return ", ".join(f"{field} = {value}" for field, value in changes.items()) or "base"


def distance(setting: Setting, measured: Mapping[Key, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the distance of the cells from the paper's: root mean square over cells, in nats.

    ``train`` and ``test`` are over the data column, taken from these images, and the noise column together; the others
    are over one column alone.
    """
    paper = {row.name: row.paper for row in rows(setting)}
    errors: dict[str, list[float]] = {"train": [], "test": [], "noise": []}
    for (network, row, _), cell in measured.items():
        data, noise, _ = paper[row][NETWORKS.index(network)]
        for column, truth in (("train", data), ("test", data), ("noise", noise)):
            errors[column].append(cell[column] - truth)
    return {
        "train": _rms(errors["train"] + errors["noise"]),
        "test": _rms(errors["test"] + errors["noise"]),
        "train column": _rms(errors["train"]),
        "test column": _rms(errors["test"]),
        "noise column": _rms(errors["noise"]),
    }


def helpful(variants: Sequence[dict[str, Any]]) -> list[Changes]:
    """Return the best improvement of each choice over the base, best first."""
    base = next(variant for variant in variants if not variant["changes"])
    best: dict[str, tuple[float, Changes]] = {}
    for variant in variants:
        changes, gain = variant["changes"], _score(base) - _score(variant)
        if gain > 0:
            field = next(iter(changes))
            best[field] = max(best.get(field, (0.0, {})), (gain, changes), key=lambda pair: pair[0])
    return [changes for _, changes in sorted(best.values(), key=lambda pair: -pair[0])]


def combinations(parts: Sequence[Changes]) -> list[Changes]:
    """Return all combinations of two or more of the first few changes."""
    combined = []
    for size in range(2, MOST_COMBINED + 1):
        for chosen in itertools.combinations(parts[:MOST_COMBINED], size):
            merged = {field: value for changes in chosen for field, value in changes.items()}
            if merged.get("encoder") == "gaussian" and merged.get("code_activation") == "relu":
                merged["code_activation"] = "decoder-relu"
            if _possible(merged) and merged not in combined:
                combined.append(merged)
    return combined


def run_round(
    stage: Round, variants: Sequence[Changes], out: Path, jobs: int, *, before: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Measure every variant, all cells of all variants shared between the processes."""
    known = {str(variant["changes"]) for variant in before}
    variants = [changes for changes in variants if str(changes) not in known]
    pieces = []
    for changes in variants:
        setting = stage.setting(changes)
        keys = [(network, row, SEED) for network in stage.networks for row in stage.rows]
        for piece in missing(out, setting, keys):
            pieces.append(replace(piece, name=f"{stage.name}, {name_of(changes)}: {piece.name}"))
    do_all(pieces, jobs, _say)
    measured = [_variant(stage, changes, out) for changes in variants]
    measured.sort(key=_score)
    for variant in measured:
        _say(f"{variant['distance']['train']:8.1f} {variant['distance']['test']:8.1f}  {variant['name']}")
    return {
        "name": stage.name,
        "networks": [named(network) for network in stage.networks],
        "rows": list(stage.rows),
        "epochs": stage.epochs,
        "core_seconds": sum(variant["core_seconds"] for variant in measured),
        "variants": measured,
    }


def search(
    out: Path, *, epochs: int, verify_epochs: int, decide_epochs: int, jobs: int, rows_kept: int | None = None
) -> dict[str, Any]:
    """Run all rounds; return the results for JSON.

    Args:
        out: the folder of finished cells.
        epochs: of the first two rounds.
        verify_epochs: of the third.
        decide_epochs: of the last.
        jobs: processes of one thread each.
        rows_kept: training images, None for all; fewer only show that everything runs.
    """
    fetch_mnist(_say)
    few: Changes = {} if rows_kept is None else {"rows": rows_kept, "noise_samples": 256}
    base = replace(BASE, **few)
    # Two rows without a noise term, and the one that is hardest to train: under some settings it never starts.
    screen = Round(base, "screen", NETWORKS[:1], ("ae", "vae", "1-16"), epochs)
    first = run_round(screen, [{}, *CHANGES], out, jobs)
    parts = helpful(first["variants"])
    combine = replace(screen, name="combine")
    second = run_round(combine, combinations(parts), out, jobs, before=first["variants"])
    ranked = sorted(first["variants"] + second["variants"], key=_score)
    verify = Round(base, "verify", NETWORKS, ("ae", "vae", "1-64", "1-16"), verify_epochs)
    finalists = [variant["changes"] for variant in ranked[:3]]
    third = run_round(verify, [*finalists, *([] if {} in finalists else [{}])], out, jobs)
    rounds = [first, second, third]
    best, runner_up = third["variants"][:2]
    if _score(runner_up) < FAR_AHEAD * _score(best):
        decide = replace(verify, name="decide", networks=NETWORKS[:1], epochs=decide_epochs)
        rounds.append(run_round(decide, [best["changes"], runner_up["changes"]], out, jobs))
    chosen = rounds[-1]["variants"][0]
    return {
        "command": "python -m experiments.search " + " ".join(sys.argv[1:]),
        "version": __version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {jobs} processes of one thread",
        "seed": SEED,
        "base": asdict(base),
        "core_seconds": sum(stage["core_seconds"] for stage in rounds),
        "helpful": [name_of(changes) for changes in parts],
        "rounds": rounds,
        "chosen": {"name": chosen["name"], "changes": chosen["changes"]},
    }


NETWORKS = BASE.networks
SEED = 0


def _variant(stage: Round, changes: Changes, out: Path) -> dict[str, Any]:
    setting = stage.setting(changes)
    measured = measure(out, setting, SEED + 1, only=stage.rows)
    cells = [
        {"network": named(network), "row": row} | {name: cell[name] for name in ("train", "test", "noise", "seconds")}
        for (network, row, _), cell in measured.items()
    ]
    return {
        "name": name_of(changes),
        "changes": changes,
        "distance": distance(setting, measured),
        "core_seconds": sum(cell["seconds"] for cell in cells),
        "cells": cells,
    }


def _score(variant: dict[str, Any]) -> float:
    """Return the smaller of the distances with training and with test images."""
    score = min(variant["distance"]["train"], variant["distance"]["test"])
    return score if math.isfinite(score) else math.inf


def _rms(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def _possible(changes: Changes) -> bool:
    try:
        make_pair(replace(BASE, **changes), (4, 2, 4), 0)
    except ValueError:
        return False
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("out/search"), help="folder of finished cells")
    parser.add_argument("--json", type=Path, default=Path("results/paper-mnist/search.json"), help="file to write")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the first two rounds")
    parser.add_argument("--verify-epochs", type=int, default=15, help="epochs of the third round")
    parser.add_argument("--decide-epochs", type=int, default=100, help="epochs of the last round")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of one thread each")
    parser.add_argument("--rows", type=int, default=None, help="training images, to see that everything runs")
    given = parser.parse_args()
    record = search(
        given.out,
        epochs=given.epochs,
        verify_epochs=given.verify_epochs,
        decide_epochs=given.decide_epochs,
        jobs=given.jobs,
        rows_kept=given.rows,
    )
    _say(str(write_json(given.json, record)))


if __name__ == "__main__":
    main()
