"""What the detector says is true: ratios in closed form, the share of hidden outliers, contributions that add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributions import Independent, Normal

from fvnce import FullyVariationalNCE, PowerRule
from fvnce.detection import MEMBERS, NoiseContrastiveDetector
from fvnce.detection.members.forest import GROWN_DEPTH, RatioForest, grow_forest
from fvnce.detection.members.network_training import initial_layers, train
from fvnce.detection.members.ratio_network import RatioNetworks
from fvnce.detection.noise import draw_box, draw_mixture
from fvnce.detection.rows import TrainingRows
from fvnce.detection.trust.calibration import HELD_ALONE, calibrate_with_outliers, calibrate_without
from fvnce.detection.trust.evidence import REASONS
from fvnce.noise import EmpiricalNoise, draw
from fvnce.scoring import Logarithmic, ScoringRule
from member_settings import member_settings

Array = NDArray[np.float64]


def _forest(rng: np.random.Generator, leaf: int = 5, trees: int = 60) -> tuple[RatioForest, Array, Array]:
    rows, noise = rng.normal(size=(4000, 1)), rng.uniform(-4, 4, size=(4000, 1))
    made = grow_forest(
        rows,
        np.ones(4000),
        noise,
        np.ones(4000),
        n_trees=trees,
        min_samples_leaf=leaf,
        seed=0,
    )
    return made, rows, noise


@pytest.mark.parametrize("rule", [PowerRule(0.0, clip=None), PowerRule(0.5, clip=None), Logarithmic()])
def test_the_share_in_a_cell_maximises_every_proper_objective(rule: ScoringRule) -> None:
    # J of a cell with data mass a and noise mass b, as a function of Δ = log r, is maximal at log a/b.
    grid = torch.linspace(-6, 6, 12001, dtype=torch.float64)
    for a, b in ((0.2, 0.1), (0.01, 0.3), (0.05, 0.05)):
        value = a * rule.f1(grid) + b * rule.f0(grid)
        assert float(grid[value.argmax()]) == pytest.approx(np.log(a / b), abs=2e-3)


def test_a_forest_recovers_a_known_ratio() -> None:
    forest, _, _ = _forest(np.random.default_rng(0), leaf=40)
    x = np.linspace(-3, 3, 61)[:, None]
    truth = (1 / 8) / (1 / 8 + np.exp(-(x[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi))
    # The average over 60 trees is smooth; what is left is the width of random cells of 40 samples and more.
    assert np.abs(forest.anomaly(x) - truth).max() < 0.08


def test_flat_trees_agree_with_scikit_learn() -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    forest, rows, noise = _forest(np.random.default_rng(1), trees=7)
    theirs = ExtraTreesClassifier(7, min_samples_leaf=5, max_depth=GROWN_DEPTH, max_features=1, random_state=0)
    theirs.fit(np.concatenate([rows, noise]), np.repeat([0, 1], 4000))
    x = np.random.default_rng(2).normal(size=(500, 1)) * 2
    np.testing.assert_allclose(
        forest.anomaly(x), theirs.predict_proba(x)[:, 1], atol=1e-7
    )  # shares are in single precision
    np.testing.assert_allclose(forest.contributions(x).sum(1) + forest.base, forest.anomaly(x), atol=1e-12)


def test_a_model_relative_to_the_noise_learns_the_log_ratio() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 0.8, size=(6000, 1))
    noise = Independent(Normal(torch.zeros(1), torch.ones(1) * 1.5), 1)
    settings = member_settings(steps=600, batch_size=256, learning_rate=5e-3)
    drawn = draw(noise, 2**14, torch.Generator().manual_seed(0))
    weights, biases = initial_layers([1, 32, 32, 1], 1, 0)
    ones, allowed = torch.ones(1, 6000, dtype=torch.float64), torch.ones(1, len(drawn), dtype=torch.bool)
    train(weights, biases, torch.from_numpy(rows).float(), ones, drawn, allowed, settings, 0)
    x = np.linspace(-2, 2, 41)[:, None]
    layers = ([each.double().numpy() for each in both] for both in (weights, biases))
    estimate = -RatioNetworks(*layers, [0.0], [1.0]).anomaly(x)
    truth = (Normal(0.0, 0.8).log_prob(torch.from_numpy(x)) - Normal(0.0, 1.5).log_prob(torch.from_numpy(x))).numpy()
    gap = estimate - truth[:, 0]
    # Up to the constant that the profiled form leaves open.
    assert np.abs(gap - gap.mean()).max() < 0.25


def test_draws_from_the_box_are_uniform() -> None:
    x = draw_box(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), 1000, torch.Generator().manual_seed(0))
    assert ((x >= 0) & (x <= torch.tensor([1.0, 2.0]))).all()
    # Means of 1,000 uniform draws: 5 standard errors.
    assert abs(float(x[:, 1].mean()) - 1.0) < 5 * 2 / np.sqrt(12 * 1000)


def test_the_mixture_puts_its_weight_on_the_known_outliers() -> None:
    rows = TrainingRows(np.zeros((50, 1)), np.ones(50), np.full((5, 1), 100.0), np.ones(5))
    drawn, _ = draw_mixture(rows, member_settings(outlier_share=0.8), 10_000, 0)
    near = (drawn > 50).double().mean()
    assert abs(float(near) - 0.8) < 5 * 0.004


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_share_of_hidden_outliers_is_found(share: float) -> None:
    # Outliers are well apart: the bound π ≤ P_u/P_out is tight, and P(outlier) of rows averages to π.
    rng = np.random.default_rng(0)
    hidden = round(2000 * share)
    unlabelled = np.concatenate([rng.normal(0, 1, 2000 - hidden), rng.normal(6, 1, hidden)])
    known = rng.normal(6, 1, 200)
    found = calibrate_with_outliers(unlabelled, np.ones(2000), known, np.ones(200), None)[0]
    assert found.prior == pytest.approx(share, abs=0.25 * share)
    flagged = unlabelled > found.threshold
    assert abs(flagged.mean() - share) < 0.01 + 0.15 * share
    given = calibrate_with_outliers(unlabelled, np.ones(2000), known, np.ones(200), 0.01)[0]
    assert given.prior == 0.01
    assert given.threshold > found.threshold


def test_without_known_outliers_the_excess_of_the_upper_tail_is_flagged() -> None:
    rng = np.random.default_rng(0)
    clean = rng.normal(size=4000)
    dirty = np.concatenate([clean, rng.normal(8, 1, 400)])
    assert calibrate_without(clean, np.ones(4000), None).prior < 0.04
    found = calibrate_without(dirty, np.ones(4400), None)
    assert found.prior == pytest.approx(400 / 4400, abs=0.03)
    assert found.probability(np.array([found.threshold]))[0] == pytest.approx(0.5 * HELD_ALONE)


def test_a_row_far_from_all_others_is_flagged_though_scores_lie_in_two_heaps() -> None:
    # Three quarters of the rows are all zeros; the others are so far from them that the fence is beyond every score.
    rng = np.random.default_rng(6)
    X = np.where(rng.random((400, 6)) < 0.05, rng.exponential(size=(400, 6)), 0.0)
    detector = NoiseContrastiveDetector(random_state=0).fit(X)
    far = np.array([[10.0] * 6, [1e6] * 6])
    assert (detector.predict(far) == -1).all()
    assert (detector.outlier_probability(far) > 0.5 * HELD_ALONE).all()
    assert not (detector.predict(X) == -1).any()
    assert detector.evidence_.threshold_reason == REASONS["highest"]


def _contaminated(seed: int, hidden: int = 40) -> tuple[Array, NDArray[np.int64]]:
    """A ring with a blob of outliers in its hole, where no marginal is unusual."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, 800)
    ring = np.stack([np.cos(angle), np.sin(angle)], 1) * 3 + 0.3 * rng.normal(size=(800, 2))
    blob = 0.4 * rng.normal(size=(hidden + 10, 2))
    return np.concatenate([ring, blob]), np.repeat([0, 1], [800, hidden + 10])


@pytest.mark.slow
def test_a_contaminated_problem_whose_answer_is_known() -> None:
    X, _ = _contaminated(0)
    y = np.zeros(len(X), dtype=int)
    y[-10:] = 1  # 10 outliers are known, 40 hide among the rows
    detector = NoiseContrastiveDetector(n_trees=100, n_networks=1, steps=200).fit(X, y)
    fresh, fresh_truth = _contaminated(1)
    assert detector.score(fresh, fresh_truth) > 0.99
    # π counts hidden outliers among unlabelled rows: 40 of 840.
    assert detector.prior_ == pytest.approx(40 / 840, rel=0.5)
    flagged = detector.predict(fresh) == -1
    assert (flagged == (fresh_truth == 1)).mean() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("members", [(name,) for name in MEMBERS])
def test_contributions_add_up_to_the_score(members: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = np.zeros(300, dtype=int)
    X[:20, 3] += 6
    y[:10] = 1
    detector = NoiseContrastiveDetector(members=members, n_trees=50, n_networks=1, steps=100, calibration_folds=0)
    found = detector.fit(X, y).explain(X[:20])
    # Exact but for the quadrature of integrated gradients, whose path of 64 steps crosses a kink.
    exact = not members[0].startswith("network")
    np.testing.assert_allclose(found.anomaly, detector.anomaly_score(X[:20]), atol=1e-9 if exact else 0.1)
    assert found.total.shape == (20, 5)
    assert (found.total.argmax(1) == 3).mean() > 0.9
    assert not found.reconstruction.any()


def test_integrated_gradients_of_a_linear_network_are_its_weights() -> None:
    weights, biases = ([each.double().numpy() for each in both] for both in initial_layers([3, 1], 1, 0))
    member = RatioNetworks(weights, biases, [0.0], [1.0])
    X = np.random.default_rng(0).normal(size=(7, 3))
    expected = -X * weights[0][0, :, 0]
    np.testing.assert_allclose(member.contributions(X), expected, atol=1e-12)


class _Table(torch.nn.Module):
    """A log-ratio of its own for every row, which is named by its first column."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(values)

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        return self.values[x[:, 0].long()]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_alpha_discounts_rows_that_are_likelier_noise(alpha: float) -> None:
    # The pull of a data row on its own log-ratio is its softmax weight in αΔ: equal at α = 0, less for low ratios else.
    delta = torch.tensor([2.0, 1.0, -3.0, 0.5, 0.0], dtype=torch.float64)
    model = _Table(delta)
    noise = EmpiricalNoise(Independent(Normal(torch.zeros(1).double(), torch.ones(1).double()), 1))
    objective = FullyVariationalNCE(model, None, noise, PowerRule(alpha=alpha), partition="profiled")
    rows = torch.arange(5, dtype=torch.float64)[:, None]
    objective(rows[:3], rows[3:]).backward()
    assert model.values.grad is not None
    expected = torch.softmax(alpha * delta[:3], 0)
    torch.testing.assert_close(-model.values.grad[:3], expected, atol=1e-12, rtol=0)
