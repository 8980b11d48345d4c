r"""A latent-variable model as a detector: p_θ(x, z) trained by fully variational NCE, any rule, noise and log Z.

With g(x) the mean of the encoder, the anomaly of a row is

    density:  −log p_θ(x, g(x)),        ratio:  log p_n(x) − log p_θ(x, g(x)),

computed in float64 without a random draw. The ratio calls strange what is likelier under the noise than under the
model, which is the question where the noise holds known outliers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from ...detection import table
from ...detection.images import ImageShape, check_images
from ...models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from ...noise import KernelDensity, NoiseMixture, fit_gaussian, smoothed
from ...objectives import VAE, Autoencoder, FullyVariationalNCE
from ...scoring.text import parse
from ...serialization import describe, read_record, reading, rebuild, write_record
from ...training import History, fit
from ..readers.frame import Frame
from .settings import ModelSettings, SettingsError

Array = NDArray[np.float64]
KIND = "latent detector"
#: Centres of a kernel density.
CENTRES = 5000
#: Deviations of a column, or of the range of images, that a kernel spans unless told.
TABLE_BANDWIDTHS = {"outliers": 0.5, "data": 1.0}
IMAGE_BANDWIDTH = 0.25


@dataclass(frozen=True)
class Encoding:
    """How raw rows become the columns of the network: see :mod:`fvnce.detection.table` and ``images``."""

    columns: list[table.Column] | None
    categories: list[dict[str, int] | None] | None
    image: ImageShape | None

    def __call__(self, rows: Any) -> Array:
        """Encoded rows, shape (n, D)."""
        if self.image is not None:
            return self.image.encode(check_images(rows, self.image.shape))
        assert self.columns is not None
        if isinstance(rows, Frame):
            matrix = table.frame_to_matrix(rows, self.categories or [None] * rows.shape[1])
        else:
            matrix = np.asarray(rows, dtype=np.float64)
        if np.isinf(matrix).any():
            raise ValueError(f"rows must not hold infinity, found it in row {int(np.argwhere(np.isinf(matrix))[0][0])}")
        return table.encode(matrix, self.columns)

    def fold(self, values: Array) -> Array:
        """Parts of encoded columns, summed over what belongs to one original column or pixel."""
        if self.image is not None:
            return self.image.decode(values)
        assert self.columns is not None
        return table.gather(values, self.columns)


def learn_encoding(rows: Any, known: NDArray[np.bool_]) -> Encoding:
    """The encoding of training rows, from those that are not known outliers."""
    if not isinstance(rows, Frame) and rows.ndim > 2:
        images = check_images(rows)
        return Encoding(None, None, ImageShape(tuple(int(s) for s in images.shape[1:]), images.min(), images.max()))
    categories = table.learn_names(rows) if isinstance(rows, Frame) else None
    matrix = np.asarray(rows, dtype=np.float64) if categories is None else table.frame_to_matrix(rows, categories)
    matrix = matrix[~known]
    text = [names is not None for names in categories or [None] * matrix.shape[1]]
    return Encoding(table.learn_columns(matrix, np.ones(len(matrix)), text), categories, None)


class LatentDetector:
    """A trained objective with the encoding of its rows."""

    def __init__(self, objective: nn.Module, encoding: Encoding, scoring: str, threshold: float) -> None:
        self.objective: Any = objective.eval().double()
        self.encoding, self.scoring, self.threshold = encoding, scoring, threshold

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows, shape (n,)."""
        return self.anomaly_of(torch.from_numpy(self.encoding(rows)))

    @torch.no_grad()
    def anomaly_of(self, x: Tensor) -> Array:
        """The anomaly of encoded rows."""
        density = self.objective.model.log_joint(x, self.objective.encoder(x).mean)
        if self.scoring == "ratio":
            return np.asarray((self.objective.noise.log_prob(x) - density).numpy())
        return np.asarray((-density).numpy())

    @torch.no_grad()
    def contributions(self, rows: Any) -> Array:
        """The squared error of each column over 2σ², a part of the anomaly, shape (n, columns)."""
        x = torch.from_numpy(self.encoding(rows))
        rebuilt = self.rebuilt(x)
        scale = self.objective.model.decoder.scale
        return self.encoding.fold(((x - rebuilt).square() / (2 * scale.square())).numpy())

    @torch.no_grad()
    def rebuilt(self, x: Tensor) -> Tensor:
        """x̂ of encoded rows."""
        mean: Tensor = self.objective.model.decoder(self.objective.encoder(x).mean).mean
        return mean

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """g(x) of encoded rows."""
        mean: Tensor = self.objective.encoder(x).mean
        return mean

    def save(self, path: Path) -> None:
        """Write it to one file, without pickle."""
        module, tensors = describe(self.objective)
        encoding: dict[str, Any] = {
            "columns": None if self.encoding.columns is None else table.to_json(self.encoding.columns),
            "categories": self.encoding.categories,
            "image": None if self.encoding.image is None else asdict(self.encoding.image),
        }
        if encoding["image"] is not None:
            encoding["image"] = {k: list(v) if isinstance(v, tuple) else float(v) for k, v in encoding["image"].items()}
        content = {"module": module, "encoding": encoding, "scoring": self.scoring, "threshold": self.threshold}
        write_record(path, KIND, content, tensors)

    @classmethod
    def load(cls, path: Path) -> LatentDetector:
        """What :meth:`save` wrote."""
        content, tensors = read_record(path, KIND)
        with reading(path):
            saved = content["encoding"]
            image = saved["image"]
            encoding = Encoding(
                None if saved["columns"] is None else table.from_json(saved["columns"]),
                saved["categories"],
                None if image is None else ImageShape(tuple(image["shape"]), image["low"], image["high"]),
            )
            objective = rebuild(content["module"], tensors, what=path)
            return cls(objective, encoding, content["scoring"], content["threshold"])


def complete(settings: ModelSettings, width: int, *, image: bool, known: int) -> ModelSettings:
    """What "auto" stands for on these data."""
    noise = settings.noise
    if noise == "auto":
        noise = "mixture" if known else "data"
    if noise in ("outliers", "mixture") and not known:
        raise SettingsError(
            f"noise {noise!r} needs known outliers, found none; give --outliers or --label, or use data"
        )
    score = settings.score
    if score == "auto":
        score = "ratio" if known and noise != "none" else "density"
    if score == "ratio" and noise == "none":
        raise SettingsError("score 'ratio' needs a noise, found noise 'none'; use density")
    return replace(
        settings,
        noise=noise,
        score=score,
        partition=("fixed" if image else "profiled") if settings.partition == "auto" else settings.partition,
        latent=settings.latent or (32 if image else max(2, width // 4)),
    )


def train(
    rows: Any, known: NDArray[np.bool_], settings: ModelSettings, seed: int, *, progress: bool | None = None
) -> tuple[LatentDetector, History, ModelSettings, Tensor]:
    """Train; also the settings completed, and the held-out rows, encoded."""
    encoding = learn_encoding(rows, known)
    encoded = torch.from_numpy(encoding(rows)).float()
    mask = torch.from_numpy(known)
    x, outliers = encoded[~mask], encoded[mask]
    if len(x) < 4:
        raise SettingsError(f"a model needs at least 4 rows that are no known outliers, found {len(x)}")
    settings = complete(settings, x.shape[1], image=encoding.image is not None, known=len(outliers))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    cut = max(2, round(settings.validation * len(x))) if settings.validation else 0
    held_out, kept = x[order[:cut]], x[order[cut:]]
    objective = build(kept, outliers, settings, generator, seed, image=encoding.image is not None)
    history = fit(
        objective,
        kept,
        validation=held_out if cut else None,
        epochs=settings.epochs,
        batch_size=min(settings.batch_size, len(kept)),
        lr=settings.learning_rate,
        seed=seed,
        progress=progress,
        log_every=10,
        accelerator="cpu",
    )
    detector = LatentDetector(objective.cpu(), encoding, settings.score, 0.0)
    own = np.concatenate([detector.anomaly_of(part.double()) for part in x.split(4096)])
    detector.threshold = float(np.quantile(own, 1 - settings.contamination))
    return detector, history, settings, (held_out if cut else kept)


def build(
    x: Tensor, outliers: Tensor, settings: ModelSettings, generator: torch.Generator, seed: int, *, image: bool
) -> nn.Module:
    """The objective."""
    width = x.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        point = settings.encoder == "point"
        inner = mlp([width, *settings.hidden, settings.latent * (1 if point else 2)], nn.SiLU)
        encoder: nn.Module = PointEncoder(inner) if point else GaussianEncoder(inner)
        decoder = GaussianDecoder(mlp([settings.latent, *reversed(settings.hidden), width], nn.SiLU), learned="shared")
    prior = Independent(Normal(torch.zeros(settings.latent), torch.ones(settings.latent)), 1)
    model = LatentVariableModel(prior, decoder)
    noise = make_noise(x, outliers, settings, generator, image=image)
    if noise is None:
        return Autoencoder(model, encoder) if point else VAE(model, encoder)
    return FullyVariationalNCE(
        model,
        encoder,
        noise,
        parse(settings.rule),
        partition=settings.partition,  # type: ignore[arg-type]
        log_scale=settings.log_scale,
        noise_ratio=settings.noise_ratio,
    )


def make_noise(
    x: Tensor, outliers: Tensor, settings: ModelSettings, generator: torch.Generator, *, image: bool
) -> Distribution | None:
    """p_n, or None."""

    def bandwidth(of: str) -> float:
        return settings.bandwidth or (IMAGE_BANDWIDTH if image else TABLE_BANDWIDTHS[of])

    def cover() -> KernelDensity:
        return smoothed(x, bandwidth("data"), max_centres=CENTRES, generator=generator)

    if settings.noise == "none":
        return None
    if settings.noise == "gaussian":
        return fit_gaussian(x, "diagonal", shrinkage=0.01)
    if settings.noise == "data":
        return cover()
    near = smoothed(outliers, bandwidth("outliers"), max_centres=CENTRES, generator=generator)
    if settings.noise == "outliers":
        return near
    share = settings.outlier_share
    return NoiseMixture([near, cover()], [share, 1 - share])
