r"""Unnormalized models from any network: energies, and ratios of two densities.

    energy       log p⁰(x)    = −E_θ(x) + log p_ref(x)                   without latents
                 log p⁰(x, z) = −E_θ(x, z) + log p_ref(x) + log p_Z(z)   with latents and an optional prior
    kernels      r(x) = Σ_l θ_l exp(−‖x − c_l‖²/2h²),  θ_l ≥ 0
    telescoped   log r(x) = Σ_k (g_k(x) − o_k),  each g_k the log-ratio of two neighbors in a chain from q to p
    multinomial  log r(x) = h_0(x) − h_K(x),  h the logits of a classifier of all levels between p and q

Z = ∫ p⁰ is intractable; contrastive objectives estimate it together with θ. The reference p_ref is optional, but for
unbounded x it makes Z finite: a network grows too slowly for e^(−E) to be integrable. A ratio r(x) = p(x)/q(x) with
known q is an unnormalized density of p.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _validation
from .distributions import log_prob_inside, run, wide
from .fixed import FixedDistribution
from .latent import warn_of_event_dims
from .networks import given

Inputs = Literal["joined", "separate"]
#: Lower limit of a kernel ratio, which underflows far from all centers, so that its logarithm stays finite.
SMALLEST_RATIO = 1e-12


class EnergyModel(nn.Module):
    r"""Energy-based model: an unnormalized density e^(−E_θ), with or without latents.

    ``log_prob(x)`` calls ``network(x)``. ``log_joint(x, z)`` calls the network on x and z concatenated, or as
    ``network(x, z)`` with ``inputs="separate"``. The network returns one energy per row, shape (…) or (…, 1). A network
    that takes a context is called as ``network(x, context)`` and models p⁰(x|u), with a different log Z for every u.

    Args:
        network: from x, or x and z, to the energy.
        reference: p_ref over x, a torch distribution; None for the constant 1.
        latent_reference: the same over z; None for the constant 1.
        inputs: how x and z enter the network, ``"joined"`` or ``"separate"``.

    The first dimension of x counts rows and the others are one x, unless the reference has another event shape.
    :meth:`~fvnce.objectives.ContrastiveObjective.log_partition` of the objective that trains the model estimates log Z.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import NCE, mlp
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = EnergyModel(mlp([2, 16, 1]), reference=normal)
    >>> NCE(model, normal, partition="learned")(torch.randn(8, 2)).backward()
    >>> EnergyModel(mlp([5, 16, 1])).log_joint(torch.randn(8, 2), torch.randn(4, 8, 3)).shape
    torch.Size([4, 8])
    """

    normalized = False
    context_part = "network"

    def __init__(
        self,
        network: nn.Module,
        *,
        reference: Distribution | None = None,
        latent_reference: Distribution | None = None,
        inputs: Inputs = "joined",
        event_dims: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self._reference = _fixed("reference", reference)
        _validation.choice("inputs", inputs, get_args(Inputs))
        self.inputs: Inputs = inputs
        self._latent_reference = _fixed("latent_reference", latent_reference)
        warn_of_event_dims("EnergyModel", event_dims)

    @property
    def reference(self) -> Distribution | None:
        """The reference p_ref over x, or None."""
        return None if self._reference is None else self._reference.distribution

    @property
    def latent_reference(self) -> Distribution | None:
        """The reference distribution over z, or None."""
        return None if self._latent_reference is None else self._latent_reference.distribution

    def energy(self, x: Tensor, z: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Return E_θ without the references: shape (B,) for x of shape (B, …), (K, B) for z of shape (K, B, …)."""
        dims = max(0, x.dim() - 1)
        if self.reference is not None:
            _validation.points("x", x, self.reference.event_shape)
            dims = len(self.reference.event_shape)
        batch = x.shape[: x.dim() - dims]
        if z is None:
            energy = run(self.network, x, *given(context))
        elif self.inputs == "separate":
            energy = run(self.network, x, z, *given(context))
            rest = energy.shape[:-1]  # drop a last dimension of 1, unless it counts the rows of x
            ends = len(rest) >= len(batch) and rest[len(rest) - len(batch) :] == batch
            batch = rest if ends and energy.shape[-1:] == (1,) else energy.shape
        else:
            if dims != 1 or x.dim() != 2:
                raise ValueError(
                    f"x must have rows that are vectors for inputs='joined', found shape {tuple(x.shape)}; pass "
                    "inputs='separate'"
                )
            batch = z.shape[:-1]
            if batch[-1:] != x.shape[:1]:
                raise ValueError(f"z must have shape (…, {len(x)}, latents), found shape {tuple(z.shape)}")
            energy = run(self.network, torch.cat([x.expand(*batch, -1), z], -1), *given(context))
        if energy.shape == (*batch, 1):
            energy = energy.squeeze(-1)
        if energy.shape != batch:
            shapes = f"{tuple(batch)} or {(*batch, 1)}"
            raise ValueError(f"network must give energies of shape {shapes}, found shape {tuple(energy.shape)}")
        return energy

    def log_prob(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the unnormalized log-density log p⁰(x) of a model without latents."""
        return _referred(-self.energy(x, None, context), self.reference, x)

    def log_joint(self, x: Tensor, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the unnormalized log-density log p⁰(x, z) of rows x and latents z."""
        return _referred(_referred(-self.energy(x, z, context), self.reference, x), self.latent_reference, z)


def _fixed(name: str, reference: Distribution | None) -> FixedDistribution | None:
    if reference is None:
        return None
    _validation.distribution(name, reference)
    return FixedDistribution(reference)


def _referred(value: Tensor, reference: Distribution | None, at: Tensor) -> Tensor:
    return value if reference is None else value + log_prob_inside(reference, at)


class KernelRatio(nn.Module):
    """Density ratio as a non-negative combination of Gaussian kernels.

    Args:
        centres: centers c, shape (L, D).
        coefficients: θ ≥ 0, shape (L,).
        bandwidth: h, the standard deviation of the kernels.

    >>> ratio = KernelRatio(torch.zeros(1, 2), torch.tensor([3.0]), 1.0)
    >>> ratio(torch.zeros(1, 2))
    tensor([3.])
    """

    def __init__(self, centres: Tensor, coefficients: Tensor, bandwidth: float) -> None:
        super().__init__()
        self.bandwidth = _validation.number("bandwidth", bandwidth, low=0.0, open_low=True)
        self.register_buffer("centres", _validation.table("centres", centres).detach().clone())
        self.register_buffer("coefficients", coefficients.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the ratio r(x), shape (n,)."""
        assert isinstance(self.centres, Tensor)
        assert isinstance(self.coefficients, Tensor)
        return gaussian_kernels(x, self.centres, self.bandwidth) @ wide(self.coefficients)

    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log r(x), at least log 1e-12."""
        return self(x).clamp(min=SMALLEST_RATIO).log()  # type: ignore[no-any-return]


def gaussian_kernels(x: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """Return the Gaussian kernels exp(−‖x − c‖²/2h²), shape (n, L).

    >>> gaussian_kernels(torch.zeros(1, 1), torch.ones(1, 1), 1.0)
    tensor([[0.6065]])
    """
    return (-torch.cdist(wide(x), wide(centres)).square() / (2 * bandwidth**2)).exp()


class _NoiseRatio(nn.Module, ABC):
    """Base class of log-ratios p/q; with known q, also an unnormalized density of p."""

    normalized = False
    _noise: FixedDistribution | None

    @property
    def noise(self) -> Distribution | None:
        """The distribution q, the denominator."""
        return None if self._noise is None else self._noise.distribution

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p(x)/q(x), shape (n,)."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log q(x) + log r(x), approximately normalized; ``log_partition`` of an objective gives the error."""
        if self.noise is None:
            raise ValueError("noise must be given for log_prob, found a ratio of two samples; use log_ratio")
        log_noise: Tensor = self.noise.log_prob(x)
        return log_noise + self.log_ratio(x)


class TelescopedRatio(_NoiseRatio):
    """Telescoped density ratio: the sum of the log-ratios of a chain of distributions.

    Args:
        bridges: networks from x to one number each.
        offsets: o_k, one number for each bridge.
        noise: q, if its density is known; needed for ``log_prob``.

    >>> ratio = TelescopedRatio([nn.Linear(2, 1), nn.Linear(2, 1)])
    >>> ratio.log_ratio(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        bridges: nn.Sequential | Sequence[nn.Module],
        offsets: Tensor | None = None,
        noise: Distribution | None = None,
    ) -> None:
        super().__init__()
        self.bridges = bridges if isinstance(bridges, nn.Sequential) else nn.Sequential(*bridges)
        self.register_buffer("offsets", torch.zeros(len(self.bridges)) if offsets is None else offsets.detach().clone())
        self._noise = _fixed("noise", noise)

    def parts(self, x: Tensor) -> Tensor:
        """Return the log-ratio of each bridge, shape (bridges, n)."""
        assert isinstance(self.offsets, Tensor)
        return torch.stack(
            [run(bridge, x).squeeze(-1) - o for bridge, o in zip(self.bridges, self.offsets, strict=True)]
        )

    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p(x)/q(x), shape (n,)."""
        return self.parts(x).sum(0)


class MultinomialRatio(_NoiseRatio):
    """Multinomial density ratio: the first minus the last logit of a classifier of levels.

    Args:
        network: from x to the logits of K + 1 levels, of which the first is p and the last q.
        noise: q, if its density is known; needed for ``log_prob``.

    >>> MultinomialRatio(nn.Linear(2, 4)).log_ratio(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, network: nn.Module, noise: Distribution | None = None) -> None:
        super().__init__()
        self.network = network
        self._noise = _fixed("noise", noise)

    def log_ratio(self, x: Tensor) -> Tensor:
        """Return log p(x)/q(x), shape (n,)."""
        logits = run(self.network, x)
        return logits[..., 0] - logits[..., -1]


class AveragedRatio(nn.Module):
    """Average of several log-ratio models.

    Args:
        members: modules from x to one number each.

    >>> AveragedRatio([nn.Linear(2, 1), nn.Linear(2, 1)])(torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    def __init__(self, members: nn.Sequential | Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = members if isinstance(members, nn.Sequential) else nn.Sequential(*members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean, shape (n, 1)."""
        return torch.stack([member(x) for member in self.members]).mean(0)


class DistributionRatio(nn.Module):
    """Log-ratio log p(x)/q(x) of two distributions with known densities.

    Args:
        numerator: p.
        denominator: q.

    >>> from torch.distributions import Independent, Normal
    >>> p, q = (Independent(Normal(torch.zeros(2), scale * torch.ones(2)), 1) for scale in (1.0, 2.0))
    >>> DistributionRatio(p, q)(torch.zeros(1, 2))  # 2 log 2
    tensor([[1.3863]])
    """

    def __init__(self, numerator: Distribution, denominator: Distribution) -> None:
        super().__init__()
        self._numerator, self._denominator = FixedDistribution(numerator), FixedDistribution(denominator)

    @property
    def numerator(self) -> Distribution:
        """The numerator p, a distribution."""
        return self._numerator.distribution

    @property
    def denominator(self) -> Distribution:
        """The distribution q, the denominator."""
        return self._denominator.distribution

    def forward(self, x: Tensor) -> Tensor:
        """Return the log-ratio, shape (n, 1)."""
        log_ratio: Tensor = self.numerator.log_prob(x) - self.denominator.log_prob(x)
        return log_ratio.unsqueeze(-1)
