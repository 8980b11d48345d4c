r"""A latent-variable model as a detector: p_θ(x, z) trained by fully variational NCE, any rule, noise and log Z.

With g(x) the mean of the encoder, the anomaly of a row is

    density:  −log p_θ(x, g(x)),        ratio:  log p_n(x) − log p_θ(x, g(x)),

computed in float64 without a random draw. The ratio calls strange what is likelier under the noise than under the
model, which is the question where the noise holds known outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor

from .. import _checks, serialization
from ..objectives import VAE, Autoencoder, FullyVariationalNCE
from ..scoring.text import parse
from ..training import History, fit
from .base import Detector, histories_from_state, histories_state
from .calibration import threshold_at
from .conformal import Conformal
from .evidence import Findings, make_evidence
from .explanation import Explanation, importances_over
from .frame import read_by
from .members.base import require
from .members.latent_model import SeededEncoder, latent_objective, require_pair, seeded_pair
from .networks import in_blocks
from .noise import latent_noise
from .plan import SCORES, Array, LatentSettings, TrainingRows, is_shown, layers_of, seed_of
from .preprocessing import cut, learn_preprocessor
from .rows import check_labels, hash_words, in_parts


@dataclass(eq=False, repr=False, kw_only=True)  # whose __init__ only stores, as scikit-learn asks
class LatentDetector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Detector):  # type: ignore[misc]
    """Outlier detection by a latent-variable model, which also rebuilds rows and draws new ones.

    Scores follow scikit-learn: ``score_samples`` and ``decision_function`` are low for outliers and ``predict`` gives
    −1 for them; ``anomaly_score`` is high. In a search use :mod:`fvnce.detection.scorers`, or no ``scoring``. In a
    pipeline it is a transformer as well: ``transform`` gives codes.

    Args:
        rule: the scoring rule as text, such as ``"power(0.5)"``.
        noise: p_n: "outliers" (kernel density of the known ones), "data" (smoothed rows), "mixture" of both,
            "gaussian", "none" for an autoencoder or VAE, or "auto": mixture with known outliers, else data.
        bandwidth: of the kernel densities, in deviations of a column, for images in units of the range; 0 chooses.
        outlier_share: weight of the known outliers in the mixture.
        partition: "fixed", "learned" or "profiled" log Z; "auto" is profiled for tables, fixed for images.
        log_scale: s of Δ = Δ⁰ + s, for a fixed partition.
        noise_ratio: noise samples for each row.
        latent: size of the code; 0 chooses a quarter of the columns, 32 for images.
        hidden: sizes of hidden layers.
        encoder: "gaussian" or "point".
        epochs: passes over the rows.
        batch_size: rows of a step.
        learning_rate: of Adam.
        validation: share of the rows held out; ``p_value`` compares with them, and is at least 1/(their number + 1).
        anomaly: "density" is −log p_θ(x, g(x)), "ratio" adds log p_n(x); "auto" is ratio with known outliers.
        contamination: share of the unlabelled training rows above the threshold, rounded down to whole rows.
        verbose: 1 shows a progress bar, None shows it in a terminal.
        random_state: an integer for scores that are the same every time, to the last bit; None for others every time.

    Attributes:
        objective_: the trained objective, in float64; ``objective_.model`` draws samples.
        history_: a :class:`fvnce.History`.
        settings_: the settings, with what "auto" stood for.
        held_out_: preprocessed rows that were held out, or all if none were; not saved.
        offset_: ``decision_function`` is ``score_samples − offset_``.
        evidence_: what is known of how good it is (:class:`~fvnce.detection.Evidence`).
        feature_importances_: share of each column in the variance of the score.
        decision_scores_: anomaly scores of the training rows, as in PyOD; ``labels_`` and ``threshold_`` likewise.
        n_known_: known outliers in training.
        n_features_in_: columns.
        feature_names_in_: their names, if X was a data frame.

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
    random_state: Any = 0

    # Learnt by fit.
    objective_: Any = field(init=False)
    history_: History = field(init=False)
    settings_: LatentSettings = field(init=False)
    held_out_: Tensor = field(init=False)

    @classmethod
    def from_settings(cls, settings: LatentSettings, **options: Any) -> Self:
        """The detector with these settings, and options that are none (verbose, random_state)."""
        given = asdict(settings)
        # An attribute ``score`` would hide the method of that name.
        return cls(anomaly=given.pop("score"), **given, **options)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows, of which y marks the known outliers.

        Args:
            X: a matrix of numbers, NaN where missing; a data frame of pandas, polars, Arrow or whatever narwhals knows
                (text, amounts of money, dates and missing values are welcome); or images of shape (n, H, W),
                (n, C, H, W) or (n, H, W, C).
            y: 1 for known outliers, 0 for all other rows, whatever they are; or yes and no, outlier and inlier, …
        """
        settings = self._settings()
        whole = isinstance(self.random_state, Integral) and 0 <= int(self.random_state) < 2**63
        seed = int(self.random_state) if whole else seed_of(self.random_state)
        self._forget()
        matrix, readings, frame = self._training_rows(X)
        known = check_labels(y, len(matrix))
        if matrix.ndim == 2:
            matrix = np.asarray(matrix, dtype=np.float64)
        if (rows := int((~known).sum())) < 4:
            raise ValueError(f"a model needs at least 4 rows that are no known outliers, found {rows}")
        self.n_known_ = int(known.sum())
        generator = torch.Generator().manual_seed(seed)
        # The first of these rows are held out, of everything that is learnt: of how columns are read and scaled too.
        # The rows are part of the seed, as in fvnce.detection.conformal.
        order = torch.from_numpy(np.random.default_rng([seed, 79, *hash_words(matrix[~known])]).permutation(rows))
        held = max(2, round(settings.validation * rows)) if settings.validation else 0
        if frame is not None and held:
            seen = np.concatenate([np.flatnonzero(~known)[order[held:].numpy()], np.flatnonzero(known)])
            matrix, readings = read_by(frame, np.sort(seen), len(frame))
        kept = matrix[~known][order[held:].numpy()]
        self.preprocessor_ = learn_preprocessor(kept, np.ones(len(kept)), readings, matrix[known])
        encoded = cut(self.preprocessor_.encode(matrix))
        x, outliers = (torch.from_numpy(encoded[which]).float() for which in (~known, known))
        self._train(x[order[held:]], x[order[:held]], outliers, settings, generator, seed)
        self._find_out(encoded, known, order[:held], seed)
        return self

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fit, and tell inliers (+1) from outliers (−1) among the same rows."""
        return self.fit(X, y).predict(X)

    def codes(self, X: Any) -> Array:
        """g(x), shape (n, latent)."""
        return np.asarray(in_blocks(self._codes, torch.from_numpy(self.preprocess(X))).numpy())

    def transform(self, X: Any) -> Array:
        """g(x), as :meth:`codes` gives it, for pipelines; ``set_output`` makes it a data frame."""
        return self.codes(X)

    @property
    def _n_features_out(self) -> int:
        return self.settings_.latent

    def reconstruction(self, X: Any) -> Array:
        """x̂, the mean of the decoder at g(x), in the columns that the model sees."""
        return np.asarray(in_blocks(self._reconstruction, torch.from_numpy(self.preprocess(X))).numpy())

    def _settings(self) -> LatentSettings:
        given = {name: getattr(self, name) for name in (f.name for f in fields(LatentSettings)) if name != "score"}
        score = _checks.choice("anomaly", self.anomaly, SCORES)
        return LatentSettings(**{**given, "hidden": layers_of(self.hidden)}, score=score)

    def _train(
        self,
        rows: Tensor,
        held_out: Tensor,
        outliers: Tensor,
        settings: LatentSettings,
        generator: torch.Generator,
        seed: int,
    ) -> None:
        """Train on rows without a label; those held out only validate."""
        image, width = self.preprocessor_.image is not None, rows.shape[1]
        settings = settings.completed(width, image=image, known=len(outliers))
        latent = settings.latent
        encoder, decoder = seeded_pair(
            width, None, settings.hidden, latent, stochastic=settings.stochastic, seed=seed, cut=False
        )
        noise = latent_noise(rows, outliers, settings, generator, image=image)
        options = {} if noise is None else _options(settings)
        objective = latent_objective(encoder, decoder, latent, noise, **options)
        self.history_ = fit(
            objective,
            rows,
            validation=held_out if len(held_out) else None,
            epochs=settings.epochs,
            batch_size=min(settings.batch_size, len(rows)),
            lr=settings.learning_rate,
            seed=seed,
            seed_globals=False,
            progress=None if self.verbose is None else is_shown(self.verbose),
            log_every=10,
            accelerator="cpu",
        )
        if isinstance(encoder, SeededEncoder):
            trained, objective = objective, latent_objective(encoder.trained(), decoder, latent, noise, **options)
            objective.load_state_dict(trained.state_dict())
        self.objective_, self.settings_ = objective.eval().double(), settings
        self.held_out_ = held_out if len(held_out) else rows

    def _find_out(self, x: Array, known: NDArray[np.bool_], held: Tensor, seed: int) -> None:
        """The threshold, and what the fit says about itself."""
        scores = in_parts(x, self._anomaly)
        own, contamination = scores[~known], self.settings_.contamination
        ones = np.ones(len(own))
        offset = threshold_at(-own, ones, contamination)
        conformal = Conformal.of(own[held.numpy()], ones[: len(held)]) if len(held) else None
        rows = TrainingRows(x[~known], ones, x[known], np.ones(int(known.sum())))
        self.findings_ = Findings(
            evidence=make_evidence(
                None,
                own,
                ones,
                float(known.sum()),
                threshold=-offset,
                threshold_reason=f"contamination = {contamination:g}, and this share of the unlabelled rows lies above",
                prior=None,
                reason="the model is trained with all known outliers, and holds none out"
                if known.any()
                else "no outlier is known (y = 1)",
                seed=seed,
            ),
            conformal=conformal,
            no_p_value=None if conformal is not None else "validation = 0 holds no rows out",
            importances=importances_over(rows, self._explain, seed),
            scores=scores,
            no_scores=None,
        )
        self.offset_ = offset

    def _anomaly(self, encoded: Array) -> Array:
        return np.asarray(in_blocks(self._anomaly_of, torch.from_numpy(cut(encoded))).numpy())

    @torch.no_grad()
    def _codes(self, x: Tensor) -> Tensor:
        codes: Tensor = self.objective_.encoder(x).mean
        return codes

    @torch.no_grad()
    def _anomaly_of(self, x: Tensor) -> Tensor:
        density: Tensor = self.objective_.model.log_joint(x, self._codes(x))
        return self.objective_.noise.log_prob(x) - density if self.settings_.score == "ratio" else -density

    @torch.no_grad()
    def _reconstruction(self, x: Tensor) -> Tensor:
        mean: Tensor = self.objective_.model.decoder(self._codes(x)).mean
        return mean

    @torch.no_grad()
    def _explain(self, encoded: Array) -> Explanation:
        """Squared errors over 2σ² by column; the code and the density of the noise belong to none."""
        x = torch.from_numpy(cut(encoded))
        decoder = self.objective_.model.decoder
        squares = ((x - in_blocks(self._reconstruction, x)).square() / (2 * decoder.scale.square())).numpy()
        # Where a row is its own reconstruction from the code 0, the constants of the density are left.
        code = torch.zeros(1, self.settings_.latent, dtype=x.dtype)
        base = -float(self.objective_.model.log_joint(decoder(code).mean, code))
        reconstruction = self.preprocessor_.fold(squares)
        rest = self._anomaly(encoded) - reconstruction.reshape(len(x), -1).sum(1) - base
        return Explanation(np.zeros_like(reconstruction), reconstruction, rest, base)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        module, tensors = serialization.describe(self.objective_)
        histories, own = histories_state([self.history_])
        return {"module": module, "settings": asdict(self.settings_), "histories": histories}, tensors | own

    def _take_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        module, settings, histories = serialization.fields(
            content, "a latent detector", "module", "settings", "histories"
        )
        self.settings_ = LatentSettings(**{**settings, "hidden": tuple(settings["hidden"])})
        (self.history_,) = histories_from_state(histories, tensors)
        objective: Any = serialization.rebuild(module, tensors)
        kind = (
            FullyVariationalNCE if self.settings_.noise != "none" else VAE if self.settings_.stochastic else Autoencoder
        )
        require(type(objective) is kind, f"have an objective of class {kind.__name__}", type(objective).__name__)
        require(self.settings_.score in ("ratio", "density"), "say what its score is", self.settings_.score)
        latent = require_pair(
            objective.encoder,
            objective.model.decoder,
            self.preprocessor_.width,
            None,
            stochastic=self.settings_.stochastic,
            cut=False,
        )
        require(latent == self.settings_.latent, f"have codes of size {self.settings_.latent}", latent)
        self.objective_ = objective.double()


def _options(settings: LatentSettings) -> dict[str, Any]:
    """What fully variational NCE is told beside the noise."""
    names = ("partition", "log_scale", "noise_ratio")
    return {"rule": parse(settings.rule), **{name: getattr(settings, name) for name in names}}
