r"""Noise that follows the model as it learns: refitted between epochs, with an exact density at any time.

Noise is best near the model (optimally, for few samples, close to the data's own density), and where that is changes
while a model is trained. After an epoch p_n is replaced by a new distribution, for which log p_n of all rows is
tabulated again and samples are drawn anew, pool and validation included; J is then another function with the same best
model. What is fitted:

* :class:`DecodedNoise`: what the decoder makes of codes, p_n(x) = 1/K Σ_k N(x; m(z_k), σ²), with z_k from a kernel
  density, or a Gaussian, of codes drawn for data. For a Gaussian decoder that mixture is a kernel density: its density
  is exact, not a bound.
* :class:`FlowRefit`: a normalising flow that is trained on.
* any function of (objective, rows, generator) that returns a distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _checks, _random
from ..models import GaussianDecoder, LatentVariableModel
from ..noise import FlowNoise, KernelDensity, NoiseMixture, draw, fit_gaussian
from ..objectives import ContrastiveObjective
from .callbacks import Callback, EarlyStopping, Run
from .flow import fit_flow

Refit = Callable[[Any, Tensor, torch.Generator], Distribution]


class RefitNoise(Callback):
    """Replace the noise after every few epochs.

    The noise in use is part of the checkpoints, and so a resumed run ends with the bits of one never interrupted.
    Losses before and after a refit are of different noise and cannot be compared: early stopping is refused.

    Args:
        refit: from (objective in evaluation mode, rows of data, generator) to a distribution over rows. It must be
            one that can be saved where the run has checkpoints.
        every: epochs between two refits.
        last: the epoch after which the noise stays, by default none; the last epoch of a run is never followed by one.
        rows: how many rows of data are handed over, drawn anew each time.

    >>> from fvnce import KernelDensity, PowerRule, SNCE, fit, mlp, EnergyModel, fit_gaussian
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + 3
    >>> objective = SNCE(EnergyModel(mlp([2, 8, 1])), KernelDensity(torch.zeros(1, 2), 3.0), PowerRule(0))
    >>> follow = RefitNoise(lambda objective, rows, generator: fit_gaussian(rows, "diagonal"))
    >>> _ = fit(objective, x, epochs=2, seed=0, callbacks=[follow])
    >>> bool((objective.noise.mean > 2).all())
    True
    """

    def __init__(self, refit: Refit, *, every: int = 1, last: int | None = None, rows: int = 10_000) -> None:
        self.refit = refit
        self.every = _checks.count("every", every)
        self.last = None if last is None else _checks.count("last", last)
        self.rows = _checks.count("rows", rows)

    def start(self, run: Run) -> None:
        """Refuse what could not work."""
        if not isinstance(run.objective, ContrastiveObjective):
            raise TypeError(f"objective must have noise to be refitted, found {type(run.objective).__name__}")
        if any(isinstance(callback, EarlyStopping) for callback in run.callbacks):
            raise ValueError("early_stopping must be None where noise is refitted, found one: losses do not compare")

    def epoch(self, run: Run) -> None:
        """Replace the noise, if it is time."""
        done = run.epoch + 1
        if done % self.every or done >= run.settings.epochs or (self.last is not None and done > self.last):
            return
        objective, generator = run.objective, _random.generator(run.seed, _random.REFIT, run.epoch)
        rows = run.sample_rows(self.rows, generator)
        objective.eval()
        try:
            noise = self.refit(objective, rows, generator)
        finally:
            objective.train()
        run.replace_noise(noise)


class DecodedNoise:
    """What a Gaussian decoder makes of codes like those of the data, as a kernel density.

    Args:
        centres: K, how many codes.
        codes: ``"kde"`` moves the codes of rows by a kernel of Scott's width, ``"gaussian"`` draws from one Gaussian.
        widen: bandwidth over the decoder's σ.

    >>> import fvnce
    >>> x = torch.randn(20, 3)
    >>> prior = fit_gaussian(torch.randn(9, 1), "diagonal")
    >>> model = LatentVariableModel(prior, GaussianDecoder(fvnce.mlp([1, 3]), scale=0.5))
    >>> objective = fvnce.FullyVariationalNCE(
    ...     model, fvnce.GaussianEncoder(fvnce.mlp([3, 2])), fit_gaussian(x), fvnce.PowerRule(0)
    ... )
    >>> DecodedNoise(10)(objective, x, torch.Generator()).sample((4,)).shape
    torch.Size([4, 3])
    """

    def __init__(self, centres: int = 1000, *, codes: Literal["kde", "gaussian"] = "kde", widen: float = 1.0) -> None:
        self.centres = _checks.count("centres", centres, low=2)
        self.codes = _checks.choice("codes", codes, ("kde", "gaussian"))
        self.widen = _checks.number("widen", widen, low=0.0, open_low=True)

    @torch.no_grad()
    def __call__(self, objective: Any, rows: Tensor, generator: torch.Generator) -> KernelDensity:
        """The density of the model as it is."""
        model = objective.model
        decoder = getattr(model, "decoder", None)
        if (
            objective.encoder is None
            or not isinstance(model, LatentVariableModel)
            or not isinstance(decoder, GaussianDecoder)
        ):
            raise TypeError(
                f"model must have an encoder and a Gaussian decoder, found {type(decoder or model).__name__}"
            )
        # Draws: the means of q(z|x) are less spread than latents are.
        with _random.seeded_by(generator):
            code = objective.encoder(rows[: self.centres]).sample()
        if self.codes == "gaussian":
            drawn = draw(fit_gaussian(code, "diagonal"), self.centres, generator)
        else:
            drawn = draw(KernelDensity.from_data(code, "scott", floor=1e-6), self.centres, generator)
        likelihood = decoder(drawn.to(code))
        return KernelDensity(likelihood.mean.detach().clone(), self.widen * decoder.scale.detach().clone())


class FlowRefit:
    """A normalising flow, fitted first and then trained on from where it was, mixed with a Gaussian. Needs zuko.

    Args:
        epochs: passes over the rows at each refit.
        cover: the weight of the Gaussian, independent columns fitted to the rows, which leaves no row without noise.
        **options: of :func:`fvnce.training.fit_flow`.

    >>> import fvnce
    >>> x = torch.randn(40, 2)
    >>> objective = fvnce.SNCE(fvnce.EnergyModel(fvnce.mlp([2, 1])), fit_gaussian(x), fvnce.PowerRule(0))
    >>> noise = FlowRefit(1, kind="NICE", transforms=1, hidden=(8,))(objective, x, torch.Generator())
    >>> [type(part).__name__ for part in noise.components][0]
    'FlowNoise'
    """

    def __init__(self, epochs: int = 5, *, cover: float = 0.1, **options: Any) -> None:
        self.epochs = _checks.count("epochs", epochs)
        self.cover = _checks.number("cover", cover, low=0.0, high=1.0)
        self.options = options

    def __call__(self, objective: Any, rows: Tensor, generator: torch.Generator) -> NoiseMixture:
        """The flow after some more epochs."""
        parts = objective.noise.components if isinstance(objective.noise, NoiseMixture) else (objective.noise,)
        start = next((part for part in parts if isinstance(part, FlowNoise)), None)
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        x = rows.cpu()
        flow = fit_flow(x, epochs=self.epochs, seed=seed, start=start, **self.options)
        return NoiseMixture([flow, fit_gaussian(x, "diagonal")], [1 - self.cover, self.cover])
