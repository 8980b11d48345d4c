r"""The detector: known outliers put to use, on scikit-learn's contract.

It estimates how much likelier a row is under the noise, known outliers foremost, than under the training rows, by
several models of that ratio whose answers are averaged (:mod:`fvnce.detection.members`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from .. import _checks
from . import stored as validity
from . import storing, table
from .calibration import (
    Calibration,
    calibrate_by_share,
    calibrate_with_outliers,
    calibrate_without,
    threshold_at,
)
from .explanation import Explanation, explain
from .images import ImageShape, check_images
from .ensemble import Ensemble, Plan, Rows, train_members
from .metrics import outlier_auroc
from .rows import check_labels, check_weights, merge
from .settings import plan_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..training import History

Array = NDArray[np.float64]

#: Rows that are looked at together, at most, and numbers in them.
BATCH, NUMBERS = 4096, 2**21
#: Members that put known outliers to use.
NAMES_WITH_OUTLIERS = ("outlier_forest", "mixture_forest", "network")


class NoiseContrastiveDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Outlier detection that learns from the few outliers you know, and works with none.

    Training rows may hold outliers nobody marked. Scores follow scikit-learn: ``score_samples`` and
    ``decision_function`` are low for outliers and ``predict`` gives −1 for them; ``anomaly_score`` is high.

    Args:
        members: names from :data:`fvnce.detection.MEMBERS`, or "auto": with known outliers an outlier forest, a mixture
            forest and ratio networks; without, a broad forest. For images an autoencoder joins them, and without known
            outliers a marginal forest and an autoencoder are taken.
        n_trees: trees of each forest.
        min_samples_leaf: fewest samples in a cell of a forest.
        n_networks: ratio networks that are averaged.
        hidden: sizes of hidden layers.
        latent_dim: size of the code of a latent-variable model; by default a quarter of the columns, 32 for images.
        alpha: α of the scoring rule; larger values discount outliers that hide among the training rows.
        outlier_share: λ, the weight of known outliers in the noise.
        outlier_bandwidth: largest bandwidth around known outliers, in deviations of a column.
        data_bandwidth: typical bandwidth around training rows.
        steps: steps of the optimiser for each network.
        batch_size: rows of a step.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        early_stopping: tenths of the steps without a better held-out loss after which to stop; None for never.
        contamination: "auto" puts the threshold where P(outlier | x) = ½; a number in (0, 0.5] puts it where that share
            of the training rows lies below.
        prior: π, the share of outliers among unlabelled rows; estimated by default.
        calibration_folds: folds whose held-out scores make P(outlier | x); 0 skips them, and P is then what it is
            without known outliers.
        max_rows: unlabelled rows used in training, chosen at random if there are more.
        device: "cpu", "cuda", "mps" or "auto", for networks in training.
        precision: None, "64-true", "bf16-mixed", …, for networks in training.
        verbose: 1 shows progress bars.
        random_state: an integer for scores that are the same every time, to the last bit, in whatever thread; None for
            others every time. No global generator is read or changed.

    Attributes:
        offset_: ``decision_function`` is ``score_samples − offset_``.
        prior_: π.
        calibration_: how scores become probabilities.
        ensemble_: the members.
        history_: a :class:`fvnce.History` for each network.
        n_known_: known outliers in training.
        n_features_in_: columns.
        feature_names_in_: their names, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(200, 2)), rng.normal(4, 0.5, size=(10, 2))])
    >>> y = np.repeat([0, 1], [205, 5])                    # five of the ten outliers are known
    >>> detector = NoiseContrastiveDetector(n_trees=30, n_networks=1, steps=50).fit(X, y)
    >>> detector.predict([[0.0, 0.0], [4.0, 4.0]])
    array([ 1, -1])
    """

    def __init__(
        self,
        *,
        members: str | Sequence[str] = "auto",
        n_trees: int = 200,
        min_samples_leaf: int = 5,
        n_networks: int = 3,
        hidden: Sequence[int] = (64, 64),
        latent_dim: int | None = None,
        alpha: float = 0.3,
        outlier_share: float = 0.8,
        outlier_bandwidth: float = 0.5,
        data_bandwidth: float = 1.0,
        steps: int = 300,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        weight_decay: float = 1.0,
        early_stopping: int | None = None,
        contamination: str | float = "auto",
        prior: float | None = None,
        calibration_folds: int = 3,
        max_rows: int = 20_000,
        device: str = "cpu",
        precision: str | None = None,
        verbose: int = 0,
        random_state: Any = 0,
    ) -> None:
        self.members = members
        self.n_trees = n_trees
        self.min_samples_leaf = min_samples_leaf
        self.n_networks = n_networks
        self.hidden = hidden
        self.latent_dim = latent_dim
        self.alpha = alpha
        self.outlier_share = outlier_share
        self.outlier_bandwidth = outlier_bandwidth
        self.data_bandwidth = data_bandwidth
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.contamination = contamination
        self.prior = prior
        self.calibration_folds = calibration_folds
        self.max_rows = max_rows
        self.device = device
        self.precision = precision
        self.verbose = verbose
        self.random_state = random_state

    # Learnt by fit.
    ensemble_: Ensemble
    calibration_: Calibration
    history_: list[History]
    offset_: float
    prior_: float
    n_known_: int
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _columns: list[table.Column] | None
    _categories: list[dict[str, int] | None] | None
    _image: ImageShape | None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows, of which y marks the known outliers.

        Args:
            X: a matrix of numbers, a data frame (categories and missing values are welcome), or images of shape
                (n, H, W) or (n, C, H, W); a memory map is read in parts.
            y: 1 for known outliers, 0 for all other rows, whatever they are.
            sample_weight: how often a row counts.
        """
        plan = plan_of(self)
        seed = _seed(self.random_state)
        # A fit that fails leaves no detector, rather than one that is half of another.
        self.__dict__.pop("ensemble_", None)
        matrix = self._learn_layout(X)
        known = check_labels(y, len(matrix))
        weights = check_weights(sample_weight, matrix)
        if not (weights[~known] > 0).any():
            raise ValueError("sample_weight must be positive for some unlabelled row (y = 0), found none")
        rows = self._learn_rows(matrix, known, weights, seed)
        self.n_known_ = int((known & (weights > 0)).sum())
        plan = self._complete(plan, rows)
        self.ensemble_, self.history_ = train_members(rows, plan, seed)
        own = self.ensemble_.anomaly(rows.X)
        self.calibration_ = self._calibrate(rows, plan, seed, own)
        self.prior_ = self.calibration_.prior
        if self.contamination == "auto":
            self.offset_ = -self.calibration_.threshold
        else:
            scores = -np.concatenate([own, self._anomaly_of(rows.outliers)])
            share = np.concatenate([rows.weights, rows.outlier_weights])
            self.offset_ = threshold_at(scores, share, float(self.contamination))
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.int64]:
        """Fit, and tell inliers (+1) from outliers (−1) among the same rows."""
        return self.fit(X, y, sample_weight).predict(X)

    def anomaly_score(self, X: Any) -> Array:
        """Higher for stranger rows: the mean of the members' standardised scores, shape (n,)."""
        return self._in_batches(X, self.ensemble_.anomaly if hasattr(self, "ensemble_") else None)

    def score_samples(self, X: Any) -> Array:
        """Lower for stranger rows, shape (n,)."""
        return -self.anomaly_score(X)

    def decision_function(self, X: Any) -> Array:
        """``score_samples − offset_``: negative for outliers, shape (n,)."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """+1 for inliers, −1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def outlier_probability(self, X: Any) -> Array:
        """P(outlier | x) = π p_out / (π p_out + (1 − π) p_θ), with π = ``prior_``, shape (n,)."""
        return self.calibration_.probability(self.anomaly_score(X))

    def score(self, X: Any, y: Any) -> float:
        """AUROC of y = 1 under the anomaly score."""
        return outlier_auroc(self, X, y)

    def explain(self, X: Any) -> Explanation:
        """What each column adds to the anomaly score of each row; for images, a heat map."""
        check_is_fitted(self)
        matrix = self._checked(X)
        return explain(self.ensemble_, self._encode(matrix), self._fold)

    def plot_scores(self, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
        """Histogram of anomaly scores with the threshold; with y, one for each kind of row."""
        from .plots import plot_scores

        return plot_scores(self.anomaly_score(X), -self.offset_, y, ax)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted detector to one file, atomically and without pickle."""
        check_is_fitted(self)
        return storing.write(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = validity.MAX_BYTES) -> NoiseContrastiveDetector:
        """The detector that :meth:`save` wrote; it scores to the same bits.

        The file may be a stranger's: it runs no code, and what it holds is checked to be a detector, tree by tree.

        Args:
            path: the file.
            max_bytes: the largest file that is read, 4 GiB by default.
        """
        return storing.read(cls, Path(path), _checks.count("max_bytes", max_bytes))

    def _complete(self, plan: Plan, rows: Rows) -> Plan:
        some = len(rows.outliers) > 0
        names = plan.members
        if not names and self._image is None:
            names = NAMES_WITH_OUTLIERS if some else ("broad_forest",)
        elif not names:
            names = (*NAMES_WITH_OUTLIERS, "autoencoder") if some else ("marginal_forest", "autoencoder")
        if "outlier_forest" in names and not some:
            raise ValueError("members must not name outlier_forest without a known outlier (y = 1), found it")
        latent = plan.latent or (max(2, rows.X.shape[1] // 4) if self._image is None else 32)
        return replace(plan, members=names, latent=latent, image=None if self._image is None else self._image.padded)

    def _learn_layout(self, X: Any) -> Any:
        """Check X and remember what it looks like; the rows, still as they were given."""
        self._image, self._columns, self._categories = None, None, None
        if table.is_frame(X):
            table.check_frame(X)
            validate_data(self, X, skip_check_array=True)
            self._categories = table.learn_names(X)
            if len(X) < 2:
                raise ValueError(f"X must hold at least 2 rows, found n_samples = {len(X)}")
            return table.frame_to_matrix(X, self._categories)
        if getattr(X, "ndim", 0) in (3, 4):
            X = X if isinstance(X, np.ndarray) else np.asarray(X)
            images = check_images(X)
            if len(images) < 2:
                raise ValueError(f"X must hold at least 2 images, found n_samples = {len(images)}")
            step = _rows_at_once(images)
            parts = [images[start : start + step] for start in range(0, len(images), step)]
            low, high = min(float(p.min()) for p in parts), max(float(p.max()) for p in parts)
            self._image = ImageShape(tuple(int(side) for side in images.shape[1:]), low, high)
            self.n_features_in_ = int(np.prod(images.shape[1:]))
            return images
        return self._matrix(X, reset=True)

    def _learn_rows(self, matrix: Any, known: NDArray[np.bool_], weights: Array, seed: int) -> Rows:
        """Training rows, encoded, with weights; at most ``max_rows`` of those without a label."""
        unlabelled = np.flatnonzero(~known & (weights > 0))
        if len(unlabelled) > self.max_rows:
            chosen = np.random.default_rng([seed, 77]).choice(unlabelled, self.max_rows, replace=False)
            keep = np.sort(np.concatenate([chosen, np.flatnonzero(known)]))
            matrix, known, weights = matrix[keep], known[keep], weights[keep]
        if self._image is not None:
            there = weights > 0
            X, known, weights = self._image.encode(matrix)[there], known[there], weights[there]
        else:
            raw, known, weights = merge(np.asarray(matrix, dtype=np.float64), known, weights)
            categorical = [names is not None for names in self._categories or [None] * raw.shape[1]]
            self._columns = table.learn_columns(raw[~known], weights[~known], categorical)
            X = table.encode(raw, self._columns)
        return Rows(X[~known], weights[~known], X[known], weights[known])

    def _calibrate(self, rows: Rows, plan: Plan, seed: int, own: Array) -> Calibration:
        folds = min(self.calibration_folds, len(rows.outliers), len(rows.X) // 2)
        if folds < 2 and self.prior is None and plan.members == ("broad_forest",):
            return calibrate_by_share(self.ensemble_.centres[0], self.ensemble_.scales[0])
        if folds < 2:
            return calibrate_without(own, rows.weights, self.prior)
        rng = np.random.default_rng([seed, 78])
        of_row, of_outlier = (rng.permutation(np.arange(n) % folds) for n in (len(rows.X), len(rows.outliers)))
        held, held_known = np.empty(len(rows.X)), np.empty(len(rows.outliers))
        for fold in range(folds):
            mine, mine_known = of_row == fold, of_outlier == fold
            ensemble, _ = train_members(rows.without(mine, mine_known), plan.lighter(), seed + 1 + fold)
            held[mine] = ensemble.anomaly(rows.X[mine])
            held_known[mine_known] = ensemble.anomaly(rows.outliers[mine_known])
        return calibrate_with_outliers(held, rows.weights, held_known, rows.outlier_weights, self.prior)

    def _anomaly_of(self, encoded: Array) -> Array:
        return self.ensemble_.anomaly(encoded) if len(encoded) else np.empty(0)

    def _checked(self, X: Any) -> Any:
        if table.is_frame(X):
            table.check_frame(X)
            if self._categories is None:
                table.check_no_times(X)
        if self._image is not None:
            return check_images(X if isinstance(X, np.ndarray) else np.asarray(X), self._image.shape)
        if self._categories is not None:
            if not table.is_frame(X):
                if any(names is not None for names in self._categories):
                    raise ValueError(
                        f"X must be a data frame as in training, where it had categories, found {type(X).__name__}"
                    )
                return self._matrix(X, reset=False)
            validate_data(self, X, reset=False, skip_check_array=True)
            return table.frame_to_matrix(X, self._categories)
        return self._matrix(X, reset=False)

    def _matrix(self, X: Any, *, reset: bool) -> Any:
        """A matrix of numbers that scikit-learn has checked; a large one in parts, and it stays as it is stored."""
        if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
            raise ValueError("X must not be masked, found masked values; fill them, or pass a data frame with NaN")
        how: dict[str, Any] = {"dtype": [np.float64, np.float32]}
        is_matrix = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf"
        step = max(2, _rows_at_once(X)) if is_matrix else 0
        whole = not is_matrix or len(X) <= step
        first = X if whole else X[:step]
        # Whether all are finite is asked of their sum, and that of huge numbers has none.
        with np.errstate(over="ignore", invalid="ignore"):
            checked = validate_data(self, first, reset=reset, ensure_min_samples=2 if reset else 1, **how)
            for start in () if whole else range(step, len(X), step):
                check_array(X[start : start + step], input_name="X", **how)
        return checked if whole else X

    def _encode(self, part: Any) -> Array:
        if self._image is not None:
            return self._image.encode(part)
        assert self._columns is not None
        return table.encode(np.asarray(part, dtype=np.float64), self._columns)

    def _fold(self, values: Array) -> Array:
        if self._image is not None:
            return self._image.decode(values)
        assert self._columns is not None
        return table.gather(values, self._columns)

    def _in_batches(self, X: Any, function: Callable[[Array], Array] | None) -> Array:
        check_is_fitted(self)
        assert function is not None
        matrix = self._checked(X)
        step = _rows_at_once(matrix)
        parts = [function(self._encode(matrix[start : start + step])) for start in range(0, len(matrix), step)]
        return np.concatenate(parts)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "ensemble_")


def _rows_at_once(X: Any) -> int:
    """How many rows of a matrix or images are looked at together, so that wide ones do not fill the memory."""
    return max(1, min(BATCH, NUMBERS // max(1, math.prod(map(int, X.shape[1:])))))


def _seed(random_state: Any) -> int:
    """A seed from what scikit-learn takes for one; None asks the operating system, not numpy's global generator."""
    if random_state is None:
        random_state = np.random.RandomState(np.random.MT19937())
    if isinstance(random_state, Integral) and not 0 <= int(random_state) < 2**32:
        raise ValueError(f"random_state must be None, a generator or an integer in [0, 2**32), found {random_state!r}")
    return int(check_random_state(random_state).randint(2**31 - 1))
