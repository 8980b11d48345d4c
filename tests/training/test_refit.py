"""Noise that is refitted between epochs, and flows fitted to data."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import make_moons
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal
from torch.utils.data import DataLoader, TensorDataset

import fvnce
from fvnce.io import FileError, read_record, write_record
from fvnce.noise import FlowNoise, KernelDensity, draw, fit_gaussian
from fvnce.objectives import FullyVariationalNCE
from fvnce.training import DecodedNoise, FitOptions, RefitNoise, fit, fit_flow
from training_runs import contrastive, digest, kernels, normal, rows, vae

SETTINGS: dict[str, Any] = {"batch_size": 16, "seed": 5, "lr": 1e-2}


def shifted(objective: Any, x: Tensor, generator: torch.Generator) -> Distribution:
    """A Gaussian of the rows, with a mean that is drawn, so that a generator in another state would show."""
    actual = fit_gaussian(x, "diagonal")
    offset = 0.1 * torch.randn(x.shape[1], generator=generator)
    return torch.distributions.Independent(Normal(actual.mean + offset, 2 * actual.variance.sqrt()), 1)


def flowing(objective: Any, x: Tensor, generator: torch.Generator) -> Distribution:
    """A flow that goes on from where it was."""
    start = objective.noise if isinstance(objective.noise, FlowNoise) else None
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    return fit_flow(x, epochs=1, seed=seed, start=start, transforms=1, hidden=(8,))


REFITS: dict[str, Any] = {
    "gaussian": lambda: shifted,
    "codes from a kernel density": lambda: DecodedNoise(40),
    "codes from a Gaussian": lambda: DecodedNoise(40, codes="gaussian", widen=2.0),
    "flow": lambda: flowing,
}


@pytest.mark.parametrize("pool", [0, 64])
def test_every_density_is_that_of_the_new_noise(pool: int) -> None:
    objective, x, seen = contrastive(noise=kernels(), partition="profiled"), rows(60), []

    def look(run: Any) -> None:
        noise = run.objective.noise
        drawn, log_prob = run.batches.draw_noise(16)
        torch.testing.assert_close(log_prob, noise.log_prob(drawn))
        torch.testing.assert_close(run.batches.log_noise, noise.log_prob(x))
        held_out, log_held_out = run.validation.noise
        torch.testing.assert_close(log_held_out, noise.log_prob(held_out))
        torch.testing.assert_close(run.validation.log_noise, noise.log_prob(rows(20, seed=1)))
        seen.append(noise)

    follow = RefitNoise(shifted, every=2, last=4)
    fit(
        objective,
        x,
        validation=rows(20, seed=1),
        epochs=7,
        callbacks=[follow, look],
        options=FitOptions(noise_pool=pool),
        **SETTINGS,
    )
    changed = [one is not other for one, other in itertools.pairwise(seen)]
    assert changed == [True, False, True, False, False, False]  # after epochs 2 and 4, counted from 1
    assert isinstance(seen[0], KernelDensity)


@pytest.mark.parametrize("name", REFITS)
def test_resumed_to_the_bit(name: str, tmp_path: Path) -> None:
    if name == "flow":
        pytest.importorskip("zuko")

    def start() -> FullyVariationalNCE:
        made: FullyVariationalNCE = contrastive(noise=normal(scale=2.0), partition="profiled")
        return made

    def options(**more: Any) -> dict[str, Any]:
        return {"callbacks": [RefitNoise(REFITS[name]())], "options": FitOptions(noise_pool=64, **more), **SETTINGS}

    never = start()
    fit(never, rows(60), epochs=4, **options())
    fit(start(), rows(60), epochs=3, checkpoint_dir=tmp_path, **options(checkpoint_every=3))
    # A run of three epochs does not refit after its last, so the checkpoint inside that epoch is gone on from.
    inside = sorted(tmp_path.glob("step-*.safetensors"))[0]
    resumed = start()
    fit(resumed, rows(60), epochs=4, resume=inside, **options())
    assert digest(resumed) == digest(never)
    x = rows(9, seed=4)
    assert torch.equal(resumed.noise.log_prob(x), never.noise.log_prob(x))
    assert not torch.allclose(never.noise.log_prob(x), start().noise.log_prob(x))


def test_a_checkpoint_that_does_not_tell_since_when_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def go(**more: Any) -> None:
        objective = contrastive(noise=normal(scale=2.0), partition="profiled")
        fit(objective, rows(60), checkpoint_dir=tmp_path, callbacks=[RefitNoise(shifted)], **SETTINGS, **more)

    go(epochs=2)
    path = sorted(tmp_path.glob("step-*.safetensors"))[-1]
    content, tensors = read_record(path, "checkpoint")
    del content["state"]["noise_since"]
    write_record(path, "checkpoint", content, tensors)
    with pytest.raises(FileError, match=r"step-.*'noise_since'"):
        go(epochs=3, resume=path)


def test_a_folder_holds_the_noise_in_use(tmp_path: Path) -> None:
    objective = contrastive(noise=normal(scale=2.0), partition="profiled")
    fit(objective, rows(60), epochs=3, checkpoint_dir=tmp_path, callbacks=[RefitNoise(DecodedNoise(40))], **SETTINGS)
    loaded: Any = fvnce.load(tmp_path).objective
    assert isinstance(loaded.noise, KernelDensity)
    assert digest(loaded) == digest(objective)
    assert torch.equal(loaded.noise.log_prob(rows(5)), objective.noise.log_prob(rows(5)))


def test_decoded_noise_is_the_mixture_of_what_the_decoder_gives() -> None:
    objective = contrastive(point=True)
    noise = DecodedNoise(30, widen=1.5)(objective, rows(50), torch.Generator().manual_seed(0))
    x = rows(7, seed=1)
    scale = 1.5 * objective.model.decoder.scale.detach()
    each = Normal(noise.centres, scale).log_prob(x[:, None]).sum(2)
    torch.testing.assert_close(noise.log_prob(x), each.logsumexp(1) - math.log(30))
    assert not noise.centres.requires_grad


@pytest.mark.parametrize("codes", ["kde", "gaussian"])
def test_decoded_noise_is_as_wide_as_the_model(codes: Any) -> None:
    """With the exact posterior codes of the model's own rows have the prior's variance, means of the posterior half.

    The mean square of 4,000 codes has a standard deviation of 2 %, and Scott's kernel adds (4,000^-.2)² = 4 %.
    """
    weight, scale = torch.tensor([[1.0]]), 1.0
    network = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(weight)
    model = fvnce.LatentVariableModel(normal(1), fvnce.GaussianDecoder(network, scale=scale))

    def posterior(x: Tensor) -> Distribution:
        return torch.distributions.Independent(Normal(x / 2, math.sqrt(0.5)), 1)

    objective = FullyVariationalNCE(model, posterior, normal(1), fvnce.PowerRule(0))
    torch.manual_seed(0)
    x = model.sample(4000)
    noise = DecodedNoise(4000, codes=codes)(objective, x, torch.Generator().manual_seed(0))
    assert noise.centres.var().item() == pytest.approx(1.0, abs=0.15)


def test_a_flow_goes_on_from_where_it_was() -> None:
    pytest.importorskip("zuko")
    x = rows(300)
    first = fit_flow(x, epochs=1, transforms=1, hidden=(8,), seed=0)
    before = first.log_prob(x)
    second = fit_flow(x, epochs=5, seed=1, start=first)
    assert isinstance(second, FlowNoise)
    assert second.hidden == (8,)
    assert torch.equal(first.log_prob(x), before)
    assert second.log_prob(x).mean() > before.mean()


def test_refused() -> None:
    follow = RefitNoise(shifted)
    with pytest.raises(TypeError, match=r"objective must .*found VAE"):
        fit(vae(), rows(20), epochs=1, seed=0, callbacks=[follow])
    with pytest.raises(ValueError, match="early_stopping must be None"):
        fit(contrastive(), rows(20), validation=rows(9), epochs=2, seed=0, early_stopping=1, callbacks=[follow])
    loader = DataLoader(TensorDataset(rows(20)), batch_size=10)
    with pytest.raises(ValueError, match=r"data must be rows .*found a DataLoader"):
        fit(contrastive(), loader, epochs=2, seed=0, callbacks=[follow])
    with pytest.raises(ValueError, match=r"noise must .*\(4,\)"):
        contrastive().replace_noise(normal(3))
    with pytest.raises(TypeError, match=r"model must .*found Independent"):
        DecodedNoise()(fvnce.NCE(normal(), normal(), fvnce.PowerRule(0)), rows(9), torch.Generator())


def test_the_best_weights_are_the_best_against_the_noise_in_use(tmp_path: Path) -> None:
    """Far noise is easily told from the data, which says nothing about what comes after: losses do not compare."""
    objective = contrastive(noise=normal(scale=50.0), partition="profiled")
    settings: dict[str, Any] = {"validation": rows(20, seed=1), "checkpoint_dir": tmp_path, **SETTINGS}
    history = fit(objective, rows(60), epochs=3, callbacks=[RefitNoise(shifted)], **settings)
    assert history["val_loss"][0] < history["val_loss"][2]
    assert digest(fvnce.load(tmp_path).objective) == digest(objective)


@pytest.fixture(scope="module")
def moons() -> torch.Tensor:
    pytest.importorskip("zuko")
    return torch.tensor(make_moons(600, noise=0.1, random_state=0)[0], dtype=torch.float32) * 3 + 5


@pytest.fixture(scope="module")
def flow(moons: torch.Tensor) -> Distribution:
    return fit_flow(moons, transforms=2, hidden=(32, 32), epochs=25, batch_size=100, lr=5e-3, seed=0)


@pytest.mark.slow
def test_a_flow_integrates_to_one_and_beats_a_gaussian(flow: Distribution, moons: torch.Tensor) -> None:
    """A Riemann sum over a box that holds all but a millionth; held-out gain of half a nat."""
    axis = torch.linspace(-7.0, 20.0, 600)
    points = torch.cartesian_prod(axis, axis)
    assert float(flow.log_prob(points).exp().sum() * (27 / 599) ** 2) == pytest.approx(1.0, abs=0.02)
    held_out = torch.tensor(make_moons(400, noise=0.1, random_state=1)[0], dtype=torch.float32) * 3 + 5
    gaussian = MultivariateNormal(moons.mean(0), torch.cov(moons.T))
    assert float(flow.log_prob(held_out).mean()) > float(gaussian.log_prob(held_out).mean()) + 0.3


@pytest.mark.slow
def test_draws_of_a_flow_follow_its_density(flow: Distribution, moons: torch.Tensor) -> None:
    """Shares of half-planes among 20,000 draws and by quadrature; five standard errors (0.018) and the grid's own."""
    x = draw(flow, 20_000, torch.Generator().manual_seed(0))
    axis = torch.linspace(-7.0, 20.0, 600)
    points = torch.cartesian_prod(axis, axis)
    mass = flow.log_prob(points).exp() * (27 / 599) ** 2
    for column, edge in ((0, 4.0), (0, 8.0), (1, 5.0), (1, 7.0)):
        share = float((x[:, column] < edge).float().mean())
        assert share == pytest.approx(float(mass[points[:, column] < edge].sum()), abs=0.03)
    assert not x.requires_grad


def test_the_seed_decides_a_flow(moons: torch.Tensor) -> None:
    one, two, other = (fit_flow(moons, epochs=1, transforms=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.log_prob(moons), two.log_prob(moons))
    assert not torch.equal(one.log_prob(moons), other.log_prob(moons))


def test_a_flow_trains_an_objective() -> None:
    pytest.importorskip("zuko")
    noise = fit_flow(rows(200), epochs=5, transforms=1, seed=0)
    history = fit(contrastive(noise=noise, partition="profiled"), rows(200), epochs=2, batch_size=50, seed=0)
    assert history["live_noise"][-1] > 0.5


def test_checks_of_other_distributions_stay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zuko")
    for name in [name for name in sys.modules if name.partition(".")[0] == "zuko"]:
        monkeypatch.delitem(sys.modules, name)  # so that it is imported here, which is when it turns them off
    monkeypatch.setattr(Distribution, "_validate_args", True)  # and afterwards as it was
    fit_flow(rows(20), epochs=1, transforms=1, seed=0)
    with pytest.raises(ValueError, match="scale"):
        Normal(0.0, -1.0)
    with pytest.raises(ValueError, match=r"kind must .*found 'RNVP'"):
        fit_flow(rows(20), kind="RNVP")  # type: ignore[arg-type]
