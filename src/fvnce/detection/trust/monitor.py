r"""Monitoring: tests of each column and of the scores for changes since training, with a bounded rate of alarms.

For each column of a table, ``fit`` stores the number of training rows in each cell: values at, between and beyond
quantiles of numbers, the most frequent texts and all others, and missing values. New rows are counted in the same
cells, and each difference has a p-value that is valid if training rows and new rows have the same distribution:

* a share (missing values, a text): twice the smaller tail of the hypergeometric distribution. The texts are chosen in
  one half of the training rows and counted in the other half, so the choice has no bias. The smallest p-value is
  multiplied by twice the number of texts, that of all other texts together, including unseen ones, by two;
* numbers: two-sample Kolmogorov-Smirnov, by the bound of Dvoretzky, Kiefer and Wolfowitz;
* scores: the same test against the scores of the held-out rows that make p-values, by the model trained without them;
* p-values: P(p ≤ t) may be t at most, at two levels (:data:`LEVELS_P`). Of m new rows, those with p ≤ k / (n + 1)
  follow the beta-binomial distribution of m, k and n + 1 − k, for n held-out rows.

New rows may contain outliers like the known ones, as the training rows did, or none: the larger of the two p-values is
used. Holm's procedure adjusts for the number of tests, so a batch from the same distribution causes an alarm with
probability ``alpha`` at most. For dates only missing values are compared, since new rows are later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import count, fields, flag, listed, number, require, stored_array
from ..preprocessing import MAX_CATEGORIES, TablePreprocessor
from ..rows import Array, as_counts, weighted_quantiles
from .conformal import Conformal, draw_split
from .drift import Baseline

#: Quantiles of a column that separate cells.
LEVELS = np.linspace(0.0, 1.0, 21)
#: Levels at which conformal p-values are tested, and coverage of the interval of the flagged share.
LEVELS_P, COVERED = (0.05, 0.01), 0.95


@dataclass(frozen=True)
class Cells:
    """Number of training rows in each cell of each column.

    Attributes:
        text: whether each column holds texts.
        edges: for each column ascending quantiles of numbers, or codes of the texts with a cell each.
        counts: for each column counts of unlabeled rows and known outliers, shape (2, cells); missing values are last.
    """

    text: list[bool]
    edges: list[Array]
    counts: list[Array]

    @classmethod
    def learn(
        cls, how: TablePreprocessor, rows: Array, weights: Array, known: Array, known_weights: Array, seed: int
    ) -> Self:
        """Count weighted unlabeled rows and known outliers in the form that the preprocessor takes."""
        measured = draw_split(rows, weights, seed)
        made = cls([column.categories is not None for column in how.columns], [], [])
        scale = float(as_counts(weights).sum() / weights.sum())
        for i, (text, column) in enumerate(zip(made.text, how.columns, strict=True)):
            values, edges, half = rows[:, i], np.empty(0), measured if text else None
            counted, part = (weights, 1.0) if half is None else (half, 0.5)
            if how.readings is not None and how.readings[i].ignored:
                pass
            elif half is not None:
                codes, place = np.unique(values, return_inverse=True)
                mass = np.bincount(place, weights - half)
                frequent = np.argsort(-mass, kind="stable")[: MAX_CATEGORIES + 1]
                edges = np.sort(codes[frequent[(mass[frequent] > 0) & (codes[frequent] >= 0)]])
            elif not text and column.times is None and (there := ~np.isnan(values)).any():
                edges = np.unique(weighted_quantiles(values[there], weights[there], LEVELS))
            made.edges.append(edges)
            both = ((values, counted), (known[:, i], part * known_weights))
            made.counts.append(np.rint(scale * np.stack([made.count(i, v, w) for v, w in both])))
        return made

    def count(self, i: int, values: Array, weights: Array | None = None) -> Array:
        """Count the values of the i-th column in each of its cells."""
        edges = self.edges[i]
        if self.text[i]:
            missing, cell = values == -1, np.searchsorted(edges, values)
            cell[~np.isin(values, edges)] = len(edges)
        else:
            missing = np.isnan(values)
            cell = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right")
        size = (1 if self.text[i] else 2) * len(edges) + 2
        return np.bincount(np.where(missing, size - 1, cell), weights, minlength=size).astype(np.float64)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the state as JSON content and arrays."""
        edges, counts = np.concatenate([*self.edges, np.empty(0)]), np.hstack([*self.counts, np.empty((2, 0))])
        sizes = [len(each) for each in self.edges]
        return {"text": self.text, "sizes": sizes}, {"edges": edges, "counts": counts}

    @classmethod
    def from_state(cls, content: Any, arrays: Mapping[str, NDArray[Any]], features: int) -> Self:
        """Restore the cells from a state, which is checked, for rows with ``features`` columns."""
        size = listed(partial(count, low=0), features)
        text, sizes = fields(content, "the cells", text=listed(flag, features), sizes=size)
        widths = [(1 if is_text else 2) * size + 2 for is_text, size in zip(text, sizes, strict=True)]
        require({"edges", "counts"} == set(arrays), "have edges and counts of cells", sorted(arrays))
        edges = stored_array("edges of cells", arrays["edges"], np.float64, (sum(sizes),))
        counts = stored_array("counts of cells", arrays["counts"], np.float64, (2, sum(widths)))
        whole = (counts >= 0) & (counts < 2**53) & (counts % 1 == 0)
        require(bool(whole.all()), "have counts of rows in cells", "others")
        of_columns = np.split(edges, np.cumsum(sizes)[:-1])
        require(all((np.diff(e) > 0).all() for e in of_columns), "have ascending edges of cells", "others")
        return cls(text, of_columns, np.split(counts, np.cumsum(widths)[:-1], axis=1))


@dataclass(frozen=True)
class ColumnChange:
    """Comparison of one column of new rows with training.

    Attributes:
        name: name of the column.
        missing: share of missing values in new rows.
        missing_before: share of missing values in unlabeled training rows.
        p_missing: p-value of this difference, adjusted for all tests; None if no value is missing in either.
        unseen: share of texts that did not occur in training; None for numbers and dates.
        difference: largest difference of distribution functions, or of the share of a text; None for dates.
        p_difference: p-value of this difference, adjusted for all tests; None without a test.
        words: description of the largest difference.
        edges: edges of the cells, for charts of the shares of training rows and of new rows in them.
    """

    name: str
    missing: float
    missing_before: float
    p_missing: float | None
    unseen: float | None
    difference: float | None
    p_difference: float | None
    words: str
    edges: Sequence[float] = field(repr=False)
    before: Sequence[float] = field(repr=False)
    now: Sequence[float] = field(repr=False)


@dataclass(frozen=True)
class Changes:
    """Changes of new rows since training; ``print`` shows a summary.

    Attributes:
        rows: number of new rows that were compared.
        alpha: largest probability of an alarm if nothing has changed.
        flagged: share of new rows above the threshold.
        flagged_low: lower end of its 95 % Clopper-Pearson interval.
        flagged_high: upper end of this interval.
        flagged_before: share of flagged training rows, held out where possible.
        score_difference: largest difference of the distribution functions of scores; None without p-values.
        p_scores: p-value of this difference, adjusted for all tests.
        small_p_values: share of new rows with p ≤ 0.05; None without p-values.
        p_p_values: adjusted p-value of the test that too many p-values are at most 0.05 or 0.01.
        columns: one entry for each column of a table.

    >>> from fvnce import NoiseContrastiveDetector
    >>> rng = np.random.default_rng(0)
    >>> detector = NoiseContrastiveDetector(n_trees=20).fit(rng.normal(size=(400, 2)))
    >>> changes = detector.monitor(rng.normal(size=(300, 2)) + [1, 0])
    >>> changes.alarm, changes.rows
    (True, 300)
    """

    rows: int
    alpha: float
    flagged: float
    flagged_low: float
    flagged_high: float
    flagged_before: float
    score_difference: float | None
    p_scores: float | None
    small_p_values: float | None
    p_p_values: float | None
    columns: Sequence[ColumnChange]

    @property
    def sentences(self) -> list[str]:
        """Sentences that describe the changes, by increasing p-value."""
        found: list[tuple[float | None, str]] = []
        for c in self.columns:
            share = f"{c.missing:.1%} of {c.name!r} are missing, {c.missing_before:.1%} were"
            found += [(c.p_missing, share), (c.p_difference, c.words)]
        if self.score_difference is not None and self.small_p_values is not None:
            text = f"scores differ from those of held-out training rows by {self.score_difference:.2f} in distribution"
            found.append((self.p_scores, text))
            text = f"p-values are no longer valid: {self.small_p_values:.1%} are at most {LEVELS_P[0]}"
            found.append((self.p_p_values, text))
        alarms = sorted((p, text) for p, text in found if p is not None and p <= self.alpha)
        return [f"{text} (p = {p:.2g})" for p, text in alarms]

    @property
    def alarm(self) -> bool:
        """Whether any change is significant at ``alpha``, adjusted for all tests."""
        return bool(self.sentences)

    def as_dict(self) -> dict[str, Any]:
        """Return all results except the charts as JSON content."""
        columns = [{n: v for n, v in vars(c).items() if n not in ("edges", "before", "now")} for c in self.columns]
        return {"alarm": self.alarm, **vars(self), "columns": columns, "sentences": self.sentences}

    def __str__(self) -> str:
        share = f"{self.flagged:.2%} flagged (95 % interval {self.flagged_low:.2%} to {self.flagged_high:.2%}"
        headline = "changed since training" if self.alarm else "no change since training found"
        rows = f"{self.rows:,} rows: {headline} at alpha = {self.alpha:g}"
        new = [c for c in self.columns if c.unseen]
        unseen = [f"{c.unseen:.1%} of {c.name!r} are texts that did not occur in training" for c in new]
        return "\n".join([rows, f"{share}; {self.flagged_before:.2%} in training)", *self.sentences, *unseen])


class Watch:
    """Counter of new rows, which may come in parts."""

    def __init__(
        self, baseline: Baseline, cells: Cells, conformal: Conformal | None, names: list[str], texts: list[Any]
    ) -> None:
        self._baseline, self._cells, self._conformal = baseline, cells, conformal
        self._names, self._texts = names, texts
        self._rows = self._flagged = 0
        self._ranks = [] if conformal is None else _ranks(float(conformal.weights.sum()))
        self._small = np.zeros(len(LEVELS_P), dtype=np.int64)
        self._counts = [np.zeros(c.shape[1]) for c in cells.counts]
        self._unseen = np.zeros(len(self._counts))
        self._below = np.zeros(0 if conformal is None else len(conformal.scores))

    def add(self, rows: Any, flagged: NDArray[np.bool_], scores: Array | None) -> None:
        """Count rows in the form that the preprocessor takes, flagged rows, and scores for p-values."""
        self._rows, self._flagged = self._rows + len(flagged), self._flagged + int(flagged.sum())
        for i, counts in enumerate(self._counts):
            values = np.asarray(rows[:, i], dtype=np.float64)
            self._unseen[i] += (values == -2).sum() if self._cells.text[i] else 0
            counts += self._cells.count(i, values)
        if self._conformal is not None and scores is not None:
            self._below += np.searchsorted(np.sort(scores), self._conformal.scores, side="right")
            p = self._conformal.p_value(scores) * (1 + self._conformal.weights.sum())
            self._small += [int((p <= k + 1e-9).sum()) for k in self._ranks]

    def changes(self, alpha: float = 0.01) -> Changes:
        """Test for changes, with a probability of an alarm of at most ``alpha`` if nothing has changed."""
        from scipy.stats import betabinom, binomtest

        alpha = number("alpha", alpha, low=0.0, high=1.0, open_low=True)
        columns = [self._column(i) for i in range(len(self._counts))]
        difference = p_scores = small = p_small = None
        if (conformal := self._conformal) is not None:
            n, known = float(conformal.weights.sum()), self._baseline.known
            below = np.cumsum(conformal.weights) / n
            last = np.append(conformal.scores[1:] > conformal.scores[:-1], True)  # of equal scores
            difference = float(np.abs(below - self._below / self._rows)[last].max())
            p_scores = _kolmogorov(max(0.0, difference - known), n, self._rows)
            small, hidden = float(self._small[0] / self._rows), n * known / (1 - known)
            if tested := [(k, count) for k, count in zip(self._ranks, self._small.tolist(), strict=True) if k]:
                counts = [np.arange(count, self._rows + 1) for _, count in tested]
                parts = [(self._rows, k + hidden, n + 1 - k) for k, _ in tested]
                # Sums are accurate for small probabilities, which 1 − cdf would round to 0.
                tails = [betabinom.pmf(c, *each).sum() for c, each in zip(counts, parts, strict=True)]
                p_small = min(1.0, len(tested) * float(min(tails)))
        p = [value for c in columns for value in (c.p_missing, c.p_difference)]
        adjusted = _holm([*p, p_scores, p_small])
        pairs = zip(columns, adjusted[:-2:2], adjusted[1:-2:2], strict=True)
        low, high = binomtest(self._flagged, self._rows).proportion_ci(COVERED)
        return Changes(
            rows=self._rows,
            alpha=alpha,
            flagged=self._flagged / self._rows,
            flagged_low=float(low),
            flagged_high=float(high),
            flagged_before=self._baseline.flagged,
            score_difference=difference,
            p_scores=adjusted[-2],
            small_p_values=small,
            p_p_values=adjusted[-1],
            columns=[replace(c, p_missing=first, p_difference=second) for c, first, second in pairs],
        )

    def _column(self, i: int) -> ColumnChange:
        """Compare one column, with unadjusted p-values."""
        now, (before, known), edges = self._counts[i], self._cells.counts[i], self._cells.edges[i]
        each = [before, before + known] if known.any() else [before]
        missing = [_share_test(b[-1:], b.sum(), now[-1:], self._rows)[0] for b in each]
        shown_before, shown_now = (counts[:-1] / max(1.0, counts[:-1].sum()) for counts in (before, now))
        difference = p_difference = None
        words = ""
        if len(edges) and now[:-1].any() and before[:-1].any():
            sizes = [(float(b[:-1].sum()), float(now[:-1].sum())) for b in each]
            if self._cells.text[i]:
                p = np.max([_share_test(b[:-1], s[0], now[:-1], s[1]) for b, s in zip(each, sizes, strict=True)], 0)
                p[:-1] *= 2 * len(edges)
                p[-1] *= 2
                apart, at = np.abs(shown_now - shown_before), int(p.argmin())
                p_difference = min(1.0, float(p[at]))
                named = {code: text for text, code in (self._texts[i] or {}).items()}
                what = f"are {named.get(int(edges[at]), '?')!r}" if at < len(edges) else "are other texts"
                first, second = shown_now[at], shown_before[at]
            else:
                above = np.cumsum(now[:-1]) / sizes[0][1]
                apart = np.abs(np.cumsum(shown_before) - above)
                p_difference = max(
                    _kolmogorov(float(np.abs(np.cumsum(b[:-1]) / s[0] - above).max()), *s)
                    for b, s in zip(each, sizes, strict=True)
                )
                at = int(apart.argmax())
                what = f"are {'at most' if at % 2 else 'below'} {edges[min(at // 2, len(edges) - 1)]:.6g}"
                first, second = above[at], np.cumsum(shown_before)[at]
            difference = float(apart.max())
            words = f"{first:.1%} of {self._names[i]!r} {what}, {second:.1%} were"
        texts = now[:-1].sum()
        return ColumnChange(
            name=self._names[i],
            missing=float(now[-1] / self._rows),
            missing_before=float(before[-1] / max(1.0, before.sum())),
            p_missing=max(missing) if now[-1] + before[-1] + known[-1] else None,
            unseen=float(self._unseen[i] / texts) if self._cells.text[i] and texts else None,
            difference=difference,
            p_difference=None if p_difference is None else float(p_difference),
            words=words,
            edges=edges.tolist(),
            before=shown_before.tolist(),
            now=shown_now.tolist(),
        )


def _ranks(n: float) -> list[int]:
    """Return k for each level t such that p ≤ t if fewer than k of n held-out rows score at least as high.

    >>> _ranks(199)
    [10, 2]
    """
    return [int(level * (n + 1) + 1e-9) for level in LEVELS_P]


def _share_test(before: Array, of_before: float, now: Array, of_now: float) -> Array:
    """Return the two-sided p-value of each pair of counts, by the hypergeometric distribution."""
    from scipy.stats import hypergeom

    margins = round(of_before + of_now), np.rint(before + now), round(of_now)
    low, high = hypergeom.cdf(now, *margins), hypergeom.sf(now - 1, *margins)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(low, high)))


def _kolmogorov(difference: float, n: float, m: float) -> float:
    """Return the p-value of the largest difference of the distribution functions of n and m rows."""
    return float(min(1.0, 2 * np.exp(-2 * difference**2 * n * m / (n + m))))


def _holm(p: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number by Holm's procedure, ignoring None.

    >>> _holm([0.01, None, 0.5, 0.04])
    [0.03, None, 0.5, 0.08]
    """
    there = [i for i, value in enumerate(p) if value is not None]
    adjusted: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, i in enumerate(sorted(there, key=lambda i: (p[i], i))):
        largest = max(largest, min(1.0, (len(there) - rank) * float(p[i] or 0.0)))
        adjusted[i] = largest
    return adjusted
