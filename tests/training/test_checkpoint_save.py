"""A saved objective comes back bit for bit, without the code that trained it, and without pickle."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fvnce
from exact_models import GaussianMixtureModel, LinearGaussianModel
from fvnce import KernelDensity, NoiseMixture, PowerRule
from fvnce.models import (
    CategoricalEncoder,
    ContinuousBernoulliDecoder,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    convolutional_pair,
    mlp,
)
from fvnce.objectives import IWAE, NCE, VAE, Autoencoder, FullyVariationalNCE, Profiled, VariationalNCE
from fvnce.scoring import from_weight
from fvnce.training import FileError, fit, load_module, load_weights, save
from training_runs import WIDTH, contrastive, digest, kernels, model, normal, rows, vae


def linear() -> LinearGaussianModel:
    return LinearGaussianModel(torch.ones(WIDTH, 2), torch.zeros(WIDTH), 0.5)


def encoder() -> GaussianEncoder:
    return GaussianEncoder(mlp([WIDTH, 8, 4]))


def exact() -> VAE:
    factor = linear()
    return VAE(factor, factor.posterior)


def images() -> Autoencoder:
    encoding, decoding = convolutional_pair(3, width=2)
    return Autoencoder(LatentVariableModel(normal(3), ContinuousBernoulliDecoder(decoding)), PointEncoder(encoding))


def mixture() -> FullyVariationalNCE:
    classes = GaussianMixtureModel(torch.zeros(3), torch.randn(3, WIDTH), torch.ones(3))
    noise = NoiseMixture([normal(scale=3.0), KernelDensity(rows(5), 0.5)], [1.0, 2.0])
    rule = 0.9 * PowerRule(1 / 64) + 0.1 * PowerRule(0, 1, clip=None)
    return FullyVariationalNCE(classes, CategoricalEncoder(mlp([WIDTH, 8, 3])), noise, rule, noise_ratio=0.5)


def shared() -> FullyVariationalNCE:
    """One encoder in two places stays one."""
    both = encoder()
    partition = Profiled(momentum=0.5)
    return FullyVariationalNCE(model(), both, normal(), PowerRule(0.2), noise_encoder=both, partition=partition)


def layers() -> VAE:
    network = nn.Sequential(
        nn.Linear(WIDTH, 8, bias=False), nn.LayerNorm(8), nn.LeakyReLU(0.3), nn.Dropout(0.25), nn.Linear(8, 4)
    )
    decoder = GaussianDecoder(mlp([2, WIDTH], nn.Tanh), 0.25, learned="per_dimension", event_shape=(WIDTH,))
    return VAE(LatentVariableModel(normal(2), decoder), GaussianEncoder(network), latent_samples=3, closed_form=False)


OBJECTIVES: dict[str, Callable[[], nn.Module]] = {
    "vae": vae,
    "vae in double": lambda: vae().double(),
    "vae with other layers": layers,
    "vae with the exact posterior": exact,
    "autoencoder of images": images,
    "iwae": lambda: IWAE(model(), encoder(), latent_samples=5),
    "nce": lambda: NCE(linear(), normal()),
    "snce": lambda: NCE(linear(), normal(), PowerRule(1), log_scale=2.5),
    "vnce": lambda: VariationalNCE(model(), encoder(), normal(), noise_encoder=encoder(), importance_samples=3),
    "fvnce with kernels": lambda: contrastive(noise=kernels(), partition="learned"),
    "fvnce with a mixture and a sum of rules": mixture,
    "fvnce with one encoder twice": shared,
    "fvnce, variance reduced": lambda: contrastive(alpha=0.0, variance_reduced=True),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_built_in_objective_comes_back(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    objective = OBJECTIVES[name]()
    if name == "vae":
        next(objective.parameters()).requires_grad_(False)
    x = torch.rand(6, 1, 28, 28) if name == "autoencoder of images" else rows(6)
    x = x.to(next(objective.parameters()).dtype)
    objective.train()
    objective(x)  # an objective's own state, such as a log Z that starts at the first batch, is saved too
    again = load_module(save(tmp_path / "objective.safetensors", objective))
    assert digest(again) == digest(objective)
    assert str(again) == str(objective)
    objective.eval()
    torch.manual_seed(1)
    expected = objective(x)
    torch.manual_seed(1)
    assert torch.equal(again(x), expected)
    frozen = [name for name, p in objective.named_parameters() if not p.requires_grad]
    assert [name for name, p in again.named_parameters() if not p.requires_grad] == frozen
    assert len(list(again.parameters())) == len(list(objective.parameters()))


def test_it_can_be_trained_on(tmp_path: Path) -> None:
    first = contrastive(noise=kernels(), partition="profiled")
    again = load_module(save(tmp_path / "a.safetensors", first))
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}
    fit(first, rows(40), **settings)
    fit(again, rows(40), **settings)
    assert digest(again) == digest(first)


@pytest.mark.slow
def test_another_process_needs_nothing_but_the_file(tmp_path: Path) -> None:
    objective = contrastive(noise=kernels())
    path = save(tmp_path / "a.safetensors", objective)
    code = (
        "import sys, torch; from fvnce.training import load_module; "
        "print(repr(load_module(sys.argv[1]).model.log_joint(torch.ones(1, 4), torch.ones(1, 2)).item()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    expected = objective.model.log_joint(torch.ones(1, 4), torch.ones(1, 2)).item()
    assert float(done.stdout) == pytest.approx(expected, rel=1e-6)


def test_a_run_can_be_loaded_from_its_folder(tmp_path: Path) -> None:
    """The best weights if it was validated, else the newest; or any of its files."""
    trained = contrastive(noise=kernels())
    fit(trained, rows(40), epochs=3, batch_size=10, seed=1, checkpoint_dir=tmp_path / "plain")
    assert digest(fvnce.load(tmp_path / "plain").objective) == digest(trained)
    assert digest(load_module(tmp_path / "plain" / "step-000000012.safetensors")) == digest(trained)
    assert digest(load_module(tmp_path / "plain" / "objective.safetensors")) == digest(contrastive(noise=kernels()))

    best: dict[float, str] = {}
    held_out: dict[str, Any] = {"validation": rows(30, seed=4), "callbacks": [lambda run: _note(run, best)]}
    fit(vae(), rows(40), epochs=12, batch_size=10, lr=0.2, seed=1, checkpoint_dir=tmp_path / "held", **held_out)
    assert digest(fvnce.load(tmp_path / "held").objective) == best[min(best)]
    with pytest.raises(FileNotFoundError, match=r"best\.safetensors"):
        fvnce.load(tmp_path)
    with pytest.raises(IsADirectoryError, match=r"path must be a file, .*plain; .*fvnce.load"):
        load_module(tmp_path / "plain")


def _note(run: Any, best: dict[float, str]) -> None:
    best[run.history["val_loss"][-1]] = digest(run.objective)


class Own(nn.Module):
    """A user's class, which no file can rebuild."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def test_what_cannot_be_rebuilt_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"module must .*found Own"):
        save(tmp_path / "own.safetensors", Own())
    with pytest.raises(TypeError, match=r"module.encoder.network.0 must be .* found Own"):
        save(tmp_path / "own.safetensors", VAE(model(), GaussianEncoder(nn.Sequential(Own()))))
    rule = from_weight(lambda r: 1 / (1 + r))
    with pytest.raises(TypeError, match=r"module.rule must "):
        save(tmp_path / "own.safetensors", FullyVariationalNCE(model(), encoder(), normal(), rule))
    assert not list(tmp_path.iterdir())


def test_weights_of_a_users_class_are_kept_all_the_same(tmp_path: Path) -> None:
    own = Own()
    fit(own, rows(20), epochs=2, seed=1, checkpoint_dir=tmp_path, validation=rows(5))
    with pytest.raises(FileError, match="call load_weights"):
        fvnce.load(tmp_path)
    assert digest(load_weights(tmp_path / "step-000000002.safetensors", Own())) == digest(own)
    assert isinstance(load_weights(tmp_path / "best.safetensors", Own()), Own)


def test_reading_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    path = tmp_path / "trap.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FileError, match=r"trap\.safetensors"):
        load_module(path)
    assert not (tmp_path / "sprung").exists()


def test_a_class_that_is_not_listed_is_not_built(tmp_path: Path) -> None:
    from fvnce.io import describe, rebuild

    content, tensors = describe(nn.Sequential(nn.ReLU()))
    content["structure"]["$arguments"]["0"]["$kind"] = "torch.Module"
    with pytest.raises(ValueError, match=r"'torch.Module'"):
        rebuild(content, tensors)
