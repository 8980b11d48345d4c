r"""Inputs and outputs of an objective: a batch, the log-ratios Δ⁰ of its points, the terms of J and their statistics.

A batch may be spread over W processes, whose gradients are averaged. Process k holds n_k of N samples, so

    mean over all N  =  average over processes of  (W n_k / N) · (mean over its own n_k),

while a log-mean-exp is not such an average, so its values are gathered. A batch without a :class:`BatchPart` is
whole, and no process waits for another.

A noise sample enters the gradient with the weight −df0/dΔ, a data sample with df1/dΔ. The statistics of a batch are

    live_noise     fraction of noise samples with −df0/dΔ ≥ ε · mean over data of df1/dΔ, ε the rounding unit (Eq. live)
    zero_noise     fraction whose weight is exactly zero
    ess_noise      (Σw)²/(N Σw²) of the noise weights (Eq. ess); ess_data, the same of the data weights
    clipped_noise  fraction of noise samples above the clip of f0; clipped_data, of data samples above that of f1
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Distribution

from .._stats import log_power_mean
from ..scoring import ScoringRule

#: A scalar, possibly with an autograd graph.
Scalar = Tensor | float


@dataclass(frozen=True)
class BatchPart:
    """Part of a batch that this process holds, when several processes evaluate one batch together.

    Attributes:
        data: W n_k / N of the data samples.
        noise: W n_k / N of the noise samples.
        equal: whether all processes hold the same number of both, so that they need not exchange these numbers.

    >>> BatchPart(data=2 * 30 / 50, noise=2 * 30 / 50)  # 30 of the 50 rows that two processes hold
    BatchPart(data=1.2, noise=1.2, equal=False)
    """

    data: float = 1.0
    noise: float = 1.0
    equal: bool = False


@dataclass
class Batch:
    """Rows of data and of noise that an objective is evaluated on. Shapes that do not match are refused.

    Attributes:
        x: rows of data, shape (B, …).
        x_noise: noise samples, shape (N, …); None lets the objective draw them.
        log_noise_x: log p_n of the data, shape (B,); None lets the objective evaluate it.
        log_noise_noise: log p_n of the noise samples, shape (N,); None lets the objective evaluate it.
        part: this process's part of a batch over several processes, or None for a whole batch.
        context: u of p(x|u), one for each row of data, shape (B, …).

    >>> Batch(torch.zeros(3, 2)).x_noise is None
    True
    """

    x: Tensor
    x_noise: Tensor | None = None
    log_noise_x: Tensor | None = None
    log_noise_noise: Tensor | None = None
    part: BatchPart | None = None
    context: Tensor | None = None

    def __post_init__(self) -> None:
        if self.context is not None:
            if not isinstance(self.context, Tensor):
                raise TypeError(f"context must be a torch.Tensor, found {type(self.context).__name__}")
            if isinstance(self.x, Tensor) and self.context.shape[:1] != self.x.shape[:1]:
                raise ValueError(
                    f"context must hold one row for each row of x of shape {tuple(self.x.shape)}, found shape "
                    f"{tuple(self.context.shape)}"
                )
        for name, rows in (("x", self.x), ("x_noise", self.x_noise)):
            log_noise = self.log_noise_x if name == "x" else self.log_noise_noise
            if rows is None:
                if log_noise is not None:
                    raise ValueError("log_noise_noise must come with x_noise, found it alone")
            elif not isinstance(rows, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, found {type(rows).__name__}")
            elif rows.dim() == 0 or len(rows) == 0:
                raise ValueError(f"{name} must hold at least one row, found shape {tuple(rows.shape)}")
            elif rows.shape[1:] != self.x.shape[1:]:
                expected = ", ".join(["N", *map(str, self.x.shape[1:])])
                raise ValueError(f"{name} must have shape ({expected}) to match x, found shape {tuple(rows.shape)}")
            elif log_noise is not None and log_noise.shape != rows.shape[:1]:
                raise ValueError(
                    f"log_noise_{name.removeprefix('x_')} must hold one log-density for each of the {len(rows)} rows, "
                    f"found shape {tuple(log_noise.shape)}"
                )

    @property
    def share(self) -> BatchPart | None:
        """The part, under its deprecated name."""
        warnings.warn("Batch.share is deprecated; use Batch.part", DeprecationWarning, stacklevel=2)
        return self.part


def mean_over_data(values: Tensor, part: BatchPart | None) -> Tensor:
    """Return the mean over data samples, weighted so that averaging over processes gives that of all.

    >>> mean_over_data(torch.tensor([1.0, 3.0]), BatchPart(data=0.5))
    tensor(1.)
    """
    return values.mean() if part is None else values.mean() * part.data


def gather(values: Tensor, part: BatchPart | None) -> Tensor:
    """Return the values of all processes, joined along the first dimension; with one process, return them unchanged.

    The gradient is that of this process's own part, W times, because averaging over processes divides by W.
    """
    if part is None or not dist.is_initialized():
        return values
    result: Tensor = _Gather.apply(values, part.equal)  # type: ignore[no-untyped-call]
    return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, equal: bool) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        lengths = [len(values)] * world
        if not equal:
            counts = [torch.zeros(1, dtype=torch.int64, device=values.device) for _ in range(world)]
            dist.all_gather(counts, torch.tensor([len(values)], device=values.device))
            lengths = [int(count) for count in counts]
        # Backends require equal shapes: the shorter parts are padded and the padding cut off again.
        padded = values.new_zeros((max(lengths), *values.shape[1:]))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        ctx.world, ctx.low, ctx.length = world, sum(lengths[:rank]), len(values)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.world * gradients[0][ctx.low : ctx.low + ctx.length], None


@dataclass
class LogRatio:
    """Log-ratios Δ⁰ of B points, to which a scoring rule is applied.

    Attributes:
        values: Δ⁰, shape (B,). With K draws of a latent it is the log of their mean ratio (Eq. multi_sample); with
            ``log_weights`` it is Δ⁰ at S latents, shape (S, B).
        log_weights: log-weights over S, shape (S, B), that sum to one, for latents that are averaged outside f.
        draws: Δ⁰ of each of K > 1 draws that are averaged inside f, shape (K, B).
        base_sample: what the latents were drawn from, if a later pass can draw them again with gradients.
        drawn: whether latents were drawn; False if they are summed over or absent.
        point: whether q is a point mass.
    """

    values: Tensor
    log_weights: Tensor | None = None
    draws: Tensor | None = field(default=None, repr=False)
    base_sample: Tensor | None = field(default=None, repr=False)
    drawn: bool = False
    point: bool = False

    @property
    def mean(self) -> Tensor:
        """The log of the mean ratio over the latents, shape (B,): the estimate of log p_θ(x)/p_n(x)."""
        return self.values if self.log_weights is None else (self.values + self.log_weights).logsumexp(0)

    def average(self, values: Tensor) -> Tensor:
        """Return the average over the latents of values of the shape of ``values``, such as f(Δ); shape (B,)."""
        return values if self.log_weights is None else (self.log_weights.exp() * values).sum(0)

    def log_moment(self, power: float) -> Tensor:
        """Return log E_q[r^power], as it enters the bound, for each point, shape (B,)."""
        if self.log_weights is None:
            return power * self.values
        return (power * self.values + self.log_weights).logsumexp(0)

    def log_power_mean(self, power: float) -> Tensor:
        """Return (1/power) log E_q[r^power] for a power near 0, where it tends to E_q[Δ⁰]; shape (B,)."""
        return self.values if self.log_weights is None else log_power_mean(self.values, power, self.log_weights)

    def detach(self) -> LogRatio:
        """Return the log-ratios without their graph."""
        return LogRatio(self.values.detach(), None if self.log_weights is None else self.log_weights.detach())

    def gathered(self, part: BatchPart | None) -> LogRatio:
        """Return the log-ratios of the points of all processes."""
        if part is None:
            return self
        if self.log_weights is None:
            return LogRatio(gather(self.values, part))
        return LogRatio(gather(self.values.T, part).T, gather(self.log_weights.T, part).T)

    def split(self, first: int, second: int) -> tuple[LogRatio, LogRatio]:
        """Split into the log-ratios of the first points and of the others."""
        sizes, lead = (first, second), int(self.values.dim() == 2 or self.draws is not None)
        none = None, None
        parts = zip(
            self.values.split(sizes, -1),
            none if self.log_weights is None else self.log_weights.split(sizes, -1),
            none if self.draws is None else self.draws.split(sizes, -1),
            none if self.base_sample is None else self.base_sample.split(sizes, lead),
            strict=True,
        )
        one, other = (LogRatio(*part, self.drawn, self.point) for part in parts)
        return one, other

    def every_other(self, start: int) -> LogRatio:
        """Return every other point, from ``start``, in float64; a single point is in both halves."""
        start = start if self.values.shape[-1] > 1 else 0
        weights = None if self.log_weights is None else self.log_weights[:, start::2].double()
        return LogRatio(self.values[..., start::2].double(), weights)


@dataclass(frozen=True)
class Terms:
    """Terms of an objective on a batch. All but ``loss`` are for inspection and have no graph.

    Attributes:
        loss: −J, a scalar with its graph.
        data: f1(Δ) of each data sample, or its other contribution to J, shape (B,).
        noise: f0(Δ) of each noise sample, shape (N,), or None without noise.
        ratios: Δ⁰ of data and of noise.
        shift: Δ − Δ⁰ = −c − log ν.
        evidence_offset: log p_n − γ, which is added to Δ⁰ of data to obtain the evidence, shape (B,).
        rule: the scoring rule applied to Δ.
        noise_ratio: ν.
        held_out_value: J at a c from other samples, if c was chosen on these, which makes J on them too high.
        known_evidence: the evidence, if it has been computed already.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> noise = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=noise)
    >>> terms = fvnce.NCE(model, noise).terms(torch.zeros(3, 2))
    >>> terms.data.shape, terms.noise.shape, terms.loss.requires_grad
    (torch.Size([3]), torch.Size([3]), True)
    """

    loss: Tensor
    data: Tensor
    noise: Tensor | None = None
    ratios: tuple[LogRatio, LogRatio | None] | None = field(default=None, repr=False)
    shift: Scalar = field(default=0.0, repr=False)
    evidence_offset: Scalar = field(default=0.0, repr=False)
    rule: ScoringRule | None = field(default=None, repr=False)
    noise_ratio: float = field(default=1.0, repr=False)
    held_out_value: Callable[[], float] | None = field(default=None, repr=False)
    known_evidence: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, value, dims in (("loss", self.loss, 0), ("data", self.data, 1), ("noise", self.noise, 1)):
            if value is not None and value.dim() != dims:
                expected = "one number" if dims == 0 else "one number for each sample"
                raise ValueError(f"{name} of an objective's terms must be {expected}, found shape {tuple(value.shape)}")

    # A training step uses none of these, so each is computed on first use.

    @cached_property
    def evidence(self) -> Tensor:
        """log p_θ(x, z) − log q(z|x) of each data sample, less γ for a deterministic encoder, shape (B,).

        It is the data term of (0, 0) up to log p_n, and makes autoencoder, VAE and fvNCE comparable.
        """
        if self.known_evidence is not None:
            return self.known_evidence
        if self.ratios is None:
            return self.data
        return self.ratios[0].average(self.ratios[0].values).detach() + self.evidence_offset

    @cached_property
    def delta_data(self) -> Tensor | None:
        """Δ of each data sample, or None without noise."""
        return None if self.ratios is None else self.ratios[0].mean.detach() + self.shift

    @cached_property
    def delta_noise(self) -> Tensor | None:
        """Δ of each noise sample, or None without noise."""
        noise = None if self.ratios is None else self.ratios[1]
        return None if noise is None else noise.mean.detach() + self.shift

    @cached_property
    @torch.no_grad()
    def statistics(self) -> dict[str, float]:
        """Means of the terms, J, c and the statistics of the log-ratios, by name."""
        named = {"data_term": self.data.mean().item(), "evidence": self.evidence.mean().item()}
        if self.noise is not None:
            named["noise_term"] = self.noise.mean().item()
        if self.rule is not None and self.delta_data is not None and self.delta_noise is not None:
            named |= ratio_statistics(self.rule, self.delta_data, self.delta_noise)
            named["log_scale"] = -float(self.shift) - math.log(self.noise_ratio)
            held_out = self.held_out_value
            named["value"] = held_out() if held_out else named["data_term"] + self.noise_ratio * named["noise_term"]
        return named


class Objective(nn.Module):
    """Base class of objectives: modules that map a data batch, and a noise batch if needed, to the loss −J.

    ``objective(x)`` draws its own noise. Where log p_n is expensive, noise and its density can be passed in, and so can
    the tabulated density of the data rows: ``objective(x, x_noise=…, log_noise_x=…, log_noise_noise=…)``.

    ``objective(x, context=u)`` estimates p(x|u): the parts that take a context are called with it.

    A custom objective defines :meth:`terms_of`; ``objective(x)`` and ``objective.terms(x)`` follow from it. If it reads
    ``batch.context``, it sets ``takes_context = True``.

    >>> class Spread(Objective):
    ...     def terms_of(self, batch):
    ...         values = -batch.x.square().sum(1)
    ...         return Terms(-values.mean(), values.detach())
    >>> Spread()(torch.ones(4, 3))
    tensor(3.)
    """

    #: p_n, or None where the objective has no noise term.
    noise: Distribution | None = None
    #: ν, how much more frequent noise is than data for the classifier: the weight of the noise term.
    noise_ratio: float = 0.0
    #: Noise samples drawn for each data sample.
    noise_samples: float = 0.0

    #: Whether a context is used; if not, passing one is an error.
    takes_context: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Training evaluates batches by terms_of, and would silently ignore what another method adds.
        for name in ("terms", "forward"):
            if name in vars(cls):
                raise TypeError(f"{cls.__name__} must define terms_of(batch), found {name}, which is made from it")

    @abstractmethod
    def terms_of(self, batch: Batch) -> Terms:
        """Return the loss, the terms per sample, and the statistics of a batch."""

    def terms(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Terms:
        """Return the loss, the terms per sample, and the statistics."""
        self.check_context(context)
        return self.terms_of(Batch(x, x_noise, log_noise_x, log_noise_noise, context=context))

    def forward(self, x: Tensor, x_noise: Tensor | None = None, **given: Tensor | None) -> Tensor:
        """Return the loss −J, a scalar; the arguments are those of :meth:`terms`."""
        return self.terms(x, x_noise, **given).loss

    def check_context(self, context: object) -> None:
        """Raise a ValueError if a context is given that no part of the objective takes."""
        if context is not None and not self.takes_context:
            raise ValueError(
                f"context must be None for this {type(self).__name__}, no part of which takes one, found a context; "
                "give the model or the encoder a parameter of that name, such as fvnce.models.WithContext(network) does"
            )

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return groups for an optimizer: all parameters at ``lr``, except a learned log Z, which has its own rate."""
        return [{"params": list(self.parameters()), "lr": lr}]


@torch.no_grad()
def ratio_statistics(rule: ScoringRule, delta_data: Tensor, delta_noise: Tensor) -> dict[str, float]:
    """Return the six statistics of the weights at log-ratios Δ of shapes (B,) and (N,).

    Above the clip a slope is that at the clip.
    """
    above1, above0 = rule.tangent_above
    delta_data, delta_noise = delta_data.cpu(), delta_noise.cpu()
    log_data = rule.log_slope(delta_data.clamp(max=above1))[0]
    capped = delta_noise.clamp(max=above0)
    log_noise = capped + rule.log_slope(capped)[0]
    epsilon = math.log(torch.finfo(log_noise.dtype).eps)
    log_mean_data, ess_data = _log_mean_and_ess(log_data)
    return {
        "live_noise": _fraction(log_noise >= log_mean_data + epsilon),
        "zero_noise": _fraction(log_noise.exp() == 0),
        "ess_noise": _log_mean_and_ess(log_noise)[1],
        "ess_data": ess_data,
        "clipped_noise": _fraction(delta_noise > above0),
        "clipped_data": _fraction(delta_data > above1),
    }


def effective_fraction(log_weights: Tensor) -> float:
    """Return (Σw)²/(N Σw²), from log w, shape (N,)."""
    return _log_mean_and_ess(log_weights.detach().cpu())[1]


def _log_mean_and_ess(log_weights: Tensor) -> tuple[Any, float]:
    """Return the log of the mean weight and the effective fraction; numpy's operations cost a third of torch's."""
    logs = log_weights.numpy()
    top = logs.max()
    weights = np.exp(logs - top)
    total = weights.sum()
    return top + np.log(total / len(logs)), float(total * total / (len(logs) * np.square(weights).sum()))


def _fraction(condition: Tensor) -> float:
    return int(condition.count_nonzero()) / len(condition)
