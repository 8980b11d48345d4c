"""A run that is killed and resumed ends with the bits of one that never was; another run is refused by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal
from torch.utils.data import DataLoader, TensorDataset

import fvnce
from fvnce import KernelDensity, NoiseMixture, PowerRule
from fvnce.io import read_record, write_record
from fvnce.models import GaussianDecoder, GaussianEncoder, LatentVariableModel, mlp
from fvnce.objectives import VAE, FullyVariationalNCE
from fvnce.scoring import from_weight
from fvnce.training import FitOptions, fit, load_weights
from fvnce.training.checkpoint import objective_facts
from training_runs import KILLED, WIDTH, contrastive, digest, kernels, normal, rows, vae

HERE = Path(__file__).parents[1] / "support"


class Crash(Exception):
    """What ends a run in the middle."""


def crashing(objective: VAE, calls: int) -> VAE:
    """The objective, which fails at its ``calls``-th evaluation."""
    left = [calls]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    objective.encoder.register_forward_pre_hook(count)  # type: ignore[union-attr]
    return objective


@pytest.mark.slow
def test_killed_wherever_it_is(tmp_path: Path) -> None:
    """Lives end at an evaluation, between two files and inside a write; which, follows from the seed, not the clock."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "killed_runs.py", tmp_path, "6", "0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    actual = [json.loads(line) for line in done.stdout.splitlines()]
    assert [run["name"] for run in actual] == list(KILLED)
    for run in actual:
        assert len(run["ends"]) == 6
        assert run["resumed"] == run["never"], run["name"]
    ends = [end for run in actual for end in run["ends"]]
    assert {end["at"] for end in ends} == {"evaluation", "file", "write"}
    assert {end["signal"] for end in ends} == {signal.SIGKILL, signal.SIGXFSZ}
    assert sum(end["saved"] > 0 for end in ends) > 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_resumes_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    """torch's own sampler and workers draw from the global generator, whose state at the start of the epoch is kept."""

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        context = None if workers == 0 else "fork"
        return DataLoader(
            TensorDataset(rows(40)), batch_size=8, shuffle=True, num_workers=workers, multiprocessing_context=context
        )

    settings: dict[str, Any] = {"epochs": 3, "seed": 3, "options": FitOptions(checkpoint_every=2)}
    never = vae()
    fit(never, loader(), **settings)
    with pytest.raises(Crash):
        fit(crashing(vae(), 8), loader(), checkpoint_dir=tmp_path, **settings)
    resumed = vae(seed=1)
    fit(resumed, loader(), checkpoint_dir=tmp_path, resume=True, **settings)
    assert digest(resumed) == digest(never)


def test_a_data_loader_with_its_own_generator_resumes_between_epochs(tmp_path: Path) -> None:
    """The generator that a new loader brings is at its beginning, and must be where the loader before it had come."""

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        own = torch.Generator().manual_seed(5)
        return DataLoader(TensorDataset(rows(40)), batch_size=8, shuffle=True, generator=own)

    never, resumed = vae(), vae(seed=1)
    fit(never, loader(), epochs=3, seed=3)
    fit(vae(), loader(), epochs=2, seed=3, checkpoint_dir=tmp_path)
    fit(resumed, loader(), epochs=3, seed=3, checkpoint_dir=tmp_path, resume=True)
    assert digest(resumed) == digest(never)


def test_more_epochs_are_a_continuation(tmp_path: Path) -> None:
    never = contrastive(noise=kernels())
    whole = fit(never, rows(60), epochs=4, batch_size=16, seed=1)
    fit(contrastive(noise=kernels()), rows(60), epochs=2, batch_size=16, seed=1, checkpoint_dir=tmp_path)
    resumed = contrastive(seed=8, noise=kernels())
    history = fit(resumed, rows(60), epochs=4, batch_size=16, seed=1, checkpoint_dir=tmp_path, resume=True)
    assert digest(resumed) == digest(never)
    assert history.steps["loss"] == whole.steps["loss"]
    assert history["loss"] == whole["loss"]
    assert history["seconds"] == sorted(history["seconds"])


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = vae()
    settings: dict[str, Any] = {
        "validation": rows(20, seed=2),
        "epochs": 30,
        "batch_size": 16,
        "lr": 0.3,
        "early_stopping": 2,
        "seed": 1,
    }
    history = fit(first, rows(60), checkpoint_dir=tmp_path, **settings)
    again = vae(seed=4)
    same = fit(again, rows(60), checkpoint_dir=tmp_path, resume=True, **settings)
    assert len(history.epochs) < 30
    assert same.to_dict() == history.to_dict()
    assert digest(again) == digest(first)


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)
    with pytest.raises(FileExistsError, match=r"checkpoint_dir must .*resume=True"):
        fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lr": 0.1}, "lr"),
        ({"batch_size": 5}, "batch_size"),
        ({"seed": 2}, "seed"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"data": rows(21)}, "data"),
        ({"objective": contrastive()}, "objective"),
    ],
)
def test_a_resumed_run_must_be_the_same_run(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    settings: dict[str, Any] = {"epochs": 1, "seed": 1, "batch_size": 10}
    fit(vae(), rows(20), checkpoint_dir=tmp_path, **settings)
    chosen = {"objective": vae(), "data": rows(20), **settings, "epochs": 2, **changed}
    with pytest.raises(ValueError, match=rf"step-\d+\.safetensors .*{named} was .*, is "):
        fit(**chosen, checkpoint_dir=tmp_path, resume=True)


def test_resume_from_a_named_checkpoint(tmp_path: Path) -> None:
    never = vae()
    fit(
        never, rows(40), epochs=4, batch_size=10, seed=1, checkpoint_dir=tmp_path / "a", options=FitOptions(keep_last=9)
    )
    branch = vae(seed=5)
    fit(branch, rows(40), epochs=4, batch_size=10, seed=1, resume=tmp_path / "a" / "step-000000008.safetensors")
    assert digest(branch) == digest(never)


def test_resume_without_any_checkpoint_starts(tmp_path: Path) -> None:
    one, other = vae(), vae()
    fit(one, rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path, resume=True)
    fit(other, rows(20), epochs=1, seed=1)
    assert digest(one) == digest(other)
    with pytest.raises(ValueError, match="checkpoint_dir must be given"):
        fit(vae(), rows(20), resume=True)


def test_other_versions_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(vae(), rows(20), epochs=1, seed=1, checkpoint_dir=tmp_path)
    monkeypatch.setattr("fvnce.training.checkpoint.version", lambda name: "99")
    with pytest.warns(UserWarning, match=r"torch .* → 99"):
        fit(vae(), rows(20), epochs=2, seed=1, checkpoint_dir=tmp_path, resume=True)


def test_random_states_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit(vae(), rows(20), epochs=1, seed=1)
    torch.manual_seed(7)
    objective = vae()
    torch.manual_seed(7)
    fit(objective, rows(20), epochs=1, seed=1)
    assert torch.equal(torch.rand(3), expected)


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
        r"rule.* was power\(0.1\), is power\(0.9\)",
    ),
    (contrastive, lambda: contrastive(noise=normal(scale=3.0)), "noise.base_distribution.scale was .*, is "),
    (
        lambda: contrastive(noise=kernels()),
        lambda: contrastive(noise=KernelDensity(rows(50, seed=9), 0.8)),
        "noise.bandwidth was .*, is ",
    ),
    (
        lambda: contrastive(noise=kernels()),
        lambda: contrastive(noise=KernelDensity(rows(50, seed=9) + torch.eye(50, WIDTH) * 1e-6, 0.7)),
        "noise.centres was .*, is ",
    ),
    (
        lambda: contrastive(noise=NoiseMixture([kernels(), normal()], [0.5, 0.5])),
        lambda: contrastive(noise=NoiseMixture([kernels(), normal()], [0.4, 0.6])),
        "noise.weights was .*, is ",
    ),
    (
        lambda: contrastive(noise=Independent(Laplace(torch.zeros(WIDTH), 1.0), 1)),
        lambda: contrastive(noise=kernels()),
        "noise was .*, is KernelDensity",
    ),
    (
        lambda: contrastive(noise=Independent(Laplace(torch.zeros(WIDTH), 1.0), 1)),
        lambda: contrastive(noise=Independent(Laplace(torch.zeros(WIDTH), 2.0), 1)),
        "noise.*base_dist.scale was",
    ),
    (lambda: contrastive(noise_ratio=1.0), lambda: contrastive(noise_ratio=2.0), "noise_ratio was 1.0, is 2.0"),
    (lambda: contrastive(latent_samples=1), lambda: contrastive(latent_samples=3), "latent_samples was 1, is 3"),
    (
        lambda: contrastive(log_scale=0.0),
        lambda: contrastive(log_scale=2.0),
        "partition.log_scale was 0.0, is 2.0",
    ),
    (
        lambda: contrastive(partition="profiled"),
        lambda: contrastive(partition="fixed"),
        "partition was Profiled, is Fixed",
    ),
    (lambda: contrastive(partition="learned"), lambda: contrastive(partition="profiled"), "partition"),
    (lambda: contrastive(point=True), lambda: contrastive(point=False), "encoder was PointEncoder, is GaussianEncoder"),
    (two, lambda: two(wide=9), r"encoder.network.0.out_features was 8, is 9"),
    (two, lambda: two(activation=nn.Tanh), r"encoder.network.1 was .*ReLU, is .*Tanh"),
    (lambda: two(scale=0.5), lambda: two(scale=0.6), r"model.decoder.log_scale was"),
    (two, lambda: two(highest=0.5), r"model.highest_log_prior was -1.8378.*, is 0.5"),
    (lambda: Own(2.0), lambda: Own(3.0), "exponent was 2.0, is 3.0"),
    (lambda: Own(wide=3), lambda: Own(wide=4), r"layer.out_features was 3, is 4"),
    (lambda: Own(noise=Normal(0.0, 1.0)), lambda: Own(noise=Normal(0.0, 2.0)), "other.scale was 1.0, is 2.0"),
    (
        lambda: Own(noise=MultivariateNormal(torch.zeros(2), torch.eye(2))),
        lambda: Own(noise=MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))),
        "other.scale_tril was",
    ),
    (lambda: Own(rule=torch.zeros(3)), lambda: Own(rule=torch.ones(3)), r"rule was .*\(3,\)"),
]


@pytest.mark.parametrize(("one", "other", "words"), CHANGES, ids=[words for *_, words in CHANGES])
def test_another_objective_is_refused_and_the_difference_named(
    tmp_path: Path, one: Make, other: Make, words: str
) -> None:
    fit(one(), rows(20), checkpoint_dir=tmp_path, **SETTINGS)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"{words}.*load_weights"):
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
        ({"schedule": "cosine"}, {"schedule": "linear"}, "schedule was cosine, is linear"),
        ({"optimizer": sgd(0.9)}, {"optimizer": sgd(0.5)}, r"optimizer.momentum was 0.9, is 0.5"),
        ({"schedule": decay(5)}, {"schedule": decay(7)}, "schedule.step_size was 5, is 7"),
        ({"precision": "32-true"}, {"precision": "bf16-mixed"}, "precision was 32-true, is bf16-mixed"),
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


def test_what_training_changes_is_no_difference(tmp_path: Path) -> None:
    """The same objects go on in the same process: counters, running means and live shares have moved."""
    for name, objective in {"own": Own(), "built-in": contrastive(partition="learned")}.items():
        batches = nn.Sequential(nn.BatchNorm1d(WIDTH), objective.layer) if name == "own" else None
        objective.extra = batches
        fit(objective, rows(20), checkpoint_dir=tmp_path / name, **SETTINGS)
        for epochs in (2, 3):
            fit(objective, rows(20), checkpoint_dir=tmp_path / name, resume=True, **{**SETTINGS, "epochs": epochs})


def test_a_checkpoint_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    trained = vae()
    fit(trained, rows(20), checkpoint_dir=tmp_path, **SETTINGS)
    path = tmp_path / "step-000000002.safetensors"
    content, tensors = read_record(path, "checkpoint")
    content["state"]["objective_key"] = content["state"].pop("facts")  # as in version 0.2.0
    write_record(path, "checkpoint", content, tensors)
    with pytest.raises(ValueError, match=r"step-000000002.safetensors .*earlier version.*load_weights"):
        fit(vae(), rows(20), checkpoint_dir=tmp_path, resume=True, **SETTINGS)
    assert digest(load_weights(path, vae(seed=1))) == digest(trained)
    assert digest(fvnce.load(tmp_path).objective) == digest(trained)


@pytest.mark.parametrize(
    "key",
    [
        *("settings", "facts", "step", "epoch", "position", "stopped", "noise_since", "objective", "optimizer"),
        *("history", "callbacks", "noise", "rank_states", "rank_states.0.random", "rank_states.0.batches"),
        *("facts.structure", "facts.values", "history.steps"),
    ],
)
def test_a_checkpoint_that_lacks_a_key_is_refused_in_one_sentence(tmp_path: Path, key: str) -> None:
    fit(vae(), rows(20), checkpoint_dir=tmp_path, **SETTINGS)
    path = tmp_path / "step-000000002.safetensors"
    content, tensors = read_record(path, "checkpoint")
    *parents, last = key.split(".")
    place = content["state"]
    for parent in parents:
        place = place[parent]
    del place[last]
    write_record(path, "checkpoint", content, tensors)
    with pytest.raises(ValueError, match=rf"step-000000002.safetensors .*({last}|earlier version)") as error:
        fit(vae(), rows(20), resume=path, **{**SETTINGS, "epochs": 2})
    assert "\n" not in str(error.value)


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
        f"{name}: {text}" for o in objectives for kind in objective_facts(o).values() for name, text in kind.items()
    ]


@pytest.mark.slow
def test_facts_are_the_same_in_every_process() -> None:
    """No address of an object and no order of a hash is among them."""
    actual = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        code = f"from programs import load; print(*load(__import__('pathlib').Path({__file__!r})).facts(), sep='\\n')"
        done = subprocess.run([sys.executable, "-c", code], cwd=HERE, env=environment, capture_output=True, check=True)
        actual.add(done.stdout)
    assert len(actual) == 1
    assert b"0x" not in done.stdout
    assert len(done.stdout.splitlines()) > 20
