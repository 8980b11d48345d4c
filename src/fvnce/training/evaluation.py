r"""The objective evaluated: on the batch of a step, for whatever the objective accepts, and on held-out rows.

Lightning Fabric casts the tensors it is handed to the working precision; log p_n in bfloat16 would be off by nats. So a
batch travels inside an object that Fabric passes through untouched: the networks' products run in the working
precision, densities and ratios stay in float32.

Validation has noise of its own, the same at every epoch, and draws latents from a stream of its own: validating changes
nothing in training, and two epochs are compared at the same draws. A contrastive objective is evaluated on the whole
set at once: a profiled one takes the log of a mean over noise, and the mean of that log over batches is another number,
too large. Losses of different rules are in different units. Two criteria are not:

    bound       E_data[Δ⁰] − c − e^(−c) E_noise[e^Δ⁰] + 1
    log_loss    E_data[log(1 + e^(−Δ))] + ν E_noise[log(1 + e^Δ)],    Δ = Δ⁰ − c − log ν

The first is the α = 0 bound on E_data[log p_θ/p_n], best at c = log E_noise[e^Δ⁰]; the second is the logarithmic loss
of the classifier that the model implies. c is the objective's own where it is fixed or learned; where it is profiled
out, each half of the noise is judged at the c of the other half.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from .. import _random
from .._estimates import log_mean_exp
from ..noise import draw_with_log_prob
from ..objectives import Batch, BatchShare, ContrastiveObjective, Objective, Profiled, Terms
from ..objectives.base import gather
from ..objectives.ratios import BatchRatios, LogRatio
from .distributed import bounds, over_processes
from .noise_sampler import noise_samples

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .batches import Rows


class StepOutput:
    """A batch on its way through the objective, and what comes out: the loss, and the terms of one that has them."""

    __slots__ = ("batch", "loss", "terms")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.terms: Any = None
        self.loss: Tensor | None = None


class Step(nn.Module):
    """The objective as a module that fills a :class:`StepOutput` and returns the loss."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective
        parameters = inspect.signature(objective.forward).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        self.takes_noise = getattr(objective, "noise", None) is not None and ("x_noise" in names or anything)
        self.densities = tuple(n for n in ("log_noise_x", "log_noise_noise") if n in names or anything)
        terms = getattr(objective, "terms", None)
        self.has_terms = callable(terms)
        # Whoever has put terms of their own in the place of ours wants those to be trained.
        self.takes_batch = getattr(terms, "__func__", None) is Objective.terms

    def forward(self, output: StepOutput) -> Tensor:
        """The loss, a scalar."""
        objective: Any = self.objective
        loss: Tensor
        if self.takes_batch:
            output.terms = objective.terms_of(output.batch)
            loss = output.terms.loss
        else:
            loss = self._of_another_make(output)
        # Fabric casts what a module returns to the default dtype: good enough to start a backward pass from.
        output.loss = loss.detach()
        return loss

    def _of_another_make(self, output: StepOutput) -> Tensor:
        objective: Any = self.objective
        batch = output.batch
        arguments: tuple[Tensor | None, ...] = (batch.x,)
        densities: dict[str, Tensor | None] = {}
        if self.takes_noise:
            arguments = (batch.x, batch.x_noise)
            densities = {name: getattr(batch, name) for name in self.densities}
        if self.has_terms:
            output.terms = objective.terms(*arguments, **densities)
            if not hasattr(output.terms, "loss"):
                found = type(output.terms).__name__
                raise TypeError(f"objective.terms must return something with a loss and statistics, found {found}")
            loss = output.terms.loss
        else:
            loss = objective(*arguments, **densities)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"objective must return a scalar tensor, found {found}")
        loss = loss if loss.ndim == 0 else loss.reshape(())
        # A loss that knows nothing of processes is taken for a mean over x.
        return loss if batch.share is None else loss * batch.share.data


def describe_batch(batch: Batch) -> str:
    """A batch in numbers, for an error."""
    names = ("x", "x_noise", "log_noise_x", "log_noise_noise")
    named = {name: getattr(batch, name) for name in names}
    return "; ".join(f"{name}: {_describe(value)}" for name, value in named.items() if value is not None)


def _describe(value: Tensor) -> str:
    shape = tuple(value.shape)
    if value.numel() == 0 or not value.is_floating_point():
        return f"shape {shape}"
    finite = value[torch.isfinite(value)]
    bad = value.numel() - finite.numel()
    if finite.numel() == 0:
        return f"shape {shape}, nothing finite"
    text = f"shape {shape}, min {finite.min():.4g}, mean {finite.mean():.4g}, max {finite.max():.4g}"
    return f"{text}, {bad} not finite" if bad else text


#: Noise samples a validation set has at most.
MOST_NOISE = 10_000
_CHUNK = 2048


class Validation:
    """The criteria on held-out data.

    Args:
        rows: held-out data.
        log_noise: log p_n of every row, or None without noise.
        step: the objective.
        fabric: processes, of which each evaluates its part, and the precision in which networks run.
        seed: of the run.
        seed_globals: whether the objective draws from the global generators, which are then seeded here.
    """

    def __init__(
        self, rows: Rows, log_noise: Tensor | None, step: Step, fabric: Fabric, seed: int, *, seed_globals: bool
    ) -> None:
        rank, world = fabric.global_rank, fabric.world_size
        self.fabric, self.seed, self.step = fabric, seed, step
        self.seed_globals = seed_globals
        self.total = len(rows)
        if self.total < world:
            raise ValueError(f"validation must have a row for each of the {world} processes, found {self.total}")
        self.rows = rows
        self.low, self.high = bounds(self.total, rank, world)
        self.log_noise = log_noise
        self.noise: tuple[Tensor, Tensor] | None = None
        if log_noise is not None:
            objective: Any = step.objective
            wanted = max(2, min(round(noise_samples(objective) * self.total), MOST_NOISE))
            low, high = bounds(max(wanted, world), rank, world)
            drawn = draw_with_log_prob(
                objective.noise, high - low, _random.generator(seed, _random.HELD_OUT_NOISE, rank)
            )
            self.noise = (drawn[0].to(rows.device, rows.dtype), drawn[1].to(rows.device))

    def __call__(self) -> dict[str, float]:
        """Criteria by name, the same on every process."""
        objective: nn.Module = self.step.objective
        was_training = objective.training
        objective.eval()
        try:
            with (
                _random.preserve_rng_state(self.rows.device, self.seed_globals),
                torch.no_grad(),
                self.fabric.autocast(),
            ):
                if self.seed_globals:
                    _random.seed_everything(self.seed, _random.VALIDATION, self.fabric.global_rank)
                if isinstance(objective, ContrastiveObjective) and not getattr(objective, "variance_reduced", False):
                    return self._contrastive(objective)
                return self._mean()
        finally:
            objective.train(was_training)

    def _contrastive(self, objective: ContrastiveObjective) -> dict[str, float]:
        assert self.noise is not None
        x, log_noise = self.noise
        noise = zip(torch.split(x, _CHUNK), torch.split(log_noise, _CHUNK), strict=True)
        data = ((part, density) for part, density in self._chunks() if density is not None)
        terms = evaluate(objective, data, noise, BatchShare() if self.fabric.world_size > 1 else None)
        found = {"loss": float(terms.loss), **{name: float(value) for name, value in terms.statistics.items()}}
        return found | comparable(objective, terms)

    def _mean(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for x, density in self._chunks():
            batch = Batch(x, log_noise_x=density)
            if self.noise is not None:
                count = min(len(x), len(self.noise[0]))
                batch.x_noise, batch.log_noise_noise = self.noise[0][:count], self.noise[1][:count]
            output = StepOutput(batch)
            named = {"loss": float(self.step(output))}
            if output.terms is not None:
                named |= {name: float(value) for name, value in output.terms.statistics.items()}
            for name, value in named.items():
                sums[name] = sums.get(name, 0.0) + value * len(x)
        names = sorted(sums)
        totals = over_processes(self.fabric, torch.tensor([sums[n] for n in names], dtype=torch.float64), "sum")
        means = {name: float(value) / self.total for name, value in zip(names, totals, strict=True)}
        return {"loss": means.pop("loss", math.nan), **means}

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for low in range(self.low, self.high, _CHUNK):
            high = min(low + _CHUNK, self.high)
            yield self.rows.slice(low, high), None if self.log_noise is None else self.log_noise[low:high]


Batches = Iterable[tuple[Tensor, Tensor]]


@torch.no_grad()
def evaluate(objective: ContrastiveObjective, data: Batches, noise: Batches, share: BatchShare | None = None) -> Terms:
    """The terms of the objective over all batches, as if they were one; with a ``share``, over those of all processes.

    Args:
        objective: in evaluation mode, unless its own state shall change.
        data: pairs (x, log p_n(x)).
        noise: pairs (x, log p_n(x)) of noise samples.
        share: where every process has batches of its own.
    """
    ratios, offsets = [], []
    for x, log_noise in data:
        ratios.append(objective.data_log_ratio(x, log_noise))
        offsets.append(objective.evidence_offset(ratios[-1], log_noise))
    if not ratios:
        raise ValueError("data must hold at least one batch, found none")
    contrary = [objective.noise_log_ratio(x, log_noise) for x, log_noise in noise]
    offset = gather(torch.cat(offsets), share)
    whole = BatchRatios(_joined(ratios).gathered(share), _joined(contrary).gathered(share), offset)
    return objective.terms_of_ratios(whole)


@torch.no_grad()
def comparable(objective: ContrastiveObjective, terms: Terms) -> dict[str, float]:
    """The two criteria, from the terms of a whole set."""
    if terms.delta_data is None or terms.delta_noise is None:
        return {}
    nu = objective.noise_ratio
    own = terms.statistics["log_scale"]
    data = terms.delta_data.double() + own + math.log(nu)
    noise = terms.delta_noise.double() + own + math.log(nu)
    pairs = [(noise, own)]
    if isinstance(objective.partition, Profiled) and len(noise) > 1:
        one, other = noise[::2], noise[1::2]
        pairs = [(one, float(log_mean_exp(other))), (other, float(log_mean_exp(one)))]
    bounds, losses = [], []
    for judged, c in pairs:
        bounds.append(data.mean() - c - (log_mean_exp(judged) - c).exp() + 1)
        shift = c + math.log(nu)
        losses.append(softplus(shift - data).mean() + nu * softplus(judged - shift).mean())
    return {"bound": float(sum(bounds)) / len(pairs), "log_loss": float(sum(losses)) / len(pairs)}


def _joined(ratios: list[LogRatio]) -> LogRatio:
    """One log-ratio of all batches; draws that are averaged inside f are averaged first."""
    if any(ratio.log_weights is None for ratio in ratios):
        return LogRatio(torch.cat([ratio.mean for ratio in ratios]).unsqueeze(0))
    weights = [ratio.log_weights for ratio in ratios if ratio.log_weights is not None]
    return LogRatio(torch.cat([ratio.values for ratio in ratios], 1), torch.cat(weights, 1))
