"""A run is resumed as what it was: rule, noise, model and settings; and what differs is named."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal

import fvnce
from fvnce import KernelDensity, NoiseMixture, PowerRule
from fvnce.models import BernoulliDecoder, GaussianDecoder, GaussianEncoder, LatentVariableModel, mlp
from fvnce.objectives import VAE, FullyVariationalNCE
from fvnce.scoring import from_weight
from fvnce.training import fit, load
from fvnce.training.resume import ObjectiveKey
from training_runs import WIDTH, contrastive, digest, kernels, normal, rows, vae

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 10, "seed": 1}


class Own(nn.Module):
    """A user's class, of which nothing is known but what it holds."""

    def __init__(self, power: float = 2.0, noise: Distribution | None = None, rule: Any = None, wide: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, wide)
        self.exponent = power
        self.other = noise
        self.rule = rule
        self.calls = 0
        self.seen: Tensor | None = None
        self.register_buffer("weight", torch.tensor(power), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = x.mean(0)
        return self.layer(x).abs().pow(self.exponent).mean()


@dataclasses.dataclass
class Steps:
    sizes: tuple[float, ...]


def two(
    wide: int = 8, activation: type[nn.Module] = nn.ReLU, scale: float | None = None, highest: float | None = None
) -> VAE:
    decoder = GaussianDecoder(
        mlp([2, wide, WIDTH], activation), **({"scale": scale} if scale else {"learned": "shared"})
    )
    model = LatentVariableModel(normal(2), decoder, highest_log_prior=highest)
    return VAE(model, GaussianEncoder(mlp([WIDTH, wide, 4], activation)))


Make = Callable[[], nn.Module]
CHANGES: list[tuple[Make, Make, str]] = [
    (
        lambda: contrastive(alpha=0.1),
        lambda: contrastive(alpha=0.9),
        r"rule was PowerRule\(alpha=0.1.*, is PowerRule\(alpha=0.9",
    ),
    (contrastive, lambda: contrastive(noise=normal(scale=3.0)), "noise was Independent.*, is Independent"),
    (
        lambda: contrastive(noise=kernels()),
        lambda: contrastive(noise=KernelDensity(rows(50, seed=9), 0.8)),
        "noise was KernelDensity.*, is KernelDensity",
    ),
    (
        lambda: contrastive(noise=kernels()),
        lambda: contrastive(noise=KernelDensity(rows(50, seed=9) + torch.eye(50, WIDTH) * 1e-6, 0.7)),
        "noise was",
    ),
    (
        lambda: contrastive(noise=NoiseMixture([kernels(), normal()], [0.5, 0.5])),
        lambda: contrastive(noise=NoiseMixture([kernels(), normal()], [0.4, 0.6])),
        "noise was",
    ),
    (
        lambda: contrastive(noise=Independent(Laplace(torch.zeros(WIDTH), 1.0), 1)),
        lambda: contrastive(noise=Independent(Laplace(torch.zeros(WIDTH), 2.0), 1)),
        "noise was",
    ),
    (lambda: contrastive(noise_ratio=1.0), lambda: contrastive(noise_ratio=2.0), "noise_ratio was 1.0, is 2.0"),
    (lambda: contrastive(latent_samples=1), lambda: contrastive(latent_samples=3), "latent_samples was 1, is 3"),
    (
        lambda: contrastive(log_scale=0.0),
        lambda: contrastive(log_scale=2.0),
        "partition.log_scale was .* 0.0, is .* 2.0",
    ),
    (
        lambda: contrastive(partition="profiled"),
        lambda: contrastive(partition="fixed"),
        "partition was Profiled, is Fixed",
    ),
    (lambda: contrastive(partition="learned"), lambda: contrastive(partition="profiled"), "partition"),
    (lambda: contrastive(point=True), lambda: contrastive(point=False), "encoder was PointEncoder, is GaussianEncoder"),
    (two, lambda: two(wide=9), r"Linear\(in_features=4, out_features=8.*, is Linear\(in_features=4, out_features=9"),
    (two, lambda: two(activation=nn.Tanh), r"encoder.network.1 was ReLU, is Tanh"),
    (lambda: two(scale=0.5), lambda: two(scale=0.6), r"model.decoder.log_scale was"),
    (two, lambda: two(highest=0.5), r"model.highest_log_prior was -1.83788, is 0.5"),
    (lambda: Own(2.0), lambda: Own(3.0), "exponent was 2.0, is 3.0"),
    (lambda: Own(wide=3), lambda: Own(wide=4), r"layer was Linear\(.*out_features=3.*out_features=4"),
    (lambda: Own(noise=Normal(0.0, 1.0)), lambda: Own(noise=Normal(0.0, 2.0)), "other was Normal"),
    (
        lambda: Own(noise=MultivariateNormal(torch.zeros(2), torch.eye(2))),
        lambda: Own(noise=MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))),
        "other was MultivariateNormal",
    ),
    (
        lambda: Own(rule=Steps((0.1, 0.2))),
        lambda: Own(rule=Steps((0.1, 0.3))),
        r"rule was Steps\{sizes: \(0.1, 0.2\)\}",
    ),
    (lambda: Own(rule=torch.zeros(3)), lambda: Own(rule=torch.ones(3)), r"rule was tensor \(3,\) float32"),
]


@pytest.mark.parametrize(("one", "other", "words"), CHANGES, ids=[words for *_, words in CHANGES])
def test_another_objective_is_refused_and_the_difference_named(
    tmp_path: Path, one: Make, other: Make, words: str
) -> None:
    fit(one(), rows(20), checkpoint_dir=tmp_path, **SETTINGS)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"is of another run: .*{words}.*\. Pass .* accept_changes=True"):
        fit(other(), rows(20), checkpoint_dir=tmp_path, resume=True, **{**SETTINGS, "epochs": 2})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    fit(one(), rows(20), checkpoint_dir=tmp_path, resume=True, **{**SETTINGS, "epochs": 2})


def sgd(momentum: float) -> Any:
    def make(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1, momentum=momentum)

    return make


def decay(steps: int) -> Any:
    def make(optimizer: Any, total: int) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, steps)

    return make


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"grad_clip": 1.0}, {"grad_clip": 2.0}, "grad_clip was 1.0, is 2.0"),
        ({"schedule": "cosine"}, {"schedule": "linear"}, "schedule was 'cosine', is 'linear'"),
        ({"optimizer": sgd(0.9)}, {"optimizer": sgd(0.5)}, r"optimizer.momentum was '\(0.9\)', is '\(0.5\)'"),
        ({"schedule": decay(5)}, {"schedule": decay(7)}, "schedule.step_size was '5', is '7'"),
        ({"precision": "32-true"}, {"precision": "bf16-mixed"}, "precision was '32-true', is 'bf16-mixed'"),
        ({"validation": rows(9)}, {"validation": rows(9, seed=4)}, "validation was"),
        ({"data": rows(20)}, {"data": rows(20, seed=2)}, "data was"),
        ({"callbacks": []}, {"callbacks": [lambda run: None]}, "callbacks was"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_settings_are_refused(tmp_path: Path, before: dict[str, Any], now: dict[str, Any], words: str) -> None:
    fit(vae(), checkpoint_dir=tmp_path, **{"data": rows(20), **SETTINGS, **before})
    with pytest.raises(ValueError, match=words):
        fit(vae(), checkpoint_dir=tmp_path, resume=True, **{"data": rows(20), **SETTINGS, **now})


def test_going_on_all_the_same_says_what_differs_and_does_what_is_asked(tmp_path: Path) -> None:
    """The weights go on; rate, rule and noise are the new ones, also for whoever loads the run."""
    fit(contrastive(alpha=0.1, noise=kernels()), rows(20), checkpoint_dir=tmp_path, noise_pool=30, **SETTINGS)
    narrow = contrastive(alpha=0.9, noise=KernelDensity(rows(50, seed=9) + 100, 0.5))
    with pytest.warns(
        UserWarning, match=r"goes on as this one: lr was 0.001, is 0.0; noise was .*; rule was .*alpha=0.9"
    ):
        history = fit(
            narrow, rows(20), checkpoint_dir=tmp_path, noise_pool=30, resume=True, accept_changes=True, lr=0.0,
            **{**SETTINGS, "epochs": 2},
        )  # fmt: skip
    assert history.steps["lr"] == [1e-3, 1e-3, 0.0, 0.0]
    # At a rate of 0 the weights are the checkpoint's, and the pool is of the new noise, far from the data.
    assert digest(narrow.model) == digest(load(tmp_path / "step-000000002.safetensors").model)  # type: ignore[arg-type]
    assert history.steps["noise_term"][-1] != history.steps["noise_term"][1]
    again = fvnce.load(tmp_path).objective
    assert again.rule == PowerRule(0.9)
    assert torch.equal(again.noise.centres, rows(50, seed=9) + 100)
    # From here it is the run that it has become.
    fit(narrow, rows(20), checkpoint_dir=tmp_path, noise_pool=30, resume=True, lr=0.0, **{**SETTINGS, "epochs": 3})


def test_a_new_schedule_is_where_it_would_be(tmp_path: Path) -> None:
    whole = fit(vae(), rows(20), schedule="linear", **{**SETTINGS, "epochs": 4})
    fit(vae(), rows(20), checkpoint_dir=tmp_path, **{**SETTINGS, "epochs": 2})
    with pytest.warns(UserWarning, match="schedule was None, is 'linear'"):
        history = fit(
            vae(), rows(20), checkpoint_dir=tmp_path, resume=True, accept_changes=True, schedule="linear",
            **{**SETTINGS, "epochs": 4},
        )  # fmt: skip
    assert history.steps["lr"][4:] == whole.steps["lr"][4:]


def test_what_training_changes_is_no_difference(tmp_path: Path) -> None:
    """The same objects go on in the same process: counters, running means and live shares have moved."""
    for name, objective in {"own": Own(), "built-in": contrastive(partition="learned")}.items():
        batches = nn.Sequential(nn.BatchNorm1d(WIDTH), objective.layer) if name == "own" else None
        objective.extra = batches
        fit(objective, rows(20), checkpoint_dir=tmp_path / name, **SETTINGS)
        for epochs in (2, 3):
            fit(objective, rows(20), checkpoint_dir=tmp_path / name, resume=True, **{**SETTINGS, "epochs": epochs})


@pytest.mark.parametrize("decoder", [BernoulliDecoder, GaussianDecoder, type("Derived", (BernoulliDecoder,), {})])
def test_a_run_of_an_earlier_version_goes_on_without_what_is_retired(tmp_path: Path, decoder: Any) -> None:
    def made() -> Any:
        model = LatentVariableModel(normal(2), decoder(mlp([2, 8, WIDTH])))
        return VAE(model, GaussianEncoder(mlp([WIDTH, 8, 4])))

    earlier, X = made(), (rows(20) > 0).float()
    earlier.model.decoder.event_dims = 1
    fit(earlier, X, checkpoint_dir=tmp_path, **SETTINGS)
    history = fit(made(), X, checkpoint_dir=tmp_path, resume=True, **{**SETTINGS, "epochs": 2})
    assert len(history.epochs) == 2


def test_a_run_that_died_before_its_first_checkpoint_leaves_no_objective_behind(tmp_path: Path) -> None:
    class Died(Exception):
        pass

    def die(run: Any) -> None:
        raise Died

    with pytest.raises(Died):
        fit(contrastive(alpha=0.1), rows(20), checkpoint_dir=tmp_path, callbacks=[die], **SETTINGS)
    fit(contrastive(alpha=0.9), rows(20), checkpoint_dir=tmp_path, **SETTINGS)
    assert fvnce.load(tmp_path).objective.rule == PowerRule(0.9)


def facts() -> list[str]:
    rule = from_weight(lambda mu: mu)
    noise = MultivariateNormal(torch.zeros(WIDTH), torch.eye(WIDTH))
    objectives: list[nn.Module] = [Own(rule={"b", "a", "c"}, noise=noise), contrastive(noise=noise), Own(rule=rule)]
    objectives.append(FullyVariationalNCE(two().model, two().encoder, kernels(), rule, allow_non_variational=True))
    return [
        f"{name}: {text}" for o in objectives for name, text in sorted(ObjectiveKey(o).state()["attributes"].items())
    ]


@pytest.mark.slow
def test_facts_are_the_same_in_every_process() -> None:
    """No address of an object and no order of a hash is among them."""
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        code = "import test_training_resume_key as t; print(*t.facts(), sep='\\n')"
        done = subprocess.run([sys.executable, "-c", code], cwd=HERE, env=environment, capture_output=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert b"0x" not in done.stdout
    assert len(done.stdout.splitlines()) > 20
