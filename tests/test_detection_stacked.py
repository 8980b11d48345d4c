"""Networks side by side are those networks, and scores know neither their batch nor the number of threads."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from fvnce import FullyVariationalNCE, NoiseContrastiveDetector, PowerRule
from fvnce.detection import MEMBERS
from fvnce.detection.calibration import calibrate_with_outliers
from fvnce.detection.ensemble import Ensemble
from fvnce.detection.members.ratio_network import RatioNetworks, Stack, StackedRatios, losses, ratio_network
from fvnce.detection.networks import BLOCK, in_blocks
from fvnce.detection.noise import draw_mixture, mixture_noise
from fvnce.detection.plan import Folds, HeldOutScores, Plan, TrainConfig, TrainingRows
from fvnce.noise import EmpiricalNoise, draw
from fvnce.objectives import Profiled

TRAINING = TrainConfig(40, 32, 3e-3, 0.0, 0.3, None, "cpu", None, False)
PLAN = Plan(("network",), 30, 5, 2, (8, 8), 2, None, 0.8, 0.5, 1.0, TRAINING)


def networks(count: int = 3, width: int = 4) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [ratio_network(width, (8, 8)).double() for _ in range(count)]


def rows(seed: int = 0, n: int = 120) -> TrainingRows:
    rng = np.random.default_rng(seed)
    return TrainingRows(rng.normal(size=(n, 3)), np.ones(n), rng.normal(3.0, 0.5, size=(6, 3)), np.ones(6))


def test_a_stack_is_its_networks() -> None:
    single = networks()
    x = 3 * torch.randn(3, 50, 4, dtype=torch.float64)
    stack = Stack(single)
    expected = torch.stack([network(own) for network, own in zip(single, x, strict=True)])
    torch.testing.assert_close(stack(x), expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        for weight in stack.parameters():
            weight.mul_(2)
    stack.copy_to(single)
    expected = torch.stack([network(own) for network, own in zip(single, x, strict=True)])
    torch.testing.assert_close(stack(x), expected, rtol=1e-12, atol=1e-12)


class _Given(torch.nn.Module):
    """log p_θ relative to the noise, f."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.network(x)
        return value.squeeze(-1)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_loss_side_by_side_is_that_of_the_objective(alpha: float) -> None:
    single = networks()
    x, noise = torch.randn(3, 40, 4, dtype=torch.float64), 2 * torch.randn(3, 60, 4, dtype=torch.float64)
    stack = Stack(single)
    found = losses(stack(x).squeeze(-1), stack(noise).squeeze(-1), alpha)
    base = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(4).double(), 1.0), 1)
    for member, network in enumerate(single):
        objective = FullyVariationalNCE(
            _Given(network), None, EmpiricalNoise(base), PowerRule(alpha=alpha), partition=Profiled(momentum=0)
        )
        theirs = objective(x[member], noise[member])
        torch.testing.assert_close(found[member], theirs, rtol=1e-10, atol=1e-10)
        network.zero_grad()
        theirs.backward()
        (own,) = torch.autograd.grad(found[member], stack.weights[0], retain_graph=True)
        first = next(layer for layer in network.modules() if isinstance(layer, torch.nn.Linear))
        assert first.weight.grad is not None
        torch.testing.assert_close(own[member].T, first.weight.grad, rtol=1e-9, atol=1e-12)
        assert not own[torch.arange(3) != member].any()  # a network moves by its own loss alone


def test_rows_and_noise_are_chosen_among_what_a_network_may_see() -> None:
    noise = torch.arange(10.0)[:, None]
    allowed = torch.stack([torch.arange(10) < 3, torch.arange(10) >= 3])
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

    objective = StackedRatios(networks(2, 1), -torch.arange(1.0, 5)[:, None], weights, noise, allowed, 0.3, 0)
    objective.stack = Spy()  # type: ignore[assignment]
    objective(torch.zeros(1000, dtype=torch.long))
    rows, drawn = seen[0][:, :1000, 0], seen[0][:, 1000:, 0]
    assert set(drawn[0].tolist()) == {0.0, 1.0, 2.0}
    assert set(drawn[1].tolist()) == set(map(float, range(3, 10)))
    assert set(rows[0].tolist()) == {-2.0, -3.0}
    assert set(rows[1].tolist()) == {-1.0, -4.0}
    # A share of 1,000 draws lies within 4 of its deviations of 0.75.
    assert abs(float((rows[0] == -3).double().mean()) - 0.75) < 0.055
    objective.eval()
    for _ in range(2):
        objective.eval()(torch.tensor([2, 0]))
    assert torch.equal(seen[1][:, :2, 0], torch.tensor([[-3.0, -1.0]] * 2))
    assert torch.equal(seen[1], seen[2])  # two validations compare the same draws


def test_a_network_knows_nothing_of_its_fold() -> None:
    data = rows()
    folds = Folds.drawn(2, 120, 6, np.random.default_rng(0))
    moved = TrainingRows(
        data.X + (folds.rows == 0)[:, None], data.weights, data.outliers + (folds.outliers == 0)[:, None], np.ones(6)
    )
    (first, _, _), (second, _, held) = (RatioNetworks.fit_held_out(each, PLAN, 0, folds) for each in (data, moved))
    weights = [[next(network.parameters()) for network in member.networks] for member in (first, second)]
    assert torch.equal(weights[0][0], weights[1][0])
    assert not torch.equal(weights[0][1], weights[1][1])
    assert np.isfinite(held.rows).all()
    assert np.isfinite(held.outliers).all()


@pytest.mark.parametrize("known", [6, 0])
def test_draws_with_folds_are_draws_of_the_mixture(known: int) -> None:
    data = rows(n=900)
    data = TrainingRows(data.X, data.weights, data.outliers[:known], data.outlier_weights[:known])
    folds = Folds.drawn(3, 900, known, np.random.default_rng(0))
    found, of = draw_mixture(data, PLAN, 4000, torch.Generator().manual_seed(0), folds)
    generator = torch.Generator().manual_seed(1)
    expected = draw(mixture_noise(data, PLAN, generator), 4000, generator)
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


QUICK: dict[str, Any] = {"n_trees": 9, "steps": 20, "batch_size": 32, "latent_dim": 2, "hidden": (8,)}
CASES: dict[str, Any] = {name: (name, False) for name in MEMBERS} | {
    f"{name}, images": (name, True) for name in ("mixture_forest", "network", "autoencoder", "variational")
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
    monkeypatch.setattr("fvnce.detection.rows.BATCH", 64)
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


@pytest.mark.parametrize("jobs", [0, 1.5, True, "all"])
def test_a_number_of_jobs_is_checked(jobs: Any) -> None:
    with pytest.raises(ValueError, match=r"n_jobs must be None or an integer other than 0"):
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
    training = TrainConfig(100, 128, 3e-3, 1.0, 0.3, None, "cpu", None, False)
    plan = Plan(tuple(detector.ensemble_.names), 34, 5, 1, (64, 64), 2, None, 0.8, 0.5, 1.0, training)
    refits = [
        Ensemble.fit(data.without(folds.rows == fold, folds.outliers == fold), plan, fold)[0] for fold in range(3)
    ]
    held = HeldOutScores.by(lambda rows, fold: refits[fold].anomaly(rows), data, folds)
    theirs = calibrate_with_outliers(held.rows, data.weights, held.outliers, data.outlier_weights, None)
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
        "stacked": lambda block: torch.baddbmm(bias[None, None], block[None], weight.T[None])[0],
    }
    for name, way in ways.items():
        together = in_blocks(way, x)
        assert together.shape == (BLOCK, outputs), name
        torch.testing.assert_close(together, way(x))
        for places in (1, 7, 40, 128, 251):
            moved = in_blocks(way, x.roll(places, 0)).roll(-places, 0)
            assert torch.equal(moved, together), name
        assert torch.equal(in_blocks(way, x[:3]), together[:3]), name
