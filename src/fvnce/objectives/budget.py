r"""A log-scale that finds itself: as much penalty on the noise as a budget on the data's error allows.

What is optimised is a constrained problem, with b the budget and ε the error of the data,

    minimise  E_noise[r_θ]   over θ,   subject to   ε(θ) ≤ b · ε_ref,                                   (Eq. budget)

where ε_ref is that of a *reference*: the same model, trained on the same batches without noise. A constraint on
the data term instead, with a multiplier λ, has the Lagrangian E_noise[e^Δ⁰] − λ E_data[Δ⁰]: −λ J of (0, 0) without a
clip, where

    s = −log λ,       J = E_data[Δ⁰] − e^s E_noise[e^Δ⁰].

So e^(−s) is the multiplier of the data term, and that of ε only if the data term is a function of ε alone; the budget
is met either way. s moves as in dual ascent,

    s ← s + η M (b − ε/ε_ref),       s_0 ≤ s ≤ s_0 + M,

so the noise weighs more while there is budget left and less where there is none. With a clip T the noise term goes on
in a straight line, and a noise sample pulls at most e^T times as hard as a data row: T = 0 makes it a hinge, which in
hundreds of dimensions is the form that trains. s then is a margin: noise is pressed down until Δ⁰ < −s.

The two ends of s come from the reference. At s_0 = E_noise[log p_n] − L_data noise may be as likely as data are,
L_data = log p_ref of a typical row; at s_0 + M it shall be as unlikely as under a model that saw another row, L_data −
M = log p_ref(noise, z of a data row). A model without latents knows no such row: there M is one nat for each dimension,
what a Gaussian of three times the variance costs.

The error of a row is that of its reconstruction, |x − E p(x|z)|², and for a model without latents the entropy power
e^(−2 log p(x)/D), which for a Gaussian of learned width is the same up to a factor. ε and ε_ref are means over the same
rows, of logarithms in the second case. What is to be forgotten is among the data as well, and must not count: a row
does if its own ratio is less than that of a typical noise sample, or is no outlier. Rows are compared one by one
because forgetting changes their order: rows that were the easiest and become the hardest move every quantile of ε up
and of ε_ref down, and a ratio of medians would charge the rest for them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .._estimates import log_mean_exp
from ..models import LatentVariableModel
from ..models.distributions import log_prob_inside
from ..models.fixed import wide
from ..noise import jitter
from ..scoring import ScoringRule
from .base import Batch, gather, mean_over_data
from .log_partition import Fixed
from .profiled import power_of
from .ratios import Encoder, log_ratio, narrowed

#: The budget of ``log_scale="auto"``.
BUDGET = 1.7
#: η: the share of M by which s moves in a step, for each unit that the ratio is off the budget.
RATE = 0.05
#: Of the moving averages, about 30 batches.
MOMENTUM = 0.97
#: Quarters of the distribution above the median from where a value is an outlier: Tukey's fence if it is symmetric.
FENCE = 4.0


@dataclass(frozen=True)
class Rebuilt:
    """What a model makes of rows: the evidence, the log of the error, and log p of other rows at the same latents.

    Attributes:
        evidence: log p(x, z) − log q(z|x), shape (B,).
        log_error: of each row, shape (B,).
        swapped: the evidence with another row in the place of x, shape (B,), or None without latents.
    """

    evidence: Tensor
    log_error: Tensor
    swapped: Tensor | None


def rebuild(model: Any, encoder: Encoder | None, x: Tensor, other: Tensor) -> Rebuilt:
    """What a model makes of rows x, with the rows ``other``, as many, in their place at the same latents."""
    q = None if encoder is None else encoder(x)
    if q is None or not isinstance(model, LatentVariableModel) or not q.has_rsample:
        evidence = log_ratio(model, q, x, x.new_zeros(len(x))).mean
        return Rebuilt(evidence, -2 / max(1, x[0].numel()) * evidence.detach(), None)
    _checks.latents(q, model.prior)
    z = q.rsample()
    likelihood = model.likelihood_of(x, narrowed(z, x))
    x, other = wide(x), wide(other)
    fit = likelihood.log_prob(x)
    prior = log_prob_inside(model.prior, z) - q.log_prob(z)
    with torch.no_grad():
        error = (x - likelihood.mean).flatten(1).square().sum(1)
        swapped = likelihood.log_prob(other) + prior
    return Rebuilt(fit + prior, error.clamp(min=torch.finfo(error.dtype).tiny).log(), swapped)


def remembered(excess: Tensor, of_noise: Tensor) -> Tensor:
    """Which rows are not among what is forgotten, by the log of each row's error over the reference's.

    A row is forgotten that fares as badly as the median of the noise and is an outlier among the data: four times as
    far above the median as the lower quartile, which forgetting does not touch, is below it. Kernels blur noise, so
    that its ratio is less than that of rows like its centres; without kernels half of what is forgotten may count with
    the rest, which errs on the side of the budget.

    Args:
        excess: of data, shape (B,).
        of_noise: of noise samples, shape (N,).

    >>> remembered(torch.tensor([0.4, 0.5, 0.6, 0.7, 4.0]), torch.tensor([3.7, 3.9, 4.1]))
    tensor([ True,  True,  True,  True, False])
    """
    quartile, middle = torch.quantile(excess, 0.25), torch.quantile(excess, 0.5)
    fence = middle + FENCE * (middle - quartile)
    # What is not a number is kept, and refused where the ratios are looked at.
    forgotten: Tensor = (excess > fence) & (excess >= of_noise.median())
    return ~forgotten


class Reference(nn.Module):
    """The same model without noise, by which an error is measured. Where nothing of it is to be trained, it is not.

    Args:
        model: normalised; ``log_joint(x, z)``, or ``log_prob(x)`` where ``encoder`` is None.
        encoder: q(z|x), or None.

    >>> from torch.distributions import Independent, Normal
    >>> Reference(Independent(Normal(torch.zeros(2), torch.ones(2)), 1)).trained  # a density that is known
    False
    """

    def __init__(self, model: Any, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder

    @property
    def trained(self) -> bool:
        """Whether it learns alongside."""
        return any(p.requires_grad for p in self.parameters())

    def forward(self, x: Tensor, other: Tensor) -> Rebuilt:
        """What it makes of rows."""
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            return rebuild(self.model, self.encoder, x, other)


class Budgeted(Fixed):
    """A fixed log Z whose log-scale s follows from a budget on the data's error (Eq. budget).

    ``log_scale="auto"`` is ``partition=Budgeted()``. It is part of the objective: s, its averages and the reference are
    in the state, learn with whatever optimiser trains the objective, and rest in evaluation. The rule's clip should be
    0 in many dimensions. Noise that has kernels lends them to the data: in training a row is jittered as the noise is,
    or its grain alone would tell the two apart.

    Args:
        budget: b > 1, the error that is allowed over the reference's.
        reference: by default a copy of the model and the encoder as they are when the objective is made, trained on
            the same batches. One that has been trained before and frozen, ``Reference(model,
            encoder).requires_grad_(False)``, spares a fifth of a step and is not taught anything.

    >>> import fvnce
    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, fvnce.GaussianDecoder(nn.Linear(2, 5), scale=0.5))
    >>> noise, rule = fvnce.KernelDensity(torch.ones(9, 5), 0.1), fvnce.PowerRule(0, clip=0.0)
    >>> objective = fvnce.FullyVariationalNCE(model, fvnce.PointEncoder(nn.Linear(5, 2)), noise, rule, log_scale="auto")
    >>> objective(torch.randn(8, 5)).backward()
    >>> objective.partition.share, objective.partition.budget
    (1.0, 1.7)
    """

    levels: Tensor
    margin_share: Tensor
    reference: Reference | None

    def __init__(self, budget: float = BUDGET, reference: Reference | None = None) -> None:
        super().__init__()
        self.budget = _checks.number("budget", budget, low=1.0, open_low=True)
        self.reference = reference
        # Moving averages: log ε, log ε_ref, L_data, L_data − M, E_noise log p_n.
        self.register_buffer("levels", torch.full((5,), math.nan))
        self.register_buffer("margin_share", torch.ones(()))

    @property
    def error_ratio(self) -> float:
        """ε/ε_ref of the last batches, NaN before the first."""
        return math.exp(float(self.levels[0] - self.levels[1]))

    @property
    def share(self) -> float:
        """(s − s_0)/M, from 0 to 1: at 1 the noise is pressed as far down as it may be, and budget may be left."""
        return float(self.margin_share)

    def attach(self, model: Any, encoder: Encoder | None) -> None:
        """Make the reference of the model as it is, unless there is one."""
        if not getattr(model, "normalised", True):
            raise ValueError(
                f"model must be normalised for log_scale='auto', found {type(model).__name__}, an energy, which "
                "without noise has no least error; use partition='profiled'"
            )
        if self.reference is None:
            self.reference = Reference(*copy.deepcopy((model, encoder)))

    def prepare(
        self, model: Any, encoder: Encoder | None, noise: Distribution, rule: ScoringRule, batch: Batch
    ) -> tuple[Batch, Tensor | None]:
        """In training: s of this batch, the batch with jittered rows, and the loss by which the reference learns."""
        if not (self.training and torch.is_grad_enabled()):
            return batch, None
        if _checks.values_are_hidden():
            raise RuntimeError(
                "log_scale must be a number where the objective is compiled or transformed, found 'auto', which "
                "changes with every call"
            )
        assert self.reference is not None
        assert batch.x_noise is not None
        x = _checks.finite_rows("x", batch.x)  # before its averages take in what will be refused
        _checks.finite_rows("x_noise", batch.x_noise)
        other = batch.x_noise[torch.arange(len(x), device=x.device) % len(batch.x_noise)]
        without = self.reference(x, other)
        with torch.no_grad():
            now = rebuild(model, encoder, x, other)
            noise_now = rebuild(model, encoder, batch.x_noise, batch.x_noise)
            noise_without = self.reference(batch.x_noise, batch.x_noise)
            self._follow(now, without, noise_now.log_error - noise_without.log_error, batch)
        loss = -mean_over_data(without.evidence, batch.share) if self.reference.trained else None
        blurred = jitter(noise, x)
        if blurred is x:
            return batch, loss
        # The gradient of (0, 0) does not know log p_n of the data: there the density of the plain rows will do.
        power = power_of(rule)
        kept = batch.log_noise_x if power is not None and power[1] == 0 else None
        return replace(batch, x=blurred, log_noise_x=kept), loss

    def _follow(self, now: Rebuilt, without: Rebuilt, excess_of_noise: Tensor, batch: Batch) -> None:
        evidence = without.evidence.detach()
        power = without.swapped is None  # the error is an entropy power
        swapped = evidence - batch.x[0].numel() if without.swapped is None else without.swapped
        columns = torch.stack([now.log_error, without.log_error, evidence, swapped], 1).to(self.levels.dtype)
        rows = gather(columns, batch.share)
        kept = remembered(rows[:, 0] - rows[:, 1], gather(excess_of_noise, batch.share).to(rows))
        errors = rows[kept, :2]
        error = errors.mean(0) if power else log_mean_exp(errors)
        assert batch.log_noise_noise is not None
        noise = gather(batch.log_noise_noise, batch.share).mean().to(rows)
        found = torch.cat([error, rows[:, 2:].median(0).values, noise[None]])
        self.levels.copy_(torch.where(self.levels.isnan(), found, torch.lerp(found, self.levels, MOMENTUM)))
        own, reference, typical, null, level = self.levels
        ratio = (own - reference).exp()
        self.margin_share.add_(RATE * (self.budget - ratio)).clamp_(0, 1)
        margin = (typical - null).clamp(min=0)
        self.log_scale.copy_(level - typical + self.margin_share * margin)  # type: ignore[operator]

    def parameter_groups(self, lr: float) -> list[dict[str, object]]:
        """The reference's parameters, trained as the model's are."""
        return [{"params": list(self.parameters()), "lr": lr}]

    def extra_repr(self) -> str:
        """The budget and the log-scale s."""
        return f"budget={self.budget}, log_scale={float(self.log_scale):.6g}"  # type: ignore[arg-type]
