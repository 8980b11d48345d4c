"""Base class of noise distributions, and functions to sample, evaluate and save any distribution.

Noise of this package has ``draw(n, generator)``. Torch's distributions use the global generator only, raise an error
for points outside their support, and do not name rows in errors. These functions handle both in the same way.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, constraints

from .. import _validation
from .._random import seeded
from ..io import describe, fields, read_record, rebuild, write_record

FILE_NAME = "noise.safetensors"
KIND = "noise"

_ROWS_AT_ONCE = 8192
_LARGEST_SEED = 2**63 - 1


class Noise(Distribution):
    """Base class of noise distributions. Subclasses define ``log_prob``, ``draw(n, generator)`` and the support.

    Attributes:
        everywhere: whether the support is the whole space.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False
    everywhere: ClassVar[bool] = True

    def __init__(self, event_shape: torch.Size) -> None:
        super().__init__(torch.Size(), event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The support: the whole space."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n samples of shape (n,) + event_shape, from the generator or torch's global one."""
        raise NotImplementedError

    def row_flops(self) -> float | None:
        """Return the number of floating-point operations to draw and evaluate one row, None if unknown."""
        return None

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples of shape sample_shape + event_shape from torch's global generator."""
        shape = torch.Size(sample_shape)
        return self.draw(shape.numel()).reshape(shape + self.event_shape)


def draw(noise: Distribution, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw n samples of shape (n,) + event_shape from a distribution, seeded by ``generator``.

    A distribution without a ``draw`` method is sampled from the global generator, which is seeded from ``generator``
    and restored afterwards. This is reproducible, also with several threads.

    Args:
        noise: any torch distribution.
        n: number of samples.
        generator: source of randomness; by default torch's global generator.

    Returns:
        The samples.

    >>> noise = torch.distributions.Normal(torch.zeros(2), 1.0)
    >>> noise = torch.distributions.Independent(noise, 1)
    >>> first = draw(noise, 3, torch.Generator().manual_seed(1))
    >>> bool((first == draw(noise, 3, torch.Generator().manual_seed(1))).all())
    True
    """
    n = _validation.count("n", n, low=0)
    if hasattr(noise, "draw"):
        drawn: Tensor = noise.draw(n, generator)
        return drawn
    with torch.no_grad():
        if generator is None:
            return noise.sample(torch.Size((n,)))
        seed = torch.randint(_LARGEST_SEED, (), generator=generator, device=generator.device)
        with seeded(int(seed)):
            return noise.sample(torch.Size((n,)))


def draw_with_log_prob(noise: Distribution, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Draw n samples and evaluate their log density, shapes (n,) + event_shape and (n,).

    Uses the noise's method of the same name if it has one, which need not check its own draws.

    Args:
        noise: any torch distribution.
        n: number of samples.
        generator: source of randomness; by default torch's global generator.

    Returns:
        The samples and their log density.

    >>> noise = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> x, log_p = draw_with_log_prob(noise, 5, torch.Generator().manual_seed(0))
    >>> bool((log_p == noise.log_prob(x)).all())
    True
    """
    if hasattr(noise, "draw_with_log_prob"):
        pair: tuple[Tensor, Tensor] = noise.draw_with_log_prob(n, generator)
        return pair
    x = draw(noise, n, generator)
    with torch.no_grad():
        return x, noise.log_prob(x) if n else x.new_empty(0)


def row_flops(noise: Distribution) -> float | None:
    """Return the number of floating-point operations to draw and evaluate one row, None if unknown.

    >>> from fvnce.noise import KernelDensity
    >>> row_flops(KernelDensity(torch.zeros(100, 3), 1.0))
    600.0
    """
    if isinstance(noise, Noise):
        return noise.row_flops()
    width = max(1, noise.event_shape.numel())
    if isinstance(noise, MultivariateNormal):
        return 4.0 * width * width
    return 40.0 * width if isinstance(noise, Independent) else None


def jitter(noise: Distribution, x: Tensor) -> Tensor:
    """Perturb rows by the noise's kernel; noise without a kernel returns x unchanged.

    Jittered centers of a kernel density are samples of it. Draws come from torch's global generator.

    Args:
        noise: any torch distribution.
        x: rows.

    >>> noise = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> x = torch.ones(3, 2)
    >>> jitter(noise, x) is x
    True
    """
    moved: Tensor = noise.jitter(x) if hasattr(noise, "jitter") else x
    return moved


def log_prob_or_minus_inf(noise: Distribution, x: Tensor) -> Tensor:
    """Return log p_n(x), and −inf outside the support, where torch's distributions raise an error.

    >>> box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(2), 1.0), 1)
    >>> log_prob_or_minus_inf(box, torch.tensor([[0.5, 0.5], [0.5, 2.0]]))
    tensor([0., -inf])
    """
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()  # the noise stays in float32 when an objective is in half precision
    lead = x.shape[: x.ndim - len(noise.event_shape)]
    if not lead.numel():  # torch's distributions fail on an empty batch
        return x.new_empty(lead)
    if isinstance(noise, Noise) and noise.everywhere:
        return noise.log_prob(x)
    inside = inside_support(noise, x)
    if _validation.are_deferred():
        return torch.where(inside, noise.log_prob(x), -math.inf)
    if bool(inside.all()):
        return noise.log_prob(x)
    events = x.reshape(-1, *noise.event_shape)
    where = inside.reshape(-1).nonzero()[:, 0]
    result = x.new_full((len(events),), -math.inf)
    if len(where):
        some = noise.log_prob(events[where])
        result = result.to(some.dtype).index_put((where,), some)
    return result.reshape(inside.shape)


def inside_support(noise: Distribution, x: Tensor) -> Tensor:
    """Return which points of shape (...) + event_shape are in the support; all if the support is not defined."""
    try:
        support = noise.support
    except (NotImplementedError, AttributeError):
        support = None
    if support is None:
        return torch.ones(x.shape[: x.ndim - len(noise.event_shape)], dtype=torch.bool, device=x.device)
    inside: Tensor = support.check(x)
    return inside


def log_prob_of_rows(noise: Distribution, X: Tensor) -> Tensor:
    """Return log p_n of every row of X, shape (n,), which training tabulates once.

    Args:
        noise: a distribution whose event shape is that of a row.
        X: shape (n,) + event_shape.

    Raises:
        ValueError: if a row has log p_n = −inf or NaN, so that its ratio would be infinite; the error names the row.

    >>> box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), 1.0), 1)
    >>> log_prob_of_rows(box, torch.tensor([[0.5], [2.0]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the noise must cover X, found log p_n = -inf at row 1; mix in a component ...
    """
    data = _validation.array("X", X)
    if data.ndim < 1 or data.shape[1:] != noise.event_shape:
        raise ValueError(
            f"X must have shape (n, {', '.join(map(str, noise.event_shape))}) to match the noise, "
            f"found shape {tuple(data.shape)}"
        )
    _validation.finite_rows("X", data)
    with torch.no_grad():
        log_prob = torch.cat([log_prob_or_minus_inf(noise, part) for part in data.split(_ROWS_AT_ONCE)])
    _validation.finite_log_noise("X", log_prob)
    return log_prob


def save_noise(noise: Distribution, folder: str | os.PathLike[str]) -> Path:
    """Save noise to ``folder``/noise.safetensors atomically; create the folder if needed.

    Args:
        noise: a distribution of a registered class.
        folder: the folder.

    Returns:
        The path of the file.

    Raises:
        TypeError: if the noise cannot be saved.

    >>> import tempfile
    >>> from fvnce.noise import BernoulliNoise
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_noise(BernoulliNoise(torch.tensor([0.25, 0.5])), folder)
    ...     load_noise(folder).probs
    tensor([0.2500, 0.5000])
    """
    config, tensors = describe(noise, "noise")
    path = Path(folder) / FILE_NAME
    write_record(path, KIND, {"noise": config}, tensors)
    return path


def load_noise(folder: str | os.PathLike[str]) -> Distribution:
    """Load noise that :func:`save_noise` wrote to a folder, and verify its checksum.

    Args:
        folder: the folder.

    Returns:
        The distribution.

    Raises:
        FileNotFoundError: if the folder has no noise.
        FileError: if the file is damaged, or of another kind or version.

    >>> load_noise("nowhere")
    Traceback (most recent call last):
        ...
    FileNotFoundError: nowhere/noise.safetensors must be a noise of fvnce, found no such file
    """
    path = Path(folder) / FILE_NAME
    content, tensors = read_record(path, KIND)
    (config,) = fields(content, str(path), "noise")
    return rebuild(config, tensors, Distribution, what=path)
