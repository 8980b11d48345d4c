"""One small file of every kind that the package writes, and ways to damage it or to craft one."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Independent, Normal

import fvnce
from fvnce.io import describe, flatten
from fvnce.models import EnergyModel, GaussianDecoder
from fvnce.noise import FlowNoise, load_noise, save_noise
from fvnce.training.checkpoint import read_checkpoint

#: What the header of each calls it.
KINDS = {
    "an objective": "objective",
    "noise": "noise",
    "a checkpoint": "checkpoint",
    "a detector": "detector",
}
Read = Callable[[Path], Any]


def objective() -> nn.Module:
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    model = fvnce.LatentVariableModel(prior, fvnce.GaussianDecoder(fvnce.mlp([2, 4, 3])))
    noise = fvnce.NoiseMixture(
        [fvnce.KernelDensity(torch.randn(5, 3), 0.5), Independent(Normal(torch.zeros(3), 1.0), 1)]
    )
    return fvnce.FullyVariationalNCE(model, fvnce.GaussianEncoder(fvnce.mlp([3, 4, 4])), noise, fvnce.PowerRule(0.2))


def exact(nest: Any) -> str:
    """Every bit of a nest of numbers, text and tensors."""
    content, tensors = flatten(nest)
    return repr((content, {name: (value.dtype, value.shape, value.tolist()) for name, value in tensors.items()}))


def make_files(folder: Path) -> dict[str, tuple[Path, Read, Read]]:
    """One file of every kind, with what reads it to something that can be compared, and with what only reads it."""
    torch.manual_seed(0)
    fvnce.save(folder / "objective.safetensors", objective())
    save_noise(fvnce.KernelDensity(torch.randn(6, 2), 0.5), folder)
    fvnce.fit(objective(), torch.randn(20, 3), epochs=1, seed=0, checkpoint_dir=folder / "run")
    x = np.random.default_rng(0).normal(size=(40, 2))
    detector = fvnce.NoiseContrastiveDetector(n_trees=5, n_networks=1, steps=5, calibration_folds=0, random_state=0)
    detector.fit(x).save(folder / "d.safetensors")
    checkpoint = next((folder / "run").glob("step-*.safetensors"))

    def state(path: Path) -> str:
        return exact(dict(fvnce.load(path).state_dict()))

    def noise(path: Path) -> Any:
        place = path.parent / "noise"
        place.mkdir(exist_ok=True)
        shutil.copy(path, place / "noise.safetensors")
        return load_noise(place).log_prob(torch.zeros(3, 2)).tolist()

    return {
        "an objective": (folder / "objective.safetensors", state, fvnce.load),
        "noise": (folder / "noise.safetensors", noise, lambda path: load_noise(path.parent)),
        "a checkpoint": (checkpoint, lambda path: exact(read_checkpoint(path)[0]), read_checkpoint),
        "a detector": (
            folder / "d.safetensors",
            lambda path: fvnce.NoiseContrastiveDetector.load(path).score_samples(x).tolist(),
            fvnce.NoiseContrastiveDetector.load,
        ),
    }


def bomb(name: str) -> Any:
    """The structure of a small object, with sizes that no file of its length can fill."""
    flow = FlowNoise("NICE", torch.zeros(2), torch.ones(2), transforms=1, hidden=(4, 4))
    made: dict[str, nn.Module] = {
        "Linear": nn.Linear(2, 3),
        "Conv2d": nn.Conv2d(2, 3, 3),
        "BatchNorm1d": nn.BatchNorm1d(2),
        "LayerNorm": nn.LayerNorm(2),
        "decoder": GaussianDecoder(nn.Linear(2, 3), learned="per_dimension", event_shape=(3,)),
        "flow": fvnce.NCE(EnergyModel(nn.Linear(2, 1)), flow),
        "flow, transforms": fvnce.NCE(EnergyModel(nn.Linear(2, 1)), flow),
    }
    content, tensors = describe(made[name])
    given = content["structure"]["$arguments"]
    if name == "flow":
        given["noise"]["$arguments"]["hidden"] = {"$tuple": [30_000, 30_000]}
    elif name == "flow, transforms":
        given["noise"]["$arguments"]["transforms"] = 10**10
    elif name == "decoder":
        given["event_shape"] = {"$tuple": [200_000, 200_000]}
    else:
        given.update({key: 30_000 for key in given if key in ("in_features", "out_features", "in_channels")})
        given.update({key: 10**10 for key in given if key == "num_features"})
        if "normalized_shape" in given:
            given["normalized_shape"] = {"$tuple": [10**10]}
        if "kernel_size" in given:
            given["out_channels"] = 30_000
    return content, tensors


BOMBS = ["Linear", "Conv2d", "BatchNorm1d", "LayerNorm", "decoder"]
BOMBS += ["flow", "flow, transforms"]


def nodes(content: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything within a nest."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from nodes(value)


def mutate(content: Any, generator: random.Random) -> Any:
    """A copy of a nest with one to three places removed, exchanged or replaced."""
    content = copy.deepcopy(content)
    strange = [None, True, -1, 0, 10**10, 1e308, float("nan"), "", "x" * 300, "posterior", [], {}, [[]], {"$id": 0}]
    strange += [{"$tensor": "x"}, {"$tuple": 3}, {"$pairs": [1]}, {"$kind": "method", "of": 0, "name": "__class__"}]
    for _ in range(generator.randint(1, 3)):
        places = list(nodes(content))
        if not places:
            break
        container, key = generator.choice(places)
        choice = generator.random()
        if choice < 0.3:
            del container[key]
        elif choice < 0.5:
            other, name = generator.choice(places)
            container[key] = copy.deepcopy(other[name])
        elif choice < 0.6 and isinstance(container, dict):
            container[f"{key}?"] = container.pop(key)
        else:
            container[key] = copy.deepcopy(generator.choice(strange))
    return content
