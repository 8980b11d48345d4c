"""Sections of what training reached: curves of losses and live noise, and data against noise.

Data against noise are log-ratios Δ of both, the classifier σ(Δ) with its calibration, and log Z.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...detection import LatentDetector
from ...diagnostics import diagnose
from ...noise import draw
from ...pages.charts import histogram_chart, line_chart
from ...pages.page import Section
from ...training import History
from .. import shapes
from .context import Context, histogram, short

#: Points of a curve.
CURVE = 300
#: What a history tells of noise, in words.
SHARES = {"live_noise": "live noise", "ess_noise": "effective noise", "ess_data": "effective data"}


def _curves(axis: str) -> shapes.Shape:
    def check(value: Any, place: str) -> None:
        shapes.by_name(shapes.gaps)(value, place)
        if value and not {axis, "loss"} <= set(value):
            raise shapes.ShapeError(f"{place} must be empty or have entries {axis!r} and 'loss'")
        if len({len(column) for column in value.values()}) > 1:
            raise shapes.ShapeError(f"the lists of {place} must be equally long")

    return check


_ENTRIES = shapes.record(
    {
        "histories": shapes.list_of(
            shapes.record(
                {
                    # It becomes part of the name of a file.
                    "name": shapes.matching(r"[\w -]{1,60}", "a name of letters, digits, - and _"),
                    "epochs": _curves("epoch"),
                    "steps": _curves("step"),
                }
            )
        ),
        "ratios": shapes.or_why(shapes.both(shapes.histogram, shapes.record({"log_scale": shapes.reported}))),
        "reliability": shapes.or_why(
            shapes.alike(
                dict.fromkeys(("predicted", "observed"), shapes.gaps),
                dict.fromkeys(("error", "log_loss"), shapes.reported),
            )
        ),
        "log_partition": shapes.or_why(shapes.record(dict.fromkeys(("value", "error", "log_scale"), shapes.reported))),
        "advice": shapes.names,
    }
)


def check(content: Any, place: str) -> None:
    """Of data against noise either all is there, or a sentence in place of each."""
    _ENTRIES(content, place)
    if len({isinstance(content[name], str) for name in ("ratios", "reliability", "log_partition")}) > 1:
        raise shapes.ShapeError("ratios, reliability and log_partition must all be there, or all be sentences")


def build(context: Context) -> dict[str, Any]:
    """The history of each network, thinned; log-ratios, calibration and log Z, on held-out rows and fresh noise."""
    return {"histories": [_thinned(*named) for named in context.run.histories.items()], **_contrast(context)}


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """Losses, and how much of the noise can be felt; histograms of Δ, the reliability curve, log Z with its error."""
    # Forests are grown and not trained.
    histories = [h for h in facts["histories"] if h["epochs"] or h["steps"]]
    sections = [_show_training(histories, facts["advice"])] if histories else []
    return sections if isinstance(facts["ratios"], str) else [*sections, _show_contrast(facts)]


def _show_training(histories: list[dict[str, Any]], advice: list[str]) -> Section:
    charts = []
    for history in histories[:4]:
        epochs, steps = history["epochs"], history["steps"]
        name = history["name"].replace(" ", "-")
        who = history["name"] if any(c.isdigit() for c in history["name"]) else f"the {history['name']}"
        by_epoch = len(epochs.get("epoch", [])) > 1 or "step" not in steps
        source, axis = (epochs, "epoch") if by_epoch else (steps, "step")
        losses = {"loss": source["loss"]}
        if by_epoch and "val_loss" in epochs:
            losses["held-out loss"] = epochs["val_loss"]
        charts.append(
            line_chart(
                f"loss-{name}",
                source[axis],
                losses,
                labels=(axis, "loss −J, nats"),
                caption=f"Loss of {who}.",
                alt=f"Training curve of {who}, {_course(losses['loss'])}",
            )
        )
        source, axis = (steps, "step") if _holds(steps, "live_noise") else (epochs, "epoch")
        shares = {label: source[key] for key, label in SHARES.items() if _holds(source, key)}
        if shares:
            # Without the steps that were not logged.
            kept = [i for i, found in enumerate(zip(*shares.values(), strict=True)) if set(found) != {None}]
            charts.append(
                line_chart(
                    f"noise-{name}",
                    [source[axis][i] for i in kept],
                    {label: [values[i] for i in kept] for label, values in shares.items()},
                    labels=(axis, "share of samples"),
                    range_y=(0.0, 1.05),
                    caption=f"How much of the noise {who} can feel, and how many samples count.",
                    alt="Shares of live noise and of effective samples over training",
                )
            )
    # Remedies are marked, and stand below what they are for.
    reading = [f"{'' if sentence.startswith(('→', '·')) else 'Advice: '}{sentence}." for sentence in advice]
    if len(histories) > 4:
        reading.append(f"Of {len(histories)} networks the first four are shown; history.json has all.")
    return Section("Training", reading, charts=charts, appendix=True)


def _holds(table: dict[str, Any], key: str) -> bool:
    return any(value is not None for value in table.get(key, []))


def _course(values: list[float | None]) -> str:
    there = [v for v in values if v is not None]
    return f"from {there[0]:.4g} to {there[-1]:.4g}" if there else "empty"


def _thinned(name: str, history: History) -> dict[str, Any]:
    def thin(columns: dict[str, list[float]], wanted: tuple[str, ...], at: str) -> dict[str, list[float | None]]:
        if at not in columns:
            return {}
        step = max(1, math.ceil(len(columns[at]) / CURVE))
        return {
            key: [None if math.isnan(v) else float(f"{v:.6g}") for v in values[::step]]
            for key, values in columns.items()
            if key == at or key in wanted
        }

    every = history.to_dict()
    noise = (*SHARES, "zero_noise")
    return {
        "name": name,
        "epochs": thin(every["epochs"], ("loss", "val_loss", "val_live_noise", *noise), "epoch"),
        "steps": thin(every["steps"], ("loss", *noise), "step"),
        "notes": {key: value for key, value in history.notes.items() if isinstance(value, str | int | float)},
    }


def _contrast(context: Context) -> dict[str, Any]:
    detector, seed = context.run.detector, context.run.config.seed
    if not isinstance(detector, LatentDetector) or context.noise is None:
        why = (
            "This run has no noise: its objective is that of an autoencoder."
            if isinstance(detector, LatentDetector)
            else "A detector averages models of the ratio and keeps none of their noise; a run with --model latent has "
            "it."
        )
        return {"ratios": why, "reliability": why, "log_partition": why, "advice": []}
    objective = detector.objective_
    x = detector.held_out_[:2000].double()
    generator = torch.Generator().manual_seed(seed)
    found = diagnose(objective, x, samples=max(500, len(x)), latent_samples=32, generator=generator)
    noise = draw(objective.noise, 1000, generator).double()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # Codes are drawn here, and a page is the same whatever was drawn before.
        torch.default_generator.manual_seed(seed)
        scale = float(objective.terms(x, noise).statistics["log_scale"])
        ratios = {}
        for name, rows in (("held-out rows", x), ("noise", noise)):
            log_joint = objective.model.log_joint(rows, objective.encoder(rows).mean)
            ratios[name] = (log_joint - objective.noise.log_prob(rows)).numpy() - scale
    calibration = found.calibration
    return {
        "ratios": {**histogram(ratios), "log_scale": scale},
        "reliability": {
            "predicted": short(calibration.predicted.numpy()),
            "observed": short(calibration.observed.numpy()),
            "weight": short(calibration.weight.numpy()),
            "error": calibration.error,
            "log_loss": calibration.log_loss,
        },
        "log_partition": {
            "value": found.log_partition,
            "error": found.log_partition_error,
            "effective_samples": found.log_partition_samples,
            "trusted": found.log_partition_trusted,
            "log_scale": scale,
        },
        "advice": found.advice,
    }


def _show_contrast(facts: dict[str, Any]) -> Section:
    reliability, partition = facts["reliability"], facts["log_partition"]
    charts = [
        histogram_chart(
            "ratios",
            facts["ratios"]["edges"],
            facts["ratios"]["counts"],
            label="Δ = log p_θ/p_n",
            mark=(0.0, "Δ = 0"),
            caption="Log-ratios of held-out rows and of fresh noise, at the mean of the encoder.",
            alt="Histograms of the log-ratio for held-out rows and for noise",
        ),
        line_chart(
            "calibration",
            reliability["predicted"],
            {"observed": reliability["observed"]},
            labels=("predicted probability of data", "observed share of data"),
            range_x=(0.0, 1.0),
            range_y=(0.0, 1.05),
            diagonal=True,
            dots=True,
            caption="Is the implied classifier σ(Δ) calibrated? On the diagonal it would be.",
            alt=f"Reliability curve, calibration error {reliability['error']:.3f}",
        ),
    ]
    reading = [
        f"The classifier that tells rows from noise has a log loss of {reliability['log_loss']:.3g} nats and a "
        f"calibration error of {reliability['error']:.3g}.",
        f"log Z = {partition['value']:.3f} ± {partition['error']:.3f} (one standard error); the fitted log-scale is "
        f"{partition['log_scale']:.3f}.",
    ]
    if not partition.get("trusted", True):  # an entry that may be left out
        reading.append(
            f"Neither log Z nor its error is to be trusted: {partition['effective_samples']:.1f} effective samples "
            "carry them, and 100 are wanted. Both may be far too small."
        )
    return Section("Data against noise", reading, charts=charts, appendix=True)
