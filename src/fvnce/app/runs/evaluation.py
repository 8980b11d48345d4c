r"""How well a run finds outliers that somebody has labelled, on rows that need not be those of training.

With O outliers among n rows, of which the k with the highest scores are inspected, and t the threshold of the run:

    AUROC                   P(an outlier scores higher than another row), ties counting half
    average precision       mean over outliers of the share of outliers among rows that score at least as high
    precision, recall at t  outliers among rows above t, over these rows, and over O
    precision, recall at k  outliers among the k highest-scoring rows, over k, and over O; of equal scores at the k-th
                            place, what a random order gives on average

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
from ...tables import FileError
from ...tables.sources import Source
from . import FittedRun
from .scoring import Tick, Unlike, score_part
from .settings import DataSettings
from .training_data import Marks, Say, read_like, split_labels

Array = NDArray[np.float64]
#: What is measured, in words.
NUMBERS = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "precision_at_threshold": "precision of flagged rows",
    "recall_at_threshold": "recall of flagged rows",
    "precision_at_k": "precision at k = {k:,}",
    "recall_at_k": "recall at k = {k:,}",
}
#: Names of columns that hold labels, whatever the run was trained with.
LABEL_COLUMNS = frozenset({"label", "labels", "outlier", "is_outlier", "anomaly", "is_anomaly"})


@dataclass(frozen=True)
class Evaluation:
    """How well labelled outliers are found.

    Attributes:
        scores: of all rows, by which they are ranked, shape (n,).
        flags: which of them are flagged, shape (n,).
        outlier: which of them are outliers, shape (n,).
        threshold: of the run.
        k: how many of the highest-scoring rows are inspected.
        numbers: those of :data:`NUMBERS`; None where not defined, as the precision of no rows.
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
        """Return a caption and rows of name, value and interval, the header first."""
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
        """Return everything but the rows, for JSON."""
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
        """Draw histograms of scores, the ROC curve and precision against recall, each with the threshold."""
        from sklearn.metrics import precision_recall_curve, roc_curve

        from ...paper import figures

        figure, (left, middle, right) = figures.new_figure(3, width=9.0, height=3.0)
        dark, bright, edges = "#0b2e59", "#c23b22", np.histogram_bin_edges(self.scores, 40).tolist()
        # Outliers are hatched, to differ in a grey print too.
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
        threshold: of the run.
        k: how many rows are inspected; by default as many as there are outliers.
        seed: of the intervals.

    >>> scores = np.array([1.0, 2.0, 3.0, 4.0])
    >>> result = evaluate(scores, scores > 2.5, np.array([False, True, False, True]), 2.5)
    >>> round(result.numbers["auroc"].value, 3), result.numbers["precision_at_k"].value, result.flagged, result.found
    (0.75, 0.5, 2, 1)
    """
    outliers, others = int(outlier.sum()), int((~outlier).sum())
    if not outliers or not others:
        raise FileError(
            f"labels must mark some rows as outliers and leave others, found {outliers:,} outliers among "
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
        """Return precision and recall of what is flagged, shape (draws, 2)."""
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
    """Return how many outliers are among the ``places`` highest-scoring rows, ties by their share."""
    outliers, seen = (np.append(0.0, np.cumsum(part[::-1])) for part in (positive, positive + negative))
    return float(np.interp(places, seen, outliers))


def read_labelled(
    run: FittedRun, path: str, label: str | None, settings: DataSettings, say: Say, tick: Tick | None = None
) -> tuple[Array, Marks, Marks]:
    """Return scores, flags and labels of every row of a file, read in parts.

    Args:
        run: scores the rows.
        path: the file.
        label: the column or array of labels, as ``--label`` of ``fvnce fit``; by default that of the run.
        settings: how the file is read.
        say: gets notices about the labels, and about rows that are unlike those of training.
        tick: reports progress.
    """
    label = label or run.config.data.label
    if label is None:
        raise FileError(f"{run.folder} was trained without labels; say where those of {path} are with --label COLUMN")
    scores, flags, marks, unlike = [], [], [], Unlike(run)
    with closing(read_like(run.layout, path, settings, labels=True)) as source:
        labels, split = split_labels(source, label, path)
        for part in source.parts():
            rows, values = split(part.rows, part.start)
            of_part = score_part(run, rows, part, source.name, unlike)[1]
            scores.append(of_part.anomaly)
            flags.append(of_part.flagged)
            marks.append(labels.marks(values))
            if tick is not None:
                tick(part.start + len(values), part.done)
    # Which value marks outliers must be clear here too; how many it marks need not: nothing is trained.
    labels.check(say, mostly=True)
    for sentence in unlike.sentences():
        say(f"warning: {sentence}")
    return np.concatenate(scores), np.concatenate(flags), np.concatenate(marks)


def label_column(source: Source, run: FittedRun) -> str | None:
    """Return a column of a table that holds labels, if there is one."""
    label, columns = run.config.data.label or "", getattr(source, "columns", [])
    names = (label, label.rpartition("=")[0], *(column for column in columns if column.lower() in LABEL_COLUMNS))
    return next((name for name in names if name in columns and name not in run.layout.columns), None)
