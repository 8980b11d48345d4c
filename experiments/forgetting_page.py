"""The page of forgetting: every class in turn, beside the obvious ways to forget it; from ``results/forgetting``."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

OPENING = """# Forgetting, measured

Made from `results/forgetting` by `make pages`. An autoencoder is trained on all classes and is to rebuild one of them
badly, with the log-scale found from a budget of {budget} times the error of a VAE
([theory](theory/unnormalised.md#a-log-scale-from-a-budget)). Each pair of numbers is the AUROC with which the squared
error tells the class from the rest on test images, and the error of the rest over the VAE's. *Without* is the VAE
retrained without the class; *ascent* is gradient ascent on examples of the class, stopped where the median error of the
training data has reached the same budget.

`{command}`, {settings}
"""

WAYS = ("vae", "auto", "without", "ascent")
NAMES = {"mnist": "MNIST, 10,000 training images", "fashion": "Fashion-MNIST, its test set in halves"}


def page(results: Path) -> str:
    """The page, from what is in a folder of results."""
    record: dict[str, Any] = json.loads((results / "forgetting.json").read_text("utf-8"))
    settings = ", ".join(f"{name} = {value}" for name, value in record["settings"].items())
    parts = [OPENING.format(budget=record["settings"]["budget"], command=record["command"], settings=settings)]
    for data, title in NAMES.items():
        lines = [line for line in record["summary"] if line["data"] == data]
        if lines:
            parts.append(f"## {title}\n\n{_table(lines)}\n{_reading(lines, record['settings']['budget'])}\n")
    tempering = results / "tempering.json"
    if tempering.exists():
        parts.append(_tempering(json.loads(tempering.read_text("utf-8"))))
    adaptive = results / "adaptive-noise.json"
    if adaptive.exists():
        parts.append(_adaptive(json.loads(adaptive.read_text("utf-8"))))
    return "\n".join(parts)


def _table(lines: list[dict[str, Any]]) -> str:
    head = ["forgotten", "seeds", "VAE", "budget", "its error over the VAE's", "without", "ascent"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        vae, auto, without, ascent = (
            f"{line[way]['auroc']:.3f} / {line[way]['rest']:.2f}" if way in line else "" for way in WAYS
        )
        name = " and ".join(map(str, line["classes"]))
        forgotten = f"{line['auto']['forgotten']:.1f} ×"
        rows.append(f"| {name} | {line['auto']['seeds']} | {vae} | **{auto}** | {forgotten} | {without} | {ascent} |")
    return "\n".join(rows) + "\n"


def _reading(lines: list[dict[str, Any]], budget: float) -> str:
    told = sum(line["auto"]["auroc"] >= 0.99 for line in lines)
    kept = sum(line["auto"]["rest"] <= budget for line in lines)
    return (
        f"With the budget AUROC is at least 0.99 in {told} of {len(lines)}, and the rest within the budget in {kept}."
    )


def _tempering(record: dict[str, Any]) -> str:
    head = ["way", "noise alive", "samples that carry it", "σ", "error of '1's", "error of the rest", "AUROC of '1's"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for way, title in record["ways"].items():
        own = [cell for cell in record["cells"] if cell["way"] == way]

        def mean(name: str, digits: int, own: list[dict[str, Any]] = own) -> str:
            return f"{statistics.fmean(cell[name] for cell in own):.{digits}f}" if name in own[0] else ""

        columns = (("live_noise", 3), ("effective_samples", 1), ("scale", 3), ("ones", 2), ("others", 2), ("auroc", 3))
        rows.append(f"| {title} | {' | '.join(mean(*column) for column in columns)} |")
    seeds = len({cell["seed"] for cell in record["cells"]})
    return f"""## What does not work: the profiled form, tempered

The same task on scikit-learn's digits, means of {seeds} seeds, noise judged on 360 fresh samples. Where log Z is
profiled out one noise sample carries the noise term, and its gradient, another in every batch, spoils all digits alike.
A σ that is learnt does not temper the model: the data want it smaller, not larger, and Δ of noise falls all the more
steeply. Kernels of several widths add samples that are told apart at a glance, not ones that count.

{chr(10).join(rows)}

`{record["command"]}`
"""


def _adaptive(record: dict[str, Any]) -> str:
    noises = list(dict.fromkeys(cell["noise"] for cell in record["cells"]))
    rows = [f"| dimensions | {' | '.join(noises)} |", "|---" * (len(noises) + 1) + "|"]
    for dimensions in dict.fromkeys(cell["dimensions"] for cell in record["cells"]):
        shown = []
        for noise in noises:
            last = [c["course"][-1] for c in record["cells"] if (c["dimensions"], c["noise"]) == (dimensions, noise)]
            names = ("parameter_error", "log_z_error", "effective_samples", "seconds")
            error, log_z, carried, seconds = (statistics.fmean(abs(each[name]) for each in last) for name in names)
            shown.append(f"{error:.3f} / {log_z:.2f} / {carried:.0f} / {seconds:.1f}")
        rows.append(f"| {dimensions} | {' | '.join(shown)} |")
    best = ", ".join(f"{name} in {' and '.join(map(str, where))}" for name, where in _best(record).items())
    settings = record["settings"]
    return f"""## Noise that is refitted

Independent components, p⁰(x) = Π sech(b_k·x), whose log Z is known, from {settings["rows"]:,} rows in
{settings["epochs"]} epochs with the profiled (0, 0), training begun {settings["off"]:.0%} off the truth: relative error
of the parameters / error of log Z in nats / effective samples of 5,000 that carry log Z / seconds of one processor
core, fits of the noise included. The courses over steps and seconds are in the file.

{chr(10).join(rows)}

The smallest parameter error: {best} dimensions.

`{record["command"]}`
"""


def _best(record: dict[str, Any]) -> dict[str, list[int]]:
    """The dimensions in which each noise has the smallest mean error of the parameters."""
    errors: dict[int, dict[str, list[float]]] = {}
    for cell in record["cells"]:
        own = errors.setdefault(cell["dimensions"], {}).setdefault(cell["noise"], [])
        own.append(cell["course"][-1]["parameter_error"])
    found: dict[str, list[int]] = {}
    for dimensions, by_noise in errors.items():
        name = min(by_noise, key=lambda noise, means=by_noise: statistics.fmean(means[noise]))  # type: ignore[misc]
        found.setdefault(name, []).append(dimensions)
    return found
