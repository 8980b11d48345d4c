"""What ``fvnce.fit`` costs: against a hand-written loop, the bare matrix products, pythae's trainer, and a VAE.

Run on an idle machine with

    python benchmarks/training.py --out results/bench/training.json

The network is 784-256-128-256-784, batches of 128. All contenders run in one process, in turns of many epochs of 20
steps each, and the best epoch counts: a shared machine is quick and slow by turns, and what is compared is the quick.
(Where a pool is renewed, which happens now and then, it is the median epoch of both.) Ratios are what to look at.
pythae is measured if it can be imported. The time from the start of Python to the end of the first step is measured in
processes of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from fvnce import KernelDensity, PowerRule
from fvnce.models import GaussianDecoder, GaussianEncoder, LatentVariableModel, mlp
from fvnce.objectives import VAE, FullyVariationalNCE
from fvnce.training import fit, supply
from fvnce.training.supply import RENEWAL_SHARE

WIDTH, HIDDEN, CODE, BATCH = 784, 256, 128, 128
EPOCHS = 30


def images(n: int) -> Tensor:
    """Rows of numbers in [0, 1] with the spread of digits."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(n, 40, generator=generator) @ torch.randn(40, WIDTH, generator=generator) / 12
    return mixed.sub_(0.25).clamp_(0, 1)


def vae_parts(scale: float) -> tuple[LatentVariableModel, GaussianEncoder]:
    """The model and the encoder."""
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(CODE), torch.ones(CODE)), 1)
    decoder = GaussianDecoder(mlp([CODE, HIDDEN, WIDTH]), scale)
    return LatentVariableModel(prior, decoder), GaussianEncoder(mlp([WIDTH, HIDDEN, 2 * CODE]))


def bare_products(steps: int) -> Callable[[], float]:
    """The matrix products of a step, forward and backward, and nothing else."""
    shapes = [(WIDTH, HIDDEN), (HIDDEN, 2 * CODE), (CODE, HIDDEN), (HIDDEN, WIDTH)]
    tensors = [(torch.randn(BATCH, i), torch.randn(o, i), torch.randn(BATCH, o)) for i, o in shapes]

    def run() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            for _ in range(steps):
                for position, (x, w, g) in enumerate(tensors):
                    torch.mm(x, w.t())
                    torch.mm(g.t(), x)
                    if position:
                        torch.mm(g, w)
        return time.perf_counter() - start

    return run


class HandWritten(nn.Module):
    """A VAE as short as it gets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        mean, log_scale = self.encoder(x).chunk(2, -1)
        scale = log_scale.exp()
        z = mean + scale * torch.randn_like(scale)
        fit = -32.0 * (x - self.decoder(z)).square().sum(-1)
        divergence = 0.5 * (mean.square() + scale.square() - 1).sum(-1) - log_scale.sum(-1)
        return (divergence - fit).mean()


def hand_loop(data: Tensor) -> Callable[[], float]:
    """A minimal loop: fused Adam, batches by index."""
    model = HandWritten()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def run() -> float:
        start = time.perf_counter()
        order = torch.randperm(len(data))
        for low in range(0, len(data), BATCH):
            loss = model(data[order[low : low + BATCH]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return time.perf_counter() - start

    return run


def ours(
    objective: nn.Module, data: Tensor, *, name: str = "", renewal: float = RENEWAL_SHARE, every: int = 50
) -> Callable[[], list[float]]:
    """``fit``, each of its epochs; what comes before the first step is told of apart."""

    def run() -> list[float]:
        # Noise that is live, or dead, shall stay so: a learning rate of 0 costs what any other does.
        rate = 0.0 if name else 1e-3
        supply.RENEWAL_SHARE = renewal
        history = fit(
            objective, data, epochs=EPOCHS, batch_size=BATCH, lr=rate, seed=0, progress=False, log_every=every
        )
        if name:
            last = history.epochs.last()
            NOTES[name] = {**history.notes, "live_noise": last["live_noise"], "zero_noise": last["zero_noise"]}
        return [len(data) / rate for rate in history.epochs["samples_per_second"]]

    return run


LIVE_NOISE, DEAD_NOISE = "fit, fvNCE, every noise sample live", "fit, fvNCE, none live"
OLD_NOISE = "fit, fvNCE, every one live, pool kept"
PLAIN, WATCHED = "fit, fvNCE, 2,000 centres", "  the same, statistics at every step"
NOTES: dict[str, dict[str, float]] = {}


def pythae_trainer(data: Tensor) -> Callable[[], float] | None:
    """pythae's trainer on the same network, if pythae is there."""
    if importlib.util.find_spec("pythae") is None:
        return None
    logging.disable(logging.WARNING)
    from pythae.data.datasets import BaseDataset
    from pythae.models import VAE as TheirVAE
    from pythae.models import VAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder, BaseEncoder
    from pythae.trainers import BaseTrainer, BaseTrainerConfig

    class Encoder(BaseEncoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU())
            self.mean, self.log_var = nn.Linear(HIDDEN, CODE), nn.Linear(HIDDEN, CODE)

        def forward(self, x: Tensor) -> Any:
            hidden = self.body(x)
            return ModelOutput(embedding=self.mean(hidden), log_covariance=self.log_var(hidden))

    class Decoder(BaseDecoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

        def forward(self, z: Tensor) -> Any:
            return ModelOutput(reconstruction=self.body(z))

    model = TheirVAE(VAEConfig(input_dim=(WIDTH,), latent_dim=CODE), encoder=Encoder(), decoder=Decoder())
    folder = tempfile.mkdtemp()
    config = BaseTrainerConfig(
        output_dir=folder, num_epochs=1, per_device_train_batch_size=BATCH, learning_rate=1e-3, no_cuda=True
    )
    dataset = BaseDataset(data, torch.ones(len(data)))

    def run() -> float:
        trainer = BaseTrainer(model=model, train_dataset=dataset, training_config=config)
        trainer.prepare_training()
        start = time.perf_counter()
        trainer.train_step(epoch=1)
        return time.perf_counter() - start

    return run


STARTUP = {
    "bare torch": """
import torch
from torch import nn
x = torch.rand(256, 784)
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 784))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
loss = (model(x[:128]) - x[:128]).square().mean()
loss.backward()
optimizer.step()
""",
    "fvnce.fit": """
import torch
from torch import nn
from fvnce.training import fit, supply
from fvnce.training.supply import RENEWAL_SHARE
class Objective(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 784))
    def forward(self, x):
        return (self.model(x) - x).square().mean()
fit(Objective(), torch.rand(128, 784), epochs=1, seed=0)
""",
}


def startup(repeats: int) -> dict[str, float]:
    """Seconds from the start of Python to the end of the first step, best of several."""
    times = dict.fromkeys(STARTUP, math.inf)
    for _ in range(repeats):
        for name, code in STARTUP.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
            times[name] = min(times[name], time.perf_counter() - start)
    return times


VAE_FIT = "fit, VAE"


def repeated(run: Callable[[], float] | None) -> Callable[[], list[float]] | None:
    """A turn of as many epochs as ``fit`` has."""
    return None if run is None else lambda: [run() for _ in range(EPOCHS)]


def measure(rows: int, centres: int, repeats: int, noise_repeats: int) -> dict[str, list[float]]:
    """Seconds of every epoch of every contender."""
    data = images(rows)
    near, far, few = (KernelDensity(images(n), h) for n, h in ((centres, 1.0), (centres, 0.25), (2000, 1.0)))
    rule = PowerRule(0.0)

    def live(noise: KernelDensity, name: str, renewal: float = 0.0, every: int = 50) -> Callable[[], list[float]]:
        # Untrained, log r of this noise is about −100; the scale puts it near 0.
        objective = FullyVariationalNCE(*vae_parts(1.0), noise, rule, log_scale=90.0)
        return ours(objective, data, name=name, renewal=renewal, every=every)

    contenders: dict[str, Callable[[], list[float]] | None] = {
        "bare products": repeated(bare_products(math.ceil(rows / BATCH))),
        "hand-written loop": repeated(hand_loop(data)),
        VAE_FIT: ours(VAE(*vae_parts(1 / 8)), data),
        "pythae": repeated(pythae_trainer(data)),
        PLAIN: live(few, PLAIN),
        WATCHED: live(few, WATCHED, every=1),
        DEAD_NOISE: ours(FullyVariationalNCE(*vae_parts(1 / 8), far, rule), data, name=DEAD_NOISE),
        OLD_NOISE: live(near, OLD_NOISE),
        LIVE_NOISE: live(near, LIVE_NOISE, renewal=RENEWAL_SHARE),
    }
    found: dict[str, list[float]] = {}
    for turn in range(repeats):
        for name, run in contenders.items():
            if run is not None and (turn < noise_repeats or name not in (LIVE_NOISE, OLD_NOISE, DEAD_NOISE)):
                found.setdefault(name, []).extend(run())
    return found


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=2560)
    parser.add_argument("--centres", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--noise-repeats", type=int, default=5)
    parser.add_argument("--startup", type=int, default=3, help="runs of each start-up, 0 for none")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.centres, options.repeats, options.noise_repeats, options.startup = 256, 300, 1, 1, 0
    found = measure(options.rows, options.centres, options.repeats, options.noise_repeats)
    best = {name: min(seconds) for name, seconds in found.items()}
    print(f"{'':42} samples/s   share of bare products")
    for name, seconds in best.items():
        print(f"{name:42} {options.rows / seconds:9,.0f}   {best['bare products'] / seconds:.2f}")
    vae = best[VAE_FIT]
    ratios = {
        "fit / hand-written loop (target >= 0.97)": best["hand-written loop"] / vae,
        "share of the bare products (aim 0.65)": best["bare products"] / vae,
        "statistics at every step / at every 50th (target <= 1.02)": best[WATCHED] / best[PLAIN],
    }
    if options.noise_repeats:
        medians = statistics.median(found[LIVE_NOISE]) / statistics.median(found[VAE_FIT])
        ratios["fvNCE, all live, pool renewed / VAE time (target <= 2.4)"] = medians
        ratios["fvNCE, all live, pool kept / VAE time (target <= 2.2)"] = best[OLD_NOISE] / vae
        ratios["fvNCE, none live / VAE time (target <= 1.5)"] = best[DEAD_NOISE] / vae
    if "pythae" in best:
        ratios["fit / pythae (target >= 1.5)"] = best["pythae"] / vae
    if options.startup:
        times = startup(options.startup)
        ratios["start-up / bare torch (target <= 1.3)"] = times["fvnce.fit"] / times["bare torch"]
    for name, ratio in ratios.items():
        print(f"{name:60} {ratio:.3f}")
    print("before training:", json.dumps(NOTES, indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "ratios": ratios,
            "seconds": best,
            "median_seconds": {name: statistics.median(seconds) for name, seconds in found.items()},
            "epochs_measured": {name: len(seconds) for name, seconds in found.items()},
            "rows": options.rows,
            "centres": options.centres,
            "before_training": NOTES,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine(),
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
