"""Scores with the threshold, what probability they stand for, and the curves of training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....training import History
from ..scorer import OfDetector
from .numbers import histogram, short
from .subject import Fact, Subject

#: Points of a curve.
CURVE = 300


def scores(subject: Subject) -> dict[str, Any]:
    """Histograms of scores, of known outliers apart, and the threshold."""
    groups = {"training rows": subject.anomaly[~subject.known]}
    if subject.known.any():
        groups["known outliers"] = subject.anomaly[subject.known]
    return {**histogram(groups), "threshold": subject.run.scorer.threshold}


def probability(subject: Subject) -> Fact:
    """P(outlier | score) as a curve."""
    scorer = subject.run.scorer
    at = np.linspace(float(subject.anomaly.min()), float(subject.anomaly.max()), 80)
    found = scorer.probability(at)
    if found is None or not isinstance(scorer, OfDetector):
        return "A latent-variable model gives a ranking and a threshold, no probability of being an outlier."
    return {
        "score": short(at),
        "probability": short(found),
        "prior": float(scorer.detector.prior_),
        "known": int(scorer.detector.n_known_),
    }


def curves(name: str, history: History) -> dict[str, Any]:
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
