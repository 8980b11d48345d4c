"""What a step of ``fvnce.fit`` costs on small networks, against the loop that one would write by hand.

    OMP_NUM_THREADS=1 python benchmarks/small_models.py --out results/bench/small_models.json

After each epoch of ``fit`` comes one of the hand-written loop, in one process; a ratio is the median over these pairs
of the processor's seconds. Both draw fresh noise, evaluate its density, run data and noise through the networks in one
pass, take a step of fused Adam and read the loss. The loop checks nothing.

Takes about 3 minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.functional import softplus

from fvnce import (
    NCE,
    VAE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PowerRule,
    fit,
    fit_gaussian,
    mlp,
)
from fvnce.paper.cells import made_by, write_json
from fvnce.training import Callback

BATCH = 128
#: Columns, hidden units and latents.
SIZES = (10, 64, 4), (784, 256, 32)
LOG_2PI = math.log(2 * math.pi)
Contender = tuple[nn.Module, Callable[[Tensor], Tensor], list[nn.Parameter]]


def network(*sizes: int) -> nn.Module:
    """Return the same network for both contenders."""
    torch.manual_seed(0)
    return mlp(sizes)


def data_of(columns: int, rows: int) -> Tensor:
    """Return rows with correlated columns."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(columns, columns, generator=generator) / math.sqrt(columns)
    return torch.randn(rows, columns, generator=generator) @ mixing


def nce(data: Tensor, hidden: int) -> Contender:
    """An energy with a learned log Z against a Gaussian."""
    columns, noise = data.shape[1], fit_gaussian(data)
    ours = NCE(EnergyModel(network(columns, hidden, hidden, 1)), noise, partition="learned")
    energy, c = network(columns, hidden, hidden, 1), nn.Parameter(torch.zeros(()))

    def loss(x: Tensor) -> Tensor:
        both = torch.cat([x, noise.sample(torch.Size((len(x),)))])
        delta = -energy(both).squeeze(-1) - c - noise.log_prob(both)
        return softplus(-delta[: len(x)]).mean() + softplus(delta[len(x) :]).mean()

    return ours, loss, [*energy.parameters(), c]


def latent(columns: int, hidden: int, latents: int) -> tuple[LatentVariableModel, GaussianEncoder]:
    """Return a model and an encoder."""
    prior = Independent(Normal(torch.zeros(latents), torch.ones(latents)), 1)
    model = LatentVariableModel(prior, GaussianDecoder(network(latents, hidden, columns)))
    return model, GaussianEncoder(network(columns, hidden, 2 * latents))


def vae(data: Tensor, hidden: int, latents: int) -> Contender:
    """A small variational autoencoder, for timing."""
    columns = data.shape[1]
    encoder, decoder = network(columns, hidden, 2 * latents), network(latents, hidden, columns)

    def loss(x: Tensor) -> Tensor:
        mean, log_scale = encoder(x).chunk(2, -1)
        scale = log_scale.exp()
        z = mean + scale * torch.randn_like(scale)
        log_p = -0.5 * (x - decoder(z)).square().sum(-1) - 0.5 * columns * LOG_2PI
        divergence = (0.5 * (mean.square() + scale.square() - 1) - log_scale).sum(-1)
        return (divergence - log_p).mean()

    return VAE(*latent(columns, hidden, latents)), loss, [*encoder.parameters(), *decoder.parameters()]


def fvnce(data: Tensor, hidden: int, latents: int) -> Contender:
    """The rule (0, 0) with a bound on both terms."""
    columns, noise = data.shape[1], fit_gaussian(data)
    encoder, decoder = network(columns, hidden, 2 * latents), network(latents, hidden, columns)

    def loss(x: Tensor) -> Tensor:
        both = torch.cat([x, noise.sample(torch.Size((len(x),)))])
        mean, log_scale = encoder(both).chunk(2, -1)
        drawn = torch.randn_like(mean)
        z = mean + log_scale.exp() * drawn
        log_p = -0.5 * (both - decoder(z)).square().sum(-1) - 0.5 * columns * LOG_2PI
        delta = log_p + (0.5 * (drawn.square() - z.square()) + log_scale).sum(-1) - noise.log_prob(both)
        return -(delta[: len(x)].mean() - delta[len(x) :].exp().mean())

    ours = FullyVariationalNCE(*latent(columns, hidden, latents), noise, PowerRule(0.0))
    return ours, loss, [*encoder.parameters(), *decoder.parameters()]


def contenders(rows: int) -> Iterator[tuple[str, Tensor, Contender]]:
    """Yield the comparisons one by one."""
    for columns, hidden, latents in SIZES:
        data = data_of(columns, rows)
        yield f"NCE, D = {columns}", data, nce(data, hidden)
        yield f"VAE, D = {columns}", data, vae(data, hidden, latents)
        yield f"fvNCE, D = {columns}", data, fvnce(data, hidden, latents)


class Pairs(Callback):
    """After every epoch of ``fit`` an epoch of the loop, and the processor's seconds of both."""

    def __init__(self, data: Tensor, loss: Callable[[Tensor], Tensor], parameters: list[nn.Parameter]) -> None:
        self.data, self.loss = data, loss
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
        self.seconds: list[tuple[float, float]] = []

    def before_epoch(self, trainer: Any) -> None:
        """Start measuring CPU seconds now."""
        self.begun = time.process_time()

    def epoch(self, trainer: Any) -> None:
        """Stop it, and run the loop."""
        ended = time.process_time()
        for index in torch.randperm(len(self.data)).split(BATCH):
            loss = self.loss(self.data[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
        self.seconds.append((ended - self.begun, time.process_time() - ended))


def main() -> None:
    """Print the ratios and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=3200)
    parser.add_argument("--epochs", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made, begun = made_by(" ".join(["python", *sys.argv])), time.process_time()
    found: dict[str, dict[str, float]] = {}
    for name, data, (ours, loss, parameters) in contenders(options.rows):
        pairs = Pairs(data, loss, parameters)
        # Noise of fvNCE is live before training, and shall stay so.
        lr = 0.0 if name.startswith("fvNCE") else 1e-3
        fit(ours, data, epochs=options.epochs + 1, batch_size=BATCH, lr=lr, seed=0, progress=False, callbacks=[pairs])
        seconds = pairs.seconds[1:]
        quartiles = statistics.quantiles([mine / theirs for mine, theirs in seconds], n=4)
        found[name] = dict(zip(("lower quartile", "ratio", "upper quartile"), quartiles, strict=True))
        print(f"{name:16} {found[name]['ratio']:.2f} ({quartiles[0]:.2f} to {quartiles[2]:.2f})", flush=True)
    if options.out is not None:
        record = made | {"rows": options.rows, "epochs": options.epochs, "seed": 0}
        machine = {"machine": platform.processor() or platform.machine(), "threads": 1}
        # Where other programs fill the caches, code with more instructions loses more.
        how = {"processor_minutes": round((time.process_time() - begun) / 60, 1), "load_average": os.getloadavg()[1]}
        write_json(options.out, {**record, **machine, **how, "fit / hand-written loop": found})


if __name__ == "__main__":
    main()
