"""A normalising flow, fitted to data by maximum likelihood, as noise: near the data and cheap, with a known density.

Its cost does not grow with the data, which is why it replaces a kernel density on large sets. Needs zuko, the ``flows``
extra.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from . import randomness
from .batches import Rows
from .loop import fit


class _Likelihood(nn.Module):
    """−log p of standardised rows under a flow."""

    shift: Tensor
    scale: Tensor

    def __init__(self, flow: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.flow = flow
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over a batch."""
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
    **options: Any,
) -> Distribution:
    """A flow fitted to the rows of X, as a distribution over rows.

    Args:
        X: rows, shape (n, D).
        kind: the family of zuko: neural splines, masked autoregressive, or coupling.
        transforms: how many.
        hidden: hidden layers of each.
        epochs: passes over the data.
        seed: of initial weights and of training; by default drawn from torch's global generator.
        **options: whatever :func:`fvnce.fit` takes, such as ``validation`` and ``early_stopping``.

    Returns:
        A torch distribution whose parameters are no longer trained. Mix it with a kernel density of the data if it must
        cover every row.
    """
    zuko = _zuko()
    rows = Rows(X, torch.get_default_dtype(), name="X")
    data = rows.slice(0, len(rows))
    _checks.table("X", data, rows=2)
    _checks.choice("kind", kind, ("NSF", "MAF", "NICE"))
    seed = int(torch.randint(2**31 - 1, ())) if seed is None else _checks.count("seed", seed, low=0)
    with randomness.preserve_rng_state():
        torch.manual_seed(seed)
        flow = getattr(zuko.flows, kind)(data.shape[1], transforms=transforms, hidden_features=hidden)
    # A constant column has no scale of its own.
    scale = data.std(0).clamp(min=1e-6)
    objective = _Likelihood(flow, data.mean(0), scale)
    fit(objective, data, epochs=epochs, seed=seed, **options)
    objective.cpu().requires_grad_(False).eval()
    affine = torch.distributions.AffineTransform(objective.shift, objective.scale, event_dim=1)
    inside: Distribution = objective.flow()
    return torch.distributions.TransformedDistribution(inside, [affine], validate_args=False)


def _zuko() -> Any:
    # zuko turns off the checks of all of torch's distributions when it is imported; they are turned on again.
    before = Distribution._validate_args
    try:
        import zuko
    except ImportError:
        raise ImportError("fit_flow needs the zuko package: pip install 'fvnce[flows]'") from None
    finally:
        Distribution.set_default_validate_args(before)
    return zuko
