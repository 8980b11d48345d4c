"""What a run is a function of, beside objective, data and seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _checks
from .optimiser import OptimizerLike, ScheduleLike


@dataclass(frozen=True)
class Settings:
    """What a run is a function of, beside objective and data. See :func:`fit`."""

    epochs: int
    batch_size: int
    optimizer: OptimizerLike
    lr: float
    schedule: ScheduleLike
    grad_clip: float | None
    noise_pool: int | None
    log_every: int
    validate_every: int
    checkpoint_every: int | None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "log_every", "validate_every"):
            _checks.count(name, getattr(self, name))
        _checks.number("lr", self.lr, low=0.0)
        if self.grad_clip is not None:
            _checks.number("grad_clip", self.grad_clip, low=0.0, open_low=True)
        if self.noise_pool is not None:
            _checks.count("noise_pool", self.noise_pool, low=0)
        if self.checkpoint_every is not None:
            _checks.count("checkpoint_every", self.checkpoint_every)

    def resume_key(self) -> dict[str, Any]:
        """Settings that a resumed run must share with the one it continues."""
        named: dict[str, Any] = {
            "batch_size": self.batch_size,
            "optimizer": _text(self.optimizer),
            "lr": float(self.lr),
            "schedule": _text(self.schedule),
            "grad_clip": self.grad_clip,
            "noise_pool": self.noise_pool,
        }
        if self.schedule not in (None, "constant"):
            named["epochs"] = self.epochs
        return named


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else getattr(value, "__qualname__", type(value).__name__)
