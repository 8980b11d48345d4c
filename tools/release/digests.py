"""Fingerprints of seeded results, to verify that a change keeps every bit.

    python -m tools.release.digests write      # before: out/digests.json (every bit) and tests/digests.json (summaries)
    python -m tools.release.digests check      # after: fails, with their names, if a bit of one differs

Recorded are the weights of every objective after 20 steps, the scores of fitted detectors, and the paper's table on
digits with tiny settings. Bits depend on the processor, so the file of bits is compared only on the machine that wrote
it and is not part of the repository; the summaries are, and `tests/repository/test_digests.py` holds them to a
tolerance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

import fvnce
from fvnce.models import BinaryEncoder, GaussianDecoder, GaussianEncoder, LatentVariableModel, PointEncoder, mlp
from fvnce.models import RestrictedBoltzmannMachine as Machine

ROOT = Path(__file__).resolve().parents[2]
BITS, SUMMARIES = ROOT / "out" / "digests.json", ROOT / "tests" / "digests.json"
WIDTH, LATENT, ROWS, BATCH, STEPS = 3, 2, 64, 16, 20


def _normal(width: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.full((width,), scale)), 1)


def _data(rows: int = ROWS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=generator) @ torch.randn(WIDTH, WIDTH, generator=generator)


def _model() -> LatentVariableModel:
    return LatentVariableModel(_normal(LATENT), GaussianDecoder(mlp([LATENT, 8, WIDTH]), learned="shared"))


def _encoder() -> GaussianEncoder:
    return GaussianEncoder(mlp([WIDTH, 8, 2 * LATENT]))


def _point() -> PointEncoder:
    return PointEncoder(mlp([WIDTH, 8, LATENT]))


def _energy() -> fvnce.EnergyModel:
    return fvnce.EnergyModel(mlp([WIDTH, 8, 1], nn.SiLU), reference=_normal(WIDTH, 2.0))


def _kernels() -> fvnce.KernelDensity:
    return fvnce.KernelDensity(_data(40, seed=1), 0.7)


def _contrastive(rule: fvnce.PowerRule, **options: Any) -> fvnce.FullyVariationalNCE:
    return fvnce.FullyVariationalNCE(_model(), _encoder(), _kernels(), rule, **options)


def _boltzmann() -> fvnce.VariationalNCE:
    noise = fvnce.noise.BernoulliNoise(torch.full((WIDTH,), 0.5))
    encoder = BinaryEncoder(nn.Linear(WIDTH, LATENT))
    model = Machine(torch.randn(WIDTH, LATENT), torch.zeros(WIDTH), torch.zeros(LATENT))
    return fvnce.VariationalNCE(model, encoder, noise, partition="learned", noise_ratio=2.0)


#: Every objective, each with another treatment of noise, latents and log Z.
OBJECTIVES: dict[str, Callable[[], nn.Module]] = {
    "autoencoder": lambda: fvnce.Autoencoder(_model(), _point()),
    "vae": lambda: fvnce.VAE(_model(), _encoder()),
    "iwae": lambda: fvnce.IWAE(_model(), _encoder(), latent_samples=3),
    "nce, learned": lambda: fvnce.NCE(_energy(), _normal(WIDTH, 2.0), partition="learned"),
    "snce, profiled": lambda: fvnce.NCE(_energy(), _kernels(), fvnce.PowerRule(0.5), partition="profiled"),
    "vnce, fixed": lambda: fvnce.VariationalNCE(_model(), _encoder(), _kernels(), importance_samples=3),
    "vnce, binary": _boltzmann,
    "fvnce (0, 0), fixed": lambda: _contrastive(fvnce.PowerRule(0)),
    "fvnce (0, 0), variance reduced": lambda: _contrastive(fvnce.PowerRule(0), variance_reduced=True),
    "fvnce (1/2, 0), learned": lambda: _contrastive(fvnce.PowerRule(0.5), partition="learned", latent_samples=2),
    "fvnce (0, 1), profiled, two encoders": lambda: _contrastive(
        fvnce.PowerRule(0, 1), partition="profiled", noise_encoder=_encoder(), noise_ratio=2.0
    ),
    "conditional": lambda: fvnce.ConditionalNCE(_energy(), steps=2),
    "ranking": lambda: fvnce.RankingNCE(_energy(), noise=_normal(WIDTH, 2.0), noise_samples=3),
    "fvnce (1/4, 0), energy, fixed scale": lambda: fvnce.FullyVariationalNCE(
        _energy(), None, _kernels(), fvnce.PowerRule(0.25), log_scale=0.5
    ),
}


@contextmanager
def _float64() -> Iterator[None]:
    """Use float64 in the block, so that rounding stays below the tolerance of the summaries."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def weights(name: str) -> Tensor:
    """Return an objective's parameters after some steps of Adam."""
    with _float64(), torch.random.fork_rng():
        torch.manual_seed(0)
        objective = OBJECTIVES[name]()
        data = _data()
        data = (data > 0).to(data.dtype) if "binary" in name else data
        fvnce.fit(objective, data, epochs=STEPS * BATCH // ROWS, batch_size=BATCH, lr=1e-2, seed=0, progress=False)
    return torch.cat([value.detach().double().flatten() for value in objective.parameters()])


def detector_scores(known: bool) -> Tensor:
    """Return scores and probabilities of a detector with or without known outliers."""
    rng = np.random.default_rng(0)
    table = np.concatenate([rng.normal(size=(120, 3)), rng.normal(4, 0.5, size=(12, 3))])
    labels = np.repeat([0, 1], [126, 6]) if known else None
    detector = fvnce.NoiseContrastiveDetector(
        members=("outlier_forest", "network") if known else "auto",
        n_trees=10,
        n_networks=1,
        steps=20,
        expert={"hidden": (16,)},
    ).fit(table, labels)
    return torch.from_numpy(np.concatenate([detector.score_samples(table), detector.outlier_probability(table)]))


def digits_table() -> Tensor:
    """Return every number of the paper's table on digits, with tiny settings."""
    from fvnce.paper.setting import DIGITS, Options, setting_for
    from fvnce.paper.table import measure

    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), setting_for(Options(DIGITS.data, quick=True)), seeds=1)
    columns = ("train", "test", "noise", "final_loss")
    return torch.tensor([cell[column] for cell in measured.values() for column in columns], dtype=torch.float64)


#: What is recorded, and to which relative tolerance its summary holds on another processor: 20 steps in float64 keep
#: their digits; networks in float32 lose some.
RECORDED: dict[str, tuple[Callable[[], Tensor], float]] = {
    **{f"weights: {name}": (lambda name=name: weights(name), 1e-6) for name in OBJECTIVES},
    "detector, known outliers": (lambda: detector_scores(True), 1e-3),
    "detector, none known": (lambda: detector_scores(False), 1e-3),
    "table on digits": (digits_table, 1e-3),
}


def summary(x: Tensor) -> list[float]:
    """Return the number of entries, their mean, root mean square, and a sum that depends on their order."""
    waves = torch.cos(torch.arange(len(x), dtype=x.dtype))
    numbers = (x.mean(), x.square().mean().sqrt(), (x * waves).sum() / math.sqrt(len(x)))
    return [len(x), *(float(f"{float(value):.9g}") for value in numbers)]


def digest(x: Tensor) -> str:
    """Return a digest of every bit."""
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()


def main() -> None:
    """Write the digests, or compare with those written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("write", "check"))
    what = parser.parse_args().what
    if what == "check" and not BITS.exists():
        sys.exit(f"{BITS} must be there to compare with: run python -m tools.release.digests write in the state before")
    results = {name: make() for name, (make, _) in RECORDED.items()}
    bits = {name: digest(x) for name, x in results.items()}
    if what == "check":
        before = json.loads(BITS.read_text())
        changed = sorted(name for name in {*bits, *before} if bits.get(name) != before.get(name))
        sys.exit(f"changed: {'; '.join(changed)}" if changed else 0)
    for path, content in ((BITS, bits), (SUMMARIES, {name: summary(x) for name, x in results.items()})):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(partial, path)


if __name__ == "__main__":
    main()
