"""The figure of an evaluation: scores of both kinds of row with the threshold, and the two curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...pages import figures
from ..runs.evaluation import Evaluation


def draw(found: Evaluation, path: Path) -> Path:
    """Write a png, pdf or svg file: histograms of scores, true against false alarms, precision against recall."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    outlier, scores = found.outlier, found.scores
    figure, (left, middle, right) = figures.new_figure(3, width=10.5, height=3.2)
    edges = np.histogram_bin_edges(scores, 40).tolist()
    for kind, label, colour in ((~outlier, "other rows", "#0b2e59"), (outlier, "outliers", "#c23b22")):
        share = np.full(int(kind.sum()), 1 / kind.sum())
        left.hist(scores[kind], edges, weights=share, histtype="stepfilled", alpha=0.35, color=colour, label=label)
    left.axvline(found.threshold, color="0.3", linestyle="--", label="threshold")
    left.set(xlabel="anomaly score", ylabel="share of kind", title="scores\n")
    left.set_axisbelow(True)
    left.legend(frameon=False, fontsize=8)
    false, true, _ = roc_curve(outlier, scores)
    figures.plot(middle, false, true, figures.Curve("", "#0b2e59"))
    middle.plot([0, 1], [0, 1], ":", color="0.5")
    middle.set(
        xlabel="share of other rows flagged", ylabel="share of outliers found", title=_titled("AUROC", found, "auroc")
    )
    precision, recall, _ = precision_recall_curve(outlier, scores)
    figures.plot(right, recall, precision, figures.Curve("", "#0b2e59"))
    right.axhline(float(outlier.mean()), color="0.5", linestyle=":")
    title = _titled("average precision", found, "average_precision")
    right.set(xlabel="share of outliers found", ylabel="precision", ylim=(0, 1.05), title=title)
    at = {name: found.numbers[f"{name}_at_threshold"] for name in ("recall", "precision")}
    if at["recall"] is not None and at["precision"] is not None:
        right.plot(at["recall"].value, at["precision"].value, "o", color="#c23b22", label="threshold")
        right.legend(frameon=False, fontsize=8)
    return figures.save_as(figure, path)


def _titled(name: str, found: Evaluation, key: str) -> str:
    return f"{name}\n{found.numbers[key]}"
