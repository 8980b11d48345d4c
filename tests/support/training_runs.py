"""Small runs that several tests share, in this process or in others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce import KernelDensity, PowerRule
from fvnce.models import GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from fvnce.objectives import VAE, FullyVariationalNCE
from fvnce.training import FitOptions

WIDTH = 4


def rows(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, WIDTH, generator=generator) @ torch.randn(WIDTH, WIDTH, generator=generator)


def normal(width: int = WIDTH, scale: float = 1.0) -> Distribution:
    return Independent(Normal(torch.zeros(width), torch.full((width,), scale)), 1)


def model() -> LatentVariableModel:
    return LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 8, WIDTH]), learned="shared"))


def vae(seed: int = 0) -> VAE:
    torch.manual_seed(seed)
    return VAE(model(), GaussianEncoder(mlp([WIDTH, 8, 4])))


def contrastive(seed: int = 0, alpha: float = 0.1, point: bool = False, noise: Any = None, **options: Any) -> Any:
    torch.manual_seed(seed)
    encoder: nn.Module = PointEncoder(mlp([WIDTH, 8, 2])) if point else GaussianEncoder(mlp([WIDTH, 8, 4]))
    chosen = normal(scale=2.0) if noise is None else noise
    return FullyVariationalNCE(model(), encoder, chosen, PowerRule(alpha), **options)


def kernels() -> KernelDensity:
    return KernelDensity(rows(50, seed=9), 0.7)


def digest(module: nn.Module) -> str:
    """Every bit of a module's state."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        found.update(name.encode())
        found.update(value.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def mapped(folder: Path, n: int) -> np.ndarray:
    path = folder / "rows.npy"
    if not path.exists():
        np.save(path, rows(n).numpy())
    return np.load(path, mmap_mode="r")


#: Runs that are killed and resumed: objective, data, and settings of ``fit``.
KILLED: dict[str, Callable[[Path], tuple[nn.Module, Any, dict[str, Any]]]] = {
    "vae on a tensor, mid-epoch checkpoints": lambda _: (
        vae(),
        rows(203),
        {
            "epochs": 14,
            "batch_size": 10,
            "schedule": "cosine",
            "grad_clip": 1.0,
            "options": FitOptions(checkpoint_every=3),
        },
    ),
    "profiled, pool of noise, validation and early stopping": lambda _: (
        contrastive(noise=kernels(), partition="profiled"),
        rows(120),
        {
            "epochs": 16,
            "batch_size": 12,
            "validation": rows(40, seed=1),
            "early_stopping": 14,
            "options": FitOptions(checkpoint_every=4, noise_pool=64),
        },
    ),
    "learned log Z on a memory map, epoch checkpoints": lambda folder: (
        contrastive(partition="learned"),
        mapped(folder, 60),
        {"epochs": 40, "batch_size": 16, "optimizer": "adamw"},
    ),
}
