r"""The budget that finds a log-scale s while an objective trains (docs/theory: Eq. budget, Eq. dual).

With ε the error of the data and ε_ref that of a *baseline*, the same model trained on the same batches without noise,

    s ← s + η M (b − ε/ε_ref),       s_0 ≤ s ≤ s_0 + M,

so the noise weighs more while there is budget left. s_0 = E_noise[log p_n] − L_data, with L_data the baseline's log p
of a typical row; L_data − M is its log p of a noise sample at the latent of a data row, and M one nat for each
dimension where the model has no latents. The error of a row is |x − E p(x|z)|², and without latents e^(−2 log p(x)/D).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import _validation
from .._stats import log_mean_exp
from ..io import Kind, add, register_alias
from ..models import LatentVariableModel, is_normalized
from ..models.distributions import log_prob_inside, wide
from ..noise import jitter
from ..objectives import Batch, Fixed
from ..objectives.batch import gather, mean_over_data
from ..objectives.partition import power_of
from ..objectives.ratios import Encoder, log_ratio, narrowed
from .callbacks import Callback
from .checkpoint import restore_states, states_of
from .optimizer import make_optimizer, make_schedule, non_finite_gradients

#: Evidence, log-error and swapped evidence of rows.
Rebuilt = tuple[Tensor, Tensor, Tensor | None]

#: The budget of ``log_scale="auto"``.
BUDGET = 1.7
#: η: the fraction of M by which s moves in a step, for each unit that the ratio is off the budget.
RATE = 0.05
#: Of the moving averages, about 30 batches.
LEVEL_MOMENTUM = 0.97
#: Quarters of the distribution above the median from where a value is an outlier: Tukey's fence if it is symmetric.
ERROR_FENCE = 4.0


class Baseline(nn.Module):
    """Model and encoder trained without noise, the reference of the error in :class:`ErrorBudget`.

    Args:
        model: normalized; ``log_joint(x, z)``, or ``log_prob(x)`` where ``encoder`` is None.
        encoder: q(z|x), or None.

    >>> from torch.distributions import Independent, Normal
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> evidence, log_error, swapped = Baseline(normal)(torch.zeros(3, 2), torch.ones(3, 2))
    >>> evidence.shape, swapped
    (torch.Size([3]), None)
    """

    def __init__(self, model: Any, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.model, self.encoder = model, encoder

    def forward(self, x: Tensor, other: Tensor) -> Rebuilt:
        """Return evidence and errors of rows x, as :func:`rebuild` does."""
        return rebuild(self.model, self.encoder, x, other)


def rebuild(model: Any, encoder: Encoder | None, x: Tensor, other: Tensor) -> Rebuilt:
    """Return the evidence of rows x, the log of their errors, and the evidence with ``other`` in their place.

    Each has shape (B,). The last is None for a model without latents.
    """
    q = None if encoder is None else encoder(x)
    if q is None or not isinstance(model, LatentVariableModel) or not q.has_rsample:
        evidence = log_ratio(model, q, x, x.new_zeros(len(x))).mean
        return evidence, -2 / max(1, x[0].numel()) * evidence.detach(), None
    _validation.latents(q, model.prior)
    z = q.rsample()
    likelihood = model.likelihood_of(x, narrowed(z, x))
    x, other = wide(x), wide(other)
    fit = likelihood.log_prob(x)
    prior = log_prob_inside(model.prior, z) - q.log_prob(z)
    with torch.no_grad():
        error = (x - likelihood.mean).flatten(1).square().sum(1)
        swapped = likelihood.log_prob(other) + prior
    return fit + prior, error.clamp(min=torch.finfo(error.dtype).tiny).log(), swapped


class ErrorBudget(Callback):
    """Find the log-scale of an objective made with ``log_scale="auto"`` from a budget on the data's error.

    :func:`fvnce.fit` adds one with the default budget if there is none among its ``callbacks``. In many dimensions the
    clip of the rule should be 0. If the noise has kernels, the rows of data are jittered by them as well, because
    otherwise the kernels alone distinguish noise from data.

    Args:
        budget: b > 1, how many times the baseline's error the data's error may be.
        baseline: by default a copy of the model and the encoder as they are when training starts, trained on the same
            batches with the same settings. One that is trained already,
            ``Baseline(model, encoder).requires_grad_(False)``, saves a fifth of a step.

    Attributes:
        baseline: the baseline, after training has started.

    >>> import fvnce
    >>> from torch.distributions import Independent, Normal
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, fvnce.GaussianDecoder(nn.Linear(2, 5), scale=0.5))
    >>> noise, rule = fvnce.KernelDensity(torch.ones(9, 5), 0.1), fvnce.PowerRule(0, clip=0.0)
    >>> objective = fvnce.FullyVariationalNCE(model, fvnce.PointEncoder(nn.Linear(5, 2)), noise, rule, log_scale="auto")
    >>> budget = ErrorBudget(2.0)
    >>> _ = fvnce.fit(objective, torch.randn(32, 5), epochs=1, callbacks=[budget])
    >>> budget.margin_fraction, budget.error_ratio < 2.0
    (1.0, True)
    """

    def __init__(self, budget: float = BUDGET, baseline: Baseline | None = None) -> None:
        self.budget = _validation.number("budget", budget, low=1.0, open_low=True)
        self.baseline = baseline
        # Moving averages: log ε, log ε_ref, L_data, L_data − M, E_noise log p_n; and (s − s_0)/M.
        self._levels = torch.full((5,), math.nan)
        self._fraction = torch.ones(())
        self._saved: Mapping[str, Any] | None = None
        self._module: Any = None
        self._optimizer: Any = None
        self._schedule: Any = None

    @property
    def error_ratio(self) -> float:
        """ε/ε_ref of the last batches, NaN before the first."""
        return math.exp(float(self._levels[0] - self._levels[1]))

    @property
    def margin_fraction(self) -> float:
        """(s − s_0)/M, from 0 to 1: at 1 the log-scale is at its upper limit, even if budget is left."""
        return float(self._fraction)

    def start(self, trainer: Any) -> None:
        """Make the baseline and its optimizer, or continue with those of a checkpoint."""
        objective = trainer.objective
        if not is_automatic(objective):
            raise ValueError("objective must be made with log_scale='auto' for an ErrorBudget, found another partition")
        if trainer.settings.accumulate > 1:
            raise ValueError(f"accumulate must be 1 for log_scale='auto', found {trainer.settings.accumulate}")
        if getattr(objective, "takes_context", False):
            raise ValueError("log_scale must be a number for an objective that takes a context, found 'auto'")
        if not is_normalized(objective.model):
            raise ValueError(
                f"model must be normalized for log_scale='auto', found {type(objective.model).__name__}, an energy, "
                "which without noise has no least error; use partition='profiled'"
            )
        if self.baseline is None:
            self.baseline = Baseline(*copy.deepcopy((objective.model, objective.encoder)))
        scale = objective.partition.log_scale
        self._levels, self._fraction = self._levels.to(scale), self._fraction.to(scale)
        self._module, self._optimizer, self._schedule = self.baseline.to(scale.device).train(), None, None
        if any(p.requires_grad for p in self.baseline.parameters()):
            settings = trainer.settings
            optimizer = make_optimizer(settings.optimizer, self.baseline, settings.lr)
            self._schedule = make_schedule(settings.schedule, optimizer, trainer.total_steps)
            self._module, self._optimizer = trainer.fabric.setup(self.baseline, optimizer)
        if self._saved is not None:
            levels, fraction = self._saved["levels"], self._saved["fraction"]
            self._levels, self._fraction = levels.to(scale), fraction.to(scale)
            restore_states(self._stateful(), self._saved)
            self._saved = None

    def before_step(self, trainer: Any, batch: Batch) -> Batch:
        """Move s, train the baseline, and return the batch with jittered rows."""
        objective = trainer.objective
        assert self.baseline is not None
        assert batch.x_noise is not None
        # Before the averages take in what will be refused.
        x, x_noise = _validation.finite_rows("x", batch.x), _validation.finite_rows("x_noise", batch.x_noise)
        other = x_noise[torch.arange(len(x), device=x.device) % len(x_noise)]
        with trainer.fabric.autocast():
            with torch.set_grad_enabled(self._optimizer is not None):
                without = self._module(x, other)
            with torch.no_grad():
                log_error = rebuild(objective.model, objective.encoder, x, other)[1]
                noise_error = rebuild(objective.model, objective.encoder, x_noise, x_noise)[1]
                excess_of_noise = noise_error - self.baseline(x_noise, x_noise)[1]
                objective.partition.log_scale.copy_(self._next_scale(log_error, without, excess_of_noise, batch))
        if self._optimizer is not None:
            self._train(trainer, -mean_over_data(without[0], batch.part))
        jittered = jitter(objective.noise, x)
        if jittered is x:
            return batch
        # The gradient of (0, 0) does not depend on log p_n of the data: so the density of the plain rows is enough.
        power = power_of(objective.rule)
        return replace(batch, x=jittered, log_noise_x=batch.log_noise_x if power and power[1] == 0 else None)

    def _next_scale(self, log_error: Tensor, without: Rebuilt, excess_of_noise: Tensor, batch: Batch) -> Tensor:
        """Add a batch to the averages, and return s."""
        evidence, baseline_error, swapped = without
        has_latents = swapped is not None
        swapped = evidence - batch.x[0].numel() if swapped is None else swapped
        columns = torch.stack([log_error, baseline_error, evidence, swapped], 1).to(self._levels.dtype)
        rows = gather(columns, batch.part)
        errors = rows[remembered(rows[:, 0] - rows[:, 1], gather(excess_of_noise, batch.part).to(rows)), :2]
        error = log_mean_exp(errors) if has_latents else errors.mean(0)
        assert batch.log_noise_noise is not None
        noise = gather(batch.log_noise_noise, batch.part).mean().to(rows)
        levels = torch.cat([error, rows[:, 2:].median(0).values, noise[None]])
        self._levels = torch.where(self._levels.isnan(), levels, torch.lerp(levels, self._levels, LEVEL_MOMENTUM))
        error_now, error_without, typical, null, level = self._levels
        step = RATE * (self.budget - (error_now - error_without).exp())
        self._fraction = (self._fraction + step).clamp(0, 1)
        scale: Tensor = level - typical + self._fraction * (typical - null).clamp(min=0)
        return scale

    def _train(self, trainer: Any, loss: Tensor) -> None:
        trainer.fabric.backward(loss)
        # An accelerator is not waited for: there the next loss is NaN.
        if loss.device.type == "cpu" and non_finite_gradients(self._module):
            raise ValueError("gradients of the baseline must be finite, found NaN or infinity")
        trainer.descend(self._module, self._optimizer, self._schedule)

    def _stateful(self) -> dict[str, Any]:
        optimizer = None if self._optimizer is None else self._optimizer.optimizer
        return {"baseline": self.baseline, "optimizer": optimizer, "schedule": self._schedule}

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, the baseline and its optimizer."""
        return {"levels": self._levels, "fraction": self._fraction, **states_of(self._stateful())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict` when training starts."""
        self._saved = state


def remembered(excess: Tensor, of_noise: Tensor) -> Tensor:
    """Return which rows are not forgotten, by the log of each row's error over the baseline's.

    A row is forgotten that fares as badly as the median of the noise and is an outlier among the data: four times as
    far above the median as the lower quartile, which forgetting does not touch, is below it. Kernels blur noise, so
    that its ratio is less than that of rows like its centers; without kernels half of what is forgotten may count with
    the rest, which errs on the side of the budget.

    Args:
        excess: of data, shape (B,).
        of_noise: of noise samples, shape (N,).

    >>> remembered(torch.tensor([0.4, 0.5, 0.6, 0.7, 4.0]), torch.tensor([3.7, 3.9, 4.1]))
    tensor([ True,  True,  True,  True, False])
    """
    quartile, middle = torch.quantile(excess, 0.25), torch.quantile(excess, 0.5)
    fence = middle + ERROR_FENCE * (middle - quartile)
    # What is not a number is kept, and refused where the ratios are looked at.
    forgotten: Tensor = (excess > fence) & (excess >= of_noise.median())
    return ~forgotten


def is_automatic(objective: object) -> bool:
    """Return whether an objective waits for its log-scale to be found."""
    partition = getattr(objective, "partition", None)
    return isinstance(partition, Fixed) and partition.automatic


def with_budget(objective: nn.Module, callbacks: list[Callback]) -> list[Callback]:
    """Return the callbacks, and a budget before them if the objective needs one and has none."""
    if not is_automatic(objective) or any(isinstance(callback, ErrorBudget) for callback in callbacks):
        return callbacks
    partition = objective.partition
    budget = ErrorBudget(partition.budget, partition.reference) if isinstance(partition, Budgeted) else ErrorBudget()
    return [budget, *callbacks]


class Budgeted(Fixed):
    """Deprecated: make the objective with ``log_scale="auto"`` and give :class:`ErrorBudget` to ``fvnce.fit``."""

    budget: float
    reference: Baseline | None

    def __init__(self, budget: float = BUDGET, reference: Baseline | None = None) -> None:
        super().__init__("auto")
        # Not by setattr: the baseline is no longer part of the objective.
        self.__dict__.update(budget=budget, reference=reference)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # Files of version 0.2 also hold the reference and its averages.
        for name in [name for name in state_dict if name.startswith(prefix) and name != f"{prefix}log_scale"]:
            del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *arguments)


add(Kind("Reference", Baseline, vars, Baseline, frozenset(("model", "encoder"))))
add(Kind("Budgeted", Budgeted, vars, Budgeted, frozenset(("budget", "reference"))))
register_alias(Budgeted, lambda partition: Fixed("auto"))
