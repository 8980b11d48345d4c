"""results/forgetting/README.md: every class in turn, compared with the obvious ways to forget it; noise that learns."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

OPENING = """# Forgetting, measured

Made from `results/forgetting` by `make pages`. An autoencoder is trained on all classes and is to rebuild one of them
badly, with the log-scale found from a budget of {budget} times the error of a VAE
([theory](../../docs/theory/objectives.md#a-log-scale-from-a-budget)). Each pair of numbers is the AUROC with which the
squared error tells the class from the rest on test images, and the error of the rest over the VAE's. *Without* is the
VAE retrained without the class; *ascent* is gradient ascent on examples of the class, stopped where the median error of
the training data has reached the same budget.

`{command}`, {settings}
"""

WAYS = ("vae", "auto", "without", "ascent")
NAMES = {"mnist": "MNIST, 10,000 training images", "fashion": "Fashion-MNIST, its test set in halves"}


def page(results: Path) -> str:
    """Return the page, made from a folder of results."""
    record: dict[str, Any] = json.loads((results / "forgetting.json").read_text("utf-8"))
    settings = ", ".join(f"{name} = {value}" for name, value in record["settings"].items())
    parts = [OPENING.format(budget=record["settings"]["budget"], command=record["command"], settings=settings)]
    if "note" in record:
        parts.append(f"{record['note']}\n")
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
    contrastive = results / "flow-contrastive.json"
    if contrastive.exists():
        parts.append(_contrastive(json.loads(contrastive.read_text("utf-8"))))
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
    separated = sum(line["auto"]["auroc"] >= 0.99 for line in lines)
    kept = sum(line["auto"]["rest"] <= budget for line in lines)
    share = f"{separated} of {len(lines)}"
    return f"With the budget AUROC is at least 0.99 in {share}, and the rest within the budget in {kept}."


def _tempering(record: dict[str, Any]) -> str:
    head = ["way", "noise alive", "samples that carry it", "σ", "error of '1's", "error of the rest", "AUROC of '1's"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for way, title in record["ways"].items():
        cells = [cell for cell in record["cells"] if cell["way"] == way]

        def mean(name: str, digits: int, cells: list[dict[str, Any]] = cells) -> str:
            return f"{statistics.fmean(cell[name] for cell in cells):.{digits}f}" if name in cells[0] else ""

        columns = (("live_noise", 3), ("effective_samples", 1), ("scale", 3), ("ones", 2), ("others", 2), ("auroc", 3))
        rows.append(f"| {title} | {' | '.join(mean(*column) for column in columns)} |")
    seeds = len({cell["seed"] for cell in record["cells"]})
    return f"""## What does not work: the profiled form, tempered or bridged

The same task on scikit-learn's digits, means of {seeds} seeds, noise judged on 360 fresh samples. Where log Z is
profiled out, one noise sample carries the noise term, a different one in every batch, and its gradient spoils all
digits. A learned σ does not temper the model: the data term makes it smaller, not larger, and Δ of noise falls even
more steeply. Kernels of several widths add samples that are easily distinguished from data and therefore do not count.

{_bridges(record)}

{chr(10).join(rows)}

`{record["command"]}`
"""


def _bridges(record: dict[str, Any]) -> str:
    """What the bridges show, with the means over seeds and both kinds of the median bridge and of the last."""
    bridged = [cell["bridges"] for cell in record["cells"] if "bridges" in cell]
    live = statistics.fmean(statistics.median(bridges["live_noise"][:-1]) for bridges in bridged)
    carried = statistics.fmean(statistics.median(bridges["effective_samples"][:-1]) for bridges in bridged)
    last = statistics.fmean(bridges["effective_samples"][-1] for bridges in bridged)
    levels = record["settings"]["levels"]
    ways: dict[str, list[float]] = {}
    for cell in record["cells"]:
        if "auroc_without" in cell:
            ways.setdefault(cell["way"], []).append(cell["auroc_without"])
    without = ", ".join(f"{statistics.fmean(aurocs):.2f} ({way})" for way, aurocs in ways.items())
    return f"""With bridges Δ is split among {levels} steps between data and noise, each a ratio of two densities of one
autoencoder that receives the level as input (`experiments/tempering.py`). Between levels the noise is live: in the
median bridge {live:.0%} of the samples contribute to the gradient and {carried:.0f} carry the noise term. Only the last
step, to the known density of the noise, stays dead ({last:.1f}; the table shows the worst bridge). But nothing is
forgotten, and the error of the other digits rises almost as much as without bridges: a ratio of two autoencoders does
not require either of them to reconstruct anything, and neighboring levels differ by how much of another image is
blended in, not necessarily by the digit. The '1's among the data are not the reason: without them, their AUROC is
{without}."""


PROBLEMS = {
    "the plane": (
        "An energy network, its log Z by a grid, for {rows_in_the_plane:,} rows of four densities in the plane; the "
        "error is KL(truth‖model) in nats."
    ),
    "components": (
        "Independent components, p⁰(x) = Π sech(b_k·x), whose log Z is known, from {rows:,} rows, training begun "
        "{off:.0%} off the truth; the error is that of B, relative to its size."
    ),
    "factors": (
        "Probabilistic PCA, x|z ~ N(Wz + b, σ²I), with a quarter as many factors as dimensions and the exact posterior "
        "for an encoder, log Z = 0, from {rows:,} rows, begun {off:.0%} off; the error is that of the covariance, "
        "relative to its size. Here noise may also be what the decoder makes of codes, with an exact density. The data "
        "are Gaussian themselves, and so the fixed Gaussian is at home."
    ),
}


def _adaptive(record: dict[str, Any]) -> str:
    settings = record["settings"]
    seeds = len({cell["seed"] for cell in record["cells"]})
    parts = [
        "## Noise that is refitted\n\n"
        f"The profiled (0, 0) with {settings['noise_samples']:.0f} noise samples a row, {settings['epochs']} epochs. "
        "Each entry: the error / the error of log Z in nats / effective samples of 5,000 that carry log Z / seconds "
        f"of one processor core, fits of the noise included; means of {seeds} seeds. The courses over steps and "
        "seconds are in the file.\n"
    ]
    never = {cell["noise"] for cell in record["cells"]}
    for kind, text in PROBLEMS.items():
        cells = [cell for cell in record["cells"] if _kind(cell) == kind]
        noises = list(dict.fromkeys(cell["noise"] for cell in cells))
        head = "density" if kind == "the plane" else "dimensions"
        known = ["maximum likelihood"] if "likelihood_error" in cells[0] else []
        rows = [f"| {' | '.join([head, *noises, *known])} |", "|---" * (len(noises) + len(known) + 1) + "|"]
        rows += [_adaptive_row(cells, where, noises) for where in dict.fromkeys(map(_where, cells))]
        best = _best(cells)
        never -= set(best)
        won = "; ".join(f"{noise}: {', '.join(where)}" for noise, where in best.items())
        table = "\n".join(rows)
        won += _of_decoded(cells)
        parts.append(f"### {kind.capitalize()}\n\n{text.format(**settings)}\n\n{table}\n\nThe smallest error: {won}.\n")
    if never:
        parts.append(f"Never the best: {', '.join(sorted(never))}.\n")
    return "\n".join([*parts, f"`{record['command']}`\n"])


def _of_decoded(cells: list[dict[str, Any]]) -> str:
    """Where noise that the decoder makes is better than other noise that is fitted to more than two moments."""
    errors = _errors(cells)
    others = ("kernel density", "flow", "flow, refitted")
    decoded = "decoded, kernels of codes"
    where = [
        place
        for place, by_noise in errors.items()
        if decoded in by_noise and by_noise[decoded] < min(map(by_noise.__getitem__, others))
    ]
    if not where:
        return ""
    text = "What the decoder makes of kernels of codes is nearer than kernels and flows in"
    return f". {text} {', '.join(where)} dimensions"


def _errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean error of each noise, by problem."""
    by_place: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        values = by_place.setdefault(_where(cell), {}).setdefault(cell["noise"], [])
        values.append(cell["course"][-1]["parameter_error"])
    return {place: {noise: statistics.fmean(values) for noise, values in by.items()} for place, by in by_place.items()}


def _kind(cell: dict[str, Any]) -> str:
    return cell["problem"] if cell["problem"] in PROBLEMS else "the plane"


def _where(cell: dict[str, Any]) -> str:
    return str(cell["dimensions"]) if cell["problem"] in PROBLEMS else str(cell["problem"])


def _adaptive_row(cells: list[dict[str, Any]], where: str, noises: list[str]) -> str:
    shown = []
    for noise in noises:
        last = [cell["course"][-1] for cell in cells if (_where(cell), cell["noise"]) == (where, noise)]
        names = ("parameter_error", "log_z_error", "effective_samples", "seconds")
        error, log_z, carried, seconds = (statistics.fmean(abs(each[name]) for each in last) for name in names)
        shown.append(f"{error:.3f} / {log_z:.2f} / {carried:.0f} / {seconds:.1f}")
    known = [cell["likelihood_error"] for cell in cells if _where(cell) == where and "likelihood_error" in cell]
    if known:
        shown.append(f"{statistics.fmean(known):.3f}")
    return f"| {where} | {' | '.join(shown)} |"


def _best(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return where each noise has the smallest mean error."""
    places: dict[str, list[str]] = {}
    for where, errors in _errors(cells).items():
        places.setdefault(min(errors, key=errors.__getitem__), []).append(where)
    return places


METHODS = {
    "fixed": "fixed Gaussian",
    "flow": "flow, fitted first",
    "refitted": "flow, refitted",
    "against": "flow, trained against the model",
}
CONTRASTIVE = """## Noise that learns against the model

Flow-contrastive estimation (Gao et al. 2020) trains the noise, a flow, against an energy network; a flow may also be
fitted first, or fitted on after every other epoch (`RefitNoise`). NCE with a learned log Z, batches of {batch_size}
rows, equally many steps for all. An entry: the error after {first} → after {last} steps ± its standard error over
seeds, and the processor's seconds, fits of the noise included. The error is KL(truth‖model) in nats for
{rows[plane]:,} rows of four densities in the plane, and −E[log p_θ] on held-out rows of tables of KEEL (at most
{rows[tables]:,} to train on, standardized), with log Z by importance sampling from a mixture of the noise, a flow and a
Gaussian. *≥*: for some seed fewer than 100 effective samples carry log Z; then log Z is too small, and the model worse
than it looks. *The flow alone* is the density of the noise that was fitted first, without an energy.
"""


def _contrastive(record: dict[str, Any]) -> str:
    settings, cells = record["settings"], _complete(record["records"])
    errors, trusted = _final_errors(cells)
    head = ["problem", "columns", "seeds", *METHODS.values(), "the flow alone"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in dict.fromkeys(cell["problem"] for cell in cells):
        of = [cell for cell in cells if cell["problem"] == name]
        entries = []
        for method in METHODS:
            courses = [cell["course"] for cell in of if cell["method"] == method]
            first = f"{statistics.fmean(course[0]['error'] for course in courses):.2f}"
            first = first if all(map(_enough, (course[0] for course in courses))) else f"≥ {first}"
            last = _with_error(list(errors[name, method].values()))
            last = last if trusted[name, method] else f"≥ {last}"
            seconds = statistics.fmean(course[-1]["seconds"] for course in courses)
            entries.append(f"{first} → {last}, {seconds:.0f} s")
        alone = _with_error(list(errors[name, "alone"].values()))
        seeds = len({cell["seed"] for cell in of})
        rows.append(f"| {name} | {of[0]['columns']} | {seeds} | {' | '.join(entries)} | {alone} |")
    shown = settings | {"first": settings["steps"][0], "last": settings["steps"][-1]}
    version = f"version {record['version']}, commit {record['commit']}"
    made = f"`{record['command']}`, {version}, {record['processor_minutes']:.0f} minutes of a processor core"
    return "\n".join([CONTRASTIVE.format(**shown), *rows, "", *noises_compared(record), made, ""])


def noises_compared(record: dict[str, Any]) -> list[str]:
    """Return lines that say which noise is better where."""
    cells = _complete(record["records"])
    errors, trusted = _final_errors(cells)
    names = list(dict.fromkeys(cell["problem"] for cell in cells))
    pairs = ("against", "refitted"), ("against", "fixed"), ("refitted", "fixed")
    where = [
        f"* {METHODS[one]}, compared with {METHODS[other]}: {_compared(errors, trusted, names, one, other)}"
        for one, other in pairs
    ]
    alone = [name for name in names if all(_below(errors, name, "alone", method) for method in METHODS)]
    seconds = {key: statistics.fmean(values) for key, values in _seconds(cells).items()}
    cost = statistics.median(seconds[name, "against"] / seconds[name, "fixed"] for name in names)
    return [
        f"After {record['settings']['steps'][-1]:,} steps, counting differences between equal seeds of more than two "
        "standard errors (with so few seeds a weak",
        "criterion), and no model as better whose log Z is not to be trusted:",
        "",
        *where,
        "",
        f"The flow alone is nearer to the data than every energy on {_listed(alone)}. Training against the model takes "
        f"{cost:.0f} times as long as a fixed Gaussian (median).",
        "",
    ]


def _complete(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of problems and seeds for which no method is missing."""
    have: dict[tuple[str, int], set[str]] = {}
    for cell in cells:
        have.setdefault((cell["problem"], cell["seed"]), set()).add(cell["method"])
    return [cell for cell in cells if have[cell["problem"], cell["seed"]] == set(METHODS)]


def _seconds(cells: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    seconds: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        seconds.setdefault((cell["problem"], cell["method"]), []).append(cell["course"][-1]["seconds"])
    return seconds


def _enough(point: dict[str, float]) -> bool:
    """Return whether log Z is to be trusted, which a grid always is."""
    return point.get("effective_samples", 100) >= 100


def _final_errors(
    cells: list[dict[str, Any]],
) -> tuple[dict[tuple[str, str], dict[int, float]], dict[tuple[str, str], bool]]:
    """Return the last errors by problem, method and seed, the flow alone among the methods, and which log Z to trust.

    Both estimates of log Z tend to be too small, so where samples are too few the larger one counts.
    """
    errors: dict[tuple[str, str], dict[int, float]] = {}
    trusted: dict[tuple[str, str], bool] = {}
    for cell in cells:
        last, key = cell["course"][-1], (cell["problem"], cell["method"])
        trusted[key] = trusted.get(key, True) and _enough(last)
        error = last["error"] + (0.0 if _enough(last) else max(0.0, last["annealed_minus_log_z"]))
        errors.setdefault(key, {})[cell["seed"]] = error
        if cell["method"] == "flow":
            errors.setdefault((cell["problem"], "alone"), {})[cell["seed"]] = last["noise_error"]
    return errors, trusted


def _with_error(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2f}"


def _below(errors: dict[tuple[str, str], dict[int, float]], name: str, one: str, other: str) -> bool:
    """Return whether one error is below the other by more than two standard errors over common seeds."""
    first, second = errors.get((name, one), {}), errors.get((name, other), {})
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    if len(differences) < 2:
        return False
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return bool(statistics.fmean(differences) < -2 * error)


def _compared(errors: Any, trusted: dict[tuple[str, str], bool], names: list[str], one: str, other: str) -> str:
    better = [name for name in names if trusted[name, one] and _below(errors, name, one, other)]
    worse = [name for name in names if trusted[name, other] and _below(errors, name, other, one)]
    rest = [name for name in names if name not in better + worse]
    return f"better on {_listed(better)}; worse on {_listed(worse)}; undecided on {_listed(rest)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
