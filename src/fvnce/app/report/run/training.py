"""Curves of training: losses, live noise and effective samples."""

from __future__ import annotations

from typing import Any

from ....pages.charts import Chart, line_chart
from ....pages.page import Section
from .blocks import grid


def training_section(facts: dict[str, Any], figures: list[Chart]) -> Section:
    """Losses, and how much of the noise can be felt."""
    histories = [h for h in facts["histories"] if h["epochs"] or h["steps"]]
    if not histories:
        return Section(
            "Training", ["This detector is made of forests, which are grown and not trained: there is no curve."]
        )
    charts = []
    for history in histories[:4]:
        epochs, steps = history["epochs"], history["steps"]
        name = history["name"].replace(" ", "-")
        who = history["name"] if any(c.isdigit() for c in history["name"]) else f"the {history['name']}"
        if len(epochs.get("epoch", [])) > 1 or "step" not in steps:
            at, losses = epochs["epoch"], {k: epochs[k] for k in ("loss", "val_loss") if k in epochs}
            axis = "epoch"
        else:
            at, losses, axis = steps["step"], {"loss": steps["loss"]}, "step"
        charts.append(
            line_chart(
                f"loss-{name}",
                at,
                {{"loss": "loss", "val_loss": "held-out loss"}[k]: v for k, v in losses.items()},
                labels=(axis, "loss −J, nats"),
                caption=f"Loss of {who}.",
                alt=f"Training curve of {who}, {_course(losses['loss'])}",
            )
        )
        source, axis = (steps, "step") if _holds(steps, "live_noise") else (epochs, "epoch")
        shares = {
            label: source[key]
            for key, label in (
                ("live_noise", "live noise"),
                ("ess_noise", "effective noise"),
                ("ess_data", "effective data"),
            )
            if _holds(source, key)
        }
        if shares:
            at, shares = _dense(source[axis], shares)
            charts.append(
                line_chart(
                    f"noise-{name}",
                    at,
                    shares,
                    labels=(axis, "share of samples"),
                    range_y=(0.0, 1.05),
                    caption=f"How much of the noise {who} can feel, and how many samples count.",
                    alt="Shares of live noise and of effective samples over training",
                )
            )
    figures += charts
    reading = list(facts["advice"]) and [f"Advice: {sentence}." for sentence in facts["advice"]]
    if not any(chart.name.startswith("noise-") for chart in charts):
        reading = [*reading, "There is no noise in this training, so no share of it that is alive."]
    if len(histories) > 4:
        reading = [*reading, f"Of {len(histories)} networks the first four are shown; history.json has all."]
    return Section("Training", reading, blocks=[grid(charts)])


def _holds(table: dict[str, Any], key: str) -> bool:
    return any(value is not None for value in table.get(key, []))


def _dense(at: list[Any], curves: dict[str, list[Any]]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Without the steps that were not logged."""
    kept = [i for i in range(len(at)) if any(values[i] is not None for values in curves.values())]
    return [at[i] for i in kept], {name: [values[i] for i in kept] for name, values in curves.items()}


def _course(values: list[float | None]) -> str:
    there = [v for v in values if v is not None]
    return f"from {there[0]:.4g} to {there[-1]:.4g}" if there else "empty"
