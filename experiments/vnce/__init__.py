"""The problems of the variational NCE paper, and their shared command line and form of results.

=====================  ========================================================================
``mixture``            an unnormalized mixture of Gaussians; ``mixture_theory`` by quadrature
``boltzmann``          a Boltzmann machine; ``boltzmann_estimates`` has every estimate of it
``posterior``          stars and moons: learned posteriors against the true ones
``missing``            missing values in the model of ``truncated_normal``
``toys``               energies in the plane for the data of ``densities``
``estimation``         estimates of many data sets at once, with their covariance
=====================  ========================================================================
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from fvnce.io import write_text
from fvnce.paper.cells import made_by, one_thread
from fvnce.paper.setting import Options, Result


def main(run: Callable[[Path, Options], Result], description: str | None) -> None:
    """Run a problem from the command line: print tables to standard error and paths of files to standard output."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="the folder to write into")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to see that everything runs")
    parser.add_argument("--epochs", type=int, default=None, help="epochs, if not the problem's own")
    given = parser.parse_args()
    if given.epochs is not None and given.epochs < 1:
        parser.error(f"argument --epochs: must be at least 1, found {given.epochs}")
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"argument --out: must be a folder, {str(given.out)!r} is a file")
    with one_thread():  # networks this small are not worth sharing between threads
        result = run(given.out, Options(epochs=given.epochs, quick=given.quick))
    for table in result.tables:
        print(f"\n{table.caption}\n\n{table.markdown()}\n", file=sys.stderr)
    print(*result.reading, sep="\n", file=sys.stderr, flush=True)
    for path in result.files:
        print(path)


def write_results(
    out: Path, item: str, options: Options, settings: Mapping[str, object], seconds: float, results: Mapping[str, Any]
) -> Path:
    """``item.json`` in ``out``: the command, the settings with the seed, the seconds, and what came out.

    ``seconds`` are those of the clock; ``processor_seconds`` those the process has computed since it began, which
    a busy machine does not change.
    """
    command = f"python -m experiments.{item.replace('-', '.')}{' --quick' * options.quick}"
    if options.epochs is not None:
        command += f" --epochs {options.epochs}"
    content = {
        **made_by(command),
        "settings": dict(settings),
        "seconds": round(seconds, 1),
        "processor_seconds": round(time.process_time(), 1),
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "results": dict(results),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{item}.json"
    write_text(path, json.dumps(_plain(content), indent=1, allow_nan=False) + "\n")
    return path


def lbfgs(loss: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int = 300) -> None:
    """Minimize a smooth deterministic loss in place."""
    optimiser = torch.optim.LBFGS(
        list(parameters), max_iter=steps, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)


def _plain(value: object) -> object:
    """Convert for JSON: infinite and undefined numbers become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def name_curves(axes: Axes, *, size: float = 7.5) -> None:
    """Name each labeled curve at its right end, with a sample of its dash and a hairline that leads to it.

    Names that would overlap are pushed apart; the dash tells curves apart where colors cannot.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # places are known once everything has been laid out
    ends = []
    for line in axes.get_lines():
        y = np.asarray(line.get_ydata(), dtype=float)
        seen = np.flatnonzero(np.isfinite(y))
        if len(seen) and not str(line.get_label()).startswith("_"):
            x = float(np.asarray(line.get_xdata(), dtype=float)[seen[-1]])
            ends.append((*axes.transAxes.inverted().transform(axes.transData.transform((x, y[seen[-1]]))), line))
    ends.sort(key=lambda end: end[1])
    step = 1.4 * size / 72 / (axes.get_window_extent().height / figure.dpi)
    heights = np.array([height for _, height, _ in ends])
    for _ in range(200):  # neighbours that are too near push one another apart, within the axes
        short = np.maximum(step - np.diff(heights), 0.0) / 2
        heights = np.clip(heights - np.append(short, 0.0) + np.append(0.0, short), step / 2, 1 - step / 2)
    for height, (x, y, line) in zip(heights, ends, strict=True):
        leader, dash = Line2D([x + 0.01, 1.06], [y, height]), Line2D([1.07, 1.19], [height, height])
        dash.update_from(line)
        leader.set(color="0.75", linewidth=0.5)
        for drawn in (leader, dash):
            drawn.set(transform=axes.transAxes, clip_on=False, marker="")
            axes.add_artist(drawn)
        axes.text(1.22, height, str(line.get_label()), fontsize=size, va="center", transform=axes.transAxes)
