r"""Evaluation of a run on labeled rows.

With O outliers among n rows, k rows inspected in order of decreasing score, and t the threshold of the run:

    AUROC                   P(an outlier scores higher than another row), ties counting half
    average precision       mean over outliers of the share of outliers among rows that score at least as high
    precision, recall at t  number of outliers above t, divided by the number of rows above t, and by O
    precision, recall at k  number of outliers among the k highest-scoring rows, divided by k, and by O; ties at the
                            k-th place count as on average over random orders

Each comes with a 95 % interval for the distributions from which outliers and other rows were drawn, at the share of
outliers in the file (:mod:`fvnce.detection.trust.evidence`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.trust.evidence import LEVEL, Interval, auroc_and_precision, into_bins, with_intervals
from ...tables import FileError, Source
from . import FittedRun
from .scoring import Unlike, Watch, score_part
from .settings import DataSettings
from .training_data import Marks, Say, read_like, sounds_like_labels, split_labels

Array = NDArray[np.float64]
#: Names of the numbers for display.
NUMBERS = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "precision_at_threshold": "precision of flagged rows",
    "recall_at_threshold": "recall of flagged rows",
    "precision_at_k": "precision at k = {k:,}",
    "recall_at_k": "recall at k = {k:,}",
}


@dataclass(frozen=True)
class Evaluation:
    """Detection quality on labeled rows.

    Attributes:
        scores: scores that rank the rows, shape (n,).
        flags: mask of flagged rows, shape (n,).
        outlier: mask of outliers, shape (n,).
        threshold: threshold of the run.
        k: number of highest-scoring rows that are inspected.
        numbers: the numbers named in :data:`NUMBERS`; None where undefined, such as the precision of no rows.
    """

    scores: Array
    flags: Marks
    outlier: Marks
    threshold: float
    k: int
    numbers: dict[str, Interval | None]

    @property
    def flagged(self) -> int:
        """Number of rows that are flagged."""
        return int(self.flags.sum())

    @property
    def found(self) -> int:
        """Number of outliers that are flagged."""
        return int(self.flags[self.outlier].sum())

    def table(self) -> tuple[str, list[list[str]]]:
        """Return a caption and a table of name, value and interval, with the header as first row."""
        rows = [["", "value", "95 % interval"]]
        for name, number in self.numbers.items():
            label = NUMBERS[name].format(k=self.k)
            value, interval = "–", "no row is flagged"
            if number is not None:
                value, interval = f"{number.value:.3f}", f"{number.low:.3f} to {number.high:.3f}"
            rows.append([label, value, interval])
        outliers = int(self.outlier.sum())
        caption = (
            f"{self.found:,} of {outliers:,} outliers are found, {self.flagged - self.found:,} of "
            f"{len(self.scores) - outliers:,} other rows are flagged"
        )
        return caption, rows

    def content(self) -> dict[str, Any]:
        """Return all results except the rows, for JSON."""
        return {
            "rows": len(self.scores),
            "outliers": int(self.outlier.sum()),
            "threshold": self.threshold,
            "flagged": self.flagged,
            "found": self.found,
            "k": self.k,
            "level": LEVEL,
            **{name: None if number is None else asdict(number) for name, number in self.numbers.items()},
        }

    def plot(self, path: Path) -> Path:
        """Plot histograms of scores, the ROC curve and the precision-recall curve, each with the threshold."""
        from sklearn.metrics import precision_recall_curve, roc_curve

        from ...paper import figures

        figure, (left, middle, right) = figures.new_figure(3, width=9.0, height=3.0)
        dark, bright, edges = "#0b2e59", "#c23b22", np.histogram_bin_edges(self.scores, 40).tolist()
        # Outliers are hatched, to be distinguishable without color.
        groups = ((~self.outlier, "other rows", dark, ""), (self.outlier, "outliers", bright, "////"))
        for kind, label, color, hatch in groups:
            look: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.4, "color": color, "edgecolor": color}
            weights = np.full(int(kind.sum()), 1 / kind.sum())
            left.hist(self.scores[kind], edges, weights=weights, label=label, hatch=hatch, **look)
        left.axvline(self.threshold, color="0.3", linestyle="--", label="threshold")
        left.set(xlabel="anomaly score", ylabel="share of kind", title="scores\n", axisbelow=True)
        left.legend(frameon=False, fontsize=8)
        false, true, _ = roc_curve(self.outlier, self.scores)
        middle.plot(false, true, color=dark)
        middle.plot([0, 1], [0, 1], ":", color="0.5")
        labels = {"xlabel": "share of other rows flagged", "ylabel": "share of outliers found"}
        middle.set(title=f"AUROC\n{self.numbers['auroc']}", **labels)
        precision, recall, _ = precision_recall_curve(self.outlier, self.scores)
        right.plot(recall, precision, color=dark)
        right.axhline(float(self.outlier.mean()), color="0.5", linestyle=":")
        title = f"average precision\n{self.numbers['average_precision']}"
        right.set(xlabel="share of outliers found", ylabel="precision", ylim=(0, 1.05), title=title)
        if self.flagged:
            at = self.found / self.outlier.sum(), self.found / self.flagged
            right.plot(*at, "o", color=bright, label="flagged rows")
            right.legend(frameon=False, fontsize=8)
        return figures.save_as(figure, path)


def evaluate(
    scores: Array, flags: Marks, outlier: Marks, threshold: float, k: int | None = None, seed: int = 0
) -> Evaluation:
    """Compute the numbers of :data:`NUMBERS` with their intervals.

    Args:
        scores: higher for more anomalous rows, shape (n,).
        flags: which rows are flagged, shape (n,).
        outlier: which rows are outliers, shape (n,).
        threshold: threshold of the run.
        k: number of rows that are inspected; by default the number of outliers.
        seed: seed of the intervals.

    >>> scores = np.array([1.0, 2.0, 3.0, 4.0])
    >>> result = evaluate(scores, scores > 2.5, np.array([False, True, False, True]), 2.5)
    >>> round(result.numbers["auroc"].value, 3), result.numbers["precision_at_k"].value, result.flagged, result.found
    (0.75, 0.5, 2, 1)
    """
    outliers, others = int(outlier.sum()), int((~outlier).sum())
    if not outliers or not others:
        raise FileError(
            f"labels must mark some rows, but not all, as outliers, found {outliers:,} outliers among "
            f"{len(outlier):,} rows; give a file with both"
        )
    places = outliers if k is None else k
    if not 1 <= places <= len(scores):
        raise FileError(f"--k must be from 1 to the number of rows, {len(scores):,}, found {places:,}")

    def ranked(positive: Array, negative: Array, lowest: bool) -> Array:
        """Return AUROC, average precision, precision and recall at k, shape (draws, 4)."""
        share = np.array([_among_first(*pair, places) for pair in zip(positive, negative, strict=True)])
        at = np.stack([share / places, share / outliers], 1)
        return np.concatenate([auroc_and_precision(positive, negative, lowest), at], 1)

    def flagged(positive: Array, negative: Array, lowest: bool) -> Array:
        """Return precision and recall of the flagged rows, shape (draws, 2)."""
        above, false = positive[:, first:].sum(1), negative[:, first:].sum(1)
        with np.errstate(invalid="ignore"):
            return np.stack([above / (above + false), above / outliers], 1)

    rng, first = np.random.default_rng([seed, 90]), 3  # the first bin above the only level

    def numbers(values: Array, levels: Array, measure: Any) -> Sequence[Interval]:
        positive, negative = (into_bins(levels, values[kind], np.ones(int(kind.sum()))) for kind in (outlier, ~outlier))
        return with_intervals(positive, negative, (outliers, others), measure, rng)

    auroc, precision, at_k, recall_at_k = numbers(scores, np.unique(scores[outlier]), ranked)
    ordered = (auroc, precision, *numbers(flags.astype(np.float64), np.full(1, 0.5), flagged), at_k, recall_at_k)
    defined = (None if math.isnan(number.value) else number for number in ordered)
    return Evaluation(scores, flags, outlier, threshold, places, dict(zip(NUMBERS, defined, strict=True)))


def _among_first(positive: Array, negative: Array, places: int) -> float:
    """Return the number of outliers among the ``places`` highest-scoring rows; ties count by their fraction."""
    outliers, seen = (np.append(0.0, np.cumsum(part[::-1])) for part in (positive, positive + negative))
    return float(np.interp(places, seen, outliers))


def read_labeled(
    run: FittedRun, path: str, label: str | None, settings: DataSettings, say: Say, watch: Watch = iter
) -> tuple[Array, Marks, Marks]:
    """Return scores, flags and labels of every row of a file, read in parts.

    Args:
        run: the run that scores the rows.
        path: the file.
        label: column or array of labels, as in ``--label`` of ``fvnce fit``; by default that of the run.
        settings: settings for reading the file.
        say: called with messages on the labels, and on rows far from those of training.
        watch: yields the parts of the file, and may show the progress.
    """
    label = label or run.config.data.label
    if label is None:
        raise FileError(
            f"{run.folder} was trained without labels; name the column of labels in {path} with --label COLUMN"
        )
    scores, flags, marks, unlike = [], [], [], Unlike(run)
    with closing(read_like(run.layout, path, settings, labels=True)) as source:
        labels, split = split_labels(source, label, path)
        for part in watch(source.parts()):
            rows, values = split(part.rows, part.start)
            of_part = score_part(run, rows, part, source.name, unlike)[1]
            scores.append(of_part.anomaly)
            flags.append(of_part.flagged)
            marks.append(labels.marks(values))
    # Any fraction of outliers is allowed, since nothing is trained.
    labels.check(say, mostly=True)
    for sentence in unlike.sentences():
        say(f"warning: {sentence}")
    return np.concatenate(scores), np.concatenate(flags), np.concatenate(marks)


def label_column(source: Source, run: FittedRun) -> str | None:
    """Return the name of a column of labels in a table, if there is one."""
    label, columns = run.config.data.label or "", getattr(source, "columns", [])
    names = (label, label.rpartition("=")[0], *filter(sounds_like_labels, columns))
    return next((name for name in names if name in columns and name not in run.layout.columns), None)
