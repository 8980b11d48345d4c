"""The section of scores: their histogram with the threshold, and the probability that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...detection import NoiseContrastiveDetector
from ...pages.charts import histogram_chart, line_chart
from ...pages.page import Section
from .. import shapes
from .context import Context, Fact, histogram, short

check = shapes.record(
    {
        "scores": shapes.both(shapes.histogram, shapes.record({"threshold": shapes.number})),
        "probability": shapes.or_why(
            shapes.alike(
                dict.fromkeys(("score", "probability"), shapes.gaps),
                {"prior": shapes.reported, "known": shapes.integer()},
            )
        ),
        **dict.fromkeys(("flagged", "looked_at", "unlabelled"), shapes.integer()),
    }
)


def build(context: Context) -> dict[str, Any]:
    """Scores and probabilities of the analysed rows, and how many of them lie above the threshold."""
    return {
        "scores": _scores(context),
        "probability": _probability(context),
        "flagged": int((context.anomaly > context.run.scorer.threshold)[~context.known].sum()),
        "looked_at": len(context.anomaly),
        "unlabelled": int((~context.known).sum()),
    }


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    """Histogram of scores, and P(outlier | score)."""
    scores = facts["scores"]
    threshold = scores["threshold"]
    probability = facts["probability"]
    held_out = not isinstance(probability, str) and probability["known"] > 1
    reading = [
        "Higher scores are stranger. "
        + (
            "These are by the model that has learnt from the rows, and flatter it; the verdict counts rows that were "
            "held out. "
            if held_out
            else ""
        )
        + f"Above the threshold {threshold:.4g} lie {facts['flagged']:,} of "
        f"{facts['unlabelled']:,} training rows without a label"
        + (
            f" (of {record['rows']:,}, {facts['looked_at']:,} were looked at)."
            if facts["looked_at"] < record["rows"]
            else "."
        )
    ]
    charts = [
        histogram_chart(
            "scores",
            scores["edges"],
            scores["counts"],
            label="anomaly score",
            mark=(threshold, "threshold"),
            caption="Scores of the training rows; each group adds up to one.",
            alt=f"Histogram of anomaly scores with the threshold at {threshold:.4g}",
        )
    ]
    if isinstance(probability, str):
        reading.append(probability)
    else:
        reading.append(
            f"The share of outliers among rows without a label is put at {probability['prior']:.2%}, from held-out "
            f"scores of {probability['known']} known outliers."
            if facts["verdict"]["prior"] is not None
            else "P(outlier | score) is one half at the threshold, by which it is defined: no label has a say in it."
        )
        charts.append(
            line_chart(
                "probability",
                probability["score"],
                {"P(outlier)": probability["probability"]},
                labels=("anomaly score", "P(outlier | score)"),
                range_y=(0.0, 1.05),
                caption="From score to probability.",
                alt="The probability of being an outlier rises with the score",
            )
        )
    return Section("Scores", reading, charts=charts)


def _scores(context: Context) -> dict[str, Any]:
    """Histograms of scores, of known outliers apart, and the threshold."""
    groups = {"training rows": context.anomaly[~context.known]}
    if context.known.any():
        groups["known outliers"] = context.anomaly[context.known]
    return {**histogram(groups), "threshold": context.run.scorer.threshold}


def _probability(context: Context) -> Fact:
    """P(outlier | score) as a curve."""
    scorer, detector = context.run.scorer, context.run.scorer.detector
    at = np.linspace(float(context.anomaly.min()), float(context.anomaly.max()), 80)
    found = scorer.probability(at)
    if found is None or not isinstance(detector, NoiseContrastiveDetector):
        return "A latent-variable model gives a ranking and a threshold, no probability of being an outlier."
    return {
        "score": short(at),
        "probability": short(found),
        "prior": float(detector.prior_),
        "known": int(detector.n_known_),
    }
