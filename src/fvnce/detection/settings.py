"""The settings of both detectors, checked: each error names the setting, what it must be and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from .. import _checks
from ..training.distributed import PRECISIONS
from .members import NAMES
from .plan import Plan, TrainConfig

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector

DEVICES = ("auto", "cpu", "cuda", "gpu", "mps")
#: The smallest α above zero whose mean of e^(αΔ) networks in float32 can tell from one.
SMALLEST_ALPHA = 1e-4
NOISES = ("auto", "outliers", "data", "mixture", "gaussian", "none")
PARTITIONS = ("auto", "fixed", "learned", "profiled")
ENCODERS = ("gaussian", "point")
SCORES = ("auto", "ratio", "density")


def plan_of(detector: NoiseContrastiveDetector) -> Plan:
    """Every setting checked, what depends on the data left open."""
    names = _names(detector.members)
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
        progress=_checks.count("verbose", _number(detector.verbose), low=0) > 0,
    )
    return Plan(
        members=names,
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


def _names(members: Any) -> tuple[str, ...]:
    """The members that are named, none for "auto"."""
    if isinstance(members, str):
        return () if members == "auto" else (_checks.choice("members", members, ("auto", *NAMES)),)
    if not isinstance(members, Sequence) or isinstance(members, bytes) or len(members) == 0:
        raise TypeError(f"members must be 'auto' or names of members, found {members!r}")
    return tuple(_checks.choice("members", name, NAMES) for name in members)


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


def _number(value: Any) -> Any:
    """True and False as 1 and 0, for settings that are levels."""
    return int(value) if isinstance(value, bool) else value


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
