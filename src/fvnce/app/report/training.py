"""The section of what training reached: curves of losses and of live noise."""

from __future__ import annotations

import math
from typing import Any

from ...pages.charts import line_chart
from ...pages.page import Section
from ...training import History
from .context import Context

#: Points of a curve.
CURVE = 300
#: What a history tells of noise, in words.
SHARES = {"live_noise": "live noise", "ess_noise": "effective noise", "ess_data": "effective data"}


def build(context: Context) -> dict[str, Any]:
    """The history of each network, thinned."""
    histories = context.run.detector.history_
    return {"histories": [_thinned(f"network {i + 1}", history) for i, history in enumerate(histories)]}


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """Losses, and how much of the noise can be felt."""
    # Forests are grown and not trained.
    histories = [h for h in facts["histories"] if h["epochs"] or h["steps"]]
    if not histories:
        return []
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
    more = [f"Of {len(histories)} networks the first four are shown; history.json has all."]
    return [Section("Training", more if len(histories) > 4 else [], charts=charts, appendix=True)]


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
