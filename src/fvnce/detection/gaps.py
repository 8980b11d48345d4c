r"""Correction of scores for missing values, so that rows do not look more normal the fewer values they have.

A missing number is replaced by the median, the most normal value of its column, so gaps lower the score. Let u(x) be
the score of the imputed row, G its gaps, and D the number of columns. The corrected score is

    s(x) = u(x) + Σ_{j ∈ G} lift_j + floor(|G|) + unusual · max(0, |G| − usual) / (D − usual).

lift_j is the mean decrease of u over training rows when the values of column j are imputed, after other columns in
random order. Rows without a value in column j do not decrease, so columns that are mostly missing have a small lift.
Indicator columns of gaps are unchanged in this measurement, so u keeps what models learned from gaps in training. floor
increases just enough that with more gaps neither the mean nor the median of the scores of training rows decreases, and
at most a quarter of the rows decreases from one level to the next. ``usual`` is the 99 % quantile of the number of gaps
in training rows: up to this number, the number of gaps alone does not make a row anomalous.

No term decreases as a row loses values. The score does not decrease on average over the training rows, which lose
values in random order; for new rows this is an estimate. The score of a single row can decrease, if it loses an
anomalous value. Otherwise each row with one gap would need a score as high as that of the most anomalous value of that
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import count, fields, listed, number, require
from .preprocessing import Preprocessor, TablePreprocessor
from .rows import Array, weighted_quantile

#: Largest term for an unusual number of gaps, in deviations of the score.
UNUSUAL = 3.0
#: Quantile of the number of gaps that is called usual.
USUAL = 0.99
#: Fraction of training rows whose score must not decrease from one level of gaps to the next; number of levels.
RISING, LEVELS = 0.75, 8
#: Limits of the measurement: training rows, steps, scored rows, and numbers in them; the last is a lower limit of rows.
PATHS, STEPS, SCORED, NUMBERS, MIN_PATHS = 256, 64, 4096, 2**20, 8

#: Function from encoded rows to scores.
Anomaly = Callable[[Array], Array]


@dataclass(frozen=True)
class Gaps:
    """Terms that missing values add to the score of a row of a table.

    Attributes:
        lift: term of a gap in each original column, shape (D,).
        floor: term of the number of gaps, for 0, 1, … up to the number of used columns.
        usual: 99 % quantile of the number of gaps in training rows.
        unusual: additional term of gaps in all columns, unless that number is usual.

    >>> gaps = Gaps(np.array([0.5, 0.25]), np.zeros(3), 0, 3.0)
    >>> gaps.parts(np.array([[False, False], [True, False], [True, True]])).sum(1)
    array([0.  , 2.  , 3.75])
    """

    lift: Array
    floor: Array
    usual: int
    unusual: float

    @classmethod
    def learn(
        cls,
        preprocessor: TablePreprocessor,
        anomaly: Anomaly,
        rows: Array,
        weights: Array,
        seed: int,
        deviation: float = 1,
    ) -> Self:
        """Measure how scores change as values are removed from training rows.

        Args:
            preprocessor: encodes the rows.
            anomaly: scores encoded rows.
            rows: unlabeled training rows, shape (n, D).
            weights: weight of each row.
            seed: seed for the choice of rows and the order of columns.
            deviation: standard deviation of the score.
        """
        (gaps,) = cls.learn_each(preprocessor, lambda X: anomaly(X)[:, None], rows, weights, seed, deviation)
        return gaps

    @classmethod
    def learn_each(
        cls,
        preprocessor: TablePreprocessor,
        anomaly: Anomaly,
        rows: Array,
        weights: Array,
        seed: int,
        deviation: float = 1,
    ) -> list[Self]:
        """Learn the terms for several scores at once, which ``anomaly`` returns with shape (n, scores)."""
        columns, n_gaps = np.flatnonzero(preprocessor.used), preprocessor.gaps(rows).sum(1)
        usual = int(weighted_quantile(n_gaps, weights, USUAL))
        rng = np.random.default_rng([seed, 83])
        scored = min(SCORED, NUMBERS // preprocessor.width)
        n_paths = min(PATHS, len(rows), max(MIN_PATHS, scored // min(STEPS, len(columns))))
        chosen = rows[rng.choice(len(rows), n_paths, p=weights / weights.sum())]
        orders = np.stack([rng.permutation(columns) for _ in chosen])
        lifts = _mean_falls(preprocessor, anomaly, chosen, orders)
        each = [cls(lift, np.zeros(len(columns) + 1), usual, UNUSUAL * deviation) for lift in lifts]
        levels = np.unique(np.round(np.linspace(0, len(columns), LEVELS + 1)).astype(np.int64))
        losing = [chosen, *_losing(preprocessor, chosen, orders, levels)]
        scores, gone = _of_each(anomaly, map(preprocessor.encode, losing)), list(map(preprocessor.gaps, losing))
        falls = (gaps._remaining_falls(levels, [s[:, i] for s in scores], gone) for i, gaps in enumerate(each))
        return [replace(gaps, floor=floor) for gaps, floor in zip(each, falls, strict=True)]

    def _remaining_falls(
        self, levels: NDArray[np.int64], scores: Sequence[Array], gone: Sequence[NDArray[np.bool_]]
    ) -> Array:
        """Return the cumulative decreases of scores that lifts do not compensate, by the number of gaps.

        Args:
            levels: numbers of gaps, from 0 to all columns.
            scores: scores of the rows without added gaps, then at each level.
            gone: masks of their gaps.
        """
        falls = np.zeros(len(levels))
        before, *others = [score + self.parts(gaps).sum(1) for score, gaps in zip(scores, gone, strict=True)]
        for i, score in enumerate(others):
            of_rows = float(np.quantile(before - score, RISING))
            falls[i] = max(0.0, of_rows, *(float(middle(before) - middle(score)) for middle in (np.mean, np.median)))
            before = score
        return np.interp(np.arange(levels[-1] + 1), levels, np.cumsum(falls))

    def parts(self, gone: NDArray[np.bool_]) -> Array:
        """Return the term of each gap, shape (n, D), from a mask of gaps."""
        n_gaps = gone.sum(1, keepdims=True)
        excess = np.maximum(0, n_gaps - self.usual) / max(1, len(self.floor) - 1 - self.usual)
        return np.asarray(gone * (self.lift + (self.floor[n_gaps] + self.unusual * excess) / np.maximum(1, n_gaps)))

    def are_few(self, n_gaps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of rows with values in less than half of the columns, and fewer than usual."""
        return np.asarray((2 * n_gaps > len(self.floor) - 1) & (n_gaps > self.usual))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON content."""
        return {**vars(self), "lift": self.lift.tolist(), "floor": self.floor.tolist()}

    @classmethod
    def from_state(cls, content: Any, preprocessor: Preprocessor) -> Self | None:
        """Restore the terms from a state, which is checked; None for images and in files of version 0.2."""
        if content is None or not isinstance(preprocessor, TablePreprocessor):
            require(content is None, "have gaps in tables only", "some in images")
            return None
        used, positive = int(preprocessor.used.sum()), partial(number, low=0.0)
        checks = {"lift": listed(positive, len(preprocessor.columns)), "floor": listed(positive, used + 1)}
        checks |= {"usual": partial(count, low=0), "unusual": positive}
        lift, floor, usual, unusual = fields(content, "gaps", **checks)
        require(floor == sorted(floor), "have a floor that rises with the number of gaps", floor[:3])
        require(usual <= used, f"have at most {used} gaps in a row", usual)
        return cls(np.array(lift), np.array(floor), usual, unusual)


def score_rows(anomaly: Anomaly, preprocessor: Preprocessor, gaps: Gaps | None, rows: Any) -> Array:
    """Score rows in the form that the preprocessor takes, including the terms of gaps."""
    score, gone = anomaly(preprocessor.encode(rows)), preprocessor.gaps(rows)
    return score if gaps is None or not gone.any() else score + gaps.parts(gone).sum(1)


def _losing(
    preprocessor: TablePreprocessor, rows: Array, orders: NDArray[np.int64], levels: NDArray[np.int64]
) -> Iterator[Array]:
    """Yield the rows at each level of gaps, removing values in the given order."""
    there = np.take_along_axis(~preprocessor.gaps(rows), orders, 1)
    n_gaps, nth = orders.shape[1] - there.sum(1, keepdims=True), np.cumsum(there, 1)
    for level in levels:
        left, (row, step) = rows.copy(), np.nonzero(there & (nth <= level - n_gaps))
        preprocessor.remove(left, row, orders[row, step])
        yield left


def _mean_falls(preprocessor: TablePreprocessor, anomaly: Anomaly, rows: Array, orders: NDArray[np.int64]) -> Array:
    """Return the mean decrease of each score when each column is imputed, at least 0, shape (scores, D)."""
    gone, filled = preprocessor.gaps(rows), [preprocessor.encode(rows)]
    steps = np.array_split(orders, min(STEPS, orders.shape[1]), axis=1)
    present = [np.take_along_axis(~gone, columns, 1) for columns in steps]
    for columns, there in zip(steps, present, strict=True):
        more = np.zeros_like(gone)
        np.put_along_axis(more, columns, there, axis=1)
        filled.append(preprocessor.filled(filled[-1], more))
    scores = _of_each(anomaly, filled)
    falls = np.zeros((scores[0].shape[1], len(preprocessor.columns)))
    for before, score, columns, there in zip(scores[:-1], scores[1:], steps, present, strict=True):
        # Columns that are imputed together get equal parts of the decrease.
        parts = ((before - score) / np.maximum(1, there.sum(1, keepdims=True))).T
        for of_score, part in zip(falls, parts, strict=True):
            np.add.at(of_score, columns[there], np.broadcast_to(part[:, None], there.shape)[there])
    return np.maximum(falls / len(rows), 0.0)


def _of_each(anomaly: Anomaly, rows: Iterable[Array]) -> list[Array]:
    """Return the scores of each array of rows, from one call for all of them, which is faster."""
    each = list(rows)
    return np.split(anomaly(np.concatenate(each)), np.cumsum([len(part) for part in each])[:-1])
