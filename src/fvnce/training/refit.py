r"""Noise fitted by training: a normalizing flow, and noise that follows the model as it learns.

A flow has a known density whose cost does not grow with the data, so it replaces a kernel density on large sets. Flows
need zuko, the ``flows`` extra.

Noise is best near the model (optimally, for few samples, close to the data's own density), and that place moves while
a model is trained. :class:`RefitNoise` replaces p_n after an epoch by a new distribution, for which log p_n of all rows
is tabulated again and samples are drawn anew, pool and validation included; J is then another function with the same
best model. What is fitted:

* :class:`DecodedNoise`: the decoder's output for codes, p_n(x) = 1/K Σ_k N(x; m(z_k), σ²), with z_k from a kernel
  density, or a Gaussian, of codes drawn for data. For a Gaussian decoder that mixture is a kernel density: its density
  is exact, not a bound.
* any function of (objective, rows, generator) that returns a distribution, such as a flow that :func:`fit_flow` goes on
  training from ``start=``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _random, _validation
from ..models import GaussianDecoder
from ..noise import FlowNoise, KernelDensity, draw, fit_gaussian
from ..noise.flow import make_flow
from ..objectives import ContrastiveObjective
from .batches import Rows
from .callbacks import Callback, EarlyStopping
from .trainer import fit


class _Likelihood(nn.Module):
    """−log p of standardized rows under a flow."""

    shift: Tensor
    scale: Tensor

    def __init__(self, flow: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.flow = flow
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean over a batch."""
        loss: Tensor = -self.flow().log_prob((x - self.shift) / self.scale).mean()
        return loss


def fit_flow(
    X: Any,
    *,
    kind: Literal["NSF", "MAF", "NICE"] = "NSF",
    transforms: int = 3,
    hidden: tuple[int, ...] = (64, 64),
    epochs: int = 50,
    seed: int | None = None,
    start: FlowNoise | None = None,
    **options: Any,
) -> FlowNoise:
    """Fit a flow to the rows of X and return it, as a distribution over rows.

    Args:
        X: rows, shape (n, D).
        kind: the family of zuko: neural splines, masked autoregressive, or coupling.
        transforms: the number of transforms.
        hidden: the hidden layers of each.
        epochs: passes over the data.
        seed: of initial weights and of training; by default drawn from torch's global generator.
        start: a flow to continue from, whose family, layers and standardization are kept; it is not changed itself.
        **options: arguments of :func:`fvnce.fit`, such as ``validation`` and ``early_stopping``.

    Returns:
        Noise whose parameters are no longer trained; it moves and is saved with the objective that has it. Mix it with
        a kernel density of the data if it must cover every row.

    >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    >>> flow = fit_flow(x, kind="NICE", transforms=1, hidden=(8,), epochs=1, seed=0)
    >>> flow.log_prob(x).shape
    torch.Size([64])
    """
    rows = Rows(X, torch.get_default_dtype(), name="X")
    data = rows.slice(0, len(rows))
    _validation.table("X", data, rows=2)
    seed = int(torch.randint(2**31 - 1, ())) if seed is None else _validation.count("seed", seed, low=0)
    if start is None:
        with _random.seeded(seed):
            flow = make_flow(kind, data.shape[1], transforms, tuple(hidden))
        # A constant column has no scale of its own.
        objective = _Likelihood(flow, data.mean(0), data.std(0).clamp(min=1e-6))
    else:
        kind, transforms, hidden = start.kind, start.transforms, start.hidden  # type: ignore[assignment]
        flow = copy.deepcopy(start.flow).requires_grad_(True).train()
        objective = _Likelihood(flow, start.shift.to(data), start.scale.to(data))
    fit(objective, data, epochs=epochs, seed=seed, **options)
    objective.cpu()
    shift, scale = objective.shift, objective.scale
    return FlowNoise(kind, shift, scale, transforms=transforms, hidden=tuple(hidden), flow=objective.flow)


Refit = Callable[[Any, Tensor, torch.Generator], Distribution]


class RefitNoise(Callback):
    """Replace the noise during training, after every few epochs.

    Checkpoints hold the noise in use, so a resumed training ends with the bits of one never interrupted.
    Losses before and after a refit are of different noise and cannot be compared: early stopping is refused.

    Args:
        refit: from (objective in evaluation mode, rows of data, generator) to a distribution over rows. It must be
            one that can be saved where the run has checkpoints.
        every: epochs between two refits.
        last: the epoch after which the noise stays, by default none; the last epoch of a run is never followed by one.
        rows: number of data rows passed to ``refit``, drawn anew each time.

    >>> from fvnce import KernelDensity, PowerRule, NCE, fit, mlp, EnergyModel, fit_gaussian
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + 3
    >>> objective = NCE(EnergyModel(mlp([2, 8, 1])), KernelDensity(torch.zeros(1, 2), 3.0), PowerRule(0))
    >>> follow = RefitNoise(lambda objective, rows, generator: fit_gaussian(rows, "diagonal"))
    >>> _ = fit(objective, x, epochs=2, seed=0, callbacks=[follow])
    >>> bool((objective.noise.mean > 2).all())
    True
    """

    def __init__(self, refit: Refit, *, every: int = 1, last: int | None = None, rows: int = 10_000) -> None:
        self.refit = refit
        self.every = _validation.count("every", every)
        self.last = None if last is None else _validation.count("last", last)
        self.rows = _validation.count("rows", rows)

    def start(self, trainer: Any) -> None:
        """Refuse objectives without noise, and early stopping."""
        if not isinstance(trainer.objective, ContrastiveObjective):
            raise TypeError(f"objective must have noise to be refitted, found {type(trainer.objective).__name__}")
        if any(isinstance(callback, EarlyStopping) for callback in trainer.callbacks):
            raise ValueError("early_stopping must be None where noise is refitted, found one: losses do not compare")

    def epoch(self, trainer: Any) -> None:
        """Replace the noise, if a refit is due."""
        done = trainer.epoch + 1
        if done % self.every or done >= trainer.settings.epochs or (self.last is not None and done > self.last):
            return
        objective, generator = trainer.objective, _random.generator(trainer.seed, _random.REFIT, trainer.epoch)
        rows = trainer.sample_rows(self.rows, generator)
        noise = self.refit(objective.eval(), rows, generator)
        objective.train()
        trainer.replace_noise(noise)


class DecodedNoise:
    """Kernel density at the outputs of a Gaussian decoder for codes like those of the data.

    Args:
        centres: K, how many codes.
        codes: ``"kde"`` moves the codes of rows by a kernel of Scott's width, ``"gaussian"`` draws from one Gaussian.
        widen: bandwidth over the decoder's σ.

    >>> import fvnce
    >>> x = torch.randn(20, 3)
    >>> prior = fit_gaussian(torch.randn(9, 1), "diagonal")
    >>> model = fvnce.LatentVariableModel(prior, GaussianDecoder(fvnce.mlp([1, 3]), scale=0.5))
    >>> objective = fvnce.FullyVariationalNCE(
    ...     model, fvnce.GaussianEncoder(fvnce.mlp([3, 2])), fit_gaussian(x), fvnce.PowerRule(0)
    ... )
    >>> DecodedNoise(10)(objective, x, torch.Generator()).sample((4,)).shape
    torch.Size([4, 3])
    """

    def __init__(self, centres: int = 1000, *, codes: Literal["kde", "gaussian"] = "kde", widen: float = 1.0) -> None:
        self.centres = _validation.count("centres", centres, low=2)
        self.codes = _validation.choice("codes", codes, ("kde", "gaussian"))
        self.widen = _validation.number("widen", widen, low=0.0, open_low=True)

    @torch.no_grad()
    def __call__(self, objective: Any, rows: Tensor, generator: torch.Generator) -> KernelDensity:
        """Return a kernel density of the decoder's current output.

        Args:
            rows: training rows in random order, of which the first are encoded.
        """
        model = objective.model
        decoder = getattr(model, "decoder", None)
        if objective.encoder is None or not isinstance(decoder, GaussianDecoder):
            kind = type(decoder or model).__name__
            raise TypeError(f"model must have an encoder and a Gaussian decoder, found {kind}")
        # Draws: the means of q(z|x) are less spread than latents are.
        with _random.seeded_by(generator):
            code = objective.encoder(rows[: self.centres]).sample()
        gaussian = self.codes == "gaussian"
        codes = fit_gaussian(code, "diagonal") if gaussian else KernelDensity.from_data(code, "scott", floor=1e-6)
        likelihood = decoder(draw(codes, self.centres, generator).to(code))
        return KernelDensity(likelihood.mean.detach().clone(), self.widen * decoder.scale.detach().clone())
