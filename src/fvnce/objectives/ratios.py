r"""Log-ratios Δ⁰ = log p⁰_θ(x, z) − log p_n(x) − log q(z|x) of points, at latents drawn from q or summed over.

K draws of a latent enter through the log of their mean ratio (Eq. multi_sample). A discrete latent with few values is
not drawn but summed over, Σ_z q(z|x) f(r(x, z)), which is the one-draw bound without its variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _validation
from .._stats import log_mean_exp
from ..models import LatentVariableModel
from ..models.distributions import (
    DiagonalNormal,
    PointMass,
    all_values,
    number_of_values,
    rsample_with_log_ratio,
    wide,
)
from ..models.networks import given, takes_context
from .batch import LogRatio, Objective

#: A discrete latent with at most this many values is summed over.
MOST_VALUES = 4096
#: Δ⁰ of a noise sample to which the model gives no probability.
LOWEST_RATIO = -1e30

#: Packages whose modules are known, and those of their modules that mix rows, or may, or are random.
_KNOWN = "fvnce.models.", "fvnce.objectives.", "fvnce.training.", "torch.nn.modules."
OF_WHOLE_BATCHES = (
    nn.modules.batchnorm._NormBase,
    *(nn.AlphaDropout, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout),
)
_OF_SEQUENCES = nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase

Encoder = Callable[..., Distribution]


class ModelObjective(Objective):
    """Base class of objectives of a model and its encoder. Their signatures decide which of them takes a context.

    Args:
        model: ``log_joint(x, z)`` or ``log_joint(x, z, context)``; ``log_prob`` where ``encoder`` is None.
        encoder: from x, or x and its context, to q(z|x); None for a model without latents.
    """

    def __init__(self, model: Any, encoder: Encoder | None) -> None:
        super().__init__()
        self.model = model
        self.encoder: Any = encoder
        takes = {"model": takes_context(model, "log_prob" if encoder is None else "log_joint")}
        takes["encoder"] = encoder is not None and takes_context(encoder)
        self._context_parts = {part for part, it_does in takes.items() if it_does}

    @property
    def takes_context(self) -> bool:  # type: ignore[override]
        """Whether a part of the objective takes a context."""
        return bool(self._context_parts)

    def _context_of(self, part: str, context: Tensor | None) -> Tensor | None:
        return context if part in self._context_parts else None

    def _encode(self, x: Tensor, context: Tensor | None, part: str = "encoder") -> Any:
        """Return q(z|x), or None for a model without latents."""
        encoder = getattr(self, part)
        return None if encoder is None else encoder(x, *given(self._context_of(part, context)))


def log_ratio(
    model: Any,
    q: Distribution | None,
    x: Tensor,
    log_noise: Tensor,
    draws: int = 1,
    *,
    averaged_outside: bool = False,
    marginal: bool = False,
    base_sample: Tensor | None = None,
    context: Tensor | None = None,
    sides: tuple[int, ...] = (),
) -> LogRatio:
    """Return Δ⁰ at the points x, whose log p_n is ``log_noise``.

    Args:
        model: has ``log_joint(x, z)``, or ``log_prob(x)`` where ``q`` is None.
        q: q(z|x) of these points, or None for a model without latents.
        x: points, shape (B, …).
        log_noise: log p_n of the points, shape (B,).
        draws: K, how many latents to draw for each point.
        averaged_outside: average f over the draws instead of averaging the ratios inside f.
        marginal: sum a discrete latent inside f, which gives log p_θ(x)/p_n(x) itself for any ``draws``.
        base_sample: that of an earlier pass, to draw the same latents again with gradients.
        context: u of p⁰(x, z|u), for a model that takes it.
        sides: numbers of rows of data and of noise, whose Gaussian latents are drawn as in separate passes.
    """
    if q is None:
        return LogRatio(wide(_checked(model.log_prob(x, *given(context)), (len(x),), "log_prob")) - log_noise)
    count = number_of_values(q)
    summed_over = count is not None and count <= MOST_VALUES
    if summed_over and draws > 1 and not marginal:
        raise ValueError(
            f"latent_samples must be 1 for an encoder whose {type(q).__name__} latent is summed over, found {draws}"
        )
    prior = checked_prior(q, x, model)
    if summed_over:
        z = all_values(q)
        log_q = q.log_prob(z)
        joint = wide(_checked(model.log_joint(x, narrowed(z, x), *given(context)), tuple(log_q.shape), "log_joint"))
        summed = LogRatio(joint - log_noise - log_q, wide(log_q))
        return LogRatio(summed.mean) if marginal else summed
    if base_sample is None and not q.has_rsample:
        raise ValueError(
            f"encoder must return a distribution that is reparameterized or has at most {MOST_VALUES} values, "
            f"found {type(q).__name__}" + ("" if count is None else f" with {count:,} values")
        )
    lead = () if draws == 1 else (draws,)
    shape = (*lead, len(x))
    if base_sample is None and hasattr(q, "rsample_from"):  # a distribution that can repeat a draw
        repeats: Any = q
        base_sample = repeats.base_sample(lead, *((sides,) if isinstance(q, DiagonalNormal) else ()))
    if base_sample is not None and prior is not None and type(model).log_joint is LatentVariableModel.log_joint:
        z, log_prior_ratio = rsample_with_log_ratio(q, prior, base_sample)
        likelihood = _checked(model.log_likelihood(x, narrowed(z, x), *given(context)), shape, "log_likelihood")
        values = wide(likelihood) - log_noise + wide(log_prior_ratio)
    else:
        if base_sample is not None:
            z, log_q = q.rsample_from(base_sample)  # type: ignore[attr-defined]
        else:
            z = q.rsample(lead)
            log_q = q.log_prob(z)
        joint = wide(_checked(model.log_joint(x, narrowed(z, x), *given(context)), shape, "log_joint"))
        values = joint - log_noise - wide(log_q)
    ratio = LogRatio(values, base_sample=base_sample, drawn=True, point=isinstance(q, PointMass))
    if draws > 1 and averaged_outside:
        ratio.log_weights = torch.full_like(values, -math.log(draws))
    elif draws > 1:
        ratio.values, ratio.draws = log_mean_exp(values), values
    return ratio


def _checked(value: Tensor, shape: tuple[int, ...], method: str) -> Tensor:
    """Return the output of a model after checking that it is one number for each point."""
    if value.shape != shape:
        raise ValueError(
            f"model.{method} must return one number for each point, shape {shape}, found shape {tuple(value.shape)}; "
            "squeeze a last dimension of 1, and sum over all dimensions of one x"
        )
    return value


def checked_prior(q: object, x: Tensor, model: Any) -> Distribution | None:
    """Return the prior of a latent-variable model, None for another model.

    Raises:
        TypeError: if q is not a distribution.
        ValueError: if it is not one distribution for each row of x, over latents of the prior's shape.
    """
    if not isinstance(q, Distribution):
        raise TypeError(f"encoder must return a torch distribution, found {type(q).__name__}")
    if q.batch_shape != x.shape[:1]:
        raise ValueError(
            f"encoder must give one distribution for each row of x of shape {tuple(x.shape)}, found batch shape "
            f"{tuple(q.batch_shape)} and event shape {tuple(q.event_shape)}; its network must map a whole row, "
            "(B, …), to (B, outputs)"
        )
    if not isinstance(model, LatentVariableModel):
        return None
    prior = model.prior
    _validation.latents(q, prior)
    return prior


def treats_by_rows(part: object) -> bool:
    """Return whether a model or an encoder is known to process each row independently of the others.

    >>> [treats_by_rows(nn.Sequential(nn.Linear(2, 4), layer)) for layer in (nn.ReLU(), nn.BatchNorm1d(4))]
    [True, False]
    """
    if not isinstance(part, nn.Module):
        return isinstance(part, Distribution)
    return all(map(_treats_by_rows, part.modules()))


def _treats_by_rows(module: nn.Module) -> bool:
    said = getattr(module, "by_rows", None)
    if said is not None:
        return bool(said)
    known = type(module).__module__.startswith(_KNOWN) and "forward" not in vars(module)
    # A hook may do anything, and the first dimension of a batch is that of its rows.
    known = known and not module._forward_hooks and not module._forward_pre_hooks
    dims = [getattr(module, name, -1) for name in ("dim", "start_dim")]
    within_rows = all(isinstance(dim, int) and (dim == -1 or dim > 0) for dim in dims)
    return known and within_rows and not isinstance(module, (*OF_WHOLE_BATCHES, *_OF_SEQUENCES))


def narrowed(z: Tensor, x: Tensor) -> Tensor:
    """Return the latents in the half precision of x, if it has one; log q and the prior use them as drawn."""
    return z.to(x.dtype) if z.dtype != x.dtype and _validation.is_half(x) and z.is_floating_point() else z


def check_model(model: Any, encoder: Encoder | None) -> None:
    """Raise a TypeError unless the model has a joint density with an encoder, a density without one."""
    needed, how = ("log_prob", "without an encoder") if encoder is None else ("log_joint", "with an encoder")
    if not hasattr(model, needed):
        raise TypeError(f"model must have {needed} {how}, found {type(model).__name__} without it")


def prior_constant(model: Any, point: bool) -> float:
    """Return γ = max log p_Z for a deterministic encoder of a latent-variable model, else 0 (Eq. rVAE)."""
    return model.highest_log_prior() if point and isinstance(model, LatentVariableModel) else 0.0


def check_finite(
    name: str, x: Tensor, ratio: LogRatio, log_noise: Tensor | None = None, *, may_be_zero: bool
) -> LogRatio:
    """Return the log-ratios if all are finite; otherwise raise an error that names the cause.

    A ratio of zero, Δ⁰ = −∞, is legitimate where the model gives a noise sample no probability, and becomes a number
    whose multiples and sums have gradients. Where checks are deferred, one bad ratio makes all of them NaN, since some
    rules have a finite loss at Δ = −∞.
    """
    if all_finite(ratio):
        return ratio
    later = _validation.are_deferred()
    values = ratio.values if ratio.draws is None else ratio.draws
    if not later and not _validation.values_are_hidden():
        numbers = values.detach().reshape(-1, len(x))
        good = (~numbers.isnan() & (numbers < torch.inf) if may_be_zero else numbers.isfinite()).all(0)
        if not good.all():
            _refuse(name, x, numbers, good, log_noise)
    if may_be_zero:
        values = values.clamp(min=LOWEST_RATIO)
    if later:
        values = values + (values.detach() * 0).sum()
    if ratio.draws is None:
        return replace(ratio, values=values)
    return replace(ratio, values=log_mean_exp(values), draws=values)


def all_finite(ratio: LogRatio) -> bool:
    """Return whether one look shows that all log-ratios are finite; their sum may also overflow."""
    if _validation.are_deferred() or _validation.values_are_hidden():
        return False
    return math.isfinite(float((ratio.values if ratio.draws is None else ratio.draws).detach().sum()))


def _refuse(name: str, x: Tensor, numbers: Tensor, good: Tensor, log_noise: Tensor | None) -> NoReturn:
    _validation.finite_rows(name, x)
    if log_noise is not None:
        _validation.finite_log_noise(name, log_noise)
    row = int((~good).nonzero()[0])
    raise ValueError(
        f"log p_θ(x, z) − log q(z|x) must be finite, found {float(numbers[:, row].max())} at row {row} of {name}: the "
        "model or the encoder has diverged, or the row lies outside the model's support"
    )
