"""Cost of ``fvnce.fit`` compared with a hand-written loop, the bare matrix products, pythae's trainer, and a VAE.

Run on an idle machine with

    python benchmarks/training.py --out results/bench/training.json

The network is 784-256-128-256-784, batches of 128. As the speed of a shared machine varies, contenders alternate in one
process, one epoch each; a ratio is the median over pairs of epochs. (With a renewed pool it is the ratio of the sums.)
pythae is measured if it is installed. The time from the start of Python to the end of the first step is measured in
separate processes.

Takes about 10 minutes on two cores.
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
from fvnce.paper.cells import made_by, write_json
from fvnce.training import Callback, FitOptions, batches, fit
from fvnce.training.batches import RENEWAL_FRACTION

WIDTH, HIDDEN, CODE, BATCH = 784, 256, 128, 128


def images(n: int) -> Tensor:
    """Return rows of numbers in [0, 1] with the spread of digits."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(n, 40, generator=generator) @ torch.randn(40, WIDTH, generator=generator) / 12
    return mixed.sub_(0.25).clamp_(0, 1)


def vae_parts(scale: float) -> tuple[LatentVariableModel, GaussianEncoder]:
    """Return the model and the encoder."""
    torch.manual_seed(0)
    prior = Independent(Normal(torch.zeros(CODE), torch.ones(CODE)), 1)
    decoder = GaussianDecoder(mlp([CODE, HIDDEN, WIDTH]), scale)
    return LatentVariableModel(prior, decoder), GaussianEncoder(mlp([WIDTH, HIDDEN, 2 * CODE]))


def bare_products(steps: int) -> Callable[[], float]:
    """Return a function that times only the matrix products of a step, forward and backward."""
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
    """Minimal hand-written VAE for comparison."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of the VAE."""
        mean, log_scale = self.encoder(x).chunk(2, -1)
        scale = log_scale.exp()
        z = mean + scale * torch.randn_like(scale)
        fit = -32.0 * (x - self.decoder(z)).square().sum(-1)
        divergence = 0.5 * (mean.square() + scale.square() - 1).sum(-1) - log_scale.sum(-1)
        return (divergence - fit).mean()


def hand_loop(data: Tensor) -> Callable[[], float]:
    """Return a minimal training loop: fused Adam, batches by index."""
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


class Beside(Callback):
    """Callback that runs one epoch of each contender after every epoch of a run, in rotating order."""

    def __init__(self, others: dict[str, Callable[[], float]]) -> None:
        self.others = others
        self.seconds: dict[str, list[float]] = {name: [] for name in others}

    def epoch(self, trainer: Any) -> None:
        """Time one epoch of each contender."""
        names = list(self.others)
        first = trainer.epoch % len(names) if names else 0
        for name in names[first:] + names[:first]:
            self.seconds[name].append(self.others[name]())


def ours(
    name: str,
    objective: nn.Module,
    data: Tensor,
    epochs: int,
    others: dict[str, Callable[[], float]],
    *,
    renewal: float = RENEWAL_FRACTION,
    every: int = 50,
) -> dict[str, list[float]]:
    """Return the seconds of each epoch of ``fit`` and of the other contenders; setup time is separate."""
    # The learning rate is 0, so that live or dead noise stays so; this does not change the cost.
    rate = 1e-3 if name == VAE_FIT else 0.0
    batches.RENEWAL_FRACTION = renewal
    beside = Beside(others)
    history = fit(
        objective,
        data,
        epochs=epochs + 1,
        batch_size=BATCH,
        lr=rate,
        seed=0,
        progress=False,
        callbacks=[beside],
        options=FitOptions(log_every=every),
    )
    if others and name != VAE_FIT:
        last = history.epochs.last()
        NOTES[name] = {**history.notes, "live_noise": last["live_noise"], "zero_noise": last["zero_noise"]}
    epoch_seconds = {name: [len(data) / rate for rate in history.epochs["samples_per_second"]]} | beside.seconds
    return {contender: seconds[1:] for contender, seconds in epoch_seconds.items()}  # the first of each is no measure


LIVE_NOISE, DEAD_NOISE = "fit, fvNCE, every noise sample live", "fit, fvNCE, none live"
OLD_NOISE = "fit, fvNCE, every one live, pool kept"
PLAIN, WATCHED = "fit, fvNCE, 2,000 centres", "  the same, statistics at every step"
NOTES: dict[str, dict[str, float]] = {}


def pythae_trainer(data: Tensor) -> Callable[[], float] | None:
    """Return pythae's trainer on the same network, None if pythae is not installed."""
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
from fvnce.training import fit
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


VAE_FIT, RATE = "fit, VAE", "samples_per_second"


def measure(rows: int, centres: int, epochs: int) -> list[dict[str, list[float]]]:
    """Seconds of the epochs of contenders that ran side by side."""
    data = images(rows)
    near, far, few = (KernelDensity(images(n), h) for n, h in ((centres, 1.0), (centres, 0.25), (2000, 1.0)))
    rule = PowerRule(0.0)
    vae = VAE(*vae_parts(1 / 8))

    def plain_vae() -> float:
        # The second epoch, as the first of a run is no measure.
        return len(data) / fit(vae, data, batch_size=BATCH, epochs=2, seed=0, progress=False).epochs.last()[RATE]

    def live(noise: KernelDensity) -> FullyVariationalNCE:
        # Untrained, log r of this noise is about −100; the scale puts it near 0.
        return FullyVariationalNCE(*vae_parts(1.0), noise, rule, log_scale=90.0)

    watched, unwatched = live(few), live(few)

    def plain() -> float:
        (seconds,) = ours(PLAIN, unwatched, data, 1, {}, renewal=0.0).values()
        return seconds[0]

    others = {
        "hand-written loop": hand_loop(data),
        "bare products": bare_products(math.ceil(rows / BATCH)),
        "pythae": pythae_trainer(data),
    }
    peers = {name: run for name, run in others.items() if run is not None}
    beside = {VAE_FIT: plain_vae}
    dead = FullyVariationalNCE(*vae_parts(1 / 8), far, rule)
    return [
        ours(VAE_FIT, vae, data, 2 * epochs, peers),  # whose limits are the narrowest
        ours(DEAD_NOISE, dead, data, epochs, beside),
        ours(OLD_NOISE, live(near), data, epochs, beside, renewal=0.0),
        ours(LIVE_NOISE, live(near), data, epochs, beside),
        ours(WATCHED, watched, data, epochs, {PLAIN: plain}, renewal=0.0, every=1),
    ]


def over(runs: list[dict[str, list[float]]], one: str, other: str) -> float:
    """Time of one contender over that of another, where both ran side by side: the median over epochs."""
    pair = next(group for group in runs if {one, other} <= set(group))
    return statistics.median(a / b for a, b in zip(pair[one], pair[other], strict=True))


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=6400)
    parser.add_argument("--centres", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=60, help="epochs of each, twice as many beside the peers")
    parser.add_argument("--startup", type=int, default=5, help="runs of each start-up, 0 for none")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.centres, options.epochs, options.startup = 256, 300, 2, 0
    begun = time.perf_counter()
    runs = measure(options.rows, options.centres, options.epochs)
    best: dict[str, float] = {}
    for group in runs:
        for name, seconds in group.items():
            best[name] = min([best.get(name, math.inf), *seconds])
    print(f"{'':42} samples/s   share of bare products")
    for name, seconds in best.items():
        print(f"{name:42} {options.rows / seconds:9,.0f}   {best['bare products'] / seconds:.2f}")
    renewed = next(group for group in runs if LIVE_NOISE in group)
    ratios = {
        "fit / hand-written loop (target >= 0.97)": over(runs, "hand-written loop", VAE_FIT),
        "share of the bare products (aim 0.65)": over(runs, "bare products", VAE_FIT),
        "statistics at every step / at every 50th (target <= 1.02)": over(runs, WATCHED, PLAIN),
        "fvNCE, all live, pool renewed / VAE time (target <= 2.4)": sum(renewed[LIVE_NOISE]) / sum(renewed[VAE_FIT]),
        "fvNCE, all live, pool kept / VAE time (target <= 2.2)": over(runs, OLD_NOISE, VAE_FIT),
        "fvNCE, none live / VAE time (target <= 1.5)": over(runs, DEAD_NOISE, VAE_FIT),
    }
    if "pythae" in best:
        ratios["fit / pythae (target >= 1.5)"] = over(runs, "pythae", VAE_FIT)
    if options.startup:
        times = startup(options.startup)
        ratios["start-up / bare torch (target <= 1.3)"] = times["fvnce.fit"] / times["bare torch"]
    for name, ratio in ratios.items():
        print(f"{name:60} {ratio:.3f}")
    print("before training:", json.dumps(NOTES, indent=1))
    if options.out is not None:
        record = {
            **made_by(" ".join(["python", *sys.argv])),
            "seed": 0,
            "duration": time.perf_counter() - begun,
            "ratios": ratios,
            "seconds": best,
            "median_seconds": [{name: statistics.median(seconds) for name, seconds in group.items()} for group in runs],
            "epochs": options.epochs,
            "rows": options.rows,
            "centres": options.centres,
            "before_training": NOTES,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.processor() or platform.machine(),
        }
        write_json(options.out, record)


if __name__ == "__main__":
    main()
