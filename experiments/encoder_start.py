"""Where the σ of a Gaussian encoder starts, measured on three models.

    FVNCE_DATA=… python -m experiments.encoder_start --out results/bench/encoder_start.json

A network that has just been made gives numbers near 0, so that σ(x) = e^0 = 1 at the first step: codes are then as wide
as the prior and the decoder learns nothing from them until σ has shrunk. The ways compared are σ = s·e^output for
several s, and σ = softplus(output), which starts at log 2. Each model is trained with each of them from the same
weights, rows and draws; the numbers are the loss −J in nats on held-out rows, less is better:

* ``convolutional``: a VAE of binarised MNIST images, 16 codes, `convolutional_pair`, Bernoulli decoder.
* ``perceptron``: a VAE of gray MNIST images, 784-256-32-256-784, Gaussian decoder with one learned σ.
* ``table``: fully variational NCE with rule (0, 0) and profiled log Z on ADBench's cardio, standardized, 21-64-64-5,
  Gaussian noise of twice the deviations; its held-out number is the loss of a VAE of the same model and encoder.

σ = 1 stays the start: the convolutional VAE gains 8 nats by 0.5 or 0.7, the perceptron less than one, but the noise
term of fully variational NCE needs an encoder that covers p(z|x), and with 0.5 or less runs on the table diverge within
350 steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.functional import softplus

import fvnce
from fvnce import VAE, BernoulliDecoder, FullyVariationalNCE, GaussianDecoder, GaussianEncoder, LatentVariableModel
from fvnce.models import convolutional_pair, mlp
from fvnce.objectives import Objective
from fvnce.paper.cells import made_by, write_json
from fvnce.paper.datasets import load_mnist

#: What log σ is made of the network's output.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "1 e^output": lambda raw: raw,
    "0.7 e^output": lambda raw: raw + np.log(0.7),
    "0.5 e^output": lambda raw: raw + np.log(0.5),
    "0.3 e^output": lambda raw: raw + np.log(0.3),
    "0.1 e^output": lambda raw: raw + np.log(0.1),
    "0.03 e^output": lambda raw: raw + np.log(0.03),
    "softplus": lambda raw: softplus(raw).log(),
}
#: Steps after which the held-out loss is taken.
STEPS = (50, 100, 200, 350)
BATCH, SEEDS, RATE = 64, (0, 1, 2), 1e-3


class Start(nn.Module):
    """A network whose second half of outputs passes through ``way``."""

    def __init__(self, network: nn.Module, way: str) -> None:
        super().__init__()
        self.network, self.way = network, WAYS[way]

    def forward(self, x: Tensor) -> Tensor:
        """Return mean and log σ, concatenated."""
        mean, raw = self.network(x).chunk(2, -1)
        return torch.cat([mean, self.way(raw)], -1)


def prior(size: int) -> Independent[Normal]:
    """Return the standard normal prior N(0, I)."""
    return Independent(Normal(torch.zeros(size), torch.ones(size)), 1)


def convolutional(way: str) -> tuple[Objective, VAE, Tensor, Tensor]:
    """Return objective, judge, training and held-out rows of the convolutional VAE."""
    first, second = convolutional_pair(16, width=16, outputs=32)
    images = load_mnist()
    train, test = ((part.reshape(-1, 1, 28, 28) > 0.5).float() for part in (images.train[:24_000], images.test[:1000]))
    vae = VAE(LatentVariableModel(prior(16), BernoulliDecoder(second)), GaussianEncoder(Start(first, way)))
    return vae, vae, train, test


def perceptron(way: str) -> tuple[Objective, VAE, Tensor, Tensor]:
    """Return the same of the perceptron."""
    images = load_mnist()
    decoder = GaussianDecoder(mlp([32, 256, 784]), learned="shared")
    vae = VAE(LatentVariableModel(prior(32), decoder), GaussianEncoder(Start(mlp([784, 256, 64]), way)))
    return vae, vae, images.train[:24_000].flatten(1), images.test[:1000].flatten(1)


def table(way: str) -> tuple[Objective, VAE, Tensor, Tensor]:
    """Return the same of the table."""
    content = np.load(Path(os.environ["FVNCE_DATA"]) / "adbench" / "6_cardio.npz")
    rows = torch.tensor(content["X"][content["y"] == 0], dtype=torch.float32)
    rows = ((rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6))[torch.randperm(len(rows))]
    width, held = rows.shape[1], len(rows) // 4
    model = LatentVariableModel(prior(5), GaussianDecoder(mlp([5, 64, 64, width], nn.SiLU), learned="shared"))
    encoder = GaussianEncoder(Start(mlp([width, 64, 64, 10], nn.SiLU), way))
    noise = Independent(Normal(torch.zeros(width), 2 * torch.ones(width)), 1)
    rule = fvnce.PowerRule(alpha=0)
    objective = FullyVariationalNCE(model, encoder, noise, rule, partition="profiled")
    return objective, VAE(model, encoder), rows[held:], rows[:held]


MODELS = {"convolutional": convolutional, "perceptron": perceptron, "table": table}


def losses(make: Callable[[str], tuple[Objective, VAE, Tensor, Tensor]], way: str, seed: int) -> list[float]:
    """The held-out loss after each number of STEPS."""
    torch.manual_seed(seed)
    objective, judge, train, test = make(way)
    optimizer = torch.optim.Adam(objective.parameters(), lr=RATE)
    rows = []
    for step in range(1, max(STEPS) + 1):
        optimizer.zero_grad()
        objective(train[torch.randint(len(train), (BATCH,))]).backward()
        optimizer.step()
        if step in STEPS:
            state = torch.get_rng_state()
            with torch.no_grad():
                rows.append(float(judge(test)))
            torch.set_rng_state(state)
    return rows


def main() -> None:
    """Measure every model with every start and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bench/encoder_start.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    results = []
    for name, make in MODELS.items():
        for way in WAYS:
            runs = [losses(make, way, seed) for seed in SEEDS]
            means = [round(statistics.mean(column), 2) for column in zip(*runs, strict=True)]
            results.append({"model": name, "way": way, "loss": means, "runs": [[round(v, 2) for v in r] for r in runs]})
            print(f"{name:14} {way:14} " + " ".join(f"{value:9.2f}" for value in means), flush=True)
    settings = {"steps": STEPS, "batch_size": BATCH, "seeds": SEEDS, "learning_rate": RATE}
    seconds = round(time.perf_counter() - started)
    write_json(
        options.out,
        {
            **made_by("python -m experiments.encoder_start"),
            "settings": settings,
            "seconds": seconds,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
