r"""Noise-contrastive outlier detector.

The anomaly of a row is the log-ratio of its densities under a noise distribution, which includes the known outliers,
and under the data. Several models of that ratio are combined (:mod:`fvnce.detection.members`).
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, Options, StrOptions, validate_parameter_constraints

from .._validation import choice, count
from ..tables.frame import Frame
from ..tables.schema import plain_matrix, read_by
from .contract import OutlierDetector, histories_from_state, histories_state, plain, seed_of
from .ensemble import RENAMED, Ensemble, settings_for
from .fitted import FittedEnsemble
from .gaps import Gaps
from .members import NAMES
from .members.base import MemberSettings
from .preprocessing import TablePreprocessor, learn_preprocessor
from .rows import (
    Array,
    Folds,
    TrainingRows,
    check_inliers,
    check_labels,
    check_weights,
    hash_words,
    in_parts,
    merge,
    take,
)
from .trust.calibration import (
    HELD_ALONE,
    HELD_BESIDE,
    calibrate_with_outliers,
    calibrate_without,
    labels_tell,
    most_hidden,
    threshold_at,
)
from .trust.conformal import Conformal, fit_split
from .trust.drift import Baseline
from .trust.evidence import REASONS, Findings, RowScores, make_evidence

if TYPE_CHECKING:
    from ..training.history import History

#: Fraction of clean rows above the threshold.
CLEAN_FLAGGED = 0.01
#: Smallest α > 0 for which float32 can distinguish the mean of e^(αΔ) from one.
MIN_ALPHA = 1e-4

_COUNT, _POSITIVE = Interval(Integral, 1, None, closed="left"), Interval(Real, 0, None, closed="neither")
_EXPERT: dict[str, tuple[Any, list[Any]]] = {
    "hidden": ((64, 64), ["array-like"]),
    "batch_size": (128, [Interval(Integral, 2, None, closed="left")]),
    "learning_rate": (3e-3, [_POSITIVE]),
    "weight_decay": (1.0, [Interval(Real, 0, None, closed="left")]),
    "outlier_bandwidth": (0.5, [_POSITIVE]),
    "data_bandwidth": (1.0, [_POSITIVE]),
    "device": ("cpu", [StrOptions({"auto", "cpu", "cuda", "gpu", "mps"})]),
}
#: Settings in ``expert`` and their defaults.
EXPERT = {name: default for name, (default, _) in _EXPERT.items()}
#: Parameters of version 0.2 that no longer have an effect, with the reason.
WITHOUT_EFFECT = {
    "latent_dim": "the members autoencoder and variational were removed; use fvnce.detection.LatentDetector",
    "precision": "networks are trained in float32",
    "early_stopping": "networks are trained for all steps",
}


def current_names(parameters: Mapping[str, Any], expert: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Rename parameters of version 0.2 to their current names.

    >>> current_names({"n_trees": 9, "hidden": (8,), "precision": None})
    {'n_trees': 9, 'expert': {'hidden': (8,)}}
    """
    renamed = {name: value for name, value in parameters.items() if name not in {*EXPERT, *WITHOUT_EFFECT}}
    moved = {name: value for name, value in parameters.items() if name in EXPERT}
    return renamed | {"expert": {**(expert or {}), **moved}} if moved else renamed


def _with_old_names(cls: type[NoiseContrastiveDetector]) -> type[NoiseContrastiveDetector]:
    """Make the constructor accept parameters of version 0.2 with a DeprecationWarning."""
    stored: Any = cls.__init__

    @functools.wraps(stored)
    def init(self: Any, **parameters: Any) -> None:
        stored(self, **_warned(parameters, parameters.get("expert")))

    setattr(cls, "__init__", init)  # noqa: B010 (mypy lets nobody assign to a method)
    return cls


def _warned(parameters: dict[str, Any], expert: Any) -> dict[str, Any]:
    old = [name for name in parameters if name in EXPERT or name in WITHOUT_EFFECT]
    for name in old:
        instead = WITHOUT_EFFECT.get(name, f"pass expert={{{name!r}: {parameters[name]!r}}}")
        warnings.warn(
            f"{name} of NoiseContrastiveDetector is deprecated and will be removed in the next version; {instead}",
            DeprecationWarning,
            stacklevel=3,
        )
    return current_names(parameters, expert) if old else parameters


@_with_old_names
@dataclass(eq=False, repr=False, kw_only=True)  # whose __init__ only stores, as scikit-learn asks
class NoiseContrastiveDetector(OutlierDetector, FittedEnsemble):
    """Outlier detector that learns from a few known outliers, and also works without any.

    Training rows may contain unmarked outliers. Scores follow scikit-learn: ``score_samples`` and ``decision_function``
    are low for outliers and ``predict`` gives −1 for them; ``anomaly_score`` is high. For cross-validation and searches
    use :mod:`fvnce.detection.scorers`, as in ``cross_val_score(detector, X, y, scoring=scorers.roc_auc)``, or leave
    ``scoring`` out: ``scoring="roc_auc"`` would give 1 − AUROC.

    Args:
        members: names from :data:`fvnce.detection.MEMBERS`, or "auto": neighbors; on tables an isolation forest; with
            known outliers also an outlier forest, a mixture forest and ratio networks, whose weight increases with the
            number of known outliers.
        clean: whether all unlabeled rows are known to be inliers (novelty detection). Otherwise the fifth of the rows
            with the largest distances from others is not used as a reference for nearest neighbors.
        n_neighbors: number of nearest neighbors; by default 5, for images 10.
        n_trees: number of trees of each forest, at least ``calibration_folds``.
        min_samples_leaf: smallest number of samples in a leaf of a forest.
        n_networks: number of ratio networks, at least ``calibration_folds``.
        steps: number of optimizer steps for each network.
        alpha: α of the scoring rule; larger values reduce the effect of outliers hidden among the training rows.
        outlier_share: λ, the weight of known outliers in the noise.
        contamination: "auto" sets the threshold where P(outlier | x) = ½, or by a convention without known outliers,
            and also flags novel rows; a number in
            (0, 0.5] is the fraction of the training rows above the threshold, rounded down to whole
            rows, and fewer if rows with equal scores would be more.
        prior: π, the share of outliers among unlabeled rows; estimated by default.
        calibration_folds: number of folds of the training rows. Smaller models, each trained without one fold, score
            the rows of that fold; P(outlier | x) and ``evidence_`` are computed from these scores. The members
            themselves are trained on all rows. With 0, P is computed as without known outliers, and there are no
            p-values.
        max_rows: largest number of unlabeled rows used in training, chosen at random.
        expert: rarely needed settings, by name: of ratio networks ``hidden`` ((64, 64), sizes of hidden layers),
            ``batch_size`` (128), ``learning_rate`` (3e-3) and ``weight_decay`` (1.0) of AdamW, and ``device`` ("cpu",
            "cuda", "mps" or "auto"); of the noise ``outlier_bandwidth`` (0.5, the largest bandwidth around known
            outliers, in deviations of a column) and ``data_bandwidth`` (1.0, the typical bandwidth around training
            rows).
        n_jobs: number of threads for growing trees and scoring, as in scikit-learn: None means 1, −1 all cores. Scores
            do not depend on it.
        verbose: 1 shows progress bars.
        random_state: an integer makes scores reproducible to the last bit, in any thread; with None they differ between
            fits. Global generators are neither used nor changed.

    Attributes:
        offset_: ``decision_function`` is ``score_samples − offset_``.
        evidence_: quality on held-out rows (:class:`~fvnce.detection.Evidence`); ``print(detector.evidence_)``.
        prior_: π, given or estimated; the estimate is rough with few known outliers (Eq. prior_ratio).
        prior_interval_: 90 % interval of π, or None if π is given or no outliers were held out.
        doubtful_labels_: indices in X of known outliers that score like normal rows when held out, so that their label
            is probably wrong.
        calibration_: conversion of scores to probabilities.
        novelty_calibration_: conversion of novelty to probabilities; None without known outliers.
        novelty_threshold_: novelty above which a row is flagged, independent of known outliers.
        ensemble_: the trained members.
        history_: a :class:`fvnce.History` for each training; ratio networks are trained together.
        n_known_: number of known outliers in training.
        feature_importances_: importance of each column, its fraction of the standard deviations of parts of scores.
        decision_scores_: ``−score_samples`` of the training rows, as in PyOD; ``labels_`` and ``threshold_`` likewise.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(200, 2)), rng.normal(4, 0.5, size=(10, 2))])
    >>> y = np.repeat([0, 1], [205, 5])                    # five of the ten outliers are known
    >>> detector = NoiseContrastiveDetector(n_trees=30, n_networks=1, steps=50).fit(X, y)
    >>> detector.predict([[0.0, 0.0], [4.0, 4.0]])
    array([ 1, -1])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "members": [StrOptions({"auto", *NAMES, *RENAMED}), "array-like"],
        "clean": [bool],
        "n_neighbors": [_COUNT, None],
        "n_trees": [_COUNT],
        "min_samples_leaf": [_COUNT],
        "n_networks": [_COUNT],
        "steps": [_COUNT],
        "alpha": [Options(Real, {0}), Interval(Real, MIN_ALPHA, 1, closed="both")],
        "outlier_share": [Interval(Real, 0, 1, closed="both")],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "prior": [Interval(Real, 0, 0.5, closed="right"), None],
        "calibration_folds": [Interval(Integral, 0, None, closed="left")],
        "max_rows": [Interval(Integral, 2, None, closed="left")],
        "expert": [dict, None],
        "n_jobs": [Interval(Integral, None, -1, closed="right"), _COUNT, None],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    members: str | Sequence[str] = "auto"
    clean: bool = False
    n_neighbors: int | None = None
    n_trees: int = 200
    min_samples_leaf: int = 5
    n_networks: int = 3
    steps: int = 300
    alpha: float = 0.3
    outlier_share: float = 0.8
    contamination: str | float = "auto"
    prior: float | None = None
    calibration_folds: int = 3
    max_rows: int = 20_000
    expert: dict[str, Any] | None = None
    n_jobs: int | None = None
    verbose: int = 0
    random_state: int | np.random.RandomState | None = 0

    # Learned by fit, like the attributes of FittedEnsemble.
    history_: list[History] = field(init=False)

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, checked: Any = None, mostly_outliers: bool = False
    ) -> Self:
        """Fit the detector to rows, of which y marks the known outliers.

        Args:
            X: a matrix of numbers, NaN where missing; a data frame of pandas, polars, Arrow or any library supported by
                narwhals (it may hold texts, amounts of money, dates and missing values); or images of shape (n, H, W),
                (n, C, H, W) or (n, H, W, C); a memory map is read in parts.
            y: 1 for known outliers, 0 for all other rows, or yes and no, outlier and inlier, …; NaN, None and NA also
                mean that a row is not labeled.
            sample_weight: weight of each row; a weight of k counts as k equal rows.
            checked: True for rows whose label is verified, so that y = 0 marks a known inlier; False for others. Known
                inliers have a larger weight in the members, and never count as hidden outliers.
            mostly_outliers: whether y may mark more than half of the rows.

        Returns:
            The fitted detector.
        """
        settings, seed = self._member_settings(), seed_of(self.random_state)
        matrix, readings, frame = self._training_rows(X)
        known = check_labels(y, len(matrix), mostly_outliers=mostly_outliers)
        weights, inliers = check_weights(sample_weight, matrix, known), check_inliers(checked, y, known)
        self.n_known_ = int((known & (weights > 0)).sum())

        # At most max_rows unlabeled rows are trained on; up to as many others are held out for p-values.
        chosen, spare = self._thin(matrix, known, weights, seed, inliers)
        if frame is not None and len(spare):
            matrix, readings = read_by(frame, np.arange(len(frame))[chosen], len(frame))
        each = known[chosen], weights[chosen], inliers[chosen]
        raw, is_known, weight, place = _merged(take(matrix, chosen), *each)
        is_inlier = np.zeros(len(raw), dtype=bool)
        is_inlier[place] = each[2][each[1] > 0]

        # Encode rows. The range of images is that of all images if all of them are trained on.
        if raw.ndim > 2 and not len(spare):
            self.preprocessor_ = learn_preprocessor(raw, weight, None)
        else:
            self.preprocessor_ = learn_preprocessor(raw[~is_known], weight[~is_known], readings, raw[is_known])
        rows = TrainingRows.split(self.preprocessor_.encode(raw), is_known, weight, is_inlier)

        # Members train on all rows; smaller models, each trained without one fold, score the rows of that fold.
        complete = settings_for(settings, len(rows.outliers), self.preprocessor_.width, self.preprocessor_.image)
        self.ensemble_, unseen = Ensemble.fit(rows, complete, seed, self._folds(rows, seed))
        self.ensemble_.learn_means(rows, seed)
        self.history_ = [member.history for member in self.ensemble_.members if member.history is not None]
        if isinstance(self.preprocessor_, TablePreprocessor):
            which = [0, 0 if self.ensemble_.known is None else 2]  # of the score and of novelty
            self.gaps_, self.novelty_gaps_ = Gaps.learn_each(
                self.preprocessor_, lambda X: self.ensemble_.scores(X)[:, which], raw[~is_known], rows.weights, seed
            )
        scores, _, novelty = self._columns(raw).T
        held_out_scores = scores
        if unseen is not None:
            held_out_scores = np.empty(len(raw))
            held_out_scores[~is_known], held_out_scores[is_known] = unseen.rows, unseen.outliers
            if self.gaps_ is not None:
                held_out_scores += self.gaps_.parts(self.preprocessor_.gaps(raw)).sum(1)

        def divided(each: Array) -> RowScores:
            weighted = bool((weights != weights.max()).any())
            return RowScores(each[~is_known], rows.weights, each[is_known], rows.outlier_weights, weighted)

        # Probabilities and the threshold follow from held-out scores if there are known outliers.
        held_out = unseen is not None and len(rows.outliers) > 1
        trained, measured, sure = divided(scores), divided(held_out_scores), is_inlier[~is_known]
        wrong, share = np.zeros(len(rows.outliers), dtype=bool), CLEAN_FLAGGED if self.clean else None
        both = measured.scores, measured.weights, measured.known, measured.known_weights
        if held_out and labels_tell(*both):
            self.calibration_, right = calibrate_with_outliers(*both, self.prior, sure)
            wrong = right < 0.5
        else:
            prior, held = (share, HELD_ALONE) if self.prior is None else (self.prior, 1.0)
            self.calibration_ = calibrate_without(measured.scores, rows.weights, prior, sure, held)
        doubtful = np.zeros(len(raw), dtype=bool)
        doubtful[is_known] = wrong
        there = np.arange(len(matrix))[chosen]
        self.doubtful_labels_ = there[weights[there] > 0][doubtful[place]]
        self.prior_ = self.calibration_.prior
        offset = -self.calibration_.threshold
        if self.contamination != "auto":
            every_score = np.concatenate([trained.scores, trained.known])
            every_weight = np.concatenate([trained.weights, trained.known_weights])
            offset = threshold_at(-every_score, every_weight, float(self.contamination))
        elif self.ensemble_.known is not None:  # novelty has a threshold of its own, which does not depend on labels
            self.novelty_calibration_ = calibrate_without(novelty[~is_known], rows.weights, share, sure, HELD_BESIDE)

        # p-values need held-out rows: those beyond max_rows, or half of the rows with a model of the other half.
        conformal = None
        if len(spare):
            new = in_parts(take(matrix, spare), lambda part: np.ascontiguousarray(self._columns(part)[:, 0]))
            conformal = Conformal.of(new, weights[spare])
        elif self.calibration_folds:
            split = raw, is_known, weight, is_inlier
            if frame is not None:
                split = _different_rows(frame, known, weights, inliers)
            conformal = fit_split(*split, settings, seed)
        if conformal is not None and self.calibration_.known:
            conformal = replace(conformal, hidden=min(conformal.hidden, most_hidden(*both)))

        lines, unseen_lines = (self._line(each, novelty, -offset) for each in (scores, held_out_scores))
        evidence = make_evidence(
            measured if held_out else trained,
            divided(unseen_lines if held_out else lines),
            seed,
            threshold=-offset,
            threshold_reason=self._threshold_reason(trained.scores > -offset, held_out),
            reason=None if held_out else self._no_evidence_reason(len(rows.outliers)),
            prior=self.prior_ if self.calibration_.known else None,
        )
        gappy, known_weight = self._gappy(raw[~is_known]), float(rows.outlier_weights.sum())
        self.findings_ = Findings(
            **self._of_columns(rows, raw, is_known, weight, seed),
            evidence=evidence,
            conformal=conformal,
            no_p_value=REASONS["few to split" if self.calibration_folds else "no split"] if conformal is None else None,
            scores=None if len(spare) else self._in_order(matrix, weights, lines[place], -offset),
            no_scores=REASONS["thinned"].format(max_rows=self.max_rows) if len(spare) else None,
            baseline=Baseline.of(unseen_lines[~is_known], rows.weights, -offset, gappy, known_weight, lines[~is_known]),
        )
        self.offset_ = offset
        logging.getLogger("fvnce").info("fitted %d rows, %d of them known outliers", len(matrix), self.n_known_)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.int64]:
        """Fit, and return +1 for inliers and −1 for outliers among the training rows."""
        return self.fit(X, y, sample_weight).predict(X)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of version 0.2 that moved to ``expert`` give a DeprecationWarning."""
        super().set_params(**_warned(params, params.get("expert", self.expert)))
        return self

    def _member_settings(self) -> MemberSettings:
        """Validate all settings, and return those of the members."""
        self._validate_params()
        given = self.expert or {}
        for name in given:
            choice("expert", name, tuple(EXPERT))
        expert = {**EXPERT, **given}
        constraints = {name: allowed for name, (_, allowed) in _EXPERT.items()}
        validate_parameter_constraints(constraints, expert, caller_name=f"{type(self).__name__}.expert")
        hidden = [count(f"hidden[{i}]", size) for i, size in enumerate(expert["hidden"])]
        values = {**self.get_params(deep=False), **expert, "hidden": hidden, "members": _checked_members(self.members)}
        return MemberSettings(**{field.name: plain(values.get(field.name)) for field in fields(MemberSettings)})

    def _thin(
        self, matrix: Any, known: NDArray[np.bool_], weights: Array, seed: int, inliers: NDArray[np.bool_]
    ) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
        """Choose the rows to train on, at most ``max_rows`` of them unlabeled, and up to as many to hold out.

        Known inliers are held out like other rows, since p-values would be too small otherwise, or else trained on.
        """
        there = ~known & (weights > 0)
        if int(there.sum()) <= self.max_rows:
            return slice(None), np.empty(0, dtype=np.int64)
        # The rows are part of the seed, as in trust.conformal.
        words = hash_words(matrix, weights)
        # Hold only one list of indices at a time, since there may be very many rows.
        chosen = np.random.default_rng([seed, 77, *words]).choice(np.flatnonzero(there), self.max_rows, replace=False)
        there[chosen] = False
        spared = min(self.max_rows, int(there.sum()))
        spare = np.random.default_rng([seed, 82, *words]).choice(np.flatnonzero(there), spared, replace=False)
        labeled = np.setdiff1d(np.flatnonzero(known | (inliers & (weights > 0))), spare)
        return np.union1d(chosen, labeled), np.sort(spare)

    def _folds(self, rows: TrainingRows, seed: int) -> Folds | None:
        """Draw folds, except where their scores are not needed and images would need more training."""
        n_folds = min(self.calibration_folds, len(rows.X) // 2)
        if n_folds < 2 or (len(rows.outliers) < 2 and self.preprocessor_.image is not None):
            return None
        return Folds.drawn(n_folds, len(rows.X), len(rows.outliers), np.random.default_rng([seed, 78]))

    def _threshold_reason(self, flagged: NDArray[np.bool_], held_out: bool) -> str:
        """Return the reason for the value of the threshold."""
        if self.contamination != "auto":
            return REASONS["contamination"].format(contamination=self.contamination, rows="training")
        if self.calibration_.known:
            case = "calibrated"
        elif self.prior is not None:
            case = "prior"
        elif self.clean:
            case = "clean"
        else:
            case = "fence" if flagged.any() else "highest"
        share = "an estimated share π" if self.prior is None else "a share prior"
        pi = f"{share} = {self.prior_:.3g} of outliers among {'new' if self.clean else 'unlabeled'} rows"
        reason = REASONS[case].format(pi=pi, prior=self.prior_)
        uninformative = held_out and not self.calibration_.known
        return REASONS["uninformative"].format(otherwise=reason) if uninformative else reason

    def _no_evidence_reason(self, different: int) -> str:
        """Return why no folds were held out, given the number of distinct known outliers."""
        if different == 0:
            return REASONS["none known"]
        if different == 1:
            return REASONS["one row" if self.n_known_ > 1 else "one known"].format(known=self.n_known_)
        return REASONS["no folds" if self.calibration_folds < 2 else "few rows"].format(folds=self.calibration_folds)

    def _in_order(self, matrix: Any, weights: Array, scores: Array, threshold: float) -> Array:
        """Return scores of the training rows in the order of X, including rows of weight zero."""
        there = weights > 0
        ordered = np.empty(len(matrix))
        ordered[there] = scores
        if not there.all():
            columns = self._columns(matrix[~there])
            ordered[~there] = self._line(columns[:, 0], columns[:, 2], threshold)
        return ordered

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        ensemble, arrays = self.ensemble_.state()
        histories, numbers = histories_state(self.history_)
        content = {"ensemble": ensemble, "histories": histories, "doubtful": self.doubtful_labels_.tolist()}
        content |= {"calibration": self.calibration_.state(), "novelty": None, "novelty_gaps": None}
        for name, part in (("novelty", self.novelty_calibration_), ("novelty_gaps", self.novelty_gaps_)):
            content[name] = None if part is None else part.state()
        return content, numbers | arrays

    def _take_state(self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        super()._take_state(content, arrays)
        self.history_ = histories_from_state(content["histories"], arrays)

    @classmethod
    def _with_settings(cls, saved: Mapping[str, Any], place: Path) -> Self:
        return super()._with_settings({"expert": None, **current_names(saved)}, place)


def _checked_members(members: Any) -> tuple[str, ...]:
    """Return the names of members, or an empty tuple for "auto"."""
    names = (members,) if isinstance(members, str) else tuple(members)
    if names == ("auto",):
        return ()
    if not names:
        raise ValueError("members must be 'auto' or names of members, found none")
    for name in names:
        choice("members", name, (*NAMES, *RENAMED))
        if name in RENAMED:
            warnings.warn(f"member {name} is deprecated; use {RENAMED[name]}", DeprecationWarning, stacklevel=4)
    return tuple(RENAMED.get(name, name) for name in names)


def _merged(
    rows: Any, known: NDArray[np.bool_], weights: Array, inliers: NDArray[np.bool_]
) -> tuple[Any, NDArray[np.bool_], Array, NDArray[np.int64]]:
    """Return rows of positive weight in the form that the preprocessor takes, merged if a table, and indices."""
    if rows.ndim == 2:
        return merge(np.asarray(rows, dtype=np.float64), known, weights, inliers)
    there = weights > 0
    return rows[there], known[there], weights[there], np.arange(int(there.sum()))


def _different_rows(
    frame: Frame, known: NDArray[np.bool_], weights: Array, inliers: NDArray[np.bool_]
) -> tuple[Frame, NDArray[np.bool_], Array, NDArray[np.bool_]]:
    """Merge equal rows of positive weight before columns are read."""
    _, known_of, weight_of, place = merge(plain_matrix(frame), known, weights, inliers)
    there = np.flatnonzero(weights > 0)[np.unique(place, return_index=True)[1]]
    return frame.take(there), known_of, weight_of, inliers[there]
