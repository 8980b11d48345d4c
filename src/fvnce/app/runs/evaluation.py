r"""How well a run finds outliers that somebody has labelled, on rows that need not be those of training.

With O outliers among n rows, of which the k with the highest scores are looked at, and t the threshold of the run:

    AUROC                   P(an outlier is stranger than another row), ties counting half
    average precision       mean over outliers of the share of outliers among rows at least as strange
    precision, recall at t  outliers among rows above t, over these rows, and over O
    precision, recall at k  outliers among the k strangest rows, over k, and over O; of equal scores at the k-th place,
                            what a random order gives on average

Each comes with a 95 % interval for the distributions from which outliers and other rows were drawn, at the share of
outliers in the file (:mod:`fvnce.detection.intervals`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.intervals import LEVEL, Interval, auroc_and_precision, into_bins, with_intervals
from ...pages.page import Table
from ..readers import ArraySource, DataError, Part, Source, TableSource
from ..readers.arrays import read_npz_labels
from ..readers.tables import numbered
from . import FittedRun
from .scoring import Tick, Unlike
from .settings import DataSettings
from .training_data import Labels, Marks, Say, find_column, read_like, split_label

Array = NDArray[np.float64]
#: What is measured, in words.
NUMBERS = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "precision_at_threshold": "precision at the threshold {threshold:.4g}",
    "recall_at_threshold": "recall at the threshold",
    "precision_at_k": "precision at k = {k:,}",
    "recall_at_k": "recall at k = {k:,}",
}
#: Names of columns that hold labels, whatever the run was trained with.
USUAL = frozenset({"label", "labels", "outlier", "is_outlier", "anomaly", "is_anomaly"})


@dataclass(frozen=True)
class Evaluation:
    """What labelled rows say of a run."""

    scores: Array  # of all rows, shape (n,)
    outlier: Marks  # which of them are outliers, shape (n,)
    threshold: float
    k: int  # how many of the strangest rows are looked at
    numbers: dict[str, Interval | None]  # AUROC and the rest; None where not defined, as the precision of no rows

    @property
    def flagged(self) -> int:
        """Rows above the threshold."""
        return int((self.scores > self.threshold).sum())

    @property
    def found(self) -> int:
        """Outliers among them."""
        return int((self.scores[self.outlier] > self.threshold).sum())

    def text(self) -> str:
        """A table for a terminal."""
        rows = []
        for name, number in self.numbers.items():
            words = NUMBERS[name].format(threshold=self.threshold, k=self.k)
            told = ["–", "no row is flagged"]
            if number is not None:
                told = [f"{number.value:.3f}", f"{number.low:.3f} to {number.high:.3f}"]
            rows.append([words, *told])
        outliers = int(self.outlier.sum())
        caption = (
            f"{self.found:,} of {outliers:,} outliers are found, {self.flagged - self.found:,} of "
            f"{len(self.scores) - outliers:,} other rows are flagged"
        )
        return Table(caption, ["", "value", "95 % interval"], rows).text()

    def plot(self, path: Path) -> Path:
        """Draw histograms of scores with the threshold, true against false alarms, and precision against recall."""
        from sklearn.metrics import precision_recall_curve, roc_curve

        from ...pages import figures

        outlier, scores, dark, bright = self.outlier, self.scores, "#0b2e59", "#c23b22"
        figure, (left, middle, right) = figures.new_figure(3, width=9.0, height=3.0)
        edges = np.histogram_bin_edges(scores, 40).tolist()
        kinds = ((~outlier, "other rows", dark, None), (outlier, "outliers", bright, "////"))  # told apart in grey
        for kind, label, colour, hatch in kinds:
            share = np.full(int(kind.sum()), 1 / kind.sum())
            look: dict[str, Any] = {
                "histtype": "stepfilled",
                "alpha": 0.4,
                "color": colour,
                "edgecolor": colour,
                "hatch": hatch,
            }
            left.hist(scores[kind], edges, weights=share, label=label, **look)
        left.axvline(self.threshold, color="0.3", linestyle="--", label="threshold")
        left.set(xlabel="anomaly score", ylabel="share of kind", title="scores\n")
        left.set_axisbelow(True)
        left.legend(frameon=False, fontsize=8)
        false, true, _ = roc_curve(outlier, scores)
        figures.plot(middle, false, true, figures.Curve("", dark))
        middle.plot([0, 1], [0, 1], ":", color="0.5")
        title = f"AUROC\n{self.numbers['auroc']}"
        middle.set(xlabel="share of other rows flagged", ylabel="share of outliers found", title=title)
        precision, recall, _ = precision_recall_curve(outlier, scores)
        figures.plot(right, recall, precision, figures.Curve("", dark))
        right.axhline(float(outlier.mean()), color="0.5", linestyle=":")
        title = f"average precision\n{self.numbers['average_precision']}"
        right.set(xlabel="share of outliers found", ylabel="precision", ylim=(0, 1.05), title=title)
        at = [self.numbers[f"{name}_at_threshold"] for name in ("recall", "precision")]
        if at[0] is not None and at[1] is not None:
            right.plot(at[0].value, at[1].value, "o", color=bright, label="threshold")
            right.legend(frameon=False, fontsize=8)
        return figures.save_as(figure, path)

    def content(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": len(self.scores),
            "outliers": int(self.outlier.sum()),
            "threshold": self.threshold,
            "flagged": self.flagged,
            "found": self.found,
            "k": self.k,
            "level": LEVEL,
            **{name: None if found is None else asdict(found) for name, found in self.numbers.items()},
        }


def evaluate(scores: Array, outlier: Marks, threshold: float, k: int | None = None, seed: int = 0) -> Evaluation:
    """The numbers with their intervals.

    Args:
        scores: higher for stranger rows, shape (n,).
        outlier: which rows are outliers, shape (n,).
        threshold: above it a row is flagged.
        k: how many rows are looked at; by default as many as there are outliers.
        seed: of the intervals.

    >>> found = evaluate(np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, False, True]), 2.5)
    >>> round(found.numbers["auroc"].value, 3), found.numbers["precision_at_k"].value, found.flagged, found.found
    (0.75, 0.5, 2, 1)
    """
    outliers, others = int(outlier.sum()), int((~outlier).sum())
    if not outliers or not others:
        raise DataError(
            f"labels must mark some rows as outliers and leave others, found {outliers:,} outliers among "
            f"{len(outlier):,} rows; give a file with both"
        )
    places = outliers if k is None else k
    if not 1 <= places <= len(scores):
        raise DataError(f"--k must be from 1 to the number of rows, {len(scores):,}, found {places:,}")
    levels = np.unique(np.append(scores[outlier], threshold))
    first = 2 * int(np.searchsorted(levels, threshold)) + 3  # the first bin above the threshold

    def measured(positive: Array, negative: Array, lowest: bool) -> Array:
        """All numbers, in the order of :data:`NUMBERS`, shape (draws, 6)."""
        above, false = positive[:, first:].sum(1), negative[:, first:].sum(1)
        share = np.array([_among_first(*pair, places) for pair in zip(positive, negative, strict=True)])
        with np.errstate(invalid="ignore"):
            true = above / (above + false)
        found = np.stack([true, above / outliers, share / places, share / outliers], 1)
        return np.concatenate([auroc_and_precision(positive, negative, lowest), found], 1)

    positive, negative = (into_bins(levels, scores[kind], np.ones(int(kind.sum()))) for kind in (outlier, ~outlier))
    rng = np.random.default_rng([seed, 90])
    numbers = with_intervals(positive, negative, (outliers, others), measured, rng)
    defined = (None if math.isnan(number.value) else number for number in numbers)
    return Evaluation(scores, outlier, threshold, places, dict(zip(NUMBERS, defined, strict=True)))


def _among_first(positive: Array, negative: Array, places: int) -> float:
    """Outliers among the ``places`` highest-scoring rows, ties by their share."""
    found, seen = (np.append(0.0, np.cumsum(part[::-1])) for part in (positive, positive + negative))
    return float(np.interp(places, seen, found))


def read_labelled(
    run: FittedRun, path: str, label: str | None, settings: DataSettings, say: Say, tick: Tick | None = None
) -> tuple[Array, Marks]:
    """Scores and labels of every row of a file, read in parts.

    Args:
        run: what scores the rows.
        path: the file.
        label: the column or array of labels, as ``--label`` of ``fvnce fit``; by default that of the run.
        settings: how the file is to be read.
        say: told what a person should know of the labels, and of rows that are unlike those of training.
        tick: called after each part with the rows done and the share of the file.
    """
    wanted = label or run.config.data.label
    if wanted is None:
        raise DataError(f"{run.folder} was trained without labels; say where those of {path} are with --label COLUMN")
    source = read_like(run.layout, path, settings, beside=1)
    scores, marks, unlike = [], [], Unlike(run)
    with closing(source):
        if isinstance(source, TableSource):
            labels, split = _in_table(source, wanted)
        else:
            labels, split = _in_array(source, path, wanted, len(run.layout.columns))
        for part in source.parts():
            rows, values = split(part)
            prepared = run.layout.prepare(rows, part.start)
            unlike.add(prepared)
            scores.append(run.detector.anomaly_score(prepared))
            marks.append(labels.marks(values))
            if tick is not None:
                tick(part.start + len(values), part.done)
    # Which value marks outliers is a question here too; how many do is not: the file is no training set.
    labels.check(say, mostly=True)
    for sentence in unlike.sentences():
        say(f"warning: {sentence}")
    return np.concatenate(scores), np.concatenate(marks)


#: Takes a part of a file apart, into rows and labels.
Split = Callable[[Part], tuple[Any, Any]]


def _in_table(source: TableSource, label: str) -> tuple[Labels, Split]:
    labels = Labels.of(label, source.columns, source.name)
    source.column_reader.add_text(labels.column)
    return labels, lambda part: (part.rows.without([labels.column]), part.rows[labels.column])


def _in_array(source: ArraySource, path: str, label: str, width: int) -> tuple[Labels, Split]:
    """Labels are an array of an npz file, or a column of the matrix beside the ``width`` columns of training."""
    name, value = split_label(label)
    beside = read_npz_labels(Path(path), name, source.shape[0]) if source.kind == "npz" else None
    if beside is not None:
        if len(source.shape) == 2 and source.shape[1] != width:
            raise DataError(f"{source.name} must hold rows of {width} columns as in training, found {source.shape[1]}")
        return Labels(name, value), lambda part: (part.rows, beside[part.start : part.start + len(part.rows)])
    if len(source.shape) != 2 or source.shape[1] != width + 1:
        raise DataError(
            f"{source.name} must hold labels as an array {name!r} of an npz file, or as a column beside those of "
            f"training, found rows of shape {source.shape[1:]} and none"
        )
    columns = numbered(width + 1)
    position = columns.index(find_column(columns, name, source.name))
    return Labels(name, value), lambda part: (np.delete(part.rows, position, axis=1), part.rows[:, position])


def labels_in(source: Source, path: str, run: FittedRun) -> str | None:
    """What in a file holds labels, so that a person can be told that they are not looked at; None if nothing does."""
    label, known = run.config.data.label, set(run.layout.columns)
    if isinstance(source, TableSource):
        others = [column for column in source.columns if column not in known]
        if label is not None:
            with suppress(DataError):
                column = Labels.of(label, source.columns, source.name).column
                if column in others:
                    return column
        return next((column for column in others if column.lower() in USUAL), None)
    if source.kind != "npz" or label is None:
        return None
    name, _ = split_label(label)
    try:
        return None if read_npz_labels(Path(path), name, source.shape[0]) is None else name
    except DataError:
        return None
