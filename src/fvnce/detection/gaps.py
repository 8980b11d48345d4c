r"""What missing values add to a score, so that a row does not look more normal the less is known of it.

Models see the median where a number is missing, the most normal value of its column, so gaps lower a score. With u(x)
the score of a row that is filled in so, G its gaps, and D columns,

    s(x) = u(x) + Σ_{j ∈ G} lift_j + floor(|G|) + unusual · max(0, |G| − usual) / (D − usual).

lift_j is the mean fall of u over training rows when column j is filled in, after others in random order; rows without
a value in j do not fall, so a column that is seldom filled has a small lift: there a gap is normal and a value rare.
Columns that mark gaps for models are not touched in this measurement: what models learned from gaps of training stays
in u. floor rises just enough that with more and more gaps neither mean nor median of the training rows' scores falls,
and at most a quarter of the rows falls from one level to the next. ``usual`` is the number of gaps that 99 % of
training rows have at most, so the number of gaps alone makes no row strange that has as many as is usual.

Each term rises, or stays, as a row loses values: exactly, for every row. The score rises or stays on average over the
training rows that are measured, which lose values in random order; for new rows like them that is an estimate. For a
single row it can fall, where a value is lost that made the row strange: a score that never falls for any row would have
to call each row with one gap as strange as the strangest value of that column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import count, fields, listed, number, require
from .preprocessing import Preprocessor, TablePreprocessor
from .rows import Array

#: What a row without any value has in addition, in deviations of the score, unless that is usual.
UNUSUAL = 3.0
#: The fraction of training rows with no more gaps than is usual.
USUAL = 0.99
#: The fraction of training rows that do not fall from one level of gaps to the next, and the number of levels.
RISING, LEVELS = 0.75, 8
#: The most training rows from which values are removed, the most steps, and the most rows, and numbers in them, that
#: are scored for it; but never fewer rows than the last number.
PATHS, STEPS, SCORED, NUMBERS, MIN_PATHS = 256, 64, 4096, 2**20, 8

#: From encoded rows to scores.
Anomaly = Callable[[Array], Array]


@dataclass(frozen=True)
class Gaps:
    """What gaps add to the score of a row of a table.

    Attributes:
        lift: what a gap in each original column adds, shape (D,).
        floor: what the number of gaps adds, by that number: 0, 1, …, columns that are used.
        usual: gaps that a row has at most in 99 % of training rows.
        unusual: what gaps in all columns add beyond, unless that is usual.

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
        deviation: float = 1.0,
    ) -> Self:
        """Measure how scores change as training rows lose values.

        Args:
            preprocessor: encodes the rows.
            anomaly: scores encoded rows.
            rows: unlabelled training rows, shape (n, D).
            weights: how often each counts.
            seed: of the choice of rows and of the order of columns.
            deviation: of the score.
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
        deviation: float = 1.0,
    ) -> list[Self]:
        """Measure it for several scores at once, which ``anomaly`` returns with shape (n, scores)."""
        columns, n_gaps = np.flatnonzero(preprocessor.used), preprocessor.gaps(rows).sum(1)
        order = np.argsort(n_gaps, kind="stable")
        cumulative = np.cumsum(weights[order]) / weights.sum()
        usual = int(n_gaps[order][min(len(rows) - 1, int(np.searchsorted(cumulative, USUAL - 1e-12)))])
        rng = np.random.default_rng([seed, 83])
        scored = min(SCORED, NUMBERS // preprocessor.width)
        n_paths = min(PATHS, len(rows), max(MIN_PATHS, scored // min(STEPS, len(columns))))
        chosen = rows[rng.choice(len(rows), n_paths, p=weights / weights.sum())]
        orders = np.stack([rng.permutation(columns) for _ in chosen])
        lifts = _mean_falls(preprocessor, anomaly, chosen, orders)
        each = [cls(lift, np.zeros(len(columns) + 1), usual, UNUSUAL * deviation) for lift in lifts]
        levels, losing = _losing(preprocessor, chosen, orders)
        scores = [(anomaly(preprocessor.encode(left)), preprocessor.gaps(left)) for left in losing]
        return [
            replace(gaps, floor=gaps._remaining_falls(levels, [(score[:, i], gone) for score, gone in scores]))
            for i, gaps in enumerate(each)
        ]

    def _remaining_falls(self, levels: NDArray[np.int64], scores: Sequence[tuple[Array, NDArray[np.bool_]]]) -> Array:
        """Return the falls that lifts do not make up for, summed up to each number of gaps.

        Args:
            levels: numbers of gaps, from 0 to all columns.
            scores: of the rows as they are, then with as many gaps as each level, and where these gaps are.
        """
        falls = np.zeros(len(levels))
        before, *others = [score + self.parts(gone).sum(1) for score, gone in scores]
        for i, score in enumerate(others):
            of_rows = float(np.quantile(before - score, RISING))
            falls[i] = max(0.0, of_rows, *(float(middle(before) - middle(score)) for middle in (np.mean, np.median)))
            before = score
        return np.interp(np.arange(levels[-1] + 1), levels, np.cumsum(falls))

    def parts(self, gone: NDArray[np.bool_]) -> Array:
        """Return what each gap adds, shape (n, D), from where the gaps are."""
        n_gaps = gone.sum(1, keepdims=True)
        excess = np.maximum(0, n_gaps - self.usual) / max(1, len(self.floor) - 1 - self.usual)
        return np.asarray(gone * (self.lift + (self.floor[n_gaps] + self.unusual * excess) / np.maximum(1, n_gaps)))

    def added_to(self, anomaly: Anomaly, preprocessor: TablePreprocessor, rows: Array) -> Array:
        """Return the scores of rows with what their gaps add, shape (n,)."""
        score, gone = anomaly(preprocessor.encode(rows)), preprocessor.gaps(rows)
        return score + self.parts(gone).sum(1) if gone.any() else score

    def are_few(self, n_gaps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows have values in less than half of the columns, and fewer than is usual."""
        return np.asarray((2 * n_gaps > len(self.floor) - 1) & (n_gaps > self.usual))

    def state(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "lift": self.lift.tolist(),
            "floor": self.floor.tolist(),
            "usual": self.usual,
            "unusual": self.unusual,
        }

    @classmethod
    def from_state(cls, content: Any, preprocessor: Preprocessor) -> Self | None:
        """Make it from a state that may be forged; None for images and in files of version 0.2."""
        if content is None or not isinstance(preprocessor, TablePreprocessor):
            require(content is None, "have gaps in tables only", "some in images")
            return None
        used, positive = int(preprocessor.used.sum()), partial(number, low=0.0)
        lift, floor, usual, unusual = fields(
            content,
            "gaps",
            lift=listed(positive, len(preprocessor.columns)),
            floor=listed(positive, used + 1),
            usual=partial(count, low=0),
            unusual=positive,
        )
        require(floor == sorted(floor), "have a floor that rises with the number of gaps", floor[:3])
        require(usual <= used, f"have at most {used} gaps in a row", usual)
        return cls(np.array(lift), np.array(floor), usual, unusual)


def score_rows(anomaly: Anomaly, preprocessor: Preprocessor, gaps: Gaps | None, rows: Any) -> Array:
    """Return the scores of rows as the preprocessor takes them, with what their gaps add."""
    if gaps is None or not isinstance(preprocessor, TablePreprocessor):
        return anomaly(preprocessor.encode(rows))
    return gaps.added_to(anomaly, preprocessor, rows)


def _losing(
    preprocessor: TablePreprocessor, rows: Array, orders: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Iterator[Array]]:
    """Return some numbers of gaps, and rows as they are and then with so many, by losing values in their order."""
    width = orders.shape[1]
    levels = np.unique(np.round(np.linspace(0, width, LEVELS + 1)).astype(np.int64))
    there = np.take_along_axis(~preprocessor.gaps(rows), orders, 1)
    n_gaps, nth = width - there.sum(1, keepdims=True), np.cumsum(there, 1)

    def losing() -> Iterator[Array]:
        yield rows
        for level in levels:
            left, (row, step) = rows.copy(), np.nonzero(there & (nth <= level - n_gaps))
            preprocessor.remove(left, row, orders[row, step])
            yield left

    return levels, losing()


def _mean_falls(preprocessor: TablePreprocessor, anomaly: Anomaly, rows: Array, orders: NDArray[np.int64]) -> Array:
    """Return the mean fall of each score when each column is filled in, at least 0, shape (scores, D)."""
    gone, filled = preprocessor.gaps(rows), preprocessor.encode(rows)
    before = anomaly(filled)
    falls = np.zeros((before.shape[1], len(preprocessor.columns)))
    for columns in np.array_split(orders, min(STEPS, orders.shape[1]), axis=1):
        there, more = np.take_along_axis(~gone, columns, 1), np.zeros_like(gone)
        np.put_along_axis(more, columns, there, axis=1)
        filled = preprocessor.filled(filled, more)
        score = anomaly(filled)
        # Columns that are filled in together have equal parts of the fall.
        parts = ((before - score) / np.maximum(1, there.sum(1, keepdims=True))).T
        for of_score, part in zip(falls, parts, strict=True):
            np.add.at(of_score, columns[there], np.broadcast_to(part[:, None], there.shape)[there])
        before = score
    return np.maximum(falls / len(rows), 0.0)
