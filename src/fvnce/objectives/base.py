r"""The contract of an objective: the batch it takes, how it is called, and the terms and statistics it gives.

Data-parallel training averages the gradients of W processes. Process k holds n_k of the N samples of a step, so

    mean over all N  =  average over processes of  (W n_k / N) · (mean over its own n_k),

and a mean becomes exact by that weight, which differs from 1 only where the processes hold unequal numbers. A
log-mean-exp is no such average: its values are gathered. Every process then computes the same number from all of them
and passes back the gradient of its own part, W times, since averaging divides by W. None of this happens to a batch
without a :class:`BatchShare`: whoever evaluates it alone waits for nobody.

A noise sample enters the gradient with weight −df0/dΔ, a data sample with df1/dΔ. For (α, 0) these are e^((1+α)Δ) and
e^(αΔ): a noise sample some hundred nats below the data has a weight that is exactly zero in float32, and a noise term
of such samples teaches nothing. So every batch is asked:

    live_noise     share of noise samples with −df0/dΔ ≥ ε · mean over data of df1/dΔ, ε the rounding unit
    zero_noise     share whose weight is exactly zero
    ess_noise      (Σw)²/(N Σw²) of the noise weights: 1 if all count alike, 1/N if one carries everything
    ess_data       the same of the data weights
    clipped_noise  share of noise samples above the clip of f0; clipped_data, of data samples above that of f1

A statistic is a few small operations on a few hundred numbers, which one at a time cost far more than their arithmetic.
So those of many batches can be computed together: :meth:`Terms.snapshot` keeps what they need, :func:`statistics_of`
does the rest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Distribution

from ..scoring import ScoringRule


@dataclass(frozen=True)
class BatchShare:
    """This process holds a part of a batch that all processes evaluate together, with the same objective.

    Attributes:
        data: W n_k / N of the data samples.
        noise: W n_k / N of the noise samples.
        equal: whether all processes hold equally many of both, so that none need tell the others how many.

    >>> BatchShare(data=2 * 30 / 50, noise=2 * 30 / 50)  # 30 of the 50 rows that two processes hold
    BatchShare(data=1.2, noise=1.2, equal=False)
    """

    data: float = 1.0
    noise: float = 1.0
    equal: bool = False


@dataclass
class Batch:
    """What an objective is evaluated on; shapes that do not go together are refused here, for every objective.

    Attributes:
        x: rows of data, shape (B, …).
        x_noise: noise samples, shape (N, …); None lets the objective draw them.
        log_noise_x: log p_n of the data, shape (B,); None lets the objective evaluate it.
        log_noise_noise: log p_n of the noise samples, shape (N,); None lets the objective evaluate it.
        share: the part that this is of a batch over several processes, or None for a batch of its own.

    >>> Batch(torch.zeros(3, 2)).x_noise is None
    True
    """

    x: Tensor
    x_noise: Tensor | None = None
    log_noise_x: Tensor | None = None
    log_noise_noise: Tensor | None = None
    share: BatchShare | None = None

    def __post_init__(self) -> None:
        for name, rows in (("x", self.x), ("x_noise", self.x_noise)):
            if rows is None:
                continue
            if not isinstance(rows, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, found {type(rows).__name__}")
            if rows.dim() == 0 or len(rows) == 0:
                raise ValueError(f"{name} must hold at least one row, found shape {tuple(rows.shape)}")
            if rows.shape[1:] != self.x.shape[1:]:
                wanted = ", ".join(["N", *map(str, self.x.shape[1:])])
                raise ValueError(f"{name} must have shape ({wanted}) to match x, {_found(rows)}")
        if self.x_noise is None and self.log_noise_noise is not None:
            raise ValueError("log_noise_noise must come with x_noise, found it alone")
        check_log_noise("log_noise_x", self.log_noise_x, self.x)
        check_log_noise("log_noise_noise", self.log_noise_noise, self.x_noise)


def _found(tensor: Tensor) -> str:
    return f"found shape {tuple(tensor.shape)}"


def check_log_noise(name: str, given: Tensor | None, rows: Tensor | None) -> None:
    """Refuse log-densities that are not one for each row."""
    if given is not None and rows is not None and given.shape != rows.shape[:1]:
        raise ValueError(f"{name} must hold one log-density for each of the {len(rows)} rows, {_found(given)}")


def mean_over_data(values: Tensor, share: BatchShare | None) -> Tensor:
    """The mean over data samples, weighted so that averaging over processes gives that of all.

    >>> mean_over_data(torch.tensor([1.0, 3.0]), BatchShare(data=0.5))
    tensor(1.)
    """
    return values.mean() if share is None else values.mean() * share.data


def mean_over_noise(values: Tensor, share: BatchShare | None) -> Tensor:
    """The mean over noise samples, weighted so that averaging over processes gives that of all."""
    return values.mean() if share is None else values.mean() * share.noise


def gather(values: Tensor, share: BatchShare | None) -> Tensor:
    """The values of all processes, one after the other along the first dimension; with one process, the values."""
    if share is None or not dist.is_initialized():
        return values
    result: Tensor = _Gather.apply(values, share.equal)  # type: ignore[no-untyped-call]
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
        # Backends want equal shapes: the shorter parts are padded and the padding cut off again.
        longest = max(lengths)
        padded = values.new_zeros((longest, *values.shape[1:]))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        ctx.world, ctx.low = world, sum(lengths[:rank])
        ctx.length = len(values)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return ctx.world * gradient[ctx.low : ctx.low + ctx.length], None


@dataclass(frozen=True)
class ContrastInfo:
    """How Δ came about: the rule that judges it, ν, the shift −c − log ν, and whether c was chosen on these samples.

    If it was, J on them is too high; ``held_out_value`` gives it at a c from other samples.
    """

    rule: ScoringRule
    noise_ratio: float
    shift: Tensor | float
    profiled: bool = False
    held_out_value: Callable[[], float] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The numbers of a batch that statistics are computed from, one for each sample, without any graph."""

    data: Tensor
    evidence: Tensor
    noise: Tensor | None
    delta_data: Tensor | None
    delta_noise: Tensor | None
    contrast: ContrastInfo | None

    @property
    def shapes(self) -> tuple[int, int, bool]:
        """Batches with equal ones can be stacked."""
        return len(self.data), 0 if self.noise is None else len(self.noise), self.contrast is None

    def without_held_out_value(self) -> Snapshot:
        """The same without the costly statistic, and without what it would be computed from."""
        if self.contrast is None or self.contrast.held_out_value is None:
            return self
        return replace(self, contrast=replace(self.contrast, held_out_value=None))


@dataclass(frozen=True)
class Terms:
    """The terms of an objective on a batch. Everything but ``loss`` is for looking at and carries no graph.

    Attributes:
        loss: −J, a scalar with its graph.
        data: what each data sample earns, shape (B,).
        noise: what each noise sample earns, shape (N,), or None without noise.

    >>> from torch.distributions import Independent, Normal
    >>> import fvnce
    >>> noise = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = fvnce.EnergyModel(fvnce.mlp([2, 1]), reference=noise)
    >>> terms = fvnce.SNCE(model, noise, fvnce.PowerRule(alpha=0)).terms(torch.zeros(3, 2))
    >>> terms.data.shape, terms.noise.shape, terms.loss.requires_grad
    (torch.Size([3]), torch.Size([3]), True)
    """

    loss: Tensor
    data: Tensor
    noise: Tensor | None = None
    _evidence: Callable[[], Tensor] | None = field(default=None, repr=False)
    _deltas: Callable[[], tuple[Tensor, Tensor | None]] | None = field(default=None, repr=False)
    _contrast: ContrastInfo | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, value, dims in (("loss", self.loss, 0), ("data", self.data, 1), ("noise", self.noise, 1)):
            if value is not None and value.dim() != dims:
                wanted = "one number" if dims == 0 else "one number for each sample"
                raise ValueError(f"{name} of an objective's terms must be {wanted}, {_found(value)}")

    # A training step asks for none of these, so each is computed when it is first asked for.

    @cached_property
    def evidence(self) -> Tensor:
        """log p_θ(x, z) − log q(z|x) of each data sample, less γ for a deterministic encoder, shape (B,).

        It is the data term of (0, 0) up to log p_n, in which autoencoder, VAE and fvNCE can be compared.
        """
        return self.data if self._evidence is None else self._evidence()

    @property
    def delta_data(self) -> Tensor | None:
        """Δ of each data sample, or None without noise."""
        return self._both_deltas[0]

    @property
    def delta_noise(self) -> Tensor | None:
        """Δ of each noise sample, or None without noise."""
        return self._both_deltas[1]

    @cached_property
    def _both_deltas(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self._deltas is None else self._deltas()

    def snapshot(self) -> Snapshot:
        """What the statistics need, to be computed later."""
        with torch.no_grad():
            return Snapshot(self.data, self.evidence, self.noise, *self._both_deltas, self._contrast)

    @cached_property
    def statistics(self) -> dict[str, float]:
        """By name: means of the terms, and what the log-ratios tell about the noise term."""
        return statistics_of([self.snapshot()])[0]


class Objective(nn.Module):
    """A module from a data batch, and a noise batch where it needs one, to the loss −J.

    ``objective(x)`` draws its own noise. Where log p_n is expensive, noise and its density can be handed in,
    and so can the tabulated density of the data rows: ``objective(x, x_noise, log_noise_x=…, log_noise_noise=…)``.

    An objective of one's own defines :meth:`terms_of`, from which the two ways of calling it follow.

    >>> class Spread(Objective):
    ...     def terms_of(self, batch):
    ...         earned = -batch.x.square().sum(1)
    ...         return Terms(-earned.mean(), earned.detach())
    >>> Spread()(torch.ones(4, 3))
    tensor(3.)
    """

    noise: Distribution | None = None
    """p_n, or None where the objective has no noise term."""
    noise_ratio: float = 0.0
    """ν, how much more frequent noise is than data in what the classifier is told: the weight of the noise term."""
    noise_samples: float = 0.0
    """Noise samples drawn for each data sample."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Training evaluates batches by terms_of: what another method added would be left out without a word.
        for name in ("terms", "forward"):
            if name in vars(cls):
                raise TypeError(f"{cls.__name__} must define terms_of(batch), found {name}, which is made from it")

    @abstractmethod
    def terms_of(self, batch: Batch) -> Terms:
        """The loss, the terms per sample, and statistics of a batch."""

    def terms(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Terms:
        """The loss, the terms per sample, and statistics."""
        return self.terms_of(Batch(x, x_noise, log_noise_x, log_noise_noise))

    def forward(
        self,
        x: Tensor,
        x_noise: Tensor | None = None,
        *,
        log_noise_x: Tensor | None = None,
        log_noise_noise: Tensor | None = None,
    ) -> Tensor:
        """The loss −J, a scalar."""
        return self.terms_of(Batch(x, x_noise, log_noise_x, log_noise_noise)).loss

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Groups for an optimiser: all parameters at ``lr``, but a learned log Z at its own rate."""
        return [{"params": list(self.parameters()), "lr": lr}]


@torch.no_grad()
def statistics_of(batches: Sequence[Snapshot]) -> list[dict[str, float]]:
    """The statistics of each batch. One that is costly, J at a c from other samples, is that of the last batch only."""
    found: list[dict[str, float]] = []
    for _, group in groupby(batches, key=lambda snapshot: snapshot.shapes):
        found += _statistics_of_equals(list(group))
    last = batches[-1].contrast if batches else None
    if last is not None and last.held_out_value is not None:
        found[-1]["value"] = last.held_out_value()
    return found


def _statistics_of_equals(group: list[Snapshot]) -> list[dict[str, float]]:
    columns = {
        "data_term": torch.stack([snapshot.data for snapshot in group]).mean(1).tolist(),
        "evidence": torch.stack([snapshot.evidence for snapshot in group]).mean(1).tolist(),
    }
    noise = [snapshot.noise for snapshot in group if snapshot.noise is not None]
    if noise:
        columns["noise_term"] = torch.stack(noise).mean(1).tolist()
    contrast = group[0].contrast
    if contrast is not None:
        deltas = [
            torch.stack([delta for delta in side if delta is not None])
            for side in ([snapshot.delta_data for snapshot in group], [snapshot.delta_noise for snapshot in group])
        ]
        columns |= ratio_statistics(contrast.rule, *deltas)
        scales = [snapshot.contrast for snapshot in group if snapshot.contrast is not None]
        offset = math.log(contrast.noise_ratio)
        columns["log_scale"] = [-float(each.shift) - offset for each in scales]
        if not contrast.profiled:
            pairs = zip(columns["data_term"], columns["noise_term"], strict=True)
            columns["value"] = [data + contrast.noise_ratio * noise for data, noise in pairs]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


Numbers = np.ndarray[Any, Any]


@torch.no_grad()
def ratio_statistics(rule: ScoringRule, delta_data: Tensor, delta_noise: Tensor) -> dict[str, list[float]]:
    """The six shares of S batches, for log-ratios Δ of shape (S, B) and (S, N).

    Above the clip a slope is that at the clip.
    """
    above1, above0 = rule.tangent_above
    delta_data, delta_noise = delta_data.cpu(), delta_noise.cpu()
    log_data = rule.log_slope(_capped(delta_data, above1))[0]
    capped = _capped(delta_noise, above0)
    log_noise = capped + rule.log_slope(capped)[0]
    zero = log_noise.exp() == 0
    epsilon = math.log(torch.finfo(log_noise.dtype).eps)
    # On a few numbers numpy's operations cost a third of torch's.
    log_mean_data, ess_data = _log_mean_and_share(log_data.numpy())
    log_weights = log_noise.numpy()
    _, ess_noise = _log_mean_and_share(log_weights)
    none = [0.0] * len(log_weights)
    return {
        "live_noise": _share(log_weights >= (log_mean_data + epsilon)[:, None]),
        "zero_noise": _share(zero.numpy()),
        "ess_noise": ess_noise.tolist(),
        "ess_data": ess_data.tolist(),
        "clipped_noise": none if above0 == math.inf else _share(delta_noise.numpy() > above0),
        "clipped_data": none if above1 == math.inf else _share(delta_data.numpy() > above1),
    }


def effective_share(log_weights: Tensor) -> float:
    """(Σw)²/(N Σw²), from log w, shape (N,)."""
    return float(_log_mean_and_share(log_weights.detach().cpu().numpy()[None])[1][0])


def _log_mean_and_share(log_weights: Numbers) -> tuple[Numbers, Numbers]:
    """log of the mean weight, and the effective share, of each row."""
    top = log_weights.max(1)
    weights = np.exp(log_weights - top[:, None])
    total = weights.sum(1)
    count = log_weights.shape[1]
    return top + np.log(total / count), total * total / (count * np.square(weights).sum(1))


def _capped(delta: Tensor, above: float) -> Tensor:
    return delta if above == math.inf else delta.clamp(max=above)


def _share(condition: Numbers) -> list[float]:
    shares: list[float] = (np.count_nonzero(condition, axis=1) / condition.shape[1]).tolist()
    return shares
