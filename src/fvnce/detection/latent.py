r"""Latent-variable model as a detector: p_θ(x, z) trained by fully variational NCE with any rule, noise and log Z.

With g(x) the mean of the encoder, the anomaly of a row is

    density:  −log p_θ(x, g(x)),        ratio:  log p_n(x) − log p_θ(x, g(x)),

computed in float64 without random draws. The ratio is high for rows that are likelier under the noise than under the
model, which is useful if the noise includes known outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, Options, StrOptions
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from .. import _random, io
from .._validation import count, fields, require
from ..models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from ..noise import KernelDensity, NoiseMixture, fit_gaussian, smoothed
from ..objectives import VAE, Autoencoder, FullyVariationalNCE, Objective
from ..scoring import parse
from ..tables.schema import read_by
from ..training import FitOptions, History, fit
from .blocks import in_blocks
from .contract import OutlierDetector, histories_from_state, histories_state, seed_of
from .explanation import Explanation
from .gaps import Gaps
from .preprocessing import TablePreprocessor, cut, learn_preprocessor
from .rows import Array, TrainingRows, check_labels, hash_words, in_parts
from .trust.calibration import threshold_at
from .trust.conformal import Conformal
from .trust.drift import Baseline
from .trust.evidence import REASONS, Findings, RowScores, make_evidence

#: Largest number of centers of a kernel density.
MAX_CENTERS = 5000
#: Default bandwidths, in deviations of a column, and for images in units of the range.
TABLE_BANDWIDTHS, IMAGE_BANDWIDTH = {"outliers": 0.5, "data": 1.0}, 0.25

#: Encoder of either kind.
Encoder = GaussianEncoder | PointEncoder


@dataclass(eq=False, repr=False, kw_only=True)  # whose __init__ only stores, as scikit-learn asks
class LatentDetector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierDetector):  # type: ignore[misc]
    """Outlier detector by a latent-variable model, which also reconstructs rows and samples new ones.

    Scores follow scikit-learn: ``score_samples`` and ``decision_function`` are low for outliers and ``predict`` gives
    −1 for them; ``anomaly_score`` is high. For cross-validation and searches use
    :mod:`fvnce.detection.scorers`, or leave ``scoring`` out. The detector is also a transformer for pipelines:
    ``transform`` returns codes.

    Args:
        rule: scoring rule as text, such as ``"power(0.5)"``.
        noise: p_n: "outliers" (kernel density of the known outliers), "data" (smoothed rows), "mixture" of both,
            "gaussian", "none" for an autoencoder or VAE, or "auto": mixture with known outliers, else data.
        bandwidth: bandwidth of the kernel densities, in deviations of a column, for images in units of the range; 0
            chooses one automatically.
        outlier_share: weight of the known outliers in the mixture.
        partition: "fixed", "learned" or "profiled" log Z; "auto" is profiled for tables, fixed for images.
        log_scale: s of Δ = Δ⁰ + s, for a fixed partition.
        noise_ratio: number of noise samples for each row.
        latent: size of the code; 0 means a quarter of the columns, 32 for images.
        hidden: sizes of hidden layers.
        encoder: "gaussian" or "point".
        epochs: number of passes over the rows.
        batch_size: number of rows in a step.
        learning_rate: learning rate of Adam.
        validation: fraction of the rows held out; ``p_value`` compares with them, and is at least 1/(their number + 1).
        anomaly: "density" is −log p_θ(x, g(x)), "ratio" adds log p_n(x); "auto" is ratio with known outliers.
        contamination: fraction of the unlabeled training rows above the threshold, rounded down to whole rows.
        verbose: 1 shows a progress bar, None shows it in a terminal only.
        random_state: an integer makes scores reproducible to the last bit; with None they differ between fits.

    Attributes:
        objective_: the trained objective, in float64; ``objective_.model`` draws samples.
        history_: a :class:`fvnce.History`.
        settings_: settings with the values chosen for "auto".
        offset_: ``decision_function`` is ``score_samples − offset_``.
        evidence_: quality as far as it is known (:class:`~fvnce.detection.Evidence`).
        feature_importances_: importance of each column, its fraction of the standard deviations of parts of scores.
        decision_scores_: anomaly scores of the training rows, as in PyOD; ``labels_`` and ``threshold_`` likewise.
        n_known_: number of known outliers in training.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, if X was a data frame.

    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(200, 2)), rng.normal(5, 0.5, size=(10, 2))])
    >>> y = np.repeat([0, 1], [200, 10])
    >>> detector = LatentDetector(latent=1, hidden=(16,), epochs=10).fit(X, y)
    >>> detector.predict([[0.0, 0.0], [5.0, 5.0]])
    array([ 1, -1])
    >>> detector.codes(X).shape
    (210, 1)
    """

    KIND: ClassVar[str] = "latent detector"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "rule": [str],
        "noise": [StrOptions({"auto", "outliers", "data", "mixture", "gaussian", "none"})],
        "bandwidth": [Interval(Real, 0, 1e6, closed="both")],
        "outlier_share": [Interval(Real, 0, 1, closed="both")],
        "partition": [StrOptions({"auto", "fixed", "learned", "profiled"})],
        "log_scale": [Real],
        "noise_ratio": [Interval(Real, 1e-3, 1e3, closed="both")],
        "latent": [Interval(Integral, 0, None, closed="left")],
        "hidden": ["array-like"],
        "encoder": [StrOptions({"gaussian", "point"})],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 1e3, closed="both")],
        "validation": [Interval(Real, 0, 0.5, closed="both")],
        "anomaly": [StrOptions({"auto", "ratio", "density"})],
        "contamination": [Options(Real, {0}), Interval(Real, 0, 0.5, closed="right")],
        "verbose": ["verbose", None],
        "random_state": [Interval(Integral, 0, 2**63 - 1, closed="both"), np.random.RandomState, None],
    }

    rule: str = "power(0)"
    noise: str = "auto"
    bandwidth: float = 0.0
    outlier_share: float = 0.5
    partition: str = "auto"
    log_scale: float = 0.0
    noise_ratio: float = 1.0
    latent: int = 0
    hidden: Sequence[int] = (64, 64)
    encoder: str = "gaussian"
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    validation: float = 0.1
    anomaly: str = "auto"
    contamination: float = 0.01
    verbose: int | None = 0
    random_state: int | np.random.RandomState | None = 0

    # Learned by fit.
    objective_: Any = field(init=False)
    history_: History = field(init=False)
    settings_: SimpleNamespace = field(init=False)

    @_random.plain_mode()
    def fit(self, X: Any, y: Any = None, *, mostly_outliers: bool = False) -> Self:
        """Fit the detector to rows, of which y marks the known outliers.

        Args:
            X: a matrix of numbers, NaN where missing; a data frame of pandas, polars, Arrow or any library supported by
                narwhals (it may hold texts, amounts of money, dates and missing values); or images of shape (n, H, W),
                (n, C, H, W) or (n, H, W, C).
            y: 1 for known outliers, 0 for all other rows, or yes and no, outlier and inlier, …; NaN, None and NA also
                mean that a row is not labeled.
            mostly_outliers: whether y may mark more than half of the rows.

        Returns:
            The fitted detector.
        """
        self._validate_params()
        hidden = tuple(count(f"hidden[{i}]", size) for i, size in enumerate(self.hidden))
        seed = int(self.random_state) if isinstance(self.random_state, Integral) else seed_of(self.random_state)
        matrix, readings, frame = self._training_rows(X)
        known = check_labels(y, len(matrix), mostly_outliers=mostly_outliers)
        if matrix.ndim == 2:
            matrix = np.asarray(matrix, dtype=np.float64)
        if (n_rows := int((~known).sum())) < 4:
            raise ValueError(f"X must hold at least 4 rows that are not known outliers, found {n_rows}")
        self.n_known_ = int(known.sum())

        # The first of these rows are held out from all training, including how columns are read and
        # scaled. The rows are part of the seed, as in trust.conformal.
        order = np.random.default_rng([seed, 79, *hash_words(matrix[~known])]).permutation(n_rows)
        n_held_out = max(2, round(self.validation * n_rows)) if self.validation else 0
        held_out, kept = order[:n_held_out], order[n_held_out:]
        if frame is not None and n_held_out:
            seen = np.concatenate([np.flatnonzero(~known)[kept], np.flatnonzero(known)])
            matrix, readings = read_by(frame, np.sort(seen), len(frame))
        self.preprocessor_ = learn_preprocessor(matrix[~known][kept], np.ones(len(kept)), readings, matrix[known])

        encoded = cut(self.preprocessor_.encode(matrix))
        x, outliers = (torch.from_numpy(encoded[which]).float() for which in (~known, known))
        self.settings_ = self._resolved(hidden)
        self._train(x[kept], x[held_out], outliers, seed)

        scores = in_parts(encoded, self._anomaly)
        if isinstance(self.preprocessor_, TablePreprocessor):
            learned = self.preprocessor_, self._anomaly, matrix[~known][kept], np.ones(len(kept)), seed
            self.gaps_ = Gaps.learn(*learned, deviation=float(scores[~known][kept].std()))
            scores += self.gaps_.parts(self.preprocessor_.gaps(matrix)).sum(1)
        rows, unlabeled = TrainingRows.split(encoded, known, np.ones(len(encoded))), scores[~known]
        offset = threshold_at(-unlabeled, rows.weights, self.contamination)
        of_rows = RowScores(unlabeled, rows.weights, scores[known], rows.outlier_weights)
        measured = held_out if n_held_out else kept
        ones, known_weight = np.ones(len(measured)), len(measured) * self.n_known_ / n_rows
        gappy = self._gappy(matrix[~known][measured])
        self.findings_ = Findings(
            **self._of_columns(rows, matrix, known, np.ones(len(matrix)), seed),
            evidence=make_evidence(
                of_rows,
                of_rows,
                seed,
                threshold=-offset,
                threshold_reason=REASONS["contamination"].format(contamination=self.contamination, rows="unlabeled"),
                reason=REASONS["no outlier held out" if self.n_known_ else "none known"],
            ),
            conformal=Conformal.of(unlabeled[held_out], ones) if n_held_out else None,
            no_p_value=None if n_held_out else REASONS["no validation"],
            scores=scores,
            baseline=Baseline.of(unlabeled[measured], ones, -offset, gappy, known_weight),
        )
        self.offset_ = offset
        return self

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fit, and return +1 for inliers and −1 for outliers among the training rows."""
        return self.fit(X, y).predict(X)

    def codes(self, X: Any) -> Array:
        """Return the codes g(x), shape (n, latent)."""
        return _of_rows(self._codes, self.preprocess(X))

    def transform(self, X: Any) -> Array:
        """Return the codes g(x) for pipelines; ``set_output`` selects a data frame."""
        return self.codes(X)

    @property
    def _n_features_out(self) -> int:
        return int(self.settings_.latent)

    def reconstruction(self, X: Any) -> Array:
        """Return reconstructions x̂, the mean of the decoder at g(x), in the encoded columns."""
        return _of_rows(self._reconstruction, self.preprocess(X))

    def _resolved(self, hidden: tuple[int, ...]) -> SimpleNamespace:
        """Return the settings with values for "auto"; ``anomaly`` is named ``score`` in them, as in files."""
        image = self.preprocessor_.image is not None
        noise, score, partition = self.noise, self.anomaly, self.partition
        if noise == "auto":
            noise = "mixture" if self.n_known_ else "data"
        if noise in ("outliers", "mixture") and not self.n_known_:
            raise ValueError(f"noise must be 'data', 'gaussian' or 'none' without known outliers, found {noise!r}")
        if score == "auto":
            score = "ratio" if self.n_known_ and noise != "none" else "density"
        if score == "ratio" and noise == "none":
            raise ValueError("anomaly must be 'density' without noise, found 'ratio'")
        if partition == "auto":
            partition = "fixed" if image else "profiled"
        latent = self.latent or (32 if image else max(2, self.preprocessor_.width // 4))
        chosen = {"noise": noise, "score": score, "partition": partition, "latent": latent, "hidden": hidden}
        return SimpleNamespace(**{name: chosen.get(name, getattr(self, name, None)) for name in self._setting_names()})

    @classmethod
    def _setting_names(cls) -> list[str]:
        """Return the names of the entries of ``settings_``."""
        return ["score", *sorted(set(cls._get_param_names()) - {"anomaly", "verbose", "random_state"})]

    def _train(self, rows: Tensor, held_out: Tensor, outliers: Tensor, seed: int) -> None:
        """Train on unlabeled rows; held-out rows are used for validation only."""
        settings, generator = self.settings_, torch.Generator().manual_seed(seed)
        encoder, decoder = seeded_pair(rows.shape[1], settings, seed)
        noise = _noise(rows, outliers, settings, generator, image=self.preprocessor_.image is not None)
        objective = self._objective(encoder, decoder, noise)
        self.history_ = fit(
            objective,
            rows,
            validation=held_out if len(held_out) else None,
            epochs=settings.epochs,
            batch_size=min(settings.batch_size, len(rows)),
            lr=settings.learning_rate,
            seed=seed,
            progress=None if self.verbose is None else self.verbose > 0,
            accelerator="cpu",
            options=FitOptions(seed_globals=False, log_every=10),
        )
        if isinstance(encoder, SeededEncoder):  # without the generators, which only training needs
            objective.encoder = GaussianEncoder(encoder.network)
        self.objective_ = objective.eval().double()

    def _objective(self, encoder: Encoder, decoder: GaussianDecoder, noise: Distribution | None) -> Objective:
        """Return the objective: fully variational NCE or, without noise, a VAE or an autoencoder."""
        zeros = torch.zeros(self.settings_.latent)
        model = LatentVariableModel(Independent(Normal(zeros, torch.ones_like(zeros)), 1), decoder)
        if noise is None:
            return VAE(model, encoder) if isinstance(encoder, GaussianEncoder) else Autoencoder(model, encoder)
        options = {name: getattr(self.settings_, name) for name in ("partition", "log_scale", "noise_ratio")}
        return FullyVariationalNCE(model, encoder, noise, parse(self.settings_.rule), **options)

    def _anomaly(self, encoded: Array) -> Array:
        return _of_rows(self._anomaly_of, cut(encoded))

    def _codes(self, x: Tensor) -> Tensor:
        codes: Tensor = self.objective_.encoder(x).mean
        return codes

    def _anomaly_of(self, x: Tensor) -> Tensor:
        density: Tensor = self.objective_.model.log_joint(x, self._codes(x))
        return self.objective_.noise.log_prob(x) - density if self.settings_.score == "ratio" else -density

    def _reconstruction(self, x: Tensor) -> Tensor:
        mean: Tensor = self.objective_.model.decoder(self._codes(x)).mean
        return mean

    @torch.no_grad()
    def _explain(self, encoded: Array) -> Explanation:
        """Return squared errors over 2σ² by column; the code and the density of the noise are in the rest."""
        x, model = cut(encoded), self.objective_.model
        squares = np.square(x - _of_rows(self._reconstruction, x)) / (2 * float(model.decoder.scale) ** 2)
        # For a perfect reconstruction from the code 0, the constants of the density remain.
        code = torch.zeros(1, self.settings_.latent, dtype=torch.float64)
        base = -float(model.log_joint(model.decoder(code).mean, code))
        reconstruction = self.preprocessor_.fold(squares)
        rest = self._anomaly(encoded) - reconstruction.reshape(len(x), -1).sum(1) - base
        return Explanation(np.zeros_like(reconstruction), reconstruction, rest, base)

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        module, tensors = io.describe(self.objective_)
        histories, numbers = histories_state([self.history_])
        arrays = {name: value.numpy() for name, value in tensors.items()}
        return {"module": module, "settings": vars(self.settings_), "histories": histories}, arrays | numbers

    def _take_state(self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        module, saved, histories = fields(content, "a latent detector", "module", "settings", "histories")
        fields(saved, "settings", *self._setting_names())
        settings = self.settings_ = SimpleNamespace(**saved | {"hidden": tuple(saved["hidden"])})
        require(settings.score in ("ratio", "density"), "say what its score is", settings.score)
        count("latent", settings.latent)
        (self.history_,) = histories_from_state(histories, arrays)
        objective: Any = io.rebuild(module, {name: torch.tensor(value) for name, value in arrays.items()})
        kind: type[Objective] = FullyVariationalNCE
        if settings.noise == "none":
            kind = VAE if settings.encoder == "gaussian" else Autoencoder
        require(type(objective) is kind, f"have an objective of class {kind.__name__}", type(objective).__name__)
        with torch.device("meta"):
            expected = _pair(self.preprocessor_.width, settings)
        for network, like in zip((objective.encoder, objective.model.decoder), expected, strict=True):
            shown = " ".join(str(network).split())  # it contains the classes and settings of its layers
            require(str(network) == str(like), f"have a network like {type(like).__name__}", shown)
            finite = all(bool(torch.isfinite(value).all()) for value in network.state_dict().values())
            require(finite, "have finite weights", "NaN or infinity")
        self.objective_ = objective.double()


@torch.no_grad()
def _of_rows(function: Callable[[Tensor], Tensor], encoded: Array) -> Array:
    return np.asarray(in_blocks(function, torch.from_numpy(encoded)).numpy())


def _pair(width: int, settings: SimpleNamespace) -> tuple[Encoder, GaussianDecoder]:
    """Make an encoder of rows with ``width`` columns, and a decoder."""
    gaussian, latent = settings.encoder == "gaussian", settings.latent
    encoder = mlp([width, *settings.hidden, 2 * latent if gaussian else latent], nn.SiLU)
    decoder = GaussianDecoder(mlp([latent, *reversed(settings.hidden), width], nn.SiLU), learned="shared")
    return GaussianEncoder(encoder) if gaussian else PointEncoder(encoder), decoder


def seeded_pair(width: int, settings: SimpleNamespace, seed: int) -> tuple[Encoder, GaussianDecoder]:
    """Make an encoder and a decoder whose weights and draws depend on the seed only.

    Torch initializes layers from the global generator, which all threads of a process share. Here layers are made on
    the meta device and initialized from a separate generator, uniformly in ±1/√inputs as in torch.
    """
    with torch.device("meta"):
        encoder, decoder = _pair(width, settings)
    generator = torch.Generator().manual_seed(seed)
    for network in (encoder.network, decoder.network):
        for layer in network.to_empty(device="cpu").modules():
            if isinstance(layer, nn.Linear):
                limit = 1 / math.sqrt(layer.in_features)
                for parameter in (layer.weight, layer.bias):
                    nn.init.uniform_(parameter, -limit, limit, generator=generator)
    drawing = SeededEncoder(encoder.network, seed) if isinstance(encoder, GaussianEncoder) else encoder
    return drawing, GaussianDecoder(decoder.network, learned="shared")


class SeededEncoder(GaussianEncoder):
    """Gaussian encoder with its own generators: one for training, and one that is reset at every validation."""

    _generator: torch.Generator | None

    def __init__(self, network: nn.Module, seed: int) -> None:
        super().__init__(network)
        self._seed, self._for_training = seed, _random.generator(seed, _random.GLOBAL, 0, 0)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, and choose its generator."""
        fresh = _random.generator(self._seed, _random.VALIDATION, 0, 0)
        self._generator = self._for_training if mode else fresh
        return super().train(mode)


def _noise(
    x: Tensor, outliers: Tensor, settings: SimpleNamespace, generator: torch.Generator, *, image: bool
) -> Distribution | None:
    """Return the noise p_n for complete settings, or None."""

    def kernels(rows: Tensor, kind: str) -> KernelDensity:
        bandwidth = settings.bandwidth or (IMAGE_BANDWIDTH if image else TABLE_BANDWIDTHS[kind])
        return smoothed(rows, bandwidth, max_centres=MAX_CENTERS, generator=generator)

    if settings.noise == "none":
        return None
    if settings.noise == "gaussian":
        return fit_gaussian(x, "diagonal", shrinkage=0.01)
    near = None if settings.noise == "data" else kernels(outliers, "outliers")
    if near is not None and settings.noise == "mixture":
        return NoiseMixture([near, kernels(x, "data")], [settings.outlier_share, 1 - settings.outlier_share])
    return kernels(x, "data") if near is None else near
