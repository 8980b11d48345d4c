r"""Simple noise: fitted Gaussian, Bernoulli noise, noise known by samples only, and steps away from a data point.

fit_gaussian     N(m, (1 − s) S + s (tr S / D) I), the covariance shrunk towards its mean variance
BernoulliNoise   p_n(x) = Π_k π_k^{x_k} (1 − π_k)^{1 − x_k},   x in {0, 1}^D
EmpiricalNoise   log p_n = 0: the noise is the base measure
GaussianSteps    u = x + s ξ,  ξ ~ N(0, I)
BitFlips         each bit of x flips independently with probability p

Empirical noise is for estimating a ratio p/q from samples of both, without the density of q. With respect to itself q
has density 1, so the model's log p(x) becomes log p(x)/q(x). Steps are modules from x to a distribution c(u|x). Both
kinds are symmetric, c(u|x) = c(x|u), so their ratio is 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, MultivariateNormal, Normal, constraints

from .. import _validation
from .._random import place
from ..io import register
from .base import Noise, draw

#: Function from rows x to the conditional distribution c(u|x) of each row.
Steps = Callable[[Tensor], Distribution]


def fit_gaussian(
    X: Tensor, covariance: str = "diagonal", shrinkage: float | None = None
) -> Independent[Normal] | MultivariateNormal:
    """Fit a Gaussian with the mean and (shrunk) covariance of the rows of X.

    Args:
        X: shape (n, D), n >= 2; for ``"diagonal"`` also (n,) + event_shape.
        covariance: ``"diagonal"`` gives an ``Independent(Normal)``, ``"full"`` a ``MultivariateNormal``.
        shrinkage: intensity in [0, 1] towards the mean variance; by default 0 if diagonal, and the estimate of Ledoit
            and Wolf if full.

    Returns:
        The distribution.

    Raises:
        ValueError: if the covariance is singular, such as with a constant column and no shrinkage.

    >>> X = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 3.0])
    >>> fit_gaussian(X).base_dist.scale
    tensor([0.9972, 2.0031, 3.0261])
    >>> fit_gaussian(X, "full").event_shape
    torch.Size([3])
    """
    _validation.choice("covariance", covariance, ("diagonal", "full"))
    data = _validation.table("X", X, rows=2) if covariance == "full" else _validation.samples("X", X, rows=2)
    if shrinkage is not None:
        shrinkage = _validation.number("shrinkage", shrinkage, low=0, high=1)
    mean = data.double().mean(0)
    centered = data.double() - mean
    variances = centered.square().mean(0)
    if not bool((variances > 0).any()):
        raise ValueError("X must vary, found every row equal to the first")
    if covariance == "diagonal":
        shrinkage = shrinkage or 0.0
        scale = ((1 - shrinkage) * variances + shrinkage * variances.mean()).sqrt()
        _validation.varying(scale, "without shrinkage", "drop them or pass shrinkage=0.01")
        return Independent(Normal(mean.to(data.dtype), scale.to(data.dtype)), data.ndim - 1)
    matrix = centered.T @ centered / len(data)
    if shrinkage is None:
        # Imported here, as nothing else in this package needs scikit-learn.
        from sklearn.covariance import ledoit_wolf_shrinkage

        shrinkage = float(ledoit_wolf_shrinkage(centered.cpu().numpy(), assume_centered=True))
    matrix = (1 - shrinkage) * matrix
    matrix.diagonal().add_(shrinkage * variances.mean())
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise ValueError(
            f"the covariance of X must be positive definite, found it singular with shrinkage={shrinkage:g}; "
            "use a larger shrinkage"
        )
    return MultivariateNormal(mean.to(data.dtype), scale_tril=factor.to(data.dtype))


class BernoulliNoise(Noise):
    """Bernoulli noise: independent bits, for binary data such as those of a restricted Boltzmann machine.

    Args:
        probs: probability of a 1, shape (D,) or any event shape, in [0, 1]. At 0 or 1 the other value has log
            density −inf.

    Example:
        >>> noise = BernoulliNoise(torch.tensor([0.5, 0.25]))
        >>> noise.log_prob(torch.tensor([[1.0, 0.0]])).exp()
        tensor([0.3750])
    """

    everywhere = False

    def __init__(self, probs: Tensor) -> None:
        probs = _validation.floating("probs", probs).detach()
        if not probs.ndim or not probs.numel():
            raise ValueError(f"probs must have shape (D,) or that of an array, found shape {tuple(probs.shape)}")
        self.probs = _validation.entries("probs", probs, (probs >= 0) & (probs <= 1), "lie in [0, 1]")
        super().__init__(probs.shape)

    @classmethod
    def from_data(cls, X: Tensor, smoothing: float = 1.0) -> BernoulliNoise:
        """Fit the frequencies of ones in X, after ``smoothing`` extra zeros and ones in each column.

        Args:
            X: rows of 0 and 1.
            smoothing: number of zeros and of ones added to each column.

        >>> BernoulliNoise.from_data(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).probs
        tensor([0.7500, 0.5000])
        """
        data = _validation.binary("X", _validation.samples("X", X), "round it")
        smoothing = _validation.number("smoothing", smoothing, low=0)
        return cls((data.sum(0) + smoothing) / (len(data) + 2 * smoothing))

    @property
    def support(self) -> constraints.Constraint:
        """The support: vectors, or arrays, of zeros and ones."""
        return constraints.independent(constraints.boolean, len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """The mean: probabilities of ones, shape event_shape."""
        return self.probs

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p_n of points of shape (...) + event_shape with entries 0 and 1; the result has shape (...)."""
        x = _validation.finite_rows("x", _validation.points("x", value, self.event_shape))
        x = _validation.binary("x", x, "round it")
        # xlogy is 0 if its first argument is, so an impossible value that does not occur contributes nothing.
        ones: Tensor = torch.xlogy(x, self.probs)
        zeros: Tensor = torch.special.xlog1py(1 - x, -self.probs)
        return (ones + zeros).sum(tuple(range(-len(self.event_shape), 0)))

    def row_flops(self) -> float:
        """Return the number of operations to draw and evaluate one row."""
        return 40.0 * self.event_shape.numel()

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Return n samples of shape (n,) + event_shape."""
        n = _validation.count("n", n, low=0)
        probs = self.probs.to(place(generator, self.probs.device)).expand(n, *self.event_shape)
        return torch.bernoulli(probs, generator=generator).to(self.probs.device, non_blocking=True)

    def __repr__(self) -> str:
        return f"BernoulliNoise(probs: tensor of shape {tuple(self.event_shape)})"


class EmpiricalNoise(Noise):
    """Noise q known by samples only, with density 1 with respect to itself: log_prob is 0 everywhere.

    Args:
        samples: rows, shape (n, …), drawn at random with replacement; or a distribution, which is only sampled.

    >>> noise = EmpiricalNoise(torch.tensor([[1.0], [2.0]]))
    >>> noise.log_prob(torch.tensor([[7.0]]))
    tensor([0.])
    """

    def __init__(self, samples: Tensor | Distribution) -> None:
        self.samples: Tensor | Distribution
        if isinstance(samples, Distribution):
            _validation.distribution("samples", samples)
            self.samples, event_shape = samples, samples.event_shape
        else:
            self.samples = _validation.samples("samples", samples)
            event_shape = self.samples.shape[1:]
        super().__init__(event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return zeros, the log density of q with respect to itself."""
        x = _validation.points("x", value, self.event_shape)
        return x.new_zeros(x.shape[: x.ndim - len(self.event_shape)])

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n samples, seeded by the generator."""
        if isinstance(self.samples, Distribution):
            return draw(self.samples, n, generator)
        device, size = self.samples.device, (_validation.count("n", n, low=0),)
        index = torch.randint(len(self.samples), size, generator=generator, device=place(generator, device))
        return self.samples[index.to(device, non_blocking=True)]


class GaussianSteps(nn.Module):
    """Gaussian steps u = x + s ξ with ξ ~ N(0, I), for conditional NCE.

    Args:
        scale: s, one number or one for each entry of a row.

    >>> GaussianSteps(0.1)(torch.zeros(5, 3)).batch_shape
    torch.Size([5])
    """

    symmetric = True

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        given = scale if isinstance(scale, Tensor) else torch.as_tensor(scale, dtype=torch.get_default_dtype())
        self.register_buffer("scale", _validation.scale("scale", given, tuple(given.shape), given).detach().clone())

    def forward(self, x: Tensor) -> Distribution:
        """Return c(·|x), the distribution of a step from each row."""
        assert isinstance(self.scale, Tensor)
        scale = self.scale.to(x).expand_as(x)
        return Independent(Normal(x, scale, validate_args=False), x.dim() - 1, validate_args=False)


class BitFlips(nn.Module):
    """Independent flips of the bits of x with the given probability, for conditional NCE.

    Args:
        probability: p in (0, 1); by default 1/D for rows of D bits, which flips one bit per row on average.

    >>> BitFlips()(torch.zeros(2, 4)).mean
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """

    symmetric = True

    def __init__(self, probability: float | None = None) -> None:
        super().__init__()
        if probability is not None:
            probability = _validation.number("probability", probability)
            if not 0 < probability < 1:
                raise ValueError(f"probability must be a number in (0, 1), found {probability:g}")
        self.probability = probability

    def forward(self, x: Tensor) -> Distribution:
        """Return c(·|x), the distribution of a step from each row."""
        with _validation.deferred(False):  # sampling with a probability of NaN would kill a process on CUDA
            _validation.binary("x", x, "use GaussianSteps for numbers")
        bits = x.shape[1:].numel()
        flip = min(0.5, 1 / bits) if self.probability is None else self.probability
        return Independent(Bernoulli(probs=x + flip * (1 - 2 * x), validate_args=False), x.dim() - 1, False)

    def extra_repr(self) -> str:
        """Return the probability as text, if it was given."""
        return "" if self.probability is None else f"probability={self.probability}"


register(BernoulliNoise, EmpiricalNoise)
register(GaussianSteps, BitFlips)
