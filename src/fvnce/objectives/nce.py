r"""NCE and its variational forms, for models whose marginal p_θ(x) = ∫ p_θ(x, z) dz is tractable or not.

With r = p_θ/p_n and a scoring rule (f1, f0), :class:`NCE` needs the marginal,

    J_S-NCE(θ) = E_data f1(log r_θ) + E_noise f0(log r_θ).                                         (Eq. S_NCE)

:class:`VariationalNCE` bounds the data term of the logarithmic rule and estimates the noise term. A rule with the
double-ELBO property bounds both terms from below by the joint, :class:`FullyVariationalNCE`:

    J_fvNCE(θ, q1, q0) = E_{x~data, z~q1} f1(Δ(x, z)) + E_{x~noise, z~q0} f0(Δ(x, z)),            (Eq. fvNCE)
    Δ(x, z) = log p_θ(x, z) − log p_n(x) − log q(z|x).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _validation
from ..models import LatentVariableModel, is_normalized
from ..models.distributions import PointMass
from ..scoring import Logarithmic, ScoringRule
from .batch import Batch, LogRatio, Terms
from .contrastive import ContrastiveObjective, NoiseLike
from .elbo import evidence_of
from .partition import Fixed, LogScaleLike, Partition, PartitionName, power_of
from .ratios import Encoder, check_finite


class NCE(ContrastiveObjective):
    """Noise-contrastive estimation of a model with a tractable ``log_prob(x)`` (Eq. NCE, Eq. S_NCE).

    The logarithmic rule, the default, makes it logistic regression of data against noise. With that rule,
    ``noise_ratio=M`` and ``noise_samples=1`` it is noisier NCE: the noise drawn counts as if there were M times as much
    of it. As M grows the gradient tends to that of maximum likelihood, at a distance of order 1/M, while its variance
    grows, at most like M.

    Args:
        model: p_θ, possibly unnormalized, with ``log_prob(x)``.
        noise: p_n, a torch distribution over single rows of x.
        rule: any proper scoring rule, by default the logarithmic one.
        noise_ratio: ν, the weight of the noise term.
        noise_samples: noise samples drawn for each data sample, by default ν of them.
        partition: ``"fixed"``, ``"learned"``, ``"profiled"``, or a :class:`~fvnce.objectives.Partition`.
        log_scale: s of Δ = Δ⁰ + s, for the fixed partition, or "auto".

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import PowerRule
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> NCE(normal, normal)(torch.zeros(4, 2), torch.ones(4, 2))  # 2 log 2
    tensor(1.3863)
    >>> NCE(normal, normal, PowerRule(alpha=1))(torch.zeros(4, 2), torch.ones(4, 2))  # r = 1: f1 = 0, f0 = −1/2
    tensor(0.5000)
    """

    def __init__(
        self,
        model: Any,
        noise: NoiseLike,
        rule: ScoringRule | None = None,
        *,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        rule = Logarithmic() if rule is None else rule
        super().__init__(model, None, noise, rule, noise_ratio, noise_samples, partition, log_scale)


class VariationalNCE(ContrastiveObjective):
    """Variational NCE (Rhodes & Gutmann 2019): the logarithmic rule, with a bound on the data term only.

    The noise term, which has no bound, is estimated by importance sampling: f0(log mean of r over draws of q0). A
    discrete latent with few values is summed over instead, which makes it exact.

    Arguments are those of :class:`~fvnce.objectives.ContrastiveObjective` except the rule, which is fixed, and
    ``partition="profiled"``, which the rule does not allow. Its own are:

    Args:
        noise_encoder: the importance distribution of the noise term, by default the encoder.
        latent_samples: draws that the data term is averaged over.
        importance_samples: draws inside the noise term.

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder, GaussianEncoder, LatentVariableModel
    >>> standard = lambda d: Independent(Normal(torch.zeros(d), torch.ones(d)), 1)
    >>> model = LatentVariableModel(standard(2), GaussianDecoder(torch.nn.Linear(2, 5)))
    >>> VariationalNCE(model, GaussianEncoder(torch.nn.Linear(5, 4)), standard(5))(torch.randn(8, 5)).backward()
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder,
        noise: NoiseLike,
        *,
        noise_encoder: Encoder | None = None,
        latent_samples: int = 1,
        importance_samples: int = 10,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        shared = noise_ratio, noise_samples, partition, log_scale
        super().__init__(model, encoder, noise, Logarithmic(), *shared, noise_encoder, latent_samples)
        self.importance_samples = _validation.count("importance_samples", importance_samples)

    _noise_is_marginal = True
    _data_is_averaged_outside = True


class FullyVariationalNCE(ContrastiveObjective):
    r"""Fully variational NCE (Eq. fvNCE): both terms bounded through the joint p_θ(x, z).

    Arguments are those of :class:`~fvnce.objectives.ContrastiveObjective`, and:

    Args:
        rule: a scoring rule with the double-ELBO property.
        noise_encoder: q0(z|x). The noise term is a bound only if it covers p_θ(x, ·).
        latent_samples: K; more than one uses the tighter multi-sample bound for both terms. Must be 1 for a discrete
            latent, which is summed over.
        allow_non_variational: accept a rule without the double-ELBO property; J is then not a bound.
        variance_reduced: for (0, 0) and a normalized model whose support the noise covers, the noise term is −1
            exactly and the data term has a closed-form KL: only z is drawn. This is the VAE (Eq. VAE).

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder, GaussianEncoder, LatentVariableModel, PowerRule
    >>> standard = lambda d: Independent(Normal(torch.zeros(d), torch.ones(d)), 1)
    >>> model = LatentVariableModel(standard(2), GaussianDecoder(torch.nn.Linear(2, 5)))
    >>> objective = FullyVariationalNCE(model, GaussianEncoder(torch.nn.Linear(5, 4)), standard(5), PowerRule(alpha=0))
    >>> objective(torch.randn(8, 5)).backward()
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder | None,
        noise: NoiseLike,
        rule: ScoringRule,
        *,
        noise_encoder: Encoder | None = None,
        latent_samples: int = 1,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
        allow_non_variational: bool = False,
        variance_reduced: bool = False,
    ) -> None:
        shared = noise_ratio, noise_samples, partition, log_scale
        super().__init__(model, encoder, noise, rule, *shared, noise_encoder, latent_samples)
        if not rule.variational and not allow_non_variational:
            raise ValueError(
                f"rule must have the double-ELBO property, found {rule!r}, whose f0 or f1 is not concave in r, so that "
                "a term would not be a lower bound; choose a PowerRule or a sum of them, VariationalNCE for the "
                "logarithmic rule, or allow_non_variational=True to study it"
            )
        self.allow_non_variational = allow_non_variational
        self.variance_reduced = variance_reduced
        self._known_to_be_covered = False
        if variance_reduced:
            self._check_variance_reduced(log_scale)

    def _check_variance_reduced(self, log_scale: LogScaleLike) -> None:
        power = power_of(self.rule)
        problems = {
            f"rule must be (0, 0), found {self.rule!r}": power is None or power[1] != 0,
            f"partition must be 'fixed', found {self.partition!r}": type(self.partition) is not Fixed,
            f"log_scale must be 0, found {log_scale}": log_scale != 0,
            f"model must be a normalized LatentVariableModel, found {type(self.model).__name__}": not (
                isinstance(self.model, LatentVariableModel) and is_normalized(self.model)
            ),
            "latent_samples must be 1, the closed form is that of one draw": self.latent_samples != 1,
            "noise_encoder must be None, the noise term does not use it": self.noise_encoder is not None,
            "encoder must not be None": self.encoder is None,
        }
        for problem, is_one in problems.items():
            if is_one:
                raise ValueError(f"variance_reduced=True: {problem}")

    def _check_covered(self, q: Distribution, noise: Distribution, context: Tensor | None) -> None:
        """Raise an error unless q covers p_θ(x, ·) and the noise covers p_θ, without which E_noise[r] is not 1."""
        if isinstance(q, PointMass):
            raise ValueError(
                "variance_reduced=True: encoder must be stochastic, found a deterministic one, whose noise term varies"
            )
        likelihood = self.model.decoder(q.mean[:1], *(() if context is None else (context[:1],)))
        if not _covers(noise, likelihood):
            raise ValueError(
                f"variance_reduced=True: noise must cover the model, found {noise!r} for a decoder that gives "
                f"{type(getattr(likelihood, 'base_dist', likelihood)).__name__}"
            )

    def _variance_reduced_terms(self, batch: Batch) -> Terms:
        """Return the evidence lower bound, less log p_n and with a noise term of ν E_noise f0(r/ν) = −1 (Eq. VAE)."""
        x, q, context = batch.x, self._encode(batch.x, batch.context), self._context_of("model", batch.context)
        log_noise_x = self.log_noise(x, batch.context) if batch.log_noise_x is None else batch.log_noise_x
        if not self._known_to_be_covered:
            self._check_covered(q, self.noise_given(batch.context), context)
            self._known_to_be_covered = True
        evidence = evidence_of(self.model, q, x, context)
        weight, _ = power_of(self.rule) or (1.0, 0.0)
        delta = LogRatio(evidence - log_noise_x - math.log(self.noise_ratio))
        delta = check_finite("x", x, delta, log_noise_x, may_be_zero=False)
        loss = -weight * (delta.values.mean() - 1)
        loss = loss if batch.part is None else loss * batch.part.data
        return Terms(loss, weight * delta.values.detach(), None, (delta, None), known_evidence=evidence.detach())


def _covers(noise: Distribution, model: Distribution) -> bool:
    """Return whether the noise has the support of the model or more, and the same base measure."""
    if hasattr(noise, "components"):
        return any(_covers(component, model) for component in noise.components)
    mine, theirs = _base(noise.support), _base(model.support)
    outer, inner = _range(mine), _range(theirs)
    if outer is None or inner is None:
        return repr(mine) == repr(theirs)
    return bool((outer[0] <= inner[0]).all()) and bool((inner[1] <= outer[1]).all())


def _base(support: Any) -> Any:
    return _base(support.base_constraint) if isinstance(support, constraints.independent) else support


def _range(support: Any) -> tuple[Tensor, Tensor] | None:
    """Return the bounds of a continuous support, which may be infinite, or None if it is not an interval."""
    if support in (constraints.real, constraints.real_vector):
        return torch.tensor(-math.inf), torch.tensor(math.inf)
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if getattr(support, "is_discrete", False) or (low is None and high is None):
        return None
    return torch.as_tensor(-math.inf if low is None else low), torch.as_tensor(math.inf if high is None else high)
