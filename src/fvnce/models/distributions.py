"""Distributions that torch lacks, and helpers to compute log-densities in at least float32.

Networks may run in half precision, but log-densities must not: summed over an image, the error would be whole nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor, nn
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

#: Maximum number of bits whose states are enumerated.
MOST_BITS = 20
_HALF = (torch.bfloat16, torch.float16)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor, in float32 if it was in half precision.

    >>> wide(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in _HALF else tensor


def run(network: nn.Module, *inputs: Tensor) -> Tensor:
    """Return ``network(*inputs)`` in at least float32, computed in the network's precision if that is half.

    >>> run(nn.Linear(3, 2).bfloat16(), torch.zeros(4, 3)).dtype
    torch.float32
    """
    first = _first_parameter(network)
    if first is not None and first.dtype in _HALF:
        inputs = tuple(value.to(first.dtype) if value.is_floating_point() else value for value in inputs)
    output: Tensor = network(*inputs)
    return output.float() if output.dtype in _HALF else output


def _first_parameter(module: nn.Module) -> Tensor | None:
    """Return the first of ``module.parameters()``, for a tenth of what it costs to ask for that."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None and (first := _first_parameter(child)) is not None:
            return first
    return None


class DiagonalNormal(Independent[Normal]):
    """Diagonal Gaussian N(loc, diag(scale²)) over the last ``event_dims`` dimensions.

    Equal to ``Independent(Normal(loc, scale), event_dims)``, but with one pass over the event if the scale is a single
    number: log N = −‖x − loc‖²/2σ² − D log σ − (D/2) log 2π.

    Args:
        loc: the mean, whose last dimensions are one event.
        scale: σ, one number or one for each dimension.
        event_dims: number of dimensions of one event.
        log_scale: log σ, if already known.
        generator: for draws; by default torch's global one.
        standard: whether this is N(0, 1) in every dimension, and fixed.

    >>> q = DiagonalNormal(torch.zeros(5, 3), torch.tensor(0.5))
    >>> q.batch_shape, q.event_shape
    (torch.Size([5]), torch.Size([3]))
    """

    # Overridden, as Independent would make a Normal at every access.
    has_rsample = True
    has_enumerate_support = False

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        event_dims: int = 1,
        *,
        log_scale: Tensor | None = None,
        generator: torch.Generator | None = None,
        standard: bool = False,
    ) -> None:
        self.loc, self.scale, self.standard = loc, scale, standard
        self.log_scale = scale.log() if log_scale is None else log_scale
        self._from_log, self._generator = log_scale is not None, generator
        self.reinterpreted_batch_ndims = event_dims
        split = loc.dim() - event_dims
        # Not Independent's constructor: an instance is made for every batch, and its parts are rarely needed.
        Distribution.__init__(self, loc.shape[:split], loc.shape[split:], validate_args=False)

    @property
    def base_dist(self) -> Normal:  # type: ignore[override]
        """The Gaussian of each dimension."""
        return Normal(self.loc, self.scale, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The support: the whole space."""
        return constraints.independent(constraints.real, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        """The mean, equal to ``loc``."""
        return self.loc

    def expand(self, batch_shape: Any, _instance: Any = None) -> DiagonalNormal:
        """Return the same distribution over a larger batch."""
        shape = Size(batch_shape) + self.event_shape
        scale = self.scale if self.scale.dim() == 0 else self.scale.expand(shape)
        return DiagonalNormal(self.loc.expand(shape), scale, len(self.event_shape), generator=self._generator)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> DiagonalNormal:
        """Return a copy with ``function`` applied to its tensors."""
        # Rounded separately, scale and log_scale would no longer agree.
        log_scale = function(self.log_scale) if self._from_log else None
        scale = function(self.scale) if log_scale is None else log_scale.exp()
        settings: dict[str, Any] = {"generator": self._generator, "standard": self.standard}
        return DiagonalNormal(function(self.loc), scale, len(self.event_shape), log_scale=log_scale, **settings)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Draw loc + scale·ε, with gradients with respect to loc and scale."""
        return torch.addcmul(self.loc, self.base_sample(sample_shape), self.scale)

    def base_sample(self, sample_shape: Any = Size(), rows: Sequence[int] = ()) -> Tensor:  # noqa: B008  as rsample
        """Return ε, standard normal: all that is random about a draw, for these numbers of rows in turn."""
        if self._generator is None and not sample_shape and not rows:
            return torch.randn_like(self.loc, memory_format=torch.contiguous_format)
        device = self.loc.device if self._generator is None else self._generator.device
        lead = Size(sample_shape)
        how: Any = {"dtype": self.loc.dtype, "device": device, "generator": self._generator}
        shapes = [self.loc.shape] if not rows else [(n, *self.loc.shape[1:]) for n in rows]
        drawn = [torch.randn((*lead, *shape), **how) for shape in shapes]
        joined = drawn[0] if len(drawn) == 1 else torch.cat(drawn, len(lead))
        return joined.to(self.loc.device, non_blocking=True)

    def rsample_from(self, base_sample: Tensor) -> tuple[Tensor, Tensor]:
        """Return the draw z = loc + scale·ε, and log N(z) = −‖ε‖²/2 − Σ log scale − (D/2) log 2π.

        The derivative of the log-density along the draw is that of −Σ log scale alone: the terms through z and loc
        cancel and are not computed.
        """
        dims, size = tuple(range(-len(self.event_shape), 0)), self.event_shape.numel()
        total = self.log_scale * size if self.log_scale.dim() == 0 else self.log_scale.sum(dims)
        constant = 0.5 * size * math.log(2 * math.pi)
        log_prob = torch.add(-constant - total, base_sample.square().sum(dims), alpha=-0.5)
        return torch.addcmul(self.loc, base_sample, self.scale), log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density, summed over the event."""
        dims, size = tuple(range(-len(self.event_shape), 0)), self.event_shape.numel()
        if self.scale.dim():
            exponent = ((value - self.loc) / self.scale).square().sum(dims) / 2
            log_scale = self.log_scale.expand(self.loc.shape).sum(dims)
            return -exponent - log_scale - size / 2 * math.log(2 * math.pi)
        # Few operations and one pass over the event in each direction, as this dominates the cost of a decoder.
        loc = self.loc
        if value.shape != loc.shape:
            value, loc = torch.broadcast_tensors(value, loc)
        # One operation if the dtypes agree; torch.nn.functional.mse_loss would broadcast once more.
        same = value.dtype == loc.dtype
        squares = torch._C._nn.mse_loss(value, loc, 0) if same else (value - loc).square()  # type: ignore[arg-type]
        constant = -size * (self.log_scale + 0.5 * math.log(2 * math.pi))
        return torch.addcmul(constant, squares.sum(dims), self.scale.square().reciprocal() * -0.5)


def rsample_with_log_ratio(q: Any, p: Distribution, base_sample: Tensor) -> tuple[Tensor, Tensor]:
    """Return the draw z of q from its base sample, and log p(z) − log q(z).

    For a diagonal q and a standard normal p this is Σ log scale + ½(ε² − z²), two operations and a sum.
    """
    plain = isinstance(q, DiagonalNormal) and q.scale.shape == q.loc.shape
    if not plain or not isinstance(p, DiagonalNormal) or not p.standard:
        z, log_q = q.rsample_from(base_sample)
        return z, log_prob_inside(p, z) - log_q
    z = torch.addcmul(q.loc, base_sample, q.scale)
    summands = torch.addcmul(torch.addcmul(q.log_scale, base_sample, base_sample, value=0.5), z, z, value=-0.5)
    return z, summands.sum(tuple(range(-len(q.event_shape), 0)))


@register_kl(DiagonalNormal, Independent)  # type: ignore[untyped-decorator]
def _kl_of_diagonal_normals(q: DiagonalNormal, p: Independent[Any]) -> Tensor:
    """Return KL(q‖p) = Σ ½(σ_q² + (μ_q − μ_p)²)/σ_p² − ½ − log σ_q/σ_p, with a shortcut for a standard normal p."""
    if q.event_shape != p.event_shape:
        raise ValueError(f"q and p must have one event shape, found {tuple(q.event_shape)} and {tuple(p.event_shape)}")
    dims = tuple(range(-len(q.event_shape), 0))
    if q.scale.shape == q.loc.shape and isinstance(p, DiagonalNormal) and p.standard:
        summands = torch.addcmul(q.scale.square(), q.loc, q.loc)
        return torch.rsub(torch.add(q.log_scale, summands, alpha=-0.5).sum(dims), -0.5 * q.event_shape.numel())
    return kl_divergence(q.base_dist, p.base_dist).expand(q.loc.shape).sum(dims)


def divergence_of(q: Distribution, p: Any) -> Tensor:
    """Return KL(q‖p); for this package's classes without torch's dispatch, which a compiler cannot trace."""
    if isinstance(q, DiagonalNormal) and isinstance(p, Independent):
        return _kl_of_diagonal_normals(q, p)  # type: ignore[no-any-return]
    divergence: Tensor = kl_divergence(q, p)
    return divergence


def log_prob_inside(p: Distribution, value: Tensor) -> Tensor:
    """Return log p(value), and −∞ outside the support, where torch's formulas still give numbers; no synchronization.

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
    if support is constraints.simplex:  # torch's tolerance is smaller than the rounding error of a float32 sum
        inside = (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)
    try:  # replace points outside by one inside, as their NaN would spread to all gradients
        somewhere = transform_to(support)(torch.zeros_like(value))
    except NotImplementedError:
        somewhere = value.detach()
    event = inside.reshape(inside.shape + (1,) * len(p.event_shape))
    return torch.where(inside, p.log_prob(torch.where(event, value, somewhere)), -math.inf)


def number_of_values(q: Distribution) -> int | None:
    """Return the number of values of one event, or None if they cannot be enumerated.

    >>> from torch.distributions import Categorical
    >>> number_of_values(Independent(Categorical(torch.ones(5, 4, 8)), 1)), number_of_values(Normal(0.0, 1.0))
    (4096, None)
    """
    if q.has_rsample:
        return None
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
    """Enumerate the values of an event, shape (values, …) like draws; for independent parts, all combinations.

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
    """Return the distribution with ``batch_dims`` batch dimensions and all remaining dimensions as the event.

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
    """Point mass q(z) = 1[z = location], with log q = 0 by convention: the distribution of a deterministic encoder.

    Args:
        location: z.
        event_dims: number of its last dimensions that are one event.

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
        """The mean, equal to the location."""
        return self.location

    mode = mean

    @property
    def variance(self) -> Tensor:
        """The variance, zero in every dimension."""
        return torch.zeros_like(self.location)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Return the location, repeated for each sample."""
        return self.location.expand(Size(sample_shape) + self.location.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return zeros for every value, by convention."""
        return self.location.new_zeros(value.shape[: value.dim() - len(self.event_shape)])

    def base_sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  as rsample
        """Return the location, repeated for each sample, as draws are not random."""
        return self.rsample(sample_shape).detach()

    def rsample_from(self, base_sample: Tensor) -> tuple[Tensor, Tensor]:
        """Return the location and log q = 0 for each base sample."""
        return self.location.expand(base_sample.shape), self.log_prob(base_sample)


def binary_states(bits: int) -> Tensor:
    """Return all vectors of zeros and ones, shape (2^bits, bits).

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
    """Vector of independent bits with the given logits, as one event; few bits can be enumerated.

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
        """The support: vectors of zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    @property
    def mean(self) -> Tensor:
        """The mean: the probabilities of ones."""
        return self.logits.sigmoid()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return Σ_j h_j log μ_j + (1 − h_j) log(1 − μ_j)."""
        return (logsigmoid(-self.logits) + value * self.logits).sum(-1)

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Draw vectors of zeros and ones."""
        return torch.bernoulli(self.mean.detach().expand(Size(sample_shape) + self.logits.shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all states, shape (2^M, …, M)."""
        states = binary_states(self.logits.shape[-1]).to(self.logits)
        states = states.reshape(len(states), *[1] * len(self.batch_shape), -1)
        return states.expand(-1, *self.batch_shape, -1) if expand else states
