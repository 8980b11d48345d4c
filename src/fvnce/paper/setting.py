"""The setting of the paper's experiments, the data, the networks, the noise; and the form of a result.

The paper fixes σ_dec = 1/8, σ_kde = 2σ_dec, T = 10, 100 epochs and the networks, whose hidden layers are ReLUs. It
leaves open the encoder, the activation of the code, the output layer, the initial weights, learning rate, batch size,
the scaling of pixels and the number of kernel centers; the choices made here are one for all rows, and
``docs/reproduction.md`` shows which of them matter.
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

#: Pixels p in [0, 1] become (p − shift)/scale; the last are the mean and deviation of MNIST's training pixels.
SCALINGS: dict[Pixels, tuple[float, float]] = {
    "unit": (0.0, 1.0),
    "symmetric": (0.5, 0.5),
    "standardised": (0.1307, 0.3081),
}
#: Fewer points than this are evaluated anew, and not looked up on disk.
FEWEST_POINTS = 1024


@dataclass(frozen=True)
class Options:
    """What the command line can ask for.

    Attributes:
        data: which data set.
        seeds: how many seeds, counted from 0.
        epochs: epochs, if not the item's own.
        quick: tiny settings that only show that everything runs.
        jobs: processes over which cells are shared, each of one thread; None for 1 on digits and one per core on MNIST.
        say: called with a line about what is finished.
    """

    data: DataName = "digits"
    seeds: int = 1
    epochs: int | None = None
    quick: bool = False
    jobs: int | None = None
    say: Callable[[str], None] = field(default=lambda text: None, repr=False, compare=False)

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.jobs or (1 if self.data == "digits" else os.cpu_count() or 1)


@dataclass(frozen=True)
class ResultTable:
    r"""Rows of text under a header.

    >>> print(ResultTable("nats", ["row", "data"], [["a|b", "1"]]).markdown())
    | row | data |
    | --- | ---: |
    | a\|b | 1 |
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the rows as a table of Markdown, names to the left and numbers to the right."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True)
class ResultFigure:
    """A PNG file, its caption, and its description for those who do not see it."""

    path: Path
    caption: str
    alt: str


@dataclass(frozen=True)
class Result:
    """What an item of the paper gave.

    Attributes:
        title: what was reproduced.
        reading: sentences that say what came out.
        figures: pictures with their captions.
        tables: numbers, with the paper's where there are any.
        settings: everything that was chosen.
        seconds: how long it took.
        files: everything that was written.
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
    """The setting of the table, for one data set; *open* are choices that the paper does not give.

    Attributes:
        data: which data set.
        networks: the two networks; the code is in the middle.
        decoder_scale: σ_dec.
        noise_scale: σ_kde = 2σ_dec.
        clip: T of the clipped exponential.
        weight: weight of a row's own rule; the rest goes to J^{0,0}, without which training does not start: far from
            the data r^α and log(1 + r) are flat. The paper says so of α > 0; for (0, 1) it is our choice: it is needed
            there too.
        epochs: passes over the training data.
        batch_size: rows of a step; open.
        lr: learning rate of Adam; open.
        encoder: deterministic or stochastic; open. The plain autoencoder and log p(x|g(x)) use the mean.
        code_activation: what follows the code layer; open. With "relu" the code is what comes out of it; with
            "decoder-relu" the code is what goes in, and the prior sees that: the only choice of the two for a Gaussian
            encoder.
        output: what follows the last layer; open. For symmetric pixels the sigmoid spans [−1, 1].
        init: initial weights: uniform of variance 1/(3·inputs), torch's; uniform of variance 2/(inputs + outputs);
            Gaussian of variance 2/inputs. The last two with zero biases. Open, and it matters: pixels that are 0 in
            every image leave their weights as they were, and noise on these pixels passes through them.
        pixels: scaling of pixels: [0, 1], [−1, 1], or mean 0 and variance 1; open. σ_dec and σ_kde are in these units,
            and so are the nats of the table.
        centres: kernel centres, None for every training image; open.
        rows: training images, None for all.
        noise_samples: noise samples on which the table's second column is measured.
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
        """Return pixels of this setting as gray values in [0, 1]."""
        shift, scale = SCALINGS[self.pixels]
        return x * scale + shift


DIGITS = Setting(data="digits", networks=((64, 32, 64), (64, 48, 24, 48, 64)), noise_samples=2000)
#: What came closest to the paper's table; the search is ``experiments/search.py``.
MNIST = Setting(code_activation="relu", init="glorot")


def setting_for(options: Options) -> Setting:
    """Return the setting that the options ask for."""
    setting = DIGITS if options.data == "digits" else MNIST
    if options.quick:
        setting = replace(setting, epochs=2, rows=256, noise_samples=128)
    return setting if options.epochs is None else replace(setting, epochs=options.epochs)


def load(setting: Setting) -> Images:
    """Return the data of a setting, its pixels scaled."""
    images = load_digits() if setting.data == "digits" else load_mnist()
    if setting.rows is not None:
        images = replace(images, train=images.train[: setting.rows], train_labels=images.train_labels[: setting.rows])
    if setting.pixels == "unit":
        return images
    shift, scale = SCALINGS[setting.pixels]
    return replace(images, train=(images.train - shift) / scale, test=(images.test - shift) / scale)


class CachedKernelDensity(KernelDensity):
    """A kernel density that keeps its values on disk: log p_n of 60,000 images is the same for every row of the table.

    A value is found again by the content of the points, the centers and the bandwidth, so that a table is made once for
    all rows, networks and processes. Small requests are not worth a file and are passed on.

    Args:
        centres: shape (n, D).
        bandwidth: standard deviation of the kernel.
        folder: where values are kept.

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
        """Return log p_n, from the cache if it is there."""
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
    """Return the data of a setting and its noise p_n, a kernel density on training images whose values ``cache`` keeps.

    Those last asked for are remembered, as many cells share them.
    """
    images = load(setting)
    centres = images.train if setting.centres is None else images.train[: setting.centres]
    return images, CachedKernelDensity(centres, setting.noise_scale, cache)


def standard_normal(size: int) -> Distribution:
    """Return N(0, I) of the given dimension."""
    return Independent(Normal(torch.zeros(size), torch.ones(size)), 1)


@dataclass
class Pair:
    """A decoder model and an encoder, whose mean is g."""

    model: LatentVariableModel
    encoder: PointEncoder | GaussianEncoder

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the mean of p(x|g(x))."""
        with torch.no_grad():
            return self.model.decoder(self.encoder(x).mean).mean  # type: ignore[no-any-return]

    def log_likelihood(self, x: Tensor, *, batch: int = 10_000) -> Tensor:
        """Return log p(x|g(x)) of each row: what the paper's table averages."""
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
