r"""Evaluation of an objective on the batch of a step and on held-out rows.

Lightning Fabric casts its input tensors to the working precision; log p_n in bfloat16 would be off by nats. So a
batch travels inside an object that Fabric passes through untouched: the networks' products run in the working
precision, densities and ratios stay in float32.

Validation has its own noise, the same at every epoch, and draws latents from its own stream: validating changes
nothing in training, and two epochs are compared at the same draws. A contrastive objective is evaluated on the whole
set at once: a profiled one takes the log of a mean over noise, and the mean of that log over batches would be too
large. Losses of different rules are in different units. Two criteria are not:

    bound       E_data[Δ⁰] − c − e^(−c) E_noise[e^Δ⁰] + 1
    log_loss    E_data[log(1 + e^(−Δ))] + ν E_noise[log(1 + e^Δ)],    Δ = Δ⁰ − c − log ν

The first is the α = 0 bound on E_data[log p_θ/p_n], best at c = log E_noise[e^Δ⁰]; the second is the logarithmic loss
of the classifier that the model implies. c is the objective's own where it is fixed or learned; where it is profiled
out, each half of the noise is evaluated at the c of the other half.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from .. import _random
from .._stats import log_mean_exp
from ..noise import draw_with_log_prob
from ..objectives import Batch, BatchPart, ContrastiveObjective, Objective, Profiled, Terms
from ..objectives.batch import LogRatio, gather
from .batches import BatchStream
from .ddp import bounds, over_processes

#: Noise samples a validation set has at most.
MOST_NOISE = 10_000
_CHUNK = 2048


class EvaluatedBatch:
    """A batch for the objective, with its loss and, if any, its terms."""

    # Not a dataclass, the tensors in which Fabric would convert.
    __slots__ = ("batch", "loss", "terms")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.terms: Any = None
        self.loss: Tensor | None = None


class Step(nn.Module):
    """The objective as a module that fills a :class:`EvaluatedBatch` and returns the loss."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective
        self.knows_batches = isinstance(objective, Objective)
        parameters = inspect.signature(objective.forward).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        #: Whether the objective receives noise samples, and which of the densities of data and noise.
        #: An objective whose noise is a function of the context draws for itself.
        own = getattr(objective, "noise", None) is None or "noise" in getattr(objective, "_context_parts", ())
        self.takes_noise = not own and ("x_noise" in names or anything)
        self.densities = [
            n for n in ("log_noise_x", "log_noise_noise") if self.takes_noise and (n in names or anything)
        ]
        self.takes_context = bool(objective.takes_context) if self.knows_batches else "context" in names

    def forward(self, evaluated: EvaluatedBatch) -> Tensor:
        """Return the loss, a scalar."""
        objective: Any = self.objective
        batch = evaluated.batch
        if self.knows_batches:
            evaluated.terms = objective.terms_of(batch)
            loss: Tensor = evaluated.terms.loss
        else:
            arguments = (batch.x, batch.x_noise) if self.takes_noise else (batch.x,)
            names = [*self.densities, *(["context"] if self.takes_context else [])]
            loss = objective(*arguments, **{name: getattr(batch, name) for name in names})
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
                raise TypeError(f"objective must return a scalar tensor, found {kind}")
            loss = loss if loss.ndim == 0 else loss.reshape(())
            # A loss that does not know of processes is taken for a mean over x.
            loss = loss if batch.part is None else loss * batch.part.data
        # Fabric casts what a module returns to the default dtype: good enough to start a backward pass from.
        evaluated.loss = loss.detach()
        return loss


def describe_batch(batch: Batch) -> str:
    """Return shapes and ranges of a batch, for an error."""
    parts = []
    for name in ("x", "x_noise", "log_noise_x", "log_noise_noise", "context"):
        value = getattr(batch, name)
        if value is not None:
            finite = value[torch.isfinite(value)]
            between = f" from {finite.min():.4g} to {finite.max():.4g}" if len(finite) else ""
            parts.append(f"{name}: shape {tuple(value.shape)}{between}, {value.numel() - len(finite)} not finite")
    return "; ".join(parts)


class Validation:
    """Evaluation of an objective on held-out data.

    Args:
        data: held-out rows.
        step: the objective.
        batches: those of the training, whose noise, processes and seed are used.
        seed_globals: whether the objective draws from the global generators, which are then seeded here.
    """

    def __init__(self, data: object, step: Step, batches: BatchStream, *, seed_globals: bool) -> None:
        if isinstance(data, DataLoader):
            raise TypeError("validation must be a tensor, an array or a memory map, found DataLoader")
        self.rows = batches.rows_of(data, "validation")
        if len(self.rows) < batches.world:
            raise ValueError(f"validation must have a row for each process, {batches.world}, found {len(self.rows)}")
        self.step, self.batches, self.fabric, self.seed_globals = step, batches, batches.fabric, seed_globals
        self.use_noise()

    def use_noise(self) -> None:
        """Tabulate log p_n of the rows and draw noise, from the noise that the batches use now."""
        batches = self.batches
        self.log_noise = batches.tabulate(self.rows, "validation")
        self.noise: tuple[Tensor, Tensor] | None = None
        if batches.noise is not None:
            low, high = bounds(self._noise_rows(), batches.rank, batches.world)
            generator = _random.generator(batches.seed, _random.HELD_OUT_NOISE, batches.rank)
            x, log_prob = draw_with_log_prob(batches.noise, high - low, generator)
            self.noise = x.to(batches.device, self.rows.dtype), log_prob.to(batches.device)

    def _noise_rows(self) -> int:
        """Return the number of noise samples of all processes; with contexts, every row has those of its own."""
        total = round(self.batches.noise_samples * len(self.rows))
        least = self.batches.world
        return max(least, total) if self.rows.context is not None else max(2, least, min(total, MOST_NOISE))

    def __call__(self) -> dict[str, float]:
        """Return the criteria by name, the same on every process."""
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
                    _random.seed_everything(self.batches.seed, _random.VALIDATION, self.batches.rank)
                if isinstance(objective, ContrastiveObjective) and not getattr(objective, "variance_reduced", False):
                    return self._contrastive(objective)
                return self._mean()
        finally:
            objective.train(was_training)

    def _contrastive(self, objective: ContrastiveObjective) -> dict[str, float]:
        part = BatchPart() if self.fabric.world_size > 1 else None
        data = (
            (x, objective.log_noise(x, context) if log_noise is None else log_noise, context)
            for x, log_noise, context in self._chunks()
        )
        terms = evaluate(objective, data, self._noise_chunks(objective), part)
        return {"loss": float(terms.loss), **_floats(terms), **comparable(objective, terms)}

    def _noise_chunks(self, objective: ContrastiveObjective) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        total, contexts = self._noise_rows(), self.rows.context
        first, last = bounds(total, self.batches.rank, self.batches.world)
        for low in range(first, last, _CHUNK):
            high, context = min(low + _CHUNK, last), None
            if contexts is not None:
                context = contexts.take(objective.context_rows(total, len(self.rows))[low:high])
            if self.noise is not None:
                x, log_noise = (part[low - first : high - first] for part in self.noise)
            else:
                x = objective.draw_noise(high - low, context).to(self.rows.device, self.rows.dtype)
                log_noise = objective.log_noise(x, context)
            yield x, log_noise, context

    def _mean(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for x, log_noise, context in self._chunks():
            batch = Batch(x, log_noise_x=log_noise, context=context)
            if self.noise is not None:
                batch.x_noise, batch.log_noise_noise = (part[: len(x)] for part in self.noise)
            evaluated = EvaluatedBatch(batch)
            for name, value in {"loss": float(self.step(evaluated)), **_floats(evaluated.terms)}.items():
                sums[name] = sums.get(name, 0.0) + value * len(x)
        totals = over_processes(self.fabric, torch.tensor(list(sums.values()), dtype=torch.float64), "sum")
        return {name: float(total) / len(self.rows) for name, total in zip(sums, totals, strict=True)}

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        first, last = bounds(len(self.rows), self.batches.rank, self.batches.world)
        for low in range(first, last, _CHUNK):
            high = min(low + _CHUNK, last)
            log_noise = None if self.log_noise is None else self.log_noise[low:high]
            context = None if self.rows.context is None else self.rows.context.slice(low, high)
            yield self.rows.slice(low, high), log_noise, context


def _floats(terms: Any) -> dict[str, float]:
    return {} if terms is None else {name: float(value) for name, value in terms.statistics.items()}


Batches = Iterable[tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None]]


@torch.no_grad()
def evaluate(objective: ContrastiveObjective, data: Batches, noise: Batches, part: BatchPart | None = None) -> Terms:
    """Return the terms of the objective over all batches, as if they were one; with a ``part``, of all processes.

    Args:
        objective: in evaluation mode, unless its own state shall change.
        data: pairs (x, log p_n(x)), with the contexts of x if there are any.
        noise: the same of noise samples.
        part: where every process has batches of its own.
    """
    data_ratios, offsets = [], []
    for rows in data:
        data_ratios.append(objective.data_log_ratio(*rows))
        offsets.append(objective.evidence_offset(data_ratios[-1], rows[1]))
    noise_ratios = [objective.noise_log_ratio(*rows) for rows in noise]
    whole = _joined(data_ratios).gathered(part), _joined(noise_ratios).gathered(part)
    return objective.terms_of_ratios(*whole, gather(torch.cat(offsets), part))


@torch.no_grad()
def comparable(objective: ContrastiveObjective, terms: Terms) -> dict[str, float]:
    """Return the two criteria, from the terms of a whole set."""
    if terms.delta_data is None or terms.delta_noise is None:
        return {}
    nu, scale = objective.noise_ratio, terms.statistics["log_scale"]
    data = terms.delta_data.double() + scale + math.log(nu)
    noise = terms.delta_noise.double() + scale + math.log(nu)
    pairs = [(noise, scale)]
    if isinstance(objective.partition, Profiled) and len(noise) > 1:
        one, other = noise[::2], noise[1::2]
        pairs = [(one, float(log_mean_exp(other))), (other, float(log_mean_exp(one)))]
    bound = log_loss = 0.0
    for judged, c in pairs:
        shift = c + math.log(nu)
        bound += float(data.mean() - c - (log_mean_exp(judged) - c).exp() + 1) / len(pairs)
        log_loss += float(softplus(shift - data).mean() + nu * softplus(judged - shift).mean()) / len(pairs)
    return {"bound": bound, "log_loss": log_loss}


def _joined(ratios: list[LogRatio]) -> LogRatio:
    """Return one log-ratio of all batches; draws that are averaged inside f are averaged first."""
    if any(ratio.log_weights is None for ratio in ratios):
        return LogRatio(torch.cat([ratio.mean for ratio in ratios]))
    weights = [ratio.log_weights for ratio in ratios if ratio.log_weights is not None]
    return LogRatio(torch.cat([ratio.values for ratio in ratios], 1), torch.cat(weights, 1))
