"""The strangest rows that are no known outliers, with what makes them strange."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..streaming import reasons_of
from .pictures import grey_or_colour, png
from .subject import Subject, take

#: Rows of the list.
TOP = 10


def strangest(subject: Subject) -> list[dict[str, Any]]:
    """The rows with the highest scores, highest first."""
    positions = np.flatnonzero(~subject.known)
    positions = positions[np.argsort(-subject.anomaly[positions], kind="stable")[:TOP]]
    part = take(subject.rows, positions)
    run = subject.run
    probability = run.scorer.probability(subject.anomaly[positions])
    maps = run.scorer.contributions(part) if subject.image else None
    found = []
    reasons = list(reasons_of(run, run.prepare(part), np.arange(len(positions))))
    for i, position in enumerate(positions.tolist()):
        entry: dict[str, Any] = {
            "name": subject.name(position) or str(int(subject.numbers[position]) + 1),
            "score": float(subject.anomaly[position]),
            "probability": None if probability is None else float(probability[i]),
            "reasons": reasons[i],
            "values": "" if subject.image else subject.cells(position),
        }
        if maps is not None:
            picture = np.asarray(part[i], dtype=np.float64)
            entry["picture"] = png(grey_or_colour(picture, float(picture.min()), float(picture.max())))
            heat = maps[i] if maps[i].ndim == 2 else maps[i].sum(0)
            entry["heat"] = png(np.clip(heat / (np.abs(heat).max() or 1.0), 0, 1))
        found.append(entry)
    return found
