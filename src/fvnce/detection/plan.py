"""What detectors are told, and what their members are trained on: settings, checked, and rows with their folds.

Each error names the setting, what it must be and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from .. import _checks
from ..training.distributed import PRECISIONS

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector

Array = NDArray[np.float64]

DEVICES = ("auto", "cpu", "cuda", "gpu", "mps")
#: The smallest α above zero whose mean of e^(αΔ) networks in float32 can tell from one.
SMALLEST_ALPHA = 1e-4
NOISES = ("auto", "outliers", "data", "mixture", "gaussian", "none")
PARTITIONS = ("auto", "fixed", "learned", "profiled")
ENCODERS = ("gaussian", "point")
SCORES = ("auto", "ratio", "density")


@dataclass(frozen=True)
class TrainingRows:
    """Preprocessed training rows and known outliers, with weights.

    Attributes:
        X: rows without a label, shape (n, D).
        weights: how often each counts, shape (n,).
        outliers: known outliers, shape (m, D); m may be 0.
        outlier_weights: how often each counts, shape (m,).
    """

    X: Array
    weights: Array
    outliers: Array
    outlier_weights: Array

    def without(self, rows: NDArray[np.bool_], outliers: NDArray[np.bool_]) -> TrainingRows:
        """All but those marked."""
        return TrainingRows(
            self.X[~rows], self.weights[~rows], self.outliers[~outliers], self.outlier_weights[~outliers]
        )

    def transformed(self, transform: Callable[[Array], Array]) -> TrainingRows:
        """The same rows and weights in other columns."""
        return replace(self, X=transform(self.X), outliers=transform(self.outliers))


@dataclass(frozen=True)
class Folds:
    """In which part of the training data each row is, so that some model of an ensemble has not seen it.

    Attributes:
        count: K.
        rows: fold of each row without a label, 0 … K − 1, shape (n,).
        outliers: fold of each known outlier, shape (m,); −1 for the only one there is, which nothing can do without.
    """

    count: int
    rows: NDArray[np.int64]
    outliers: NDArray[np.int64]

    @classmethod
    def drawn(cls, count: int, rows: int, outliers: int, rng: np.random.Generator) -> Folds:
        """Folds of equal size, give or take one row.

        >>> Folds.drawn(3, 6, 1, np.random.default_rng(0)).outliers
        array([-1])
        """
        of_row, of_outlier = (rng.permutation(np.arange(n) % count) for n in (rows, outliers))
        return cls(count, of_row, np.full(1, -1) if outliers == 1 else of_outlier)


@dataclass(frozen=True)
class HeldOutScores:
    """Anomalies of training rows, each by models that were trained without it.

    Attributes:
        rows: of the rows without a label, shape (n,).
        outliers: of the known outliers, shape (m,); NaN for one that no model was trained without.
    """

    rows: Array
    outliers: Array

    @classmethod
    def by(cls, anomaly: Callable[[Array, int], Array], data: TrainingRows, folds: Folds) -> HeldOutScores:
        """From ``anomaly(X, fold)``, by what was trained without that fold."""
        found = []
        for X, of in ((data.X, folds.rows), (data.outliers, folds.outliers)):
            own = np.full(len(X), np.nan)
            for fold in range(folds.count):
                mine = of == fold
                if mine.any():
                    own[mine] = anomaly(X[mine], fold)
            found.append(own)
        return cls(*found)

    def standardised(self, centre: float, scale: float) -> HeldOutScores:
        """Less the centre, in units of the scale."""
        return HeldOutScores((self.rows - centre) / scale, (self.outliers - centre) / scale)


@dataclass(frozen=True)
class TrainConfig:
    """How networks are trained.

    Attributes:
        steps: of the optimiser.
        batch_size: rows of a step; as many noise samples.
        learning_rate: of AdamW, with a warm-up and a cosine decay.
        weight_decay: of AdamW.
        alpha: of the scoring rule.
        early_stopping: tenths of the steps without a better held-out loss after which to stop, or None.
        device: "cpu", "cuda", "auto", …
        precision: as Lightning Fabric has it.
        progress: show a bar.
    """

    steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    alpha: float
    early_stopping: int | None
    device: str
    precision: str | None
    progress: bool


@dataclass(frozen=True)
class Plan:
    """What to train.

    Attributes:
        members: names.
        trees: of each forest.
        leaf: fewest samples in a cell.
        networks: ratio networks that are averaged.
        hidden: sizes of hidden layers.
        latent: size of the code.
        image: (channels, height, width), or None for a table.
        outlier_share: λ.
        outlier_bandwidth: largest bandwidth around known outliers.
        data_bandwidth: typical bandwidth around rows.
        training: how networks are trained.
        jobs: threads, as joblib counts them.
        neighbours: k of the density by nearest neighbours; 0 for what suits the data.
        clean: whether the rows are known to hold no outlier.
    """

    members: tuple[str, ...]
    trees: int
    leaf: int
    networks: int
    hidden: tuple[int, ...]
    latent: int
    image: tuple[int, int, int] | None
    outlier_share: float
    outlier_bandwidth: float
    data_bandwidth: float
    training: TrainConfig
    jobs: int | None = None
    neighbours: int = 0
    clean: bool = False

    def for_calibration(self) -> Plan:
        """The same at less cost, for the folds of a calibration: a third of the trees, one network, half the steps."""
        training = replace(self.training, progress=False, steps=-(-self.training.steps // 2))
        return replace(self, trees=-(-self.trees // 3), networks=1, training=training)


def plan_of(detector: NoiseContrastiveDetector, members: tuple[str, ...]) -> Plan:
    """Every setting checked, what depends on the data left open."""
    if not (isinstance(detector.contamination, str) and detector.contamination == "auto"):
        _checks.number("contamination", detector.contamination, low=0.0, high=0.5, open_low=True)
    if detector.prior is not None:
        _checks.number("prior", detector.prior, low=0.0, high=0.5, open_low=True)
    _checks.count("calibration_folds", detector.calibration_folds, low=0)
    _checks.count("max_rows", detector.max_rows, low=2)
    training = TrainConfig(
        steps=_checks.count("steps", detector.steps),
        batch_size=_checks.count("batch_size", detector.batch_size, low=2),
        learning_rate=_checks.number("learning_rate", detector.learning_rate, low=0.0, open_low=True),
        weight_decay=_checks.number("weight_decay", detector.weight_decay, low=0.0),
        alpha=_alpha(detector.alpha),
        early_stopping=None
        if detector.early_stopping is None
        else _checks.count("early_stopping", detector.early_stopping),
        device=_checks.choice("device", detector.device, DEVICES),
        precision=None
        if detector.precision is None
        else _checks.choice("precision", detector.precision, tuple(PRECISIONS)),
        progress=is_shown(detector.verbose),
    )
    return Plan(
        members=members,
        trees=_checks.count("n_trees", detector.n_trees),
        leaf=_checks.count("min_samples_leaf", detector.min_samples_leaf),
        networks=_checks.count("n_networks", detector.n_networks),
        hidden=tuple(_checks.count(f"hidden[{i}]", size) for i, size in enumerate(layers_of(detector.hidden))),
        latent=0 if detector.latent_dim is None else _checks.count("latent_dim", detector.latent_dim),
        image=None,
        outlier_share=_checks.number("outlier_share", detector.outlier_share, low=0.0, high=1.0),
        outlier_bandwidth=_checks.number("outlier_bandwidth", detector.outlier_bandwidth, low=0.0, open_low=True),
        data_bandwidth=_checks.number("data_bandwidth", detector.data_bandwidth, low=0.0, open_low=True),
        training=training,
        jobs=_jobs(detector.n_jobs),
        neighbours=0 if detector.n_neighbors is None else _checks.count("n_neighbors", detector.n_neighbors),
        clean=_checks.flag("clean", detector.clean),
    )


def layers_of(hidden: Any) -> tuple[Any, ...]:
    """Hidden layers as they are given, if they are a list of some kind."""
    if not isinstance(hidden, Sequence) or isinstance(hidden, str | bytes):
        raise TypeError(
            f"hidden must be sizes of layers such as (64, 64), found {hidden!r} of type {type(hidden).__name__}"
        )
    return tuple(hidden)


def _alpha(alpha: Any) -> float:
    found = _checks.number("alpha", alpha, low=0.0, high=1.0)
    if 0 < found < SMALLEST_ALPHA:
        raise ValueError(
            f"alpha must be 0 or at least {SMALLEST_ALPHA}, found {alpha!r}: (1/α) log E e^(αΔ) has no digits left"
        )
    return found


def _jobs(jobs: Any) -> int | None:
    if jobs is None:
        return None
    if isinstance(jobs, bool) or not isinstance(jobs, Integral) or jobs == 0:
        raise ValueError(f"n_jobs must be None or an integer other than 0 (-1 for all cores), found {jobs!r}")
    return int(jobs)


def is_shown(verbose: Any) -> bool:
    """Whether a level of verbosity, of which True is 1, shows progress."""
    return _checks.count("verbose", int(verbose) if isinstance(verbose, bool) else verbose, low=0) > 0


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn takes for one; None asks the operating system, not numpy's global generator."""
    if random_state is None:
        random_state = np.random.RandomState(np.random.MT19937())
    if isinstance(random_state, Integral) and not 0 <= int(random_state) < 2**32:
        raise ValueError(f"random_state must be None, a generator or an integer in [0, 2**32), found {random_state!r}")
    return int(check_random_state(random_state).randint(2**31 - 1))


@dataclass(frozen=True)
class LatentSettings:
    """The parameters of :class:`fvnce.detection.LatentDetector`, checked; ``score`` is what it calls ``anomaly``.

    >>> LatentSettings().completed(12, image=False, known=3).noise
    'mixture'
    """

    rule: str = "power(0)"
    noise: str = "auto"
    bandwidth: float = 0.0
    outlier_share: float = 0.5
    partition: str = "auto"
    log_scale: float = 0.0
    noise_ratio: float = 1.0
    latent: int = 0
    hidden: tuple[int, ...] = (64, 64)
    encoder: str = "gaussian"
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation: float = 0.1
    score: str = "auto"
    contamination: float = 0.01

    def __post_init__(self) -> None:
        for name, allowed in (("noise", NOISES), ("partition", PARTITIONS), ("encoder", ENCODERS), ("score", SCORES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, found {getattr(self, name)!r:.60}")
        for name, low, high in (
            ("bandwidth", 0.0, 1e6),
            ("outlier_share", 0.0, 1.0),
            ("noise_ratio", 1e-3, 1e3),
            ("learning_rate", 0.0, 1e3),
            ("validation", 0.0, 0.5),
            ("contamination", 0.0, 0.5),
        ):
            _require_type(name, getattr(self, name), Real, "a number")
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}], found {getattr(self, name)}")
        whole = {name: getattr(self, name) for name in ("latent", "epochs", "batch_size")}
        for name, value in (whole | {f"hidden[{i}]": size for i, size in enumerate(self.hidden)}).items():
            _require_type(name, value, Integral, "an integer")
        if self.latent < 0 or any(size < 1 for size in self.hidden):
            raise ValueError(f"latent and hidden must be positive, found {self.latent} and {self.hidden}")
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be positive, found {self.epochs} and {self.batch_size}")

    def completed(self, width: int, *, image: bool, known: int) -> LatentSettings:
        """What "auto" stands for on rows of ``width`` columns with so many known outliers."""
        noise = self.noise
        if noise == "auto":
            noise = "mixture" if known else "data"
        if noise in ("outliers", "mixture") and not known:
            raise ValueError(
                f"noise {noise!r} needs known outliers, found none; give --outliers or --label, or use data"
            )
        score = self.score
        if score == "auto":
            score = "ratio" if known and noise != "none" else "density"
        if score == "ratio" and noise == "none":
            raise ValueError("score 'ratio' needs a noise, found noise 'none'; use density")
        return replace(
            self,
            noise=noise,
            score=score,
            partition=("fixed" if image else "profiled") if self.partition == "auto" else self.partition,
            latent=self.latent or (32 if image else max(2, width // 4)),
        )

    @property
    def stochastic(self) -> bool:
        """Whether codes are drawn in training."""
        return self.encoder == "gaussian"


def _require_type(name: str, value: object, kind: type, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} must be {wanted}, found {value!r} of type {type(value).__name__}")
