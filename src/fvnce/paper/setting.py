"""Setting of the paper's experiments (data, networks, noise) and the form of results.

The paper fixes σ_dec = 1/8, σ_kde = 2σ_dec, T = 10, 100 epochs and the networks, whose hidden layers are ReLUs. It does
not state the encoder, the activation of the code, the output layer, the initial weights, learning rate, batch size,
scaling of pixels and number of kernel centers. Here one choice is made for all rows; ``docs/reproduction.md`` shows
which choices matter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from .._random import seeded
from ..io import atomic_write
from ..models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from ..noise import KernelDensity
from .datasets import Images, load_digits, load_mnist

DataName = Literal["digits", "mnist"]
Pixels = Literal["unit", "symmetric", "standardised"]

#: Scaling of pixels p in [0, 1] to (p − shift)/scale; the last pair is mean and deviation of MNIST's training pixels.
SCALINGS: dict[Pixels, tuple[float, float]] = {
    "unit": (0.0, 1.0),
    "symmetric": (0.5, 0.5),
    "standardised": (0.1307, 0.3081),
}
#: Minimum number of points whose values are cached on disk.
FEWEST_POINTS = 1024


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Attributes:
        data: name of the data set.
        seeds: number of seeds, starting from 0.
        epochs: number of epochs, None for the item's own.
        quick: whether to use tiny settings, to check that everything runs.
        jobs: number of processes of one thread for cells; None for 1 on digits and one per core on MNIST.
        say: called with a line about each finished step.
    """

    data: DataName = "digits"
    seeds: int = 1
    epochs: int | None = None
    quick: bool = False
    jobs: int | None = None
    say: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)

    @property
    def processes(self) -> int:
        """The number of processes for cells."""
        return self.jobs or (1 if self.data == "digits" else os.cpu_count() or 1)


@dataclass(frozen=True)
class ResultTable:
    r"""Table of results: a caption, a header and rows of text.

    >>> print(ResultTable("nats", ["row", "data"], [["a|b", "1"]]).markdown())
    | row | data |
    | --- | ---: |
    | a\|b | 1 |
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table in Markdown, names aligned left and numbers right."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True)
class ResultFigure:
    """Figure of results: a PNG file, its caption, and its alternative text."""

    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class Result:
    """Result of reproducing one item of the paper.

    Attributes:
        title: title of the item.
        reading: sentences that summarize the results.
        figures: figures with their captions.
        tables: tables of numbers, with the paper's where available.
        settings: all settings.
        seconds: duration.
        files: files that were written.
    """

    title: str
    reading: Sequence[str]
    figures: Sequence[ResultFigure] = ()
    tables: Sequence[ResultTable] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Setting:
    """Setting of the table for one data set; *open* marks choices that the paper does not state.

    Attributes:
        data: name of the data set.
        networks: the two networks; the code is in the middle.
        decoder_scale: σ_dec.
        noise_scale: σ_kde = 2σ_dec.
        clip: T of the clipped exponential.
        weight: weight of a row's own rule; the rest is J^{0,0}, without which training does not start, because r^α and
            log(1 + r) are flat far from the data. The paper does this for α > 0; for (0, 1) it is our choice, as it is
            also needed there.
        epochs: passes over the training data.
        batch_size: rows of a step; open.
        lr: learning rate of Adam; open.
        encoder: deterministic or stochastic; open. The plain autoencoder and log p(x|g(x)) use the mean.
        code_activation: activation of the code layer; open. With "relu" the code is its output, with "decoder-relu" its
            input, to which the prior then applies; a Gaussian encoder allows only the latter of the two.
        output: activation of the last layer; open. For symmetric pixels the sigmoid spans [−1, 1].
        init: initial weights: uniform of variance 1/(3·inputs), torch's; uniform of variance 2/(inputs + outputs);
            Gaussian of variance 2/inputs. The last two with zero biases. Open, and it matters: the weights of pixels
            that are 0 in every image are never trained, and noise on these pixels passes through them.
        pixels: scaling of pixels: [0, 1], [−1, 1], or mean 0 and variance 1; open. σ_dec, σ_kde and the nats of the
            table are in these units.
        centres: number of kernel centers, None for every training image; open.
        rows: number of training images, None for all.
        noise_samples: number of noise samples for the table's second column.
    """

    data: DataName = "mnist"
    networks: tuple[tuple[int, ...], ...] = ((784, 128, 784), (784, 256, 128, 256, 784))
    decoder_scale: float = 1 / 8
    noise_scale: float = 1 / 4
    clip: float = 10.0
    weight: float = 0.9
    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-3
    encoder: Literal["point", "gaussian"] = "point"
    code_activation: Literal["none", "relu", "decoder-relu"] = "none"
    output: Literal["linear", "sigmoid"] = "linear"
    init: Literal["torch", "glorot", "he"] = "torch"
    pixels: Pixels = "unit"
    centres: int | None = None
    rows: int | None = None
    noise_samples: int = 10_000

    def to_unit(self, x: Tensor) -> Tensor:
        """Convert pixels of this setting to gray values in [0, 1]."""
        shift, scale = SCALINGS[self.pixels]
        return x * scale + shift


DIGITS = Setting(data="digits", networks=((64, 32, 64), (64, 48, 24, 48, 64)), noise_samples=2000)
#: The setting closest to the paper's table, found by ``experiments/search.py``.
MNIST = Setting(code_activation="relu", init="glorot")


def setting_for(options: Options) -> Setting:
    """Return the setting for the given options."""
    setting = DIGITS if options.data == "digits" else MNIST
    if options.quick:
        setting = replace(setting, epochs=2, rows=256, noise_samples=128)
    return setting if options.epochs is None else replace(setting, epochs=options.epochs)


def load(setting: Setting) -> Images:
    """Load the data of a setting, with scaled pixels."""
    images = load_digits() if setting.data == "digits" else load_mnist()
    if setting.rows is not None:
        images = replace(images, train=images.train[: setting.rows], train_labels=images.train_labels[: setting.rows])
    if setting.pixels == "unit":
        return images
    shift, scale = SCALINGS[setting.pixels]
    return replace(images, train=(images.train - shift) / scale, test=(images.test - shift) / scale)


class CachedKernelDensity(KernelDensity):
    """Kernel density that caches its values on disk, as log p_n of 60,000 images is the same for all rows of the table.

    The key is the content of points, centers and bandwidth, so values are computed once for all rows, networks and
    processes. Small requests are not cached.

    Args:
        centres: centers, shape (n, D).
        bandwidth: standard deviation of the kernel.
        folder: folder of cached values.

    >>> import tempfile
    >>> centres = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     noise = CachedKernelDensity(centres, 0.5, Path(folder))
    ...     first, again = noise.log_prob(centres), noise.log_prob(centres)
    ...     files = len(list(Path(folder).iterdir()))
    >>> bool((first == again).all()), files
    (True, 1)
    """

    def __init__(self, centres: Tensor, bandwidth: float, folder: Path) -> None:
        super().__init__(centres, bandwidth)
        self.folder = folder
        self._noise_key = hashlib.sha256(_bytes(self.centres) + repr(float(bandwidth)).encode()).hexdigest()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p_n, from the cache if possible."""
        if value.dim() != 2 or len(value) < FEWEST_POINTS or value.requires_grad:
            return super().log_prob(value)
        key = hashlib.sha256(f"{self._noise_key} {value.dtype}".encode() + _bytes(value)).hexdigest()[:24]
        path = self.folder / f"{key}.npy"
        if path.exists():
            return torch.from_numpy(np.load(path, allow_pickle=False)).to(value.device)
        log_prob = super().log_prob(value)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            np.save(file, log_prob.cpu().numpy())
        return log_prob


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().numpy().tobytes()


@lru_cache(maxsize=1)
def data_and_noise(setting: Setting, cache: Path) -> tuple[Images, KernelDensity]:
    """Return the data of a setting and its noise p_n, a kernel density on training images with its values in ``cache``.

    The last result is cached in memory, as many cells share it.
    """
    images = load(setting)
    centres = images.train if setting.centres is None else images.train[: setting.centres]
    return images, CachedKernelDensity(centres, setting.noise_scale, cache)


def standard_normal(size: int) -> Distribution:
    """Return N(0, I) of the given dimension."""
    return Independent(Normal(torch.zeros(size), torch.ones(size)), 1)


@dataclass
class Pair:
    """Model and encoder, whose mean is g."""

    model: LatentVariableModel
    encoder: PointEncoder | GaussianEncoder

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the reconstruction, the mean of p(x|g(x))."""
        with torch.no_grad():
            return self.model.decoder(self.encoder(x).mean).mean  # type: ignore[no-any-return]

    def log_likelihood(self, x: Tensor, *, batch: int = 10_000) -> Tensor:
        """Return log p(x|g(x)) of each row, which the paper's table averages."""
        with torch.no_grad():
            parts = [self.model.log_likelihood(part, self.encoder(part).mean) for part in x.split(batch)]
        return torch.cat(parts)


def make_pair(setting: Setting, network: tuple[int, ...], seed: int) -> Pair:
    """Make networks with the initial weights of a seed, the same for every row."""
    middle = len(network) // 2
    gaussian, activation = setting.encoder == "gaussian", setting.code_activation
    if gaussian and activation == "relu":
        raise ValueError(
            "code_activation must be 'none' or 'decoder-relu' with encoder='gaussian', whose draws may be negative, "
            "found 'relu'"
        )
    sizes = [*network[:middle], network[middle] * (2 if gaussian else 1)]
    with seeded(seed):
        encoder = mlp(sizes, output=nn.ReLU() if activation == "relu" else None)
        decoder = mlp(network[middle:], output=_output(setting))
        for layer in (*encoder, *decoder):
            if isinstance(layer, nn.Linear) and setting.init != "torch":
                if setting.init == "glorot":
                    nn.init.xavier_uniform_(layer.weight)
                else:
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    if activation == "decoder-relu":
        decoder = nn.Sequential(nn.ReLU(), *decoder)
    model = LatentVariableModel(standard_normal(network[middle]), GaussianDecoder(decoder, setting.decoder_scale))
    return Pair(model, GaussianEncoder(encoder) if gaussian else PointEncoder(encoder))


def _output(setting: Setting) -> nn.Module | None:
    if setting.output == "linear":
        return None
    if setting.pixels == "standardised":
        raise ValueError("output must be 'linear' with pixels='standardised', which have no bounds, found 'sigmoid'")
    return nn.Sigmoid() if setting.pixels == "unit" else nn.Tanh()  # tanh(u) = 2 sigmoid(2u) − 1
