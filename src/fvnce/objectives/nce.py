"""NCE where the marginal is tractable, and variational NCE, whose noise term is not a bound: to compare with."""

from __future__ import annotations

from typing import Any

from torch.distributions import Distribution

from .. import _checks
from ..scoring import Logarithmic, ScoringRule
from .contrastive import ContrastiveObjective, LogScaleLike, PartitionName
from .log_partition import Partition
from .ratios import Encoder


class SNCE(ContrastiveObjective):
    """NCE with any proper scoring rule, for a model with a tractable ``log_prob(x)`` (Eq. S_NCE).

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import PowerRule
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> objective = SNCE(normal, normal, PowerRule(alpha=1))
    >>> objective(torch.zeros(4, 2), torch.ones(4, 2))  # r = 1 everywhere: f1 = 0, f0 = −1/2
    tensor(0.5000)
    """

    def __init__(
        self,
        model: Any,
        noise: Distribution,
        rule: ScoringRule,
        *,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        super().__init__(
            model,
            None,
            noise,
            rule,
            noise_ratio=noise_ratio,
            noise_samples=noise_samples,
            partition=partition,
            log_scale=log_scale,
        )


class NCE(SNCE):
    """Noise-contrastive estimation with the logarithmic rule (Eq. NCE): logistic regression of data against noise.

    With ``noise_ratio=M`` and ``noise_samples=1`` it is noisier NCE: the noise drawn counts as if there were M times as
    much of it. As M grows the gradient tends to that of maximum likelihood, at a distance of order 1/M, while its
    variance grows, at most like M.

    >>> import torch
    >>> from torch.distributions import Independent, Normal
    >>> normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> NCE(normal, normal)(torch.zeros(4, 2), torch.ones(4, 2))  # 2 log 2
    tensor(1.3863)
    """

    def __init__(
        self,
        model: Any,
        noise: Distribution,
        *,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        super().__init__(
            model,
            noise,
            Logarithmic(),
            noise_ratio=noise_ratio,
            noise_samples=noise_samples,
            partition=partition,
            log_scale=log_scale,
        )


class VariationalNCE(ContrastiveObjective):
    """Variational NCE (Rhodes & Gutmann 2019): the logarithmic rule, with a bound on the data term only.

    The noise term, which has no bound, is estimated by importance sampling: f0(log mean of r over draws of q0). A
    discrete latent with few values is summed over instead, which makes it exact.

    Args:
        model: p_θ with ``log_joint(x, z)``.
        encoder: q1(z|x).
        noise: p_n.
        noise_encoder: the importance distribution of the noise term, by default the encoder.
        latent_samples: draws that the data term is averaged over.
        importance_samples: draws inside the noise term.
        noise_ratio: ν, the weight of the noise term.
        noise_samples: noise samples drawn for each data sample, by default ν of them.
        partition: ``"fixed"`` or ``"learned"``.
        log_scale: s of Δ = Δ⁰ + s, for the fixed partition; "auto" finds it from a budget on the data's error, see
            :class:`~fvnce.objectives.Budgeted`.

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
        noise: Distribution,
        *,
        noise_encoder: Encoder | None = None,
        latent_samples: int = 1,
        importance_samples: int = 10,
        noise_ratio: float = 1.0,
        noise_samples: float | None = None,
        partition: PartitionName | Partition = "fixed",
        log_scale: LogScaleLike = 0.0,
    ) -> None:
        super().__init__(
            model,
            encoder,
            noise,
            Logarithmic(),
            noise_encoder=noise_encoder,
            latent_samples=latent_samples,
            noise_ratio=noise_ratio,
            noise_samples=noise_samples,
            partition=partition,
            log_scale=log_scale,
        )
        self.importance_samples = _checks.count("importance_samples", importance_samples)

    _noise_is_marginal = True
    _data_is_averaged_outside = True

    @property
    def noise_latent_samples(self) -> int:
        """Draws inside the noise term."""
        return self.importance_samples
