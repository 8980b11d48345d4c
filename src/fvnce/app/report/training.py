"""The section of training: curves of losses, live noise and effective samples."""

from __future__ import annotations

import math
from typing import Any

from ...pages.charts import line_chart
from ...pages.page import Section
from ...training import History
from .. import shapes
from .context import Context

#: Points of a curve.
CURVE = 300


def _curves(axis: str) -> shapes.Shape:
    def check(value: Any, place: str) -> None:
        shapes.by_name(shapes.gaps)(value, place)
        if value and not {axis, "loss"} <= set(value):
            raise shapes.ShapeError(f"{place} must be empty or have entries {axis!r} and 'loss'")
        if len({len(column) for column in value.values()}) > 1:
            raise shapes.ShapeError(f"the lists of {place} must be equally long")

    return check


check = shapes.record(
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
    }
)


def build(context: Context) -> dict[str, Any]:
    """The history of each network, thinned."""
    return {"histories": [_thinned(*named) for named in context.run.histories.items()]}


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section | None:
    """Losses, and how much of the noise can be felt; None for forests, which are grown and not trained."""
    histories = [h for h in facts["histories"] if h["epochs"] or h["steps"]]
    if not histories:
        return None
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
    reading = [f"Advice: {sentence}." for sentence in facts["advice"]]
    if len(histories) > 4:
        reading.append(f"Of {len(histories)} networks the first four are shown; history.json has all.")
    return Section("Training", reading, charts=charts)


def _holds(table: dict[str, Any], key: str) -> bool:
    return any(value is not None for value in table.get(key, []))


def _dense(at: list[Any], curves: dict[str, list[Any]]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Without the steps that were not logged."""
    kept = [i for i in range(len(at)) if any(values[i] is not None for values in curves.values())]
    return [at[i] for i in kept], {name: [values[i] for i in kept] for name, values in curves.items()}


def _course(values: list[float | None]) -> str:
    there = [v for v in values if v is not None]
    return f"from {there[0]:.4g} to {there[-1]:.4g}" if there else "empty"


def _thinned(name: str, history: History) -> dict[str, Any]:
    """Losses, live noise and effective shares over steps and epochs, thinned."""

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
    noise = ("live_noise", "ess_noise", "ess_data", "zero_noise")
    return {
        "name": name,
        "epochs": thin(every["epochs"], ("loss", "val_loss", "val_live_noise", *noise), "epoch"),
        "steps": thin(every["steps"], ("loss", *noise), "step"),
        "notes": {key: value for key, value in history.notes.items() if isinstance(value, str | int | float)},
    }
