"""Ratio networks: loss and batches are those of the objective; scores depend on neither their batch nor threads."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from fvnce import FullyVariationalNCE, KernelDensity, NoiseContrastiveDetector, NoiseMixture, PowerRule
from fvnce.detection import MEMBERS
from fvnce.detection.blocks import BLOCK, in_blocks
from fvnce.detection.ensemble import Ensemble
from fvnce.detection.members.base import HeldOutScores
from fvnce.detection.members.network_training import BatchDraw, initial_layers, losses, slopes
from fvnce.detection.members.ratio_network import INPUT_LIMIT, RatioNetworks
from fvnce.detection.noise import DATA_SCALES, OUTLIER_SCALES, draw_box, draw_mixture
from fvnce.detection.rows import Folds, TrainingRows
from fvnce.detection.trust.calibration import calibrate_with_outliers
from fvnce.models import mlp
from fvnce.noise import EmpiricalNoise, draw
from fvnce.objectives import Profiled
from member_settings import member_settings

SETTINGS = member_settings(steps=40, batch_size=32, hidden=(8, 8), n_trees=30, min_samples_leaf=5)
Layers = tuple[list[torch.Tensor], list[torch.Tensor]]


def stacked(count: int = 3, width: int = 4) -> tuple[Layers, list[torch.nn.Module]]:
    """Weights and biases of networks, and the same networks as modules."""
    weights, biases = ([x.double() for x in layers] for layers in initial_layers([width, 8, 8, 1], count, 0))
    modules: list[torch.nn.Module] = []
    for network in range(count):
        layers = mlp([width, 8, 8, 1], torch.nn.SiLU).double()
        linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, weights, biases, strict=True):
                layer.weight.copy_(weight[network].T)
                layer.bias.copy_(bias[network, 0])
        modules.append(torch.nn.Sequential(torch.nn.Hardtanh(-4, 4), layers))
    return (weights, biases), modules


def forward(weights: list[torch.Tensor], biases: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """f of each network, shape (M, n), at inputs of shape (M, n, D)."""
    x = x.clamp(-INPUT_LIMIT, INPUT_LIMIT)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = (torch.nn.functional.silu(x) if layer else x) @ weight + bias
    return x.squeeze(-1)


def rows(seed: int = 0, n: int = 120) -> TrainingRows:
    rng = np.random.default_rng(seed)
    return TrainingRows(rng.normal(size=(n, 3)), np.ones(n), rng.normal(3.0, 0.5, size=(6, 3)), np.ones(6))


def test_networks_together_are_those_networks() -> None:
    layers, modules = stacked()
    x = 3 * torch.randn(3, 50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([module(own).squeeze(-1) for module, own in zip(modules, x, strict=True)])
    torch.testing.assert_close(forward(*layers, x), expected, rtol=1e-12, atol=1e-12)


def test_numpy_evaluates_the_networks_that_torch_trains() -> None:
    (weights, biases), _ = stacked(count=2, width=5)
    member = RatioNetworks(*([x.numpy() for x in layers] for layers in (weights, biases)), [0.5, -1.0], [2.0, 3.0])
    X = 3 * np.random.default_rng(0).normal(size=(70, 5))
    x = torch.from_numpy(X).requires_grad_()
    f = forward(weights, biases, x.expand(2, -1, -1))
    expected = ((-f - torch.tensor([[0.5], [-1.0]])) / torch.tensor([[2.0], [3.0]])).mean(0)
    np.testing.assert_allclose(member.anomaly(X), expected.detach().numpy(), rtol=1e-11, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    np.testing.assert_allclose(member._slope(X), gradient.numpy(), rtol=1e-9, atol=1e-12)
    together = member.anomaly(X)
    for n in (1, 15, 16, 17, 33):
        np.testing.assert_array_equal(member.anomaly(X[:n]), together[:n])
        np.testing.assert_array_equal(member.anomaly(X[-n:].copy()), together[-n:])


class _Given(torch.nn.Module):
    """log p_θ relative to the noise, f."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.network(x)
        return value.squeeze(-1)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_loss_is_that_of_the_objective(alpha: float) -> None:
    (weights, biases), modules = stacked()
    weights[0].requires_grad_()
    x, noise = torch.randn(3, 40, 4, dtype=torch.float64), 2 * torch.randn(3, 60, 4, dtype=torch.float64)
    values = losses(forward(weights, biases, x), forward(weights, biases, noise), alpha)
    base = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(4).double(), 1.0), 1)
    for member, network in enumerate(modules):
        objective = FullyVariationalNCE(
            _Given(network), None, EmpiricalNoise(base), PowerRule(alpha=alpha), partition=Profiled(momentum=0)
        )
        theirs = objective(x[member], noise[member])
        torch.testing.assert_close(values[member], theirs, rtol=1e-10, atol=1e-10)
        network.zero_grad()
        theirs.backward()
        (own,) = torch.autograd.grad(values[member], weights[0], retain_graph=True)
        first = next(layer for layer in network.modules() if isinstance(layer, torch.nn.Linear))
        assert first.weight.grad is not None
        torch.testing.assert_close(own[member].T, first.weight.grad, rtol=1e-9, atol=1e-12)
        assert not own[torch.arange(3) != member].any()  # a network moves by its own loss alone


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_slopes_are_those_of_the_loss(alpha: float) -> None:
    (weights, biases), _ = stacked()
    parameters = [each.requires_grad_() for each in (*weights, *biases)]
    x = 2 * torch.randn(3, 100, 4, dtype=torch.float64)
    f = forward(weights, biases, x)
    expected = losses(f[:, :40], f[:, 40:], alpha)
    gradients = torch.autograd.grad(expected.sum(), parameters)
    with torch.no_grad():
        found, own = slopes(weights, biases, x.clamp(-INPUT_LIMIT, INPUT_LIMIT), 40, alpha)
    torch.testing.assert_close(found, expected)
    for each, gradient in zip(own, gradients, strict=True):
        torch.testing.assert_close(each, gradient, rtol=1e-9, atol=1e-12)


def test_rows_and_noise_are_drawn_among_what_a_network_may_see() -> None:
    allowed = torch.stack([torch.arange(10) < 3, torch.arange(10) >= 3])
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    chosen, drawn = BatchDraw.of(weights, allowed)(1000, torch.Generator().manual_seed(0))
    assert set(drawn[0].tolist()) == {0, 1, 2}
    assert set(drawn[1].tolist()) == set(range(3, 10))
    assert set(chosen[0].tolist()) == {1, 2}
    assert set(chosen[1].tolist()) == {0, 3}
    # A fraction of 1,000 draws lies within 4 of its deviations of 0.75.
    assert abs(float((chosen[0] == 2).double().mean()) - 0.75) < 0.055


def test_a_network_knows_nothing_of_its_fold() -> None:
    data = rows()
    folds = Folds.drawn(2, 120, 6, np.random.default_rng(0))
    moved = TrainingRows(
        data.X + (folds.rows == 0)[:, None], data.weights, data.outliers + (folds.outliers == 0)[:, None], np.ones(6)
    )
    (first, _), (second, held_out) = (RatioNetworks.fit(each, SETTINGS, 0, folds) for each in (data, moved))
    assert np.array_equal(first.weights[0][0], second.weights[0][0])
    assert not np.array_equal(first.weights[0][1], second.weights[0][1])
    assert held_out is not None
    assert np.isfinite(held_out.rows).all()
    assert np.isfinite(held_out.outliers).all()


def test_a_learning_rate_that_diverges_is_named() -> None:
    data = rows()
    with pytest.raises(ValueError, match="learning_rate"):
        RatioNetworks.fit(data, member_settings(learning_rate=1e30, weight_decay=1e10), 0)


def mixture(data: TrainingRows, n: int) -> torch.Tensor:
    """Draws of the mixture by the library's kernel densities; half of them from the box without known outliers."""
    generator = torch.Generator().manual_seed(1)
    smooth = [KernelDensity(torch.from_numpy(data.X), scale) for scale in DATA_SCALES]
    if not len(data.outliers):
        half = draw(NoiseMixture(smooth, [1.0] * len(smooth)), n // 2, generator)
        return torch.cat([half, draw_box(torch.from_numpy(data.X), n // 2, torch.Generator().manual_seed(2))])
    near = [KernelDensity(torch.from_numpy(data.outliers), 0.5 * scale) for scale in OUTLIER_SCALES]
    return draw(NoiseMixture([*near, *smooth], [0.8 / 3] * 3 + [0.2 / 3] * 3), n, generator)


@pytest.mark.parametrize("known", [6, 0])
def test_draws_with_folds_are_draws_of_the_mixture(known: int) -> None:
    data = rows(n=900)
    data = TrainingRows(data.X, data.weights, data.outliers[:known], data.outlier_weights[:known])
    folds = Folds.drawn(3, 900, known, np.random.default_rng(0))
    found, of = draw_mixture(data, SETTINGS, 4000, 0, folds)
    expected = mixture(data, 4000)
    # Three columns at a level of 0.001 each.
    for column in range(3):
        assert ks_2samp(found[:, column].numpy(), expected[:, column].numpy()).pvalue > 0.001
    near = of >= 0
    assert abs(float(near.double().mean()) - (1.0 if known else 0.5)) < 0.03  # 4 deviations of 4,000 draws
    centres = np.concatenate([data.X, data.outliers])
    fold = np.concatenate([folds.rows, folds.outliers])
    # A draw around a row lies within six of the widest bandwidths of some row of its fold.
    for own in range(3):
        here = found[of == own].double().numpy()
        gap = np.abs(here[:, None, :] - centres[fold == own][None]).max(2).min(1)
        assert gap.max() < 6 * 1.7


QUICK: dict[str, Any] = {"n_trees": 9, "steps": 20, "expert": {"batch_size": 32, "hidden": (8,)}}
CASES: dict[str, Any] = {name: (name, False) for name in MEMBERS} | {
    f"{name}, images": (name, True) for name in ("mixture_forest", "network", "neighbors")
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_score_depends_on_its_row_alone(case: str) -> None:
    name, images = CASES[case]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8, 8)) if images else rng.normal(size=(700, 5))
    y = np.arange(len(X)) < 6
    detector = NoiseContrastiveDetector(members=(name,), **QUICK).fit(X, y)
    together = detector.anomaly_score(X)
    order = rng.permutation(len(X))
    np.testing.assert_array_equal(detector.anomaly_score(X[order]), together[order])
    for start, stop in ((0, 1), (1, 4), (17, 48), (255, 258), (100, 299)):
        np.testing.assert_array_equal(detector.anomaly_score(X[start:stop]), together[start:stop])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        np.testing.assert_array_equal(detector.anomaly_score(X), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("known", [6, 0])
def test_jobs_change_no_bit(known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fvnce.detection.rows.PART_ROWS", 64)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), np.arange(300) < known
    one, two = (NoiseContrastiveDetector(**QUICK, n_jobs=jobs).fit(X, y) for jobs in (None, 2))
    np.testing.assert_array_equal(one.anomaly_score(X), two.anomaly_score(X))
    assert one.offset_ == two.offset_


def test_progress_of_scoring_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    detector = NoiseContrastiveDetector(n_trees=4).fit(X)
    detector.anomaly_score(X)
    assert capsys.readouterr().err == ""
    loud = copy.deepcopy(detector).set_params(verbose=1)
    np.testing.assert_array_equal(loud.anomaly_score(X), detector.anomaly_score(X))


@pytest.mark.parametrize("jobs", [0, 1.5, "all"])
def test_a_number_of_jobs_is_checked(jobs: Any) -> None:
    with pytest.raises(ValueError, match=f"n_jobs.*{jobs!r}"):
        NoiseContrastiveDetector(n_jobs=jobs).fit(np.eye(4))


@pytest.mark.slow
def test_probabilities_from_folds_left_out_are_those_of_refits() -> None:
    rng = np.random.default_rng(0)

    def problem(n: int) -> tuple[Any, Any]:
        return np.concatenate([rng.normal(size=(n, 4)), rng.normal(2.0, 0.7, size=(n // 10, 4))]), np.arange(
            n + n // 10
        ) >= n

    X, hidden = problem(800)
    y = hidden & (np.arange(len(X)) % 4 == 0)
    detector = NoiseContrastiveDetector(n_trees=100, steps=200).fit(X, y)
    fresh, truth = problem(2000)
    scores = detector.anomaly_score(fresh)

    encoded = detector.preprocess(X)
    data = TrainingRows(encoded[~y], np.ones((~y).sum()), encoded[y], np.ones(y.sum()))
    folds = Folds.drawn(3, len(data.X), len(data.outliers), np.random.default_rng(1))
    settings = member_settings(
        members=tuple(detector.ensemble_.names),
        n_trees=34,
        min_samples_leaf=5,
        n_networks=1,
        steps=100,
        batch_size=128,
        weight_decay=1.0,
        hidden=(64, 64),
    )
    refits = [
        Ensemble.fit(data.without(folds.rows == fold, folds.outliers == fold), settings, fold)[0] for fold in range(3)
    ]
    held = HeldOutScores.by(lambda rows, fold: refits[fold].anomaly(rows), data, folds)
    theirs = calibrate_with_outliers(held.rows, data.weights, held.outliers, data.outlier_weights, None)[0]
    ours = detector.calibration_
    # Two estimates from the same 20 known outliers: the bound on π has a relative deviation of about a quarter.
    assert 0.5 < ours.prior / theirs.prior < 2
    assert np.abs(ours.probability(scores) - theirs.probability(scores)).mean() < 0.05
    # Both are probabilities: among rows said to be outliers at p ≥ ½, most are.
    assert truth[ours.probability(scores) > 0.5].mean() > 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [1, 5, 8, 33])
@pytest.mark.parametrize("inputs", [1, 5, 8, 13, 31])
def test_a_product_in_blocks_does_not_depend_on_the_place_of_a_row(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    # Whether it would without care depends on the processor: some take the last rows and columns by other code.
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, inputs, generator=generator, dtype=dtype) for n in (BLOCK, outputs))
    bias = torch.randn(outputs, generator=generator, dtype=dtype)
    ways = {
        "linear": lambda block: torch.nn.functional.linear(block, weight, bias),
        "no bias": lambda block: torch.nn.functional.linear(block, weight),
        "product": lambda block: block @ weight.T,
    }
    for name, way in ways.items():
        together = in_blocks(way, x)
        assert together.shape == (BLOCK, outputs), name
        torch.testing.assert_close(together, way(x))
        for places in (1, 7, 40, 128, 251):
            moved = in_blocks(way, x.roll(places, 0)).roll(-places, 0)
            assert torch.equal(moved, together), name
        assert torch.equal(in_blocks(way, x[:3]), together[:3]), name
