"""The section of top anomalies: the strangest rows that are no known outliers, with what makes them strange."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...pages.escape import png_uri
from ...pages.page import Section, render
from .. import shapes
from ..runs.scoring import reasons_of
from .context import Context, take
from .images import grey_or_colour, png

#: Rows of the list.
TOP = 10


def _reason(value: Any, place: str) -> None:
    shapes.list_of(lambda value, place: None, length=2)(value, place)
    shapes.text(value[0], place)
    shapes.number(value[1], place)


def _anomaly(value: Any, place: str) -> None:
    shapes.record(
        {
            "name": shapes.text,
            "score": shapes.reported,
            "probability": shapes.or_none(shapes.reported),
            "reasons": shapes.list_of(_reason),
            "values": shapes.text,
        }
    )(value, place)
    if "picture" in value or "heat" in value:
        shapes.record({"picture": shapes.picture, "heat": shapes.picture})(value, place)


check = shapes.record({"top": shapes.list_of(_anomaly)})


def build(context: Context) -> dict[str, Any]:
    """The rows with the highest scores, highest first."""
    positions = np.flatnonzero(~context.known)
    positions = positions[np.argsort(-context.anomaly[positions], kind="stable")[:TOP]]
    part = take(context.rows, positions)
    scorer = context.run.scorer
    probability = scorer.probability(context.anomaly[positions])
    maps = scorer.contributions(part) if context.image else None
    found = []
    reasons = list(reasons_of(scorer, scorer.layout.prepare(part), np.arange(len(positions))))
    for i, position in enumerate(positions.tolist()):
        entry: dict[str, Any] = {
            "name": context.name(position) or str(int(context.numbers[position]) + 1),
            "score": float(context.anomaly[position]),
            "probability": None if probability is None else float(probability[i]),
            "reasons": reasons[i],
            "values": "" if context.image else context.cells(position),
        }
        if maps is not None:
            picture = np.asarray(part[i], dtype=np.float64)
            entry["picture"] = png(grey_or_colour(picture, float(picture.min()), float(picture.max())))
            heat = maps[i] if maps[i].ndim == 2 else maps[i].sum(0)
            entry["heat"] = png(np.clip(heat / (np.abs(heat).max() or 1.0), 0, 1))
        found.append(entry)
    return {"top": found}


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    """Each row with its score and bars for its reasons, or its picture and where it is strange."""
    largest = max((abs(part) for entry in facts["top"] for _, part in entry["reasons"]), default=1.0) or 1.0
    reading = ["The strangest training rows without a label, with what adds most to their scores."]
    block = render("fvnce.app", "top_anomalies.html", entries=[_shown(entry, largest) for entry in facts["top"]])
    return Section("Top anomalies", reading, blocks=[block])


def _shown(entry: dict[str, Any], largest: float) -> dict[str, Any]:
    number = entry["name"] if entry["name"].isascii() and entry["name"].isdecimal() else ""
    chance = "" if entry["probability"] is None else f", P(outlier) = {entry['probability']:.2f}"
    return {
        "name": f"row {int(number):,}" if 0 < len(number) < 20 else entry["name"],
        "score": f"score {entry['score']:.4g}{chance}",
        "cells": entry["values"],
        "reasons": [
            (max(2, round(90 * max(0.0, part) / largest)), f"{column} {part:+.3g}") for column, part in entry["reasons"]
        ],
        "picture": png_uri(entry["picture"]) if "picture" in entry else None,
        "heat": png_uri(entry["heat"]) if "picture" in entry else None,
    }
