r"""Which noise that learns is worth it in the plane? Flow-contrastive estimation, refitted noise and fixed noise.

    python -m experiments.flow_contrastive --json results/forgetting/flow-contrastive.json

An energy network relative to a Gaussian of the data is trained by ordinary NCE with a learned log Z for equally many
steps on each of four densities (``experiments/vnce/densities.py``) against

fixed      the Gaussian of the data
flow       a neural spline flow fitted to the data first
refitted   that flow, which starts untrained and is trained on by maximum likelihood after every other epoch
against    that flow, trained against the energy (Eq. flow_contrastive): it minimizes what the energy maximizes

Reported are KL(truth‖model) in nats on fresh rows, with log Z by a grid, and seconds of the processor, fits of noise
included.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fvnce import NCE, EnergyModel, fit, fit_gaussian, mlp
from fvnce.noise.flow import make_flow
from fvnce.paper.cells import write_json
from fvnce.training import RefitNoise, fit_flow

from .adaptive_noise import FlowRefit
from .vnce.densities import TOYS

METHODS = ("fixed", "flow", "refitted", "against")
FLOW: dict[str, Any] = {"kind": "NSF", "transforms": 2, "hidden": (32, 32)}
BATCH, LR, EVERY = 128, 2e-3, 2


def objective_of(x: Tensor, noise: Any = None) -> NCE:
    """Return an untrained energy and its objective."""
    base = fit_gaussian(x, "full")
    model = EnergyModel(mlp([2, 64, 64, 1], nn.SiLU), reference=base)
    return NCE(model, base if noise is None else noise, partition="learned")


def against(objective: NCE, x: Tensor, steps: int) -> None:
    """Train the energy and a flow against each other, in turns on the same batch."""
    flow = make_flow(FLOW["kind"], 2, FLOW["transforms"], FLOW["hidden"])
    ours = torch.optim.Adam(objective.parameters(), lr=LR)
    theirs = torch.optim.Adam(flow.parameters(), lr=LR)
    center, scale = x.mean(0), x.std(0)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (BATCH,))]
        distribution = flow()
        drawn = distribution.rsample((BATCH,))
        constant = scale.log().sum()
        densities = [distribution.log_prob(rows) - constant for rows in ((batch - center) / scale, drawn)]
        noise = drawn * scale + center
        theirs.zero_grad()
        (-objective(batch, noise, log_noise_x=densities[0], log_noise_noise=densities[1])).backward()
        theirs.step()
        known = {"log_noise_x": densities[0].detach(), "log_noise_noise": densities[1].detach()}
        ours.zero_grad()
        objective(batch, noise.detach(), **known).backward()
        ours.step()


def trained(method: str, x: Tensor, steps: int, seed: int) -> NCE:
    """Return the objective after training."""
    torch.manual_seed(seed)
    epochs = max(2, steps * BATCH // len(x))
    options: dict[str, Any] = {"epochs": epochs, "batch_size": BATCH, "lr": LR, "seed": seed, "progress": False}
    if method == "flow":
        flow = fit_flow(x, **FLOW, epochs=epochs, lr=LR, seed=seed, progress=False)
        objective = objective_of(x, flow)
        fit(objective, x, **options)
        return objective
    objective = objective_of(x)
    if method == "against":
        against(objective, x, steps)
    else:
        refit = RefitNoise(FlowRefit(EVERY, **FLOW, lr=LR, progress=False), every=EVERY)
        fit(objective, x, callbacks=[refit] if method == "refitted" else [], **options)
    return objective


@torch.no_grad()
def divergence(objective: NCE, name: str, seed: int, cells: int = 500, rows: int = 5000) -> float:
    """Return KL(truth‖model), with log Z by a grid on [−6, 6]²."""
    side = torch.linspace(-6, 6, cells)
    values = objective.model.log_prob(torch.cartesian_prod(side, side))
    log_z = values.logsumexp(0) + 2 * torch.log(side[1] - side[0])
    test = TOYS[name].sample(rows, torch.Generator().manual_seed(10_000 + seed))
    return float((TOYS[name].log_prob(test) - objective.model.log_prob(test) + log_z).mean())


def main() -> None:
    """Print a line for each training and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--densities", nargs="*", default=list(TOYS))
    options = parser.parse_args()
    records = []
    for seed in range(options.seeds):
        for name in options.densities:
            x = TOYS[name].sample(options.rows, torch.Generator().manual_seed(seed))
            for method in METHODS:
                begun = time.process_time()
                objective = trained(method, x, options.steps, seed)
                seconds = time.process_time() - begun
                kl = divergence(objective, name, seed)
                records.append({"density": name, "method": method, "seed": seed, "kl": kl, "seconds": seconds})
                print(f"{name:14} {method:10} KL {kl:.3f}  {seconds:.0f} s", flush=True)
                if options.json is not None:
                    write_json(options.json, {**vars(options), "json": str(options.json), "records": records})


if __name__ == "__main__":
    main()
