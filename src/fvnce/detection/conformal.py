r"""Conformal p-values: how rare is a row as strange as this among rows like those of training?

Rows are *split*: a model is trained on one part, and the n rows of the other, which it has never seen, are its measure:

    p(x) = (1 + #{i : s(x_i) ≥ s(x)}) / (n + 1).

**Guarantee.** If x is exchangeable with the unlabelled training rows (another draw of the same source), then
P(p(x) ≤ t) ≤ t for every t, whatever the model, the data and n: the n + 1 scores are exchangeable, so each rank of s(x)
is as probable as any other, and ties only raise p. Two things are needed for that.

*Nothing of the model depends on the n rows*: not the trees and networks, not the centres and scales of columns, and not
how the columns of a data frame are read (which are numbers, categories or identifiers), all of which are learnt anew
from the model's part. A function of *all* training rows would not do, since x is none of them: a reading R that is
learnt from the n rows as well gives P(p(x) ≤ t) ≤ t + P(R changes with one more row). That weaker bound is what holds
for tables that the command line reads from files, whose columns are read by the whole file.

*Which rows are held out has nothing to do with what they hold.* Rows are sorted, so that their order does not matter;
a draw of places by a fixed seed would hold out the same ranks of every table. The seed is therefore joined with a hash
of the rows (`draw_split`): the same table has the same split, and different tables have independent ones.

The probability is over the training rows, the split and x. Where a table has only a few possible contents, such as ten
rows of one 0/1 column, the same split recurs with the same contents and the probability over splits needs different
seeds. Equal rows are drawn one by one: rows that are repeated must be draws of their own. A ``sample_weight`` that is
not the same for all rows, which says that rows count as several without being drawn as often, leaves no guarantee.
p-values of several rows share the n rows and depend on one another, positively (PRDS), so that the procedure of
Benjamini and Hochberg on them keeps

    FDR = E[false alarms / alarms] ≤ q · (share of usual rows)

among rows that are given together (Bates, Candès, Lei, Romano and Sesia, *Testing for outliers with conformal
p-values*, Annals of Statistics 51, 2023). Scores of cross-validation would cost a factor of 2 in the guarantee, and
none is known for FDR; the detector's own score beside held-out scores of *other* models has none at all. That is why
p-values have a model of their own, unless ``max_rows`` left rows over, which then measure the detector itself. Its
order of rows is close to that of ``anomaly_score``, and not the same.

**Hidden outliers** among the n rows make p larger, since they score high. The guarantee still holds for usual rows, if
outliers are at least as strange as these in distribution: alarms become fewer, not wrong. But rows that hold the same
share of outliers as the training rows are nothing new to it, and hardly an alarm can be raised: p asks whether a row is
unlike the *training rows*. With known outliers, ``discount=True`` counts each of the n rows with its probability of
being no outlier. That finds hidden kinds again, and exchanges the guarantee for an estimate that is as good as
``outlier_probability``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import false_discovery_control
from torch import Tensor

from .. import _checks
from ..serialization import fields
from .ensemble import Ensemble
from .frame import Frame, plain_matrix, read_by, text_bytes
from .members.base import part_of, require, require_array, require_count
from .plan import Array, Plan, TrainingRows
from .preprocessing import Preprocessor, learn_preprocessor, preprocessor_from_state
from .rows import are_counts, as_counts, hash_words

#: The fewest unlabelled rows that are worth a split.
FEWEST = 8
#: The most rows of a data frame that are repeated by their weights to learn how columns are read.
MOST_READ = 10**6


@dataclass(frozen=True)
class SplitModel:
    """The model of one part of the rows, with an encoding of its own."""

    preprocessor: Preprocessor
    ensemble: Ensemble

    def anomaly(self, rows: Any) -> Array:
        """The anomaly of rows as the preprocessor takes them, shape (n,)."""
        return self.ensemble.anomaly(self.preprocessor.encode(rows))


@dataclass(frozen=True)
class Conformal:
    """Scores of rows that the scoring model had not seen, and what they make of a new score.

    Attributes:
        scores: ascending, shape (n,).
        weights: how often each counts, shape (n,); of sum n where they are counts of rows.
        inlier: the probability that each is no outlier, shape (n,), or None where that is not known.
        model: the model that gave the scores; None for the detector itself.

    >>> conformal = Conformal(np.arange(9.0), np.ones(9), None, None)
    >>> conformal.p_value(np.array([-1.0, 8.0, 9.0]))
    array([1. , 0.2, 0.1])
    """

    scores: Array
    weights: Array
    inlier: Array | None
    model: SplitModel | None

    @classmethod
    def of(cls, scores: Array, weights: Array, inlier: Array | None = None, model: SplitModel | None = None) -> Self:
        """From scores in any order."""
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], as_counts(weights)[order], None if inlier is None else inlier[order], model)

    def p_value(self, anomaly: Array, *, discount: bool = False) -> Array:
        """The p-value of scores by the same model, shape (n,)."""
        if discount and self.inlier is None:
            raise ValueError(
                "discount must be False without known outliers that were held out, found True: the probability of the "
                "held-out rows to be outliers is not known; pass y with two known outliers or more to fit"
            )
        weights = self.weights * self.inlier if discount and self.inlier is not None else self.weights
        above = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
        return np.asarray((1 + above[np.searchsorted(self.scores, anomaly, side="left")]) / (1 + above[0]))

    def warn_if_silent(self, fdr: float, *, discount: bool = False) -> None:
        """Warn if no p-value can be as small as ``fdr``: then nothing is rejected, whatever the rows."""
        least = float(self.p_value(np.array([np.inf]), discount=discount)[0])
        if least > fdr:
            warnings.warn(
                f"fdr must be at least {least:.3g} to raise an alarm, found {fdr:g}: no p-value by "
                f"{1 / least - 1:,.6g} held-out rows is smaller, so that no row can be flagged; allow more false "
                "alarms, or fit on more rows",
                stacklevel=3,
            )

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """For a file."""
        tensors = {"scores": torch.from_numpy(self.scores), "weights": torch.from_numpy(self.weights)}
        if self.inlier is not None:
            tensors["inlier"] = torch.from_numpy(self.inlier)
        model = None
        if self.model is not None:
            ensemble, own = self.model.ensemble.state()
            model = {"preprocessor": self.model.preprocessor.state(), "ensemble": ensemble}
            tensors |= {f"model.{name}": value for name, value in own.items()}
        return {"rows": len(self.scores), "inlier": self.inlier is not None, "model": model}, tensors

    @classmethod
    def from_state(cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], features: int) -> Self:
        """From what may be a stranger's, for rows with so many columns."""
        rows, has_inlier, saved = fields(content, "p-values", "rows", "inlier", "model")
        require_count("rows of the p-values", rows, 1)
        require(isinstance(has_inlier, bool), "say whether probabilities of rows are known", has_inlier)
        names = ("scores", "weights", "inlier") if has_inlier else ("scores", "weights")
        arrays = {name: tensors[name].numpy() for name in names}
        for name, values in arrays.items():
            require_array(f"{name} of the p-values", values, np.float64, (rows,))
        require(bool((np.diff(arrays["scores"]) >= 0).all()), "have ascending scores of the p-values", "others")
        require(bool((arrays["weights"] >= 0).all()), "have weights >= 0 of the p-values", "others")
        inlier = arrays.get("inlier")
        require(inlier is None or bool(((inlier >= 0) & (inlier <= 1)).all()), "have probabilities in [0, 1]", "others")
        model = None
        if saved is not None:
            how, ensemble = fields(saved, "the model of the p-values", "preprocessor", "ensemble")
            preprocessor = preprocessor_from_state(how, features)
            own = part_of(tensors, "model.")
            made = Ensemble.from_state(ensemble, own, preprocessor.width, preprocessor.image)
            model = SplitModel(preprocessor, made)
        return cls(arrays["scores"], arrays["weights"], inlier, model)


def draw_split(rows: Array, weights: Array, seed: int, *content: Array) -> Array | None:
    """Draw half of the rows to be held out: how often each of them is, shape (n,), or None for too few rows.

    A row of weight k is k rows, which are drawn one by one; with weights that are no counts, whole rows are. The rows
    are part of the seed: a draw of places alone would hold out the same ranks of every sorted table.

    Args:
        rows: without a label, merged and sorted, shape (n, …).
        weights: how often each counts, shape (n,).
        seed: of the draw.
        content: what the rows hold beyond ``rows``, such as the texts that codes stand for.
    """
    if (weights.sum() if are_counts(weights) else len(rows)) < FEWEST:
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
    inlier: Array | None,
    plan_for: Callable[[TrainingRows], Plan],
    seed: int,
) -> Conformal | None:
    """Train on half of the unlabelled rows and all known outliers, and score the other half; None for too few rows.

    Args:
        table: different rows, known outliers among them: a matrix, images or a :class:`Frame`, in which even how
            columns are read is learnt without the other half.
        known: which rows are known outliers.
        weights: how often each row counts.
        inlier: for each row, the probability that it is no outlier, or None.
        plan_for: what to train on preprocessed rows.
        seed: of the split and of the training.
    """
    keys = plain_matrix(table) if isinstance(table, Frame) else table
    measure = np.zeros(len(weights))
    # Codes of texts are ranks: in a column of different texts they are the same for every table.
    drawn = draw_split(keys[~known], weights[~known], seed, *(text_bytes(table, ~known) if keys is not table else ()))
    if drawn is None:
        return None
    measure[~known] = drawn
    left = weights - measure
    trained, held = ~known & (left > 0), measure > 0
    raw, readings = table, None
    if isinstance(table, Frame):
        times = weights > 0 if weights.sum() > MOST_READ or not are_counts(weights) else left
        rows = np.repeat(np.arange(len(left)), np.where(left > 0, times, 0).astype(np.int64))
        raw, readings = read_by(table, rows, round(len(rows) * weights.sum() / left.sum()))
    preprocessor = learn_preprocessor(raw[trained], left[trained], readings, raw[known])
    outliers = preprocessor.encode(raw[known]) if known.any() else np.empty((0, preprocessor.width))
    encoded = TrainingRows(preprocessor.encode(raw[trained]), left[trained], outliers, weights[known])
    ensemble, _, _ = Ensemble.fit(encoded, plan_for(encoded).for_calibration(), seed + 79)
    model = SplitModel(preprocessor, ensemble)
    return Conformal.of(model.anomaly(raw[held]), measure[held], None if inlier is None else inlier[held], model)


def reject(p: Array, fdr: float) -> NDArray[np.bool_]:
    """Which hypotheses the procedure of Benjamini and Hochberg rejects at a false discovery rate.

    >>> reject(np.array([0.01, 0.04, 0.03, 0.9]), 0.1)
    array([ True,  True,  True, False])
    """
    level = _checks.number("fdr", fdr, low=0.0, high=1.0, open_low=True)
    return np.asarray(false_discovery_control(p, method="bh") <= level)
