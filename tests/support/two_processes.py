"""Runs whose result must not depend on the number of processes. Called with (results folder, devices or "torchrun").

The noise of step k is a table that all processes cut their part from, so two processes with batches of b see the
samples that one process with batches of 2b sees.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from fvnce import PowerRule
from fvnce.models import GaussianEncoder, PointEncoder, WithContext, mlp
from fvnce.objectives import VAE, ConditionalNCE, FullyVariationalNCE, RankingNCE
from fvnce.training import FitOptions, fit
from fvnce.training.ddp import bounds
from training_runs import WIDTH, digest, model, rows

WIDE = 14
HELD_OUT = 31
ROWS = 47  # 3 steps of 14 and a last one of 5, of which one process gets 3 and the other 2


class Table(Independent):
    """A Gaussian whose k-th draw is the k-th table; ``far`` puts the second half of each table where r underflows.

    With ``of_rows`` a process has the samples of its own rows, as it does where these have contexts.
    """

    def __init__(self, noise_ratio: float, far: bool = False, of_rows: bool = False) -> None:
        super().__init__(Normal(torch.zeros(WIDTH), torch.full((WIDTH,), 2.0)), 1)
        self.noise_ratio = noise_ratio
        self.far, self.of_rows = far, of_rows
        self.calls = 0

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        step, self.calls = self.calls - 1, self.calls + 1
        per_epoch = -(-ROWS // WIDE)
        data = WIDE if step % per_epoch < per_epoch - 1 else ROWS - WIDE * (per_epoch - 1)
        data = HELD_OUT if step < 0 else data  # validation draws its noise first
        world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        wide = max(world, round(self.noise_ratio * data))
        table = torch.randn(wide, WIDTH, generator=torch.Generator().manual_seed(step + 1), dtype=torch.float64) * 2
        if self.far:
            table[-(wide // 2) :] += 1e3
        low, high = bounds(wide, rank, world)
        if self.of_rows and step >= 0:
            low, high = (round(self.noise_ratio * row) for row in bounds(data, rank, world))
        if n != high - low:
            raise RuntimeError(f"process {rank} asked for {n} samples, its part is {high - low}")
        return table[low:high].to(self.base_dist.loc.dtype)


def point() -> PointEncoder:
    return PointEncoder(mlp([WIDTH, 8, 2]))


def contrastive(rule: Any, noise: Distribution, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return FullyVariationalNCE(model(), point(), noise, rule, **options)


def elbo() -> nn.Module:
    torch.manual_seed(0)
    return VAE(model(), point())


class Ahead(Independent):
    """A step that is not drawn, so that it does not depend on which process takes it."""

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return (self.base_dist.loc + self.base_dist.loc.sin()).expand(*sample_shape, *self.base_dist.loc.shape)


def conditional() -> nn.Module:
    torch.manual_seed(0)
    return ConditionalNCE(model(), point(), lambda x: Ahead(Normal(x, 0.5 + x.abs()), 1))


def ranking() -> nn.Module:
    torch.manual_seed(0)
    return RankingNCE(model(), point(), Table(3.0), noise_samples=3)


def given_context(kind: str) -> nn.Module:
    torch.manual_seed(0)
    encoder = PointEncoder(WithContext(mlp([WIDTH + 2, 8, 2])))
    return RankingNCE(model(), encoder, Table(3.0, of_rows=True), 3) if kind == "ranking" else VAE(model(), encoder)


class Plain(nn.Module):
    """A user's own objective."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = mlp([WIDTH, 5, 1])

    def forward(self, x: Tensor) -> Tensor:
        return (self.network(x) - x.sum(-1, keepdim=True)).square().mean()


CASES: dict[str, Any] = {
    "plain": Plain,
    "vae": elbo,
    "conditional": conditional,
    "ranking": ranking,
    "ranking, context": lambda: given_context("ranking"),
    "vae, context": lambda: given_context("vae"),
    "fixed": lambda: contrastive(PowerRule(0.1), Table(0.5), noise_ratio=0.5),
    "fixed, one process without live noise": lambda: contrastive(PowerRule(0.1), Table(1.0, far=True)),
    "own encoder of the noise, not live": lambda: contrastive(
        PowerRule(0.1), Table(1.0, far=True), noise_encoder=point()
    ),
    "learned": lambda: contrastive(PowerRule(0.1), Table(1.5), noise_ratio=1.5, partition="learned"),
    "profiled": lambda: contrastive(PowerRule(0.1), Table(0.5), noise_ratio=0.5, partition="profiled"),
    "profiled, (0, 0)": lambda: contrastive(PowerRule(0), Table(1.5), noise_ratio=1.5, partition="profiled"),
    "profiled by a root": lambda: contrastive(PowerRule(0.2, 0.5), Table(0.5), noise_ratio=0.5, partition="profiled"),
    "few noise samples of great weight": lambda: contrastive(
        PowerRule(0.1), Table(0.5), noise_ratio=5.0, noise_samples=0.5
    ),
    "log-scale by a budget": lambda: contrastive(PowerRule(0, clip=0.0), Table(1.0), log_scale="auto"),
    "profiled, one process without live noise": lambda: contrastive(
        PowerRule(0.1), Table(1.0, far=True), partition="profiled"
    ),
}


def trained(name: str, precision: str, processes: int, how: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """Weights after two epochs of plain gradient descent: equal gradients make equal weights."""
    objective = CASES[name]()
    data: Any = [rows(ROWS).double(), rows(HELD_OUT, seed=3).double()]
    if name.endswith("context"):
        data = [(x, x[:, :2].cos()) for x in data]
    history = fit(
        objective,
        data[0],
        epochs=2,
        batch_size=WIDE // processes,
        validation=None if name == "plain" else data[1],
        optimizer="sgd",
        lr=0.01,
        seed=1,
        precision=precision,
        progress=False,
        accelerator="cpu",
        options=replace(how["options"], noise_pool=0),
    )
    return {key: value.clone() for key, value in objective.named_parameters()}, history


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    how: dict[str, Any] = {"accelerator": "cpu", "options": FitOptions()}
    if sys.argv[2] != "torchrun":
        how["options"] = FitOptions(devices=int(sys.argv[2]), strategy="ddp" if sys.argv[2] == "2" else "auto")
    processes = 1 if sys.argv[2] == "1" else 2
    chosen = list(CASES) if sys.argv[2] != "torchrun" else ["profiled"]
    tensors: dict[str, Tensor] = {}
    losses: dict[str, Any] = {}
    for precision in ("32-true", "64-true") if sys.argv[2] != "torchrun" else ("64-true",):
        for name in chosen:
            weights, history = trained(name, precision, processes, how)
            tensors |= {f"{precision}|{name}|{key}": value for key, value in weights.items()}
            validated = history.epochs.to_dict().get("val_loss", [])
            losses[f"{precision}|{name}"] = [history.steps["loss"], history.epochs["loss"], validated]
    if sys.argv[2] != "torchrun":
        losses["spread"] = spread(processes, how)
    rank = dist.get_rank() if dist.is_initialized() else 0
    if processes == 2 and sys.argv[2] != "torchrun":
        losses["resumed"] = resumed(folder, how)
        losses["streams"] = streams(how)
    save_file(tensors, folder / f"{sys.argv[2]}-{rank}.safetensors")
    (folder / f"{sys.argv[2]}-{rank}.json").write_text(json.dumps(losses))


def resumed(folder: Path, how: dict[str, Any]) -> list[str]:
    """Digests of a run in one piece and of one in two pieces; its latents and noise are random."""
    found = []
    for pieces in ([4], [2, 4]):
        for epochs in pieces:
            torch.manual_seed(0)
            objective = FullyVariationalNCE(
                model(),
                GaussianEncoder(mlp([WIDTH, 8, 4])),
                Independent(Normal(torch.zeros(WIDTH), 2.0), 1),
                PowerRule(0.1),
            )
            place = folder / f"resumed-{len(pieces)}"
            fit(objective, rows(ROWS), epochs=epochs, batch_size=7, seed=2, checkpoint_dir=place, resume=True, **how)
        found.append(digest(objective))
    return found


def spread(processes: int, how: dict[str, Any]) -> list[float]:
    """By which conditional NCE scales its steps: the spread of the first batch of all processes together."""
    torch.manual_seed(0)
    objective = ConditionalNCE(model(), point())
    fit(objective, rows(ROWS), epochs=1, batch_size=WIDE // processes, seed=1, precision="64-true", **how)
    found: list[float] = objective.spread.tolist()
    return found


def streams(how: dict[str, Any]) -> list[float]:
    """First random numbers that an objective on this process sees."""
    seen: list[float] = []

    class Spy(Plain):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(float(torch.rand(())))
            return super().forward(x)

    fit(Spy(), rows(ROWS), epochs=1, batch_size=7, seed=2, **how)
    return seen


if __name__ == "__main__":
    main()
