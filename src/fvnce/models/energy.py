r"""Energy-based models: densities known up to a constant, from any network.

    log p⁰(x)    = −E_θ(x) + log p_ref(x)                          without latents
    log p⁰(x, z) = −E_θ(x, z) + log p_ref(x)                       EnergyModel
    log p⁰(x, z) = log p_Z(z) − E_θ(x, z) + log p_ref(x)           LatentVariableModel(prior, EnergyDecoder)

Z = ∫ p⁰ is intractable; contrastive objectives estimate it beside θ. The reference p_ref is optional. Where x is
unbounded it is what makes Z finite: a network grows too slowly to pull a density down to zero by itself.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from .. import _checks
from .decoders import _no_event_dims
from .distributions import log_prob_inside
from .fixed import FixedDistribution
from .networks import run

Inputs = Literal["joined", "separate"]
INPUTS = get_args(Inputs)


class EnergyModel(nn.Module):
    r"""An unnormalised density e^(−E_θ), with or without latents.

    ``log_prob(x)`` calls ``network(x)``. ``log_joint(x, z)`` calls the network on x and z side by side, or as
    ``network(x, z)`` with ``inputs="separate"``. The network gives one energy a row, shape (…) or (…, 1).

    Args:
        network: from x, or x and z, to the energy.
        reference: p_ref over x, a torch distribution; None is the constant 1.
        latent_reference: a distribution over z in the same role; None is the constant 1.
        inputs: how x and z enter the network.

    The first dimension of x counts rows and the others are one x, unless the reference has another shape.
    Both methods are unnormalised: :meth:`~fvnce.objectives.ContrastiveObjective.log_partition` of the objective that
    trains the model estimates log Z.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import NCE, mlp
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = EnergyModel(mlp([2, 16, 1]), reference=normal)
    >>> NCE(model, normal, partition="learned")(torch.randn(8, 2)).backward()
    >>> EnergyModel(mlp([5, 16, 1])).log_joint(torch.randn(8, 2), torch.randn(4, 8, 3)).shape
    torch.Size([4, 8])
    """

    normalised = False

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
        self._latent_reference = _fixed("latent_reference", latent_reference)
        _checks.choice("inputs", inputs, INPUTS)
        self.inputs: Inputs = inputs
        _no_event_dims("EnergyModel", event_dims)

    @property
    def reference(self) -> Distribution | None:
        """p_ref over x."""
        return None if self._reference is None else self._reference.distribution

    @property
    def latent_reference(self) -> Distribution | None:
        """The reference over z."""
        return None if self._latent_reference is None else self._latent_reference.distribution

    def energy(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """E_θ without the references: shape (B,) for x of shape (B, …), (K, B) for z of shape (K, B, …)."""
        if self.reference is not None:
            event = tuple(self.reference.event_shape)
            _checks.points("x", x, event)
            dims = len(event)
        else:
            dims = max(0, x.dim() - 1)
        return _energy(self.network, x, z, self.inputs, dims)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p⁰(x) of a model without latents."""
        return _referred(-self.energy(x), self.reference, x)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p⁰(x, z)."""
        return _referred(_referred(-self.energy(x, z), self.reference, x), self.latent_reference, z)


class EnergyDecoder(nn.Module):
    r"""p⁰(x|z) = e^(−E_θ(x, z)) p_ref(x), unnormalised in x for every z: a decoder for ``LatentVariableModel``.

    Together with a normalised prior it makes p⁰(x, z) = p_Z(z) p⁰(x|z). How much of the total mass a latent carries is
    p_Z(z) ∫ p⁰(x|z) dx, so the prior of the *normalised* model is tilted by the decoder's own constant.

    Args:
        network: from x and z to the energy.
        event_shape: the shape of one x.
        reference: p_ref over x.
        inputs: ``"joined"`` puts x and z side by side, ``"separate"`` calls ``network(x, z)``.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import LatentVariableModel, mlp
    >>> normal = lambda d: Independent(Normal(torch.zeros(d), torch.ones(d)), 1)
    >>> model = LatentVariableModel(normal(3), EnergyDecoder(mlp([5, 16, 1]), (2,), reference=normal(2)))
    >>> model.log_joint(torch.randn(8, 2), torch.randn(8, 3)).shape
    torch.Size([8])
    """

    normalised = False

    def __init__(
        self,
        network: nn.Module,
        event_shape: tuple[int, ...],
        *,
        reference: Distribution | None = None,
        inputs: Inputs = "joined",
    ) -> None:
        super().__init__()
        self.network = network
        self.event_shape = tuple(event_shape)
        self._reference = _fixed("reference", reference)
        _checks.choice("inputs", inputs, INPUTS)
        self.inputs: Inputs = inputs

    @property
    def reference(self) -> Distribution | None:
        """p_ref over x."""
        return None if self._reference is None else self._reference.distribution

    def energy(self, x: Tensor, z: Tensor) -> Tensor:
        """E_θ(x, z) without the reference."""
        return _energy(self.network, x, z, self.inputs, len(self.event_shape))

    def forward(self, z: Tensor) -> EnergyConditional:
        """p⁰(x|z)."""
        return EnergyConditional(self, z)


class EnergyConditional(Distribution):
    """What an :class:`EnergyDecoder` returns: ``log_prob`` is log p⁰(x|z), which does not integrate to one."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    normalised = False

    def __init__(self, decoder: EnergyDecoder, z: Tensor) -> None:
        self._decoder, self._z = decoder, z
        super().__init__(z.shape[:-1], Size(decoder.event_shape), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """That of the reference, or all of space."""
        found = None if self._decoder.reference is None else self._decoder.reference.support
        return found if found is not None else constraints.independent(constraints.real, len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """−E_θ(x, z) + log p_ref(x)."""
        return _referred(-self._decoder.energy(value, self._z), self._decoder.reference, value)

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Refused: there is no exact way."""
        raise NotImplementedError(
            "an energy-based decoder cannot be sampled exactly; use fvnce.sampling.langevin for approximate draws"
        )


def _fixed(name: str, reference: Distribution | None) -> FixedDistribution | None:
    if reference is None:
        return None
    _checks.distribution(name, reference)
    return FixedDistribution(reference)


def _energy(network: nn.Module, x: Tensor, z: Tensor | None, inputs: Inputs, event_dims: int) -> Tensor:
    batch = x.shape[: x.dim() - event_dims]
    if z is None:
        found = run(network, x)
    elif inputs == "separate":
        found = run(network, x, z)
        rest = found.shape[:-1]  # a last 1 is left out, unless it counts the rows of x
        ends = len(rest) >= len(batch) and rest[len(rest) - len(batch) :] == batch
        batch = rest if ends and found.shape[-1:] == (1,) else found.shape
    else:
        if event_dims != 1 or x.dim() != 2:
            raise ValueError(
                f"x must have rows that are vectors for inputs='joined', found shape {tuple(x.shape)}; pass "
                "inputs='separate'"
            )
        batch = z.shape[:-1]
        if batch[-1:] != x.shape[:1]:
            raise ValueError(
                f"z must have shape (…, {len(x)}, latents), one for each row of x, found shape {tuple(z.shape)}"
            )
        found = run(network, torch.cat([x.expand(*batch, -1), z], -1))
    if found.shape == (*batch, 1):
        found = found.squeeze(-1)
    if found.shape != batch:
        raise ValueError(
            f"network must give one energy for each row, shape {tuple(batch)} or {(*batch, 1)}, found shape "
            f"{tuple(found.shape)}"
        )
    return found


def _referred(value: Tensor, reference: Distribution | None, at: Tensor) -> Tensor:
    return value if reference is None else value + log_prob_inside(reference, at)
