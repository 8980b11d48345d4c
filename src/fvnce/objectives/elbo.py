r"""Objectives without a noise term: autoencoder, VAE, IWAE; and log p_θ(x) by importance sampling.

    J_AE    = E_data log p_θ(x|g(x))
    J_VAE   = E_data[ E_q log p_θ(x|z) − KL(q(z|x) ‖ p_Z) ]                                             (Eq. VAE)
    J_IWAE  = E_data log (1/K) Σ_k p_θ(x, z_k)/q(z_k|x)

For a deterministic encoder g, J_VAE = J_AE + E log p_Z(g(x)) − γ with γ = max log p_Z (Eq. rVAE).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import _validation
from ..models import LatentVariableModel, is_normalized
from ..models.distributions import PointMass, divergence_of
from ..models.networks import given, takes_context
from .batch import Batch, LogRatio, Terms, mean_over_data
from .ratios import Encoder, ModelObjective, check_finite, checked_prior, log_ratio, narrowed, prior_constant


class _LikelihoodObjective(ModelObjective):
    def __init__(self, model: Any, encoder: Encoder) -> None:
        super().__init__(model, encoder)
        # Without its constant a likelihood is unbounded; only a noise term bounds it.
        if not is_normalized(model):
            raise ValueError(
                f"model of {type(self).__name__} must be normalized, found {type(model).__name__}, an energy, whose "
                "likelihood is unbounded; use FullyVariationalNCE with partition='profiled'"
            )


class VAE(_LikelihoodObjective):
    """Variational autoencoder: the evidence lower bound, with the KL in closed form where torch has one.

    Args:
        model: a normalized latent-variable model.
        encoder: q(z|x).
        latent_samples: draws over which log p_θ(x|z) is averaged.
        closed_form: False estimates the KL from the draws as well.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder, GaussianEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, GaussianDecoder(torch.nn.Linear(2, 5)))
    >>> VAE(model, GaussianEncoder(torch.nn.Linear(5, 4)))(torch.randn(8, 5)).backward()
    """

    def __init__(self, model: Any, encoder: Encoder, *, latent_samples: int = 1, closed_form: bool = True) -> None:
        super().__init__(model, encoder)
        self.latent_samples = _validation.count("latent_samples", latent_samples)
        self.closed_form = closed_form

    def terms_of(self, batch: Batch) -> Terms:
        """Return the bound on a batch, of which ``x`` and ``context`` are used."""
        x, q, context = batch.x, self._encode(batch.x, batch.context), self._context_of("model", batch.context)
        evidence = evidence_of(self.model, q, x, context, draws=self.latent_samples, closed_form=self.closed_form)
        gamma = prior_constant(self.model, isinstance(q, PointMass))
        return _terms(batch, evidence - gamma if gamma else evidence)


class IWAE(_LikelihoodObjective):
    """Importance-weighted autoencoder: the bound of K draws, the data term of (0, 0) with ``latent_samples=K``.

    Args:
        model: a normalized latent-variable model.
        encoder: q(z|x).
        latent_samples: K.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder, GaussianEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, GaussianDecoder(torch.nn.Linear(2, 5)))
    >>> IWAE(model, GaussianEncoder(torch.nn.Linear(5, 4)), latent_samples=8)(torch.randn(8, 5)).backward()
    """

    def __init__(self, model: Any, encoder: Encoder, *, latent_samples: int = 10) -> None:
        super().__init__(model, encoder)
        self.latent_samples = _validation.count("latent_samples", latent_samples)

    def terms_of(self, batch: Batch) -> Terms:
        """Return the bound on a batch, of which ``x`` and ``context`` are used."""
        x, q, context = batch.x, self._encode(batch.x, batch.context), self._context_of("model", batch.context)
        ratio = log_ratio(self.model, q, x, x.new_zeros(len(x)), self.latent_samples, context=context)
        ratio = check_finite("x", x, ratio, may_be_zero=False)
        return _terms(batch, ratio.mean - prior_constant(self.model, ratio.point))


class Autoencoder(_LikelihoodObjective):
    """Autoencoder: log p_θ(x|z) at the encoder's mean, reconstruction alone.

    Args:
        model: a normalized latent-variable model.
        encoder: q(z|x), of which only the mean is used.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder, PointEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, GaussianDecoder(torch.nn.Linear(2, 5)))
    >>> Autoencoder(model, PointEncoder(torch.nn.Linear(5, 2)))(torch.randn(8, 5)).backward()
    """

    def terms_of(self, batch: Batch) -> Terms:
        """Return the reconstruction term on a batch, of which ``x`` and ``context`` are used."""
        x, q, context = batch.x, self._encode(batch.x, batch.context), self._context_of("model", batch.context)
        checked_prior(q, x, self.model)
        return _terms(batch, self.model.log_likelihood(x, narrowed(q.mean, x), *given(context)))


def _terms(batch: Batch, evidence: Tensor) -> Terms:
    """Return the loss −E_data[evidence], which is finite only if the evidence of every point is."""
    loss = -mean_over_data(evidence, batch.part)
    hidden = _validation.values_are_hidden() or _validation.are_deferred()
    if not hidden and not math.isfinite(loss.item()):
        check_finite("x", batch.x, LogRatio(evidence), may_be_zero=False)
    return Terms(loss, evidence.detach())


def evidence_of(
    model: Any, q: Distribution, x: Tensor, context: Tensor | None, *, draws: int = 1, closed_form: bool = True
) -> Tensor:
    """Return the evidence lower bound of each point, shape (B,)."""
    if closed_form and isinstance(model, LatentVariableModel) and q.has_rsample and not isinstance(q, PointMass):
        try:
            divergence = divergence_of(q, checked_prior(q, x, model))
        except NotImplementedError:
            pass
        else:
            z = q.rsample() if draws == 1 else q.rsample((draws,))
            fit = model.log_likelihood(x, narrowed(z, x), *given(context))
            return (fit if draws == 1 else fit.mean(0)) - divergence
    ratio = log_ratio(model, q, x, x.new_zeros(len(x)), draws, averaged_outside=True, context=context)
    return ratio.average(ratio.values)


@torch.no_grad()
def log_marginal(
    model: Any,
    encoder: Encoder,
    x: Tensor,
    *,
    latent_samples: int = 1000,
    chunk: int = 64,
    context: Tensor | None = None,
) -> Tensor:
    """Return log p_θ(x) of each point by importance sampling with K draws of q(z|x), shape (B,).

    It is a lower bound in expectation, tight as K grows, and exact for a latent that is summed over.

    Args:
        model: ``log_joint(x, z)``.
        encoder: q(z|x), which must cover p_θ(z|x); a deterministic one is refused.
        x: rows, shape (B, …).
        latent_samples: K.
        chunk: draws evaluated at once.
        context: u of p_θ(x|u), one for each row, shape (B, …); passed to the model and the encoder if they take one.

    >>> from fvnce.models import RestrictedBoltzmannMachine
    >>> model = RestrictedBoltzmannMachine(torch.ones(3, 2), torch.zeros(3), torch.zeros(2))
    >>> x = model.sample(4)
    >>> bool((log_marginal(model, model.posterior, x, latent_samples=2) - model.log_prob(x)).abs().max() < 1e-4)
    True
    """
    latent_samples = _validation.count("latent_samples", latent_samples)
    x = _validation.finite_rows("x", _validation.floating("x", x, keep_half=True))
    zeros = x.new_zeros(len(x))
    takes = takes_context(model, "log_joint"), takes_context(encoder)
    if context is not None and not any(takes):
        raise ValueError("context must be None for a model and an encoder that do not take one, found a context")
    q = encoder(x, *given(context if takes[1] else None))
    if isinstance(q, PointMass):
        raise ValueError("encoder must be stochastic, found a deterministic one, whose p_θ(x, g(x)) bounds no density")
    context = context if takes[0] else None
    total = torch.full_like(zeros, -torch.inf)
    done = 0
    while done < latent_samples:
        draws = min(chunk, latent_samples - done)
        ratio = log_ratio(model, q, x, zeros, draws, marginal=True, context=context)
        if not ratio.drawn:
            return ratio.mean
        total = torch.logaddexp(total, ratio.mean + math.log(draws))
        done += draws
    return total - math.log(latent_samples)
