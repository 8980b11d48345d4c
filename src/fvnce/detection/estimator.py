r"""The detector: known outliers put to use, on scikit-learn's contract.

It estimates how much likelier a row is under the noise, known outliers foremost, than under the training rows, by
several models of that ratio whose answers are averaged (:mod:`fvnce.detection.members`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..serialization import fields
from ..training import History
from .base import Detector, histories_from_state, histories_state
from .calibration import (
    Calibration,
    calibrate_by_share,
    calibrate_with_outliers,
    calibrate_without,
    labels_tell,
    threshold_at,
)
from .conformal import Conformal, fit_split
from .ensemble import Ensemble, names_on
from .evidence import (
    Evidence,
    Findings,
    HeldOut,
    make_evidence,
    why_no_evidence,
    why_no_p_value,
    why_this_threshold,
)
from .explanation import Explanation, importances_over
from .frame import Frame, plain_matrix, read_by
from .members import CLASSES, check_names
from .plan import Array, Folds, Plan, TrainingRows, plan_of, seed_of
from .preprocessing import learn_preprocessor
from .rows import check_labels, check_weights, hash_words, in_parts, merge, take

#: The share of rows known to be clean that lies above the threshold.
CLEAN_SHARE = 0.01


@dataclass(eq=False, repr=False, kw_only=True)  # whose __init__ only stores, as scikit-learn asks
class NoiseContrastiveDetector(Detector):
    """Outlier detection that learns from the few outliers you know, and works with none.

    Training rows may hold outliers nobody marked. Scores follow scikit-learn: ``score_samples`` and
    ``decision_function`` are low for outliers and ``predict`` gives −1 for them; ``anomaly_score`` is high. So
    ``scoring="roc_auc"`` is upside down in a search: use :mod:`fvnce.detection.scorers`, or no ``scoring``, as in
    ``cross_val_score(detector, X, y, scoring=scorers.roc_auc)``.

    Args:
        members: names from :data:`fvnce.detection.MEMBERS`, or "auto": the neighbours, and with known outliers an
            outlier forest, a mixture forest and ratio networks beside them, the more trusted the more are known.
        clean: whether the unlabelled rows are known to be inliers, one and all (novelty detection). Otherwise outliers
            may hide among them, and the strangest fifth is not compared with.
        n_neighbors: k of the density by nearest neighbours; by default 5, for images 10.
        n_trees: trees of each forest, at least one for each fold.
        min_samples_leaf: fewest samples in a cell of a forest.
        n_networks: ratio networks that are averaged, at least one for each fold.
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
            of the training rows lies below, rounded down to whole rows.
        prior: π, the share of outliers among unlabelled rows; estimated by default.
        calibration_folds: folds of the training rows, each of which is left out of some trees and networks, so that
            its rows have scores by models that have not seen them: these make P(outlier | x) and ``evidence_``. With 0
            every model sees all rows; then P is what it is without known outliers, and there are no p-values.
        max_rows: unlabelled rows used in training, chosen at random if there are more.
        device: "cpu", "cuda", "mps" or "auto", for networks in training.
        precision: None, "64-true", "bf16-mixed", …, for networks in training.
        n_jobs: threads that grow trees and score, as scikit-learn counts them: None for one, −1 for as many as there
            are cores. Scores have the same bits for any number of them.
        verbose: 1 shows progress bars.
        random_state: an integer for scores that are the same every time, to the last bit, in whatever thread; None for
            others every time. No global generator is read or changed.

    Attributes:
        offset_: ``decision_function`` is ``score_samples − offset_``.
        evidence_: how good it is by held-out rows (:class:`~fvnce.detection.Evidence`); ``print(detector.evidence_)``.
        prior_: π, an estimate that is rough with few known outliers (docs: *The threshold, and where π comes from*).
        calibration_: how scores become probabilities.
        ensemble_: the members.
        history_: a :class:`fvnce.History` for each training; ratio networks are trained together.
        n_known_: known outliers in training.
        feature_importances_: share of each column in the variance of the score.
        decision_scores_: anomaly scores of the training rows, as in PyOD; ``labels_`` and ``threshold_`` likewise.
        n_features_in_: columns.
        feature_names_in_: their names, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(200, 2)), rng.normal(4, 0.5, size=(10, 2))])
    >>> y = np.repeat([0, 1], [205, 5])                    # five of the ten outliers are known
    >>> detector = NoiseContrastiveDetector(n_trees=30, n_networks=1, steps=50).fit(X, y)
    >>> detector.predict([[0.0, 0.0], [4.0, 4.0]])
    array([ 1, -1])
    """

    KIND: ClassVar[str] = "detector"

    members: str | Sequence[str] = "auto"
    clean: bool = False
    n_neighbors: int | None = None
    n_trees: int = 200
    min_samples_leaf: int = 5
    n_networks: int = 3
    hidden: Sequence[int] = (64, 64)
    latent_dim: int | None = None
    alpha: float = 0.3
    outlier_share: float = 0.8
    outlier_bandwidth: float = 0.5
    data_bandwidth: float = 1.0
    steps: int = 300
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 1.0
    early_stopping: int | None = None
    contamination: str | float = "auto"
    prior: float | None = None
    calibration_folds: int = 3
    max_rows: int = 20_000
    device: str = "cpu"
    precision: str | None = None
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = 0

    # Learnt by fit.
    ensemble_: Ensemble = field(init=False)
    calibration_: Calibration = field(init=False)
    history_: list[History] = field(init=False)
    prior_: float = field(init=False)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows, of which y marks the known outliers.

        Args:
            X: a matrix of numbers, NaN where missing; a data frame of pandas, polars, Arrow or whatever narwhals knows
                (text, amounts of money, dates and missing values are welcome); or images of shape (n, H, W),
                (n, C, H, W) or (n, H, W, C); a memory map is read in parts.
            y: 1 for known outliers, 0 for all other rows, whatever they are; or yes and no, outlier and inlier, …
            sample_weight: how often a row counts.
        """
        settings = plan_of(self, check_names(self.members))
        seed = seed_of(self.random_state)
        self._forget()
        matrix, readings, frame = self._training_rows(X)
        known = check_labels(y, len(matrix))
        weights = check_weights(sample_weight, matrix)
        if not (weights[~known] > 0).any():
            raise ValueError("sample_weight must be positive for some unlabelled row (y = 0), found none")
        self.n_known_ = int((known & (weights > 0)).sum())
        chosen, spare = self._thinned(matrix, known, weights, seed)
        if frame is not None and len(spare):  # which have no part in how columns are read
            matrix, readings = read_by(frame, np.arange(len(frame))[chosen], len(frame))
        raw, known_of, weight_of, place = self._raw_rows(take(matrix, chosen), known[chosen], weights[chosen])
        # Rows that are left over must have no part in what scores them, not even in the range of images.
        ranged = matrix.ndim > 2 and not len(spare)
        self.preprocessor_ = (
            learn_preprocessor(raw, weight_of, None)
            if ranged
            else learn_preprocessor(raw[~known_of], weight_of[~known_of], readings, raw[known_of])
        )
        encoded = self.preprocessor_.encode(raw)
        rows = TrainingRows(encoded[~known_of], weight_of[~known_of], encoded[known_of], weight_of[known_of])
        plan = self._complete(settings, rows)
        folds = self._folds(rows, plan, seed)
        self.ensemble_, self.history_, unseen = Ensemble.fit(rows, plan, seed, folds)
        own = self.ensemble_.anomaly(rows.X)
        own_known = self.ensemble_.anomaly(rows.outliers) if len(rows.outliers) else np.empty(0)
        held = None
        if unseen is not None and len(rows.outliers) > 1:
            weighted = bool((weights != weights.max()).any())
            held = HeldOut(unseen.rows, rows.weights, unseen.outliers, rows.outlier_weights, weighted)
        self.calibration_ = self._calibrate(rows, plan, own if unseen is None else unseen.rows, held)
        self.prior_ = self.calibration_.prior
        if self.contamination == "auto":
            offset = -self.calibration_.threshold
        else:
            share = np.concatenate([rows.weights, rows.outlier_weights])
            offset = threshold_at(-np.concatenate([own, own_known]), share, float(self.contamination))
        conformal = None
        if len(spare):
            conformal = self._conformal_of_spare(take(matrix, spare), weights[spare], held)
        elif self.calibration_folds:
            inlier = None
            if held is not None:
                inlier = np.zeros(len(raw))
                inlier[~known_of] = 1 - self.calibration_.probability(held.scores)
            split = raw, known_of, weight_of, inlier
            if frame is not None:
                split = _different_rows(frame, known, weights, None if inlier is None else inlier[place])
            conformal = fit_split(*split, partial(self._complete, settings), seed)
        scores = np.empty(len(raw))
        scores[~known_of], scores[known_of] = own, own_known
        self.findings_ = Findings(
            evidence=self._evidence(held, rows, own, -offset, seed),
            conformal=conformal,
            no_p_value=None if conformal is not None else why_no_p_value(self),
            importances=importances_over(rows, self._explain, seed),
            scores=None if len(spare) else self._scores_as_given(matrix, weights, scores, place),
            no_scores=f"X had more than max_rows = {self.max_rows} unlabelled rows; call anomaly_score(X)"
            if len(spare)
            else None,
        )
        self.offset_ = offset
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.int64]:
        """Fit, and tell inliers (+1) from outliers (−1) among the same rows."""
        return self.fit(X, y, sample_weight).predict(X)

    def outlier_probability(self, X: Any) -> Array:
        """P(outlier | x) = π p_out / (π p_out + (1 − π) p_θ), with π = ``prior_``, shape (n,).

        With a few known outliers it claims too much: use it as a ranking (measured in docs/howto/reliability.md).
        """
        anomaly = self.anomaly_score(X)
        return self.calibration_.probability(anomaly)

    def predict_proba(self, X: Any) -> Array:
        """[1 − P(outlier | x), P(outlier | x)] for each row, shape (n, 2)."""
        probability = self.outlier_probability(X)
        return np.stack([1 - probability, probability], 1)

    def _anomaly(self, encoded: Array) -> Array:
        return self.ensemble_.anomaly(encoded)

    def _explain(self, encoded: Array) -> Explanation:
        return self.ensemble_.explain(encoded, self.preprocessor_.fold)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        ensemble, tensors = self.ensemble_.state()
        histories, own = histories_state(self.history_)
        content = {"calibration": asdict(self.calibration_), "ensemble": ensemble, "histories": histories}
        return content, tensors | own

    def _take_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        calibration, ensemble, histories = fields(content, "a detector", "calibration", "ensemble", "histories")
        self.calibration_ = Calibration.from_state(calibration)
        self.prior_ = self.calibration_.prior
        self.history_ = histories_from_state(histories, tensors)
        self.ensemble_ = Ensemble.from_state(ensemble, tensors, self.preprocessor_.width, self.preprocessor_.image)

    def _thinned(
        self, matrix: Any, known: NDArray[np.bool_], weights: Array, seed: int
    ) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
        """Which rows to train on, at most ``max_rows`` of them without a label, and as many that are left over."""
        there = ~known & (weights > 0)
        if int(there.sum()) <= self.max_rows:
            return slice(None), np.empty(0, dtype=np.int64)
        # The rows are part of the seed, as in fvnce.detection.conformal.
        words = hash_words(matrix, weights)
        # Of very many rows no more than one list of their places is held at a time.
        chosen = np.random.default_rng([seed, 77, *words]).choice(np.flatnonzero(there), self.max_rows, replace=False)
        there[chosen] = False
        count = min(self.max_rows, int(there.sum()))
        spare = np.random.default_rng([seed, 82, *words]).choice(np.flatnonzero(there), count, replace=False)
        return np.sort(np.concatenate([chosen, np.flatnonzero(known)])), np.sort(spare)

    def _raw_rows(
        self, matrix: Any, known: NDArray[np.bool_], weights: Array
    ) -> tuple[Any, NDArray[np.bool_], Array, NDArray[np.int64]]:
        """Rows of positive weight as the preprocessor takes them, equal ones merged, and where each of them is."""
        if matrix.ndim == 2:
            return merge(np.asarray(matrix, dtype=np.float64), known, weights)
        there = weights > 0
        return matrix[there], known[there], weights[there], np.arange(int(there.sum()))

    def _complete(self, plan: Plan, rows: TrainingRows) -> Plan:
        """The plan with what depends on the data."""
        image = self.preprocessor_.image
        names = names_on(outliers=len(rows.outliers) > 0, chosen=plan.members)
        latent = plan.latent or (max(2, rows.X.shape[1] // 4) if image is None else 32)
        return replace(plan, members=names, latent=latent, image=image)

    def _folds(self, rows: TrainingRows, plan: Plan, seed: int) -> Folds | None:
        """Parts to be left out in turn, where their scores are wanted, or cost no further training."""
        count = min(self.calibration_folds, len(rows.X) // 2)
        free = plan.image is None and all(CLASSES[name].averages_folds for name in plan.members)
        if count < 2 or (len(rows.outliers) < 2 and not free):
            return None
        return Folds.drawn(count, len(rows.X), len(rows.outliers), np.random.default_rng([seed, 78]))

    def _calibrate(self, rows: TrainingRows, plan: Plan, scores: Array, held: HeldOut | None) -> Calibration:
        """How scores become probabilities: by held-out scores of known outliers that tell, else by the rows' alone."""
        if held is not None and labels_tell(held.scores, held.weights, held.known, held.known_weights):
            return calibrate_with_outliers(held.scores, held.weights, held.known, held.known_weights, self.prior)
        if self.prior is None and plan.members == ("broad_forest",):
            return calibrate_by_share(self.ensemble_.centres[0], self.ensemble_.scales[0])
        # Of clean rows one in a hundred is flagged: there is no excess to be found.
        prior = CLEAN_SHARE if plan.clean and self.prior is None else self.prior
        return calibrate_without(scores, rows.weights, prior)

    def _evidence(self, held: HeldOut | None, rows: TrainingRows, own: Array, threshold: float, seed: int) -> Evidence:
        return make_evidence(
            held,
            own,
            rows.weights,
            float(rows.outlier_weights.sum()),
            threshold=threshold,
            threshold_reason=why_this_threshold(
                self, above_all=not (own > threshold).any(), in_vain=held is not None and not self.calibration_.known
            ),
            prior=self.prior_ if self.calibration_.known else None,
            reason=why_no_evidence(self, rows),
            seed=seed,
        )

    def _conformal_of_spare(self, matrix: Any, weights: Array, held: HeldOut | None) -> Conformal:
        """p-values by rows that ``max_rows`` left over, none of which the detector itself has seen."""
        scores = in_parts(matrix, lambda part: self.ensemble_.anomaly(self.preprocessor_.encode(part)))
        return Conformal.of(scores, weights, None if held is None else 1 - self.calibration_.probability(scores))

    def _scores_as_given(self, matrix: Any, weights: Array, scores: Array, place: NDArray[np.int64]) -> Array:
        """Scores of the training rows in the order of X, those of weight zero included."""
        there = weights > 0
        found = np.empty(len(matrix))
        found[there] = scores[place]
        if not there.all():
            found[~there] = self.ensemble_.anomaly(self.preprocessor_.encode(matrix[~there]))
        return found


def _different_rows(
    frame: Frame, known: NDArray[np.bool_], weights: Array, inlier: Array | None
) -> tuple[Frame, NDArray[np.bool_], Array, Array | None]:
    """Rows of positive weight, equal ones merged before any column is read; ``inlier`` is of such rows as given."""
    _, known_of, weight_of, place = merge(plain_matrix(frame), known, weights)
    first = np.unique(place, return_index=True)[1]
    different = frame.take(np.flatnonzero(weights > 0)[first])
    return different, known_of, weight_of, None if inlier is None else inlier[first]
