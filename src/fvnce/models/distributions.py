"""Distributions that torch does not have: a diagonal Gaussian without the overhead, a point mass, a vector of bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    Normal,
    OneHotCategorical,
    constraints,
    kl_divergence,
    register_kl,
    transform_to,
)
from torch.nn.functional import logsigmoid

from .. import _checks
from .._random import place

#: What the log-density of a Gaussian with a single scale needs of that scale.
Constants = tuple[Tensor, Tensor]
#: 2 to this many states are enumerated at most.
MOST_BITS = 20


class DiagonalNormal(Independent[Normal]):
    """N(loc, diag(scale²)) over the last ``event_dims`` dimensions.

    As ``Independent(Normal(loc, scale), event_dims)``, but with one pass over the event where the scale is a
    single number: log N = −‖x − loc‖²/2σ² − D log σ − (D/2) log 2π. Draws follow ``generator``, where there is one,
    and torch's global generator otherwise.

    >>> q = DiagonalNormal(torch.zeros(5, 3), torch.tensor(0.5))
    >>> q.batch_shape, q.event_shape
    (torch.Size([5]), torch.Size([3]))
    """

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        event_dims: int = 1,
        *,
        log_scale: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._loc, self._scale, self._log_scale, self._generator = loc, scale, log_scale, generator
        self._kept: Constants | None = None
        self._standard: bool | None = None
        self.reinterpreted_batch_ndims = event_dims
        split = loc.dim() - event_dims
        # Not Independent's own: one of these is made for every batch, and its parts are seldom asked for.
        Distribution.__init__(self, loc.shape[:split], loc.shape[split:], validate_args=False)

    @property
    def base_dist(self) -> Normal:  # type: ignore[override]
        """The Gaussian of each dimension."""
        return Normal(self._loc, self._scale, validate_args=False)

    # Asked for at every step; Independent would make a Normal each time to answer.

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """True: a draw has gradients in loc and scale."""
        return True

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """False: there are no values to sum over."""
        return False

    @property
    def support(self) -> constraints.Constraint:
        """All of space."""
        return constraints.independent(constraints.real, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        """loc."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """σ, one number or one for each dimension."""
        return self._scale

    @property
    def is_standard(self) -> bool:
        """Whether this is N(0, 1) in every dimension, and not learned; a compiler knows it of a fixed prior only."""
        if self._standard is None and not _checks.values_are_hidden():
            self._standard = _is_standard_normal(self.base_dist)
        return bool(self._standard)

    def expand(self, batch_shape: Any, _instance: Any = None) -> DiagonalNormal:
        """The same distribution over a larger batch."""
        shape = Size(batch_shape) + self.event_shape
        scale = self._scale if self._scale.dim() == 0 else self._scale.expand(shape)
        return DiagonalNormal(self._loc.expand(shape), scale, len(self.event_shape), generator=self._generator)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> DiagonalNormal:
        """A copy whose tensors have passed through ``function``."""
        log_scale = None if self._log_scale is None else function(self._log_scale)
        # A scale rounded on its own would not be the one that the density is normalised with.
        scale = function(self._scale) if log_scale is None else log_scale.exp()
        made = DiagonalNormal(
            function(self._loc), scale, len(self.event_shape), log_scale=log_scale, generator=self._generator
        )
        if self._kept is not None:
            made.keep_constants()
        made._standard = self._standard
        return made

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """loc + scale·ε."""
        return torch.addcmul(self._loc, self.base_sample(sample_shape), self._scale)

    def base_sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  as rsample
        """ε, standard normal: all that is random about a draw."""
        shape = Size(sample_shape) + self._loc.shape
        there = place(self._generator, self._loc.device)
        drawn = torch.randn(shape, dtype=self._loc.dtype, device=there, generator=self._generator)
        return drawn.to(self._loc.device, non_blocking=True)

    def rsample_from(self, base_sample: Tensor) -> tuple[Tensor, Tensor]:
        """The draw z = loc + scale·ε, and log N(z) = −‖ε‖²/2 − Σ log scale − (D/2) log 2π.

        The derivative of the log-density along the draw is that of −Σ log scale alone: what passes through z and
        through loc cancels, and is not computed.
        """
        dims = tuple(range(-len(self.event_shape), 0))
        log_scale = self.log_scale
        total = log_scale * self.event_shape.numel() if log_scale.dim() == 0 else log_scale.sum(dims)
        constant = 0.5 * self.event_shape.numel() * math.log(2 * math.pi)
        log_prob = torch.add(-constant - total, base_sample.square().sum(dims), alpha=-0.5)
        return torch.addcmul(self._loc, base_sample, self._scale), log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum over the event."""
        size = self.event_shape.numel()
        dims = tuple(range(-len(self.event_shape), 0))
        if self._scale.dim() == 0:
            # Few operations, and one pass over the event in each direction: this is most of a decoder's cost.
            squares = _squared_differences(value, self._loc).sum(dims)
            constant, weight = self._kept or self._constants()
            return torch.addcmul(constant, squares, weight)
        exponent = ((value - self._loc) / self._scale).square().sum(dims) / 2
        log_scale = self.log_scale.expand(self._loc.shape).sum(dims)
        return -exponent - log_scale - size / 2 * math.log(2 * math.pi)

    def keep_constants(self, kept: Constants | None = None) -> Constants:
        """Compute what log_prob needs of a single scale that will not change once, or take it from another's."""
        self._kept = self._constants() if kept is None else kept
        return self._kept

    def _constants(self) -> Constants:
        """−D log σ − (D/2) log 2π and −1/2σ², each a tensor of one number."""
        constant = -self.event_shape.numel() * (self.log_scale + 0.5 * math.log(2 * math.pi))
        return constant, -0.5 / self._scale.square()

    @property
    def log_scale(self) -> Tensor:
        """log σ, as given or from σ."""
        return self._scale.log() if self._log_scale is None else self._log_scale


def _squared_differences(one: Tensor, other: Tensor) -> Tensor:
    """(one − other)², in one operation where the shapes allow it."""
    if one.shape != other.shape:
        one, other = torch.broadcast_tensors(one, other)
    if one.dtype != other.dtype:
        return (one - other).square()
    squares: Tensor = torch.ops.aten.mse_loss(one, other, 0)  # torch.nn.functional's would broadcast once more
    return squares


def rsample_with_log_ratio(q: Any, p: Distribution, base_sample: Tensor) -> tuple[Tensor, Tensor]:
    """The draw z of q from its base sample, and log p(z) − log q(z).

    For a diagonal q and a standard p that is Σ log scale + ½(ε² − z²), two operations and a sum.
    """
    plain = isinstance(q, DiagonalNormal) and q._scale.shape == q._loc.shape
    if not plain or not isinstance(p, Independent) or not _is_standard(p):
        z, log_q = q.rsample_from(base_sample)
        return z, log_prob_inside(p, z) - log_q
    z = torch.addcmul(q._loc, base_sample, q._scale)
    summands = torch.addcmul(torch.addcmul(q.log_scale, base_sample, base_sample, value=0.5), z, z, value=-0.5)
    return z, summands.sum(tuple(range(-len(q.event_shape), 0)))


@register_kl(DiagonalNormal, Independent)  # type: ignore[untyped-decorator]
def _kl_of_diagonal_normals(q: DiagonalNormal, p: Independent[Any]) -> Tensor:
    """KL(q‖p) = Σ ½(σ_q² + (μ_q − μ_p)²)/σ_p² − ½ − log σ_q/σ_p, with the fewest operations for a standard p."""
    if q.event_shape != p.event_shape:
        raise ValueError(f"KL needs equal event shapes, found {tuple(q.event_shape)} and {tuple(p.event_shape)}")
    dims = tuple(range(-len(q.event_shape), 0))
    if q._scale.shape == q._loc.shape and _is_standard(p):
        summands = torch.addcmul(q._scale.square(), q._loc, q._loc)
        return -0.5 * q.event_shape.numel() - torch.add(q.log_scale, summands, alpha=-0.5).sum(dims)
    return kl_divergence(q.base_dist, p.base_dist).expand(q._loc.shape).sum(dims)


def _is_standard(p: Independent[Any]) -> bool:
    """Whether p is a Gaussian that is not learned, of mean 0 and variance 1."""
    return p.is_standard if isinstance(p, DiagonalNormal) else _is_standard_normal(p.base_dist)


def _is_standard_normal(p: Distribution) -> bool:
    if not isinstance(p, Normal) or p.loc.requires_grad or p.scale.requires_grad or _checks.values_are_hidden():
        return False
    return bool((p.loc == 0).all()) and bool((p.scale == 1).all())


def divergence_of(q: Distribution, p: Any) -> Tensor:
    """KL(q‖p), without torch's search for the pair of classes, which a compiler cannot trace, where it is our own."""
    if isinstance(q, DiagonalNormal) and isinstance(p, Independent):
        return _kl_of_diagonal_normals(q, p)  # type: ignore[no-any-return]
    divergence: Tensor = kl_divergence(q, p)
    return divergence


def log_prob_inside(p: Distribution, value: Tensor) -> Tensor:
    """log p(value), and −∞ outside the support, where torch's formulas go on; element-wise, so that no device waits.

    >>> log_prob_inside(torch.distributions.Exponential(torch.tensor(1.0)), torch.tensor([-2.0, 2.0]))
    tensor([-inf, -2.])
    """
    try:
        support: Any = p.support
    except (NotImplementedError, AttributeError):
        support = None
    base = support.base_constraint if isinstance(support, constraints.independent) else support
    if base is None or base is constraints.real:
        density: Tensor = p.log_prob(value)
        return density
    inside = support.check(value)
    if support is constraints.simplex:  # torch's tolerance is below what float32 leaves of a sum
        inside = (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)
    try:  # a point inside takes the place of one outside, whose NaN would pass into all gradients
        somewhere = transform_to(support)(torch.zeros_like(value))
    except NotImplementedError:
        somewhere = value.detach()
    event = inside.reshape(inside.shape + (1,) * len(p.event_shape))
    return torch.where(inside, p.log_prob(torch.where(event, value, somewhere)), -math.inf)


def number_of_values(q: Distribution) -> int | None:
    """How many values one event can have, or None where they cannot be listed.

    >>> from torch.distributions import Categorical
    >>> number_of_values(Independent(Categorical(torch.ones(5, 4, 8)), 1)), number_of_values(Normal(0.0, 1.0))
    (4096, None)
    """
    if isinstance(q, Independent):
        each = number_of_values(q.base_dist)
        return None if each is None else each ** q.event_shape[: q.reinterpreted_batch_ndims].numel()
    if isinstance(q, BinaryVector):
        return int(2 ** q.logits.shape[-1])
    if not q.has_enumerate_support:
        return None
    if isinstance(q, (Categorical, OneHotCategorical)):
        return int(q.param_shape[-1])
    return len(q.enumerate_support(expand=False))


def all_values(q: Distribution) -> Tensor:
    """Every value of an event, shape (values, …) as draws have it; of independent parts, all combinations.

    >>> from torch.distributions import Bernoulli
    >>> all_values(Independent(Bernoulli(torch.full((2,), 0.5)), 1))
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]])
    """
    if not isinstance(q, Independent):
        return q.enumerate_support()
    values = all_values(q.base_dist)  # of one part, shape (values, batch…, parts…, …)
    first, dims = 1 + len(q.batch_shape), q.reinterpreted_batch_ndims
    if dims == 0:
        return values
    parts = values.flatten(first, first + dims - 1).unbind(first)
    index = torch.cartesian_prod(*[torch.arange(len(values), device=values.device)] * len(parts))
    index = index.reshape(-1, len(parts))
    chosen = torch.stack([part[column] for part, column in zip(parts, index.unbind(1), strict=True)], first)
    return chosen.reshape(len(index), *q.batch_shape, *q.event_shape)


def over_rows(distribution: Distribution, batch_dims: int) -> Distribution:
    """The distribution whose batch has that many dimensions, and whose event is all that comes after them.

    >>> over_rows(Independent(Normal(torch.zeros(5, 1, 4, 4), 1.0), 1), 1).event_shape
    torch.Size([1, 4, 4])
    """
    more = len(distribution.batch_shape) - batch_dims
    if more > 0:
        return Independent(distribution, more)
    if more < 0 and isinstance(distribution, Independent) and distribution.reinterpreted_batch_ndims > -more:
        return Independent(distribution.base_dist, distribution.reinterpreted_batch_ndims + more)
    return distribution


class PointMass(Distribution):
    """q(z) = 1[z = location], with log q = 0 by convention: the deterministic encoder's distribution.

    >>> PointMass(torch.ones(4, 2)).rsample((3,)).shape
    torch.Size([3, 4, 2])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    has_rsample = True

    def __init__(self, location: Tensor, event_dims: int = 1) -> None:
        self.location = location
        split = location.dim() - event_dims
        super().__init__(location.shape[:split], location.shape[split:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.location

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.location

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.location)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """The location, repeated."""
        return self.location.expand(Size(sample_shape) + self.location.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero, wherever."""
        return self.location.new_zeros(value.shape[: value.dim() - len(self.event_shape)])

    def base_sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  as rsample
        """Nothing about a draw is random: the location, repeated."""
        return self.rsample(sample_shape).detach()

    def rsample_from(self, base_sample: Tensor) -> tuple[Tensor, Tensor]:
        """The location and log q = 0, as often as there are base samples."""
        return self.location.expand(base_sample.shape), self.log_prob(base_sample)


def binary_states(bits: int) -> Tensor:
    """All vectors of zeros and ones, shape (2^bits, bits).

    >>> binary_states(2)
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]])
    """
    if not 0 <= bits <= MOST_BITS:
        raise ValueError(f"bits must lie in [0, {MOST_BITS}] to enumerate 2^bits states, found {bits}")
    index = torch.arange(2**bits).unsqueeze(-1)
    return (index >> torch.arange(bits - 1, -1, -1)).bitwise_and(1).to(torch.get_default_dtype())


class BinaryVector(Distribution):
    """Independent bits with the given logits, as one event; with few bits an objective sums over all states.

    >>> q = BinaryVector(torch.zeros(5, 3))
    >>> q.enumerate_support().shape
    torch.Size([8, 5, 3])
    >>> q.log_prob(q.enumerate_support()).exp().sum(0)
    tensor([1., 1., 1., 1., 1.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    has_enumerate_support = True

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    @property
    def mean(self) -> Tensor:
        """Probabilities of ones."""
        return self.logits.sigmoid()

    def log_prob(self, value: Tensor) -> Tensor:
        """Σ_j h_j log μ_j + (1 − h_j) log(1 − μ_j)."""
        return (logsigmoid(-self.logits) + value * self.logits).sum(-1)

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Draws of zeros and ones."""
        return torch.bernoulli(self.mean.detach().expand(Size(sample_shape) + self.logits.shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All states, shape (2^M, …, M)."""
        states = binary_states(self.logits.shape[-1]).to(self.logits)
        states = states.reshape(len(states), *[1] * len(self.batch_shape), -1)
        return states.expand(-1, *self.batch_shape, -1) if expand else states
