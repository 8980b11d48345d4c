"""Scorers for searches and cross-validation, where ``y`` is 1 for outliers and higher is better.

    cross_val_score(detector, X, y, scoring=scorers.roc_auc)
    GridSearchCV(detector, grid, scoring={"auroc": scorers.roc_auc, "ap": scorers.average_precision}, refit="ap")

Do not use ``scoring="roc_auc"``: that scorer takes ``decision_function`` for the score of y = 1, but by scikit-learn's
convention outliers have *low* values. It gives 1 − AUROC, and a search selects the worst model. The detectors warn when
a scorer of scikit-learn calls them (:func:`warn_if_scored`). The functions below use ``anomaly_score``, by which
``fvnce evaluate`` ranks too, else ``score_samples``. They work with every outlier detector that follows scikit-learn's
conventions, and with pipelines and searches.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation
from .rows import read_labels

#: Number of stack frames that are searched for a scorer of scikit-learn, enough for nested pipelines.
DEPTH = 16


def roc_auc(estimator: Any, X: Any, y: Any) -> float:
    """Return the AUROC: the probability that an outlier (y = 1) scores as more anomalous than another row.

    >>> from sklearn.neighbors import LocalOutlierFactor
    >>> X = np.array([[0.0], [0.1], [0.2], [0.3], [9.0]])
    >>> roc_auc(LocalOutlierFactor(n_neighbors=2, novelty=True).fit(X[:4]), X, [0, 0, 0, 0, 1])
    1.0
    """
    from sklearn.metrics import roc_auc_score

    truth = outliers_of(y)
    return float(roc_auc_score(truth, _anomaly(estimator, X)))


def average_precision(estimator: Any, X: Any, y: Any) -> float:
    """Return the average precision: the mean over outliers (y = 1) of the precision at their score.

    >>> from sklearn.neighbors import LocalOutlierFactor
    >>> X = np.array([[0.0], [0.1], [0.2], [0.3], [9.0]])
    >>> average_precision(LocalOutlierFactor(n_neighbors=2, novelty=True).fit(X[:4]), X, [0, 0, 0, 0, 1])
    1.0
    """
    from sklearn.metrics import average_precision_score

    truth = outliers_of(y)
    return float(average_precision_score(truth, _anomaly(estimator, X)))


def precision_at_k(estimator: Any, X: Any, y: Any, k: int | None = None) -> float:
    """Return the fraction of outliers (y = 1) among the k highest-scoring rows.

    Ties at the k-th place count as on average over random orders.

    Args:
        estimator: a fitted outlier detector.
        X: rows.
        y: 1 for outliers.
        k: number of rows that can be reviewed; by default the number of outliers. For a search,
            ``scoring=functools.partial(precision_at_k, k=20)``.

    >>> from sklearn.neighbors import LocalOutlierFactor
    >>> X = np.array([[0.0], [0.1], [0.2], [0.3], [9.0]])
    >>> precision_at_k(LocalOutlierFactor(n_neighbors=2, novelty=True).fit(X[:4]), X, [0, 0, 0, 0, 1], k=2)
    0.5
    """
    truth = outliers_of(y)
    places = int(truth.sum()) if k is None else _validation.count("k", k)
    if places > len(truth):
        raise ValueError(f"k must be at most the number of rows, {len(truth)}, found {places}")
    score = _anomaly(estimator, X)
    limit = np.sort(score)[len(score) - places]
    above, level = score > limit, score == limit
    fraction = (places - int(above.sum())) / int(level.sum())
    return float((truth[above].sum() + fraction * truth[level].sum()) / places)


def _anomaly(estimator: Any, X: Any) -> NDArray[np.float64]:
    """Return scores that are higher for outliers, of the detector in a pipeline or a search."""
    from sklearn.pipeline import Pipeline

    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline) and hasattr(estimator[-1], "anomaly_score"):
        X, estimator = estimator[:-1].transform(X) if len(estimator) > 1 else X, estimator[-1]
    if hasattr(estimator, "anomaly_score"):
        return np.asarray(estimator.anomaly_score(X))
    return -np.asarray(estimator.score_samples(X))


def outliers_of(y: Any) -> NDArray[np.bool_]:
    """Return a mask of the outliers; there must be outliers and other rows.

    >>> outliers_of(["yes", "no", "no"])
    array([ True, False, False])
    """
    truth: NDArray[np.bool_] = np.asarray(read_labels(y) == 1)
    if truth.all() or not truth.any():
        raise ValueError(f"y must hold outliers (1) and other rows, found {int(truth.sum())} outliers in {len(truth)}")
    return truth


class InvertedScoreWarning(UserWarning):
    """Warning that a scorer of scikit-learn uses a detector whose scores have the opposite sign.

    >>> from sklearn.metrics import get_scorer
    >>> from fvnce import NoiseContrastiveDetector
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> X[:4] += 6
    >>> y = np.repeat([1, 0], [4, 36])
    >>> detector = NoiseContrastiveDetector(n_trees=9).fit(X)
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     upside_down = get_scorer("roc_auc")(detector, X, y)
    >>> caught[0].category.__name__, upside_down < 0.5 < roc_auc(detector, X, y)
    ('InvertedScoreWarning', True)
    """


def warn_if_scored(method: str) -> None:
    """Warn if the calling ``method`` of a detector was called by a scorer or curve of ``sklearn.metrics``."""
    frame = inspect.currentframe()  # None if the interpreter does not support frames
    for _ in range(DEPTH):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn.metrics."):
            what = "is low for outliers" if method == "decision_function" else "is -1 for outliers and +1 for others"
            warnings.warn(
                f"a scorer of scikit-learn reads {method}, which {what}: where y is 1 for outliers, its result is "
                "upside down (1 - AUROC), and a search chooses the worst; use scoring=fvnce.detection.scorers.roc_auc "
                "or average_precision, or leave scoring out",
                InvertedScoreWarning,
                stacklevel=3,
            )
            return
