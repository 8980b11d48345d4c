r"""Conformal p-values: the probability of a score at least as high for a row like the training rows.

A model is trained on one part of the rows, and the n rows of the other part are held out. The p-value of a row x is

    p(x) = (1 + #{i : s(x_i) ≥ s(x)}) / (n + 1)        (Eq. p_value).

If x is a new draw from the distribution of the unlabeled training rows, P(p(x) ≤ t) ≤ t for every t, whatever the
model, the data and n. Two conditions are needed. The model does not depend on the n rows, including the scales of
columns and the reading of the columns of a data frame. And the choice of held-out rows is independent of their content,
so the seed of the draw includes a hash of the rows. docs/detector/thresholds.md gives the proof, bounds the false
discovery rate of alarms (Eq. fdr), and gives the correction for outliers hidden among the n rows (Eq. tail).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..._validation import count, fields, number, require, stored_array
from ...tables.frame import Frame
from ...tables.schema import plain_matrix, read_by, text_bytes
from ..ensemble import Ensemble, settings_for
from ..gaps import Gaps, score_rows
from ..members.base import MemberSettings, State, part_of, prefixed
from ..preprocessing import Preprocessor, TablePreprocessor, learn_preprocessor, preprocessor_from_state
from ..rows import Array, TrainingRows, are_counts, as_counts, hash_words

#: Smallest number of unlabeled rows that are split.
MIN_SPLIT = 8
#: Shape of the heaviest tail that inliers' scores are assumed to have; Student's t with 4 degrees of freedom has ¼.
TAIL = 0.35
#: Fractions of the inliers that score below the two scores that set the scale of the tail.
TAIL_LEVELS = (0.8, 0.9)
#: Smallest number of held-out rows in excess of the tail, and largest fraction, that are taken for hidden outliers.
EXCESS, MOST_HIDDEN = 5.0, 0.3
#: Number of iterations between the fraction of hidden outliers and the tail.
TAIL_ROUNDS = 10
#: Largest number of rows of a data frame, repeated by their weights, for learning how columns are read.
MAX_READ = 10**6


@dataclass(frozen=True)
class SplitModel:
    """Model trained on one part of the rows, with its own encoding."""

    preprocessor: Preprocessor
    ensemble: Ensemble
    gaps: Gaps | None = None

    def anomaly(self, rows: Any) -> Array:
        """Return the anomaly of rows in the form that the preprocessor takes, shape (n,)."""
        return score_rows(self.ensemble.anomaly, self.preprocessor, self.gaps, rows)


@dataclass(frozen=True)
class Conformal:
    """Held-out scores, from which p-values of new scores are computed.

    Attributes:
        scores: held-out scores, ascending, shape (n,).
        weights: weights of the scores, shape (n,); their sum is n if they are counts of rows.
        model: model that computed the scores; None for the detector itself.
        hidden: largest fraction of the held-out rows that may be discounted as hidden outliers.

    >>> conformal = Conformal(np.arange(9.0), np.ones(9), None)
    >>> conformal.p_value(np.array([-1.0, 8.0, 9.0]))
    array([1. , 0.2, 0.1])
    """

    scores: Array
    weights: Array
    model: SplitModel | None
    hidden: float = MOST_HIDDEN

    @classmethod
    def of(cls, scores: Array, weights: Array, model: SplitModel | None = None) -> Self:
        """Make a Conformal from scores in any order."""
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], as_counts(weights)[order], model)

    def p_value(self, anomaly: Array, *, discount: bool = False) -> Array:
        """Return the p-values of scores of the same model, shape (n,).

        Args:
            anomaly: scores.
            discount: of the held-out rows, do not count those in excess of the inliers' tail (Eq. tail), ``hidden`` of
                them at most.
        """
        above = self._above(anomaly)
        if discount:
            most = self.hidden * float(self.weights.sum())
            above = np.maximum(np.minimum(above, self._inliers_above(anomaly)), above - most)
        return np.asarray((1 + above) / (1 + self.weights.sum()))

    def _above(self, anomaly: Array) -> Array:
        """Return the weight of the held-out rows that score at least as high."""
        total = np.append(np.cumsum(self.weights[::-1])[::-1], 0.0)
        return total[np.searchsorted(self.scores, anomaly, side="left")]

    def _inliers_above(self, anomaly: Array) -> Array:
        """Return the largest expected weight of held-out inliers above scores; infinity where it is not bounded.

        Outliers hidden among the held-out rows raise the quantiles that set the scale of the tail, and with it the
        bound. So the fraction π of hidden outliers is iterated from 0 up, which keeps the bound too high rather than
        too low. If no more rows than expected score high, π stays 0 and nothing is bounded.
        """
        below, above, n, hidden = np.cumsum(self.weights), self._above(self.scores), float(self.weights.sum()), 0.0
        bound = np.full(len(anomaly), np.inf)
        for _ in range(TAIL_ROUNDS):
            inliers = (1 - hidden) * n
            low, high = (
                float(self.scores[min(len(below) - 1, int(np.searchsorted(below, level * inliers - 1e-9 * n)))])
                for level in TAIL_LEVELS
            )
            if high <= low:
                break
            scale = TAIL * (high - low) / (2**TAIL - 1)  # the tail halves between the two levels
            tail = high, scale, (1 - TAIL_LEVELS[1]) * inliers
            excess = float((above - _tail(self.scores, *tail)).max())
            if excess <= EXCESS:
                break
            bound, now = _tail(anomaly, *tail), min(self.hidden, excess / n)
            if now <= hidden:
                break
            hidden = now
        return bound

    def least(self, *, discount: bool = False) -> float:
        """Return the smallest possible p-value."""
        return float(self.p_value(np.array([np.inf]), discount=discount)[0])

    def state(self) -> State:
        """Return the state as JSON content and arrays."""
        arrays = {"scores": self.scores, "weights": self.weights}
        model = None
        if self.model is not None:
            ensemble, model_arrays = self.model.ensemble.state()
            gaps = None if self.model.gaps is None else self.model.gaps.state()
            model = {"preprocessor": self.model.preprocessor.state(), "ensemble": ensemble, "gaps": gaps}
            arrays |= prefixed("model", model_arrays)
        return {"rows": len(self.scores), "model": model, "hidden": self.hidden}, arrays

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], features: int) -> Self:
        """Restore from a state, which is checked, for rows with ``features`` columns."""
        content = {name: value for name, value in content.items() if name != "inlier"}  # of version 0.2
        share = partial(number, low=0.0, high=MOST_HIDDEN)
        saved, hidden, rows = fields({"hidden": MOST_HIDDEN, **content}, "p-values", "model", hidden=share, rows=count)
        scores, weights = (
            stored_array(f"{name} of the p-values", arrays[name], np.float64, (rows,)) for name in ("scores", "weights")
        )
        require(bool((np.diff(scores) >= 0).all()), "have ascending scores of the p-values", "others")
        require(bool((weights >= 0).all()), "have weights >= 0 of the p-values", "others")
        model = None
        if saved is not None:
            names = ("preprocessor", "ensemble", "gaps")
            how, ensemble, gaps = fields({"gaps": None, **saved}, "the model of the p-values", *names)
            preprocessor = preprocessor_from_state(how, features)
            model_arrays = part_of(arrays, "model")
            made = Ensemble.from_state(ensemble, model_arrays, preprocessor.width, preprocessor.image)
            model = SplitModel(preprocessor, made, Gaps.from_state(gaps, preprocessor))
        return cls(scores, weights, model, hidden)


def _tail(score: Array, start: float, scale: float, weight: float) -> Array:
    """Return the weight above scores in a generalized Pareto tail that has ``weight`` above its start."""
    beyond = (1 + TAIL * np.maximum(score - start, 0.0) / scale) ** (-1 / TAIL)
    return np.where(score > start, weight * beyond, np.inf)


def draw_split(rows: Array, weights: Array, seed: int, *content: Array) -> Array | None:
    """Draw half of the rows to hold out; return the number of copies of each, shape (n,), or None for too few rows.

    A row of weight k counts as k rows, which are drawn separately; if weights are not counts, whole rows are drawn. The
    rows are part of the seed, since a draw of indices alone would hold out the same ranks of every sorted table.

    Args:
        rows: unlabeled rows, merged and sorted, shape (n, …).
        weights: weights of the rows, shape (n,).
        seed: seed of the draw.
        content: additional content of the rows, such as the texts of codes.
    """
    if (weights.sum() if are_counts(weights) else len(rows)) < MIN_SPLIT:
        return None
    rng = np.random.default_rng([seed, 79, *hash_words(rows, weights, *content)])
    if not are_counts(weights):
        return np.where(rng.permutation(len(rows)) % 2 == 0, weights, 0.0)
    counts = weights.astype(np.int64)
    return rng.multivariate_hypergeometric(counts, int(counts.sum()) // 2, method="marginals").astype(np.float64)


def fit_split(
    table: Any,
    known: NDArray[np.bool_],
    weights: Array,
    checked: NDArray[np.bool_] | None,
    settings: MemberSettings,
    seed: int,
) -> Conformal | None:
    """Train on half of the unlabeled rows and all known outliers, and score the other half; None for too few rows.

    Args:
        table: distinct rows, including known outliers: a matrix, images or a :class:`Frame`, whose column types are
            learned without the held-out half.
        known: mask of known outliers.
        weights: weights of the rows.
        checked: mask of known inliers, or None. They are split like other rows: checked rows may have been chosen by
            their score, and without them the held-out rows would score too low.
        settings: settings of the detector.
        seed: seed of the split and the training.
    """
    keys = plain_matrix(table) if isinstance(table, Frame) else table
    measure = np.zeros(len(weights))
    # Codes of texts are ranks, which are equal for every table if all texts in a column are distinct.
    drawn = draw_split(keys[~known], weights[~known], seed, *(text_bytes(table, ~known) if keys is not table else ()))
    if drawn is None:
        return None
    measure[~known] = drawn
    left = weights - measure
    trained, held_out = ~known & (left > 0), measure > 0
    raw, readings = table, None
    if isinstance(table, Frame):
        times = weights > 0 if weights.sum() > MAX_READ or not are_counts(weights) else left
        rows = np.repeat(np.arange(len(left)), np.where(left > 0, times, 0).astype(np.int64))
        raw, readings = read_by(table, rows, round(len(rows) * weights.sum() / left.sum()))
    preprocessor = learn_preprocessor(raw[trained], left[trained], readings, raw[known])
    outliers = preprocessor.encode(raw[known]) if known.any() else np.empty((0, preprocessor.width))
    encoded = TrainingRows(preprocessor.encode(raw[trained]), left[trained], outliers, weights[known])
    encoded = replace(encoded, checked=None if checked is None else checked[trained])
    complete = settings_for(settings, len(outliers), preprocessor.width, preprocessor.image).smaller()
    ensemble, gaps = Ensemble.fit(encoded, complete, seed + 79)[0], None
    if isinstance(preprocessor, TablePreprocessor):
        gaps = Gaps.learn(preprocessor, ensemble.anomaly, raw[trained], left[trained], seed + 79)
    model = SplitModel(preprocessor, ensemble, gaps)
    scores = model.anomaly(raw[held_out])
    return Conformal.of(scores, measure[held_out], model)


def reject(p: Array, fdr: float) -> NDArray[np.bool_]:
    """Return a mask of the hypotheses that the Benjamini-Hochberg procedure rejects at a false discovery rate.

    >>> reject(np.array([0.01, 0.04, 0.03, 0.9]), 0.1)
    array([ True,  True,  True, False])
    """
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p, method="bh") <= fdr)


def check_budget(alarms: int | None, threshold: float | None, fdr: float | None) -> None:
    """Validate alarms, threshold and fdr, of which at most one may be given."""
    given = {"alarms": alarms, "threshold": threshold, "fdr": fdr}
    names = [name for name, budget in given.items() if budget is not None]
    if len(names) > 1:
        raise ValueError(f"only one of alarms, threshold and fdr must be given, found {' and '.join(names)}")
    if alarms is not None:
        count("alarms", alarms)
    if threshold is not None:
        number("threshold", threshold)
    if fdr is not None:
        number("fdr", fdr, low=0.0, high=1.0, open_low=True)


def flag_by(
    anomaly: Array,
    above: NDArray[np.bool_],
    p: Array | None,
    *,
    alarms: int | None = None,
    threshold: float | None = None,
    fdr: float | None = None,
    least: float = 0.0,
    discount: bool = False,
) -> NDArray[np.bool_]:
    """Return a mask of flagged rows, shape (n,); warn if ``fdr`` flags no row although some are above the threshold.

    Args:
        anomaly: scores of the rows, shape (n,).
        above: which rows are flagged without a budget, shape (n,).
        p: p-values, for ``fdr``.
        alarms: number of highest rows to flag; the first of equal rows are preferred.
        threshold: flag rows with an anomaly score above it.
        fdr: false discovery rate for :func:`reject`.
        least: smallest possible p-value.
        discount: whether ``p`` discounts hidden outliers.

    >>> flag_by(np.array([1.0, 3.0, 3.0]), np.array([False, True, True]), None, alarms=1)
    array([False,  True, False])
    """
    if alarms is not None:
        flagged = np.zeros(len(anomaly), dtype=bool)
        flagged[np.argsort(-anomaly, kind="stable")[:alarms]] = True
        return flagged
    if threshold is not None:
        return anomaly > threshold
    if fdr is None or p is None:
        return above
    flagged = reject(p, fdr)
    if above.any() and not flagged.any():
        ranked = np.sort(p)
        needed = ranked * len(p) / np.arange(1, len(p) + 1)
        first = int(np.argmin(needed))
        if ranked[first] <= least:
            why = f"With {1 / least - 1:,.6g} held-out training rows, no p-value can be smaller: fit on more rows"
        else:
            some = "more" if discount else "some"
            why = f"Held-out training rows score as high, possibly hidden outliers: label {some} outliers"
        warnings.warn(
            f"no alarm at any fdr below {min(1.0, needed[first]):.2g}, found fdr {fdr:g}, although "
            f"{int(above.sum()):,} of {len(p):,} rows are above the threshold. "
            f"{why}, or pass alarms or threshold instead",
            stacklevel=3,
        )
    return flagged
