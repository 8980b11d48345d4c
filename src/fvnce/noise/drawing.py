"""Draws and densities of any distribution, whatever it lacks.

Noise of this package has ``draw(n, generator)``; torch's distributions know only the global generator,
refuse points outside their support and say nothing about rows. These functions give all of them the same
manners.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _checks
from .._random import seeded

_ROWS_AT_ONCE = 8192
_LARGEST_SEED = 2**63 - 1


class Noise(Distribution):
    """What the noise of this package shares. A member gives ``support``, ``log_prob`` and ``draw(n, generator)``.

    Of one set of parameters, a larger batch shape repeats the same law.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False

    def __init__(self, event_shape: torch.Size) -> None:
        super().__init__(torch.Size(), event_shape, validate_args=False)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n samples of shape (n,) + event_shape, of the generator or of torch's global one."""
        raise NotImplementedError

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Samples of shape sample_shape + batch_shape + event_shape, from torch's global generator."""
        lead = torch.Size(sample_shape) + self.batch_shape
        return self.draw(lead.numel()).reshape(lead + self.event_shape)

    def expand(self, batch_shape: Any, _instance: Distribution | None = None) -> Self:
        """The same noise with another batch shape; tensors are shared."""
        new = copy.copy(self)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new


def draw(noise: Distribution, n: int, generator: torch.Generator | None = None) -> Tensor:
    """n samples of shape (n,) + event_shape, seeded by ``generator``.

    A distribution without a ``draw`` method is sampled from the global generator, seeded from this one: reproducible,
    in any number of threads, and the global generator is afterwards as it was.

    >>> noise = torch.distributions.Normal(torch.zeros(2), 1.0)
    >>> noise = torch.distributions.Independent(noise, 1)
    >>> first = draw(noise, 3, torch.Generator().manual_seed(1))
    >>> bool((first == draw(noise, 3, torch.Generator().manual_seed(1))).all())
    True
    """
    n = _checks.count("n", n, low=0)
    own = getattr(noise, "draw", None)
    if own is not None:
        drawn: Tensor = own(n, generator)
        return drawn
    with torch.no_grad():
        if generator is None:
            return noise.sample(torch.Size((n,)))
        seed = torch.randint(_LARGEST_SEED, (), generator=generator, device=generator.device)
        with seeded(int(seed)):
            return noise.sample(torch.Size((n,)))


def draw_with_log_prob(noise: Distribution, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """n samples and their log density, shapes (n,) + event_shape and (n,).

    Noise that can tell the density of its own draws at less cost than that of any point does so.

    >>> noise = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> x, log_p = draw_with_log_prob(noise, 5, torch.Generator().manual_seed(0))
    >>> bool((log_p == noise.log_prob(x)).all())
    True
    """
    own = getattr(noise, "draw_with_log_prob", None)
    if own is not None:
        pair: tuple[Tensor, Tensor] = own(n, generator)
        return pair
    x = draw(noise, n, generator)
    with torch.no_grad():
        return x, noise.log_prob(x) if n else x.new_empty(0)


def jitter(noise: Distribution, x: Tensor) -> Tensor:
    """Rows as the noise would have them: moved by its kernel, or x itself where the noise has none.

    Draws come from torch's global generator, so that a kernel density's own centres become samples of it.

    >>> noise = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> x = torch.ones(3, 2)
    >>> jitter(noise, x) is x
    True
    """
    own = getattr(noise, "jitter", None)
    moved: Tensor = x if own is None else own(x)
    return moved


def log_prob_or_minus_inf(noise: Distribution, x: Tensor) -> Tensor:
    """log p_n(x), and −inf outside the support, where torch's distributions raise an error instead.

    >>> box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(2), 1.0), 1)
    >>> log_prob_or_minus_inf(box, torch.tensor([[0.5, 0.5], [0.5, 2.0]]))
    tensor([0., -inf])
    """
    if _checks.is_half(x):
        x = x.float()  # the noise keeps float32 where an objective works in half precision
    lead = x.shape[: x.ndim - len(noise.event_shape)]
    if not lead.numel():  # torch's distributions cannot answer for no points
        return x.new_empty(lead)
    inside = inside_support(noise, x)
    if _checks.are_deferred():
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


def log_prob_of_rows(
    noise: Distribution,
    X: Tensor,
    *,
    batch_rows: int = _ROWS_AT_ONCE,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """log p_n of every row of X, shape (n,): what a training run tabulates once.

    Args:
        noise: a distribution whose event shape is that of a row.
        X: shape (n,) + event_shape.
        batch_rows: rows evaluated at a time.
        progress: called with (rows done, rows in all) after each batch.

    Raises:
        ValueError: if a row has log p_n = −inf or NaN. The row is named: its noise ratio would be infinite.

    >>> box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), 1.0), 1)
    >>> log_prob_of_rows(box, torch.tensor([[0.5], [2.0]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: noise must cover the data, found log p_n = -inf at row 1 of X; mix in a component ...
    """
    data = _checks.array("X", X)
    if data.ndim < 1 or data.shape[1:] != noise.event_shape:
        raise ValueError(
            f"X must have shape (n, {', '.join(map(str, noise.event_shape))}) to match the noise, "
            f"found shape {tuple(data.shape)}"
        )
    _checks.finite_rows("X", data)
    batch_rows = _checks.count("batch_rows", batch_rows)
    parts: list[Tensor] = []
    with torch.no_grad():
        for low in range(0, len(data), batch_rows):
            part = log_prob_or_minus_inf(noise, data[low : low + batch_rows])
            bad = ~torch.isfinite(part)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise ValueError(
                    f"noise must cover the data, found log p_n = {part[row].item()} at row {low + row} of X; "
                    "mix in a component that does, such as smoothed(X, bandwidth)"
                )
            parts.append(part)
            if progress is not None:
                progress(min(low + batch_rows, len(data)), len(data))
    return torch.cat(parts) if parts else data.new_empty(0)


def inside_support(noise: Distribution, x: Tensor) -> Tensor:
    """Which points of shape (...) + event_shape lie in the support; all, if the distribution does not say."""
    try:
        support = noise.support
    except (NotImplementedError, AttributeError):
        support = None
    if support is None:
        return torch.ones(x.shape[: x.ndim - len(noise.event_shape)], dtype=torch.bool, device=x.device)
    inside: Tensor = support.check(x)
    return inside


def over_batch(noise: Distribution, x: Tensor) -> Tensor:
    """Points broadcast against batch_shape + event_shape."""
    if not noise.batch_shape:
        return x
    return x + x.new_zeros(()).expand(noise.batch_shape + noise.event_shape)
