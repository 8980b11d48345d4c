"""The page 'Which NCE?': what is said there in mathematics, and that its numbers are those of the committed results."""

import json
import math
import statistics
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.nn.functional import softplus

from fvnce import Logarithmic
from fvnce.objectives.batch import LogRatio
from fvnce.objectives.contrastive import contrast
from fvnce.objectives.relatives import STEP
from fvnce.scoring import Exponential

ROOT = Path(__file__).resolve().parents[2]


def results(name):
    return json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text("utf-8"))


def test_a_loss_of_pairs_is_proper_where_its_slope_is_symmetric():
    """p f(ρ) + q f(1/ρ) is stationary at ρ = p/q for all p, q if f'(1/ρ) = ρ³ f'(ρ), as for −log(1 + 1/ρ)."""
    rho = torch.logspace(-3, 3, 61, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad((-softplus(-rho.log())).sum(), rho)
    torch.testing.assert_close(slope.flip(0), rho.detach() ** 3 * slope, rtol=1e-9, atol=0)
    # Slopes of another shape on ρ ≤ 1, continued by the symmetry, have the same stationary point.
    for power in (-0.9, -0.3, 0.5):
        slopes = lambda r, a=power: np.where(r <= 1, r**a, r ** (-3 - a))  # noqa: E731
        for ratio in (0.2, 1.0, 7.0):
            turned = slopes(1 / ratio) / ratio**2
            assert ratio * slopes(ratio) - turned == pytest.approx(0, abs=1e-12 * turned)


def test_no_proper_loss_of_pairs_is_concave_in_both_densities():
    """Concave in φ(u) asks ρ²f' not to grow; the symmetry makes it ρ times as large at ρ as at 1/ρ."""
    rng = np.random.default_rng(0)
    grid = np.logspace(-3, 0, 200)
    for _ in range(50):
        # Any positive slope below 1, even one whose ρ²f' falls there, must rise in all from 1/ρ to ρ.
        low = np.exp(np.cumsum(rng.normal(size=200)) * 0.3)
        high = low / (1 / grid) ** 3  # f'(ρ) at ρ = 1/grid
        assert ((1 / grid) ** 2 * high >= grid**2 * low * (1 - 1e-12)).all()
        assert ((1 / grid[:-1]) ** 2 * high[:-1] > grid[:-1] ** 2 * low[:-1]).all()


@pytest.mark.parametrize("noise_ratio", [1, 4])
def test_with_all_but_c_known_nce_is_the_optimal_bridge(noise_ratio):
    """Meng & Wong (1996): Z = E_n[p⁰ a] / E_p[p_n a] with a = 1/(p⁰/Z + ν p_n), iterated to its fixed point."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(500, generator=generator, dtype=torch.double)
    noise_draws = 2 * torch.randn(500 * noise_ratio, generator=generator, dtype=torch.double)
    model, noise = (lambda x: -(x**2) / 2), Normal(torch.zeros((), dtype=torch.double), 2.0).log_prob
    z = 1.0
    for _ in range(200):
        bridge = lambda x, z=z: 1 / (model(x).exp() / z + noise_ratio * noise(x).exp())  # noqa: E731
        over = (model(noise_draws).exp() * bridge(noise_draws)).mean()
        z = float(over / (noise(draws).exp() * bridge(draws)).mean())
    assert z == pytest.approx(math.sqrt(2 * math.pi), rel=0.1)
    c = torch.tensor(math.log(z), dtype=torch.double, requires_grad=True)
    of_data, of_noise = (LogRatio(model(x) - noise(x)) for x in (draws, noise_draws))
    (slope,) = torch.autograd.grad(contrast(Logarithmic(), of_data, of_noise, c, noise_ratio)[0], c)
    assert abs(float(slope)) < 1e-12


def test_the_ranking_objective_is_bounded_by_rule_00():
    """−log R ≥ 1 − c − e^(−c) R for every c; over states, that is rule (0, 0) and the datum's own e^(−c) E_d[r]."""
    total, c = torch.logspace(-2, 2, 41).unsqueeze(1), torch.linspace(-4.6, 4.6, 41)
    assert (-total.log() - 1 + c + (-c).exp() * total > -1e-5).all()
    p_d, p_n, p0 = (torch.rand(5, generator=torch.Generator().manual_seed(seed)).double() + 0.1 for seed in range(3))
    p_d, p_n = p_d / p_d.sum(), p_n / p_n.sum()
    r = p0 / p_n
    for noise_samples in (1, 2, 3):
        sums, weights = r.clone(), torch.ones((), dtype=torch.double)
        for _ in range(noise_samples):
            sums, weights = sums.unsqueeze(-1) + r, weights.unsqueeze(-1) * p_n
        ranking = p_d @ r.log() - (p_d.view(-1, *[1] * noise_samples) * weights * sums.log()).sum()
        for scale in (-1.0, 0.0, 1.0, float((p_d @ r + noise_samples * (p_n @ r)).log())):
            rule_00 = p_d @ r.log() - scale + 1 - math.exp(-scale) * noise_samples * (p_n @ r)
            assert ranking >= rule_00 - math.exp(-scale) * (p_d @ r)


@pytest.mark.parametrize("distance", [1.0, 3.0, 6.0])
def test_the_curvature_of_the_exponential_rule_is_polynomial(distance):
    """Data N(R, 1), noise N(0, 1), (b, log Z): φ p_d ∝ N(R/2, 1), so λ₊λ₋ = 1 up to scale and λ₊ + λ₋ = 2 + R²/4."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    x = nodes + distance
    delta = torch.from_numpy(distance * x - distance**2 / 2)
    g = np.stack([x, -np.ones_like(x)], 1)
    condition = {}
    for name, rule in (("NCE", Logarithmic()), ("eNCE", Exponential(None))):
        values = np.linalg.eigvalsh((g.T * (weights * rule.log_slope(delta)[0].exp().numpy())) @ g)
        condition[name] = values[-1] / values[0]
    total = 2 + distance**2 / 4
    assert condition["eNCE"] == pytest.approx(((total + math.sqrt(total**2 - 4)) / 2) ** 2, rel=1e-6)
    assert condition["NCE"] > condition["eNCE"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "price"), [(1, 3.83), (2, 5.97), (10, 22.2), (50, 108.0)])
def test_steps_of_238_over_root_d_cost_least(width, price):
    """The mean of N(0, I) by conditional NCE, one step each: n·Var = V/H², V = E[σ²(x − u)²], H = E[σ(1 − σ)(x − u)²].

    Averaged over coordinates, which are alike; 4·10⁶ numbers know the price to 3 % in 50 dimensions and better below.
    """
    rng = np.random.default_rng(0)
    x, xi = rng.normal(size=(2, 4_000_000 // width, width))
    actual = {}
    for length in (1.0, 1.5, STEP, 4.0, 6.0):
        u = x + length / math.sqrt(width) * xi
        missed = 1 / (1 + np.exp(((u**2).sum(1) - (x**2).sum(1)) / 2))
        squares = ((x - u) ** 2).mean(1)
        actual[length] = (missed**2 * squares).mean() / (missed * (1 - missed) * squares).mean() ** 2
    assert min(actual, key=actual.get) == STEP
    assert actual[STEP] == pytest.approx(price, rel=0.1)


def test_plain_descent_grows_exponentially_with_the_distance_and_normalised_does_not():
    rows = results("flat_landscape")["rows"]
    by_distance = {row["distance"]: row["steps"] for row in rows}
    assert by_distance[7.0]["NCE, plain"] is None
    assert by_distance[6.0]["NCE, plain"] > 30 * by_distance[4.0]["NCE, plain"]
    for steps in by_distance.values():
        assert steps["eNCE, normalised"] <= 128


def test_annealing_turns_exponential_into_polynomial():
    rows = {row["distance"]: row for row in results("annealing")["rows"]}
    for distance, row in rows.items():
        geometric = row["geometric"]
        # Five standard errors, and a tenth for levels being finite.
        assert abs(geometric["mse"] - distance**2) < 5 * geometric["error"] + 0.1 * distance**2
        assert row["arithmetic, oracle"]["mse"] < 5 * row["arithmetic, oracle"]["error"] + math.pi**2
    assert rows[6.0]["one step"]["mse"] > 10 * rows[6.0]["geometric"]["mse"]
    assert {distance: row["one step"]["trusted"] for distance, row in rows.items() if distance >= 5} == {
        5.0: 1.0,
        6.0: 0.0,
        8.0: 0.0,
    }


def test_what_the_page_says_of_the_estimators_is_what_was_measured():
    def column(record, value):
        return {name: {each: row[value] for each, row in actual.items()} for name, actual in record["problems"].items()}

    kl, log_z = (column(results("estimators"), value) for value in ("kl", "log_z"))
    wide = "Gaussian precision, 64-D"
    assert max(actual["ranking, K = 10"] / actual["maximum likelihood"] for actual in kl.values()) < 1.2
    errors = column(results("estimators"), "kl_error")
    alike = ("NCE", "ranking, K = 1", "ranking, K = 10", "(0, 0), profiled")
    for problem in (
        "Gaussian mean, 10-D",
        "Gaussian precision, 2-D",
        "Gaussian precision, 16-D",
        "mixture, 2-D",
        "ring, 2-D",
    ):
        for one, other in combinations(alike, 2):
            apart = abs(kl[problem][one] - kl[problem][other])
            assert apart < 2 * math.hypot(errors[problem][one], errors[problem][other])
    assert kl[wide]["(0, 0), profiled"] > 10 * max(kl[wide]["NCE"], kl[wide]["ranking, K = 10"])
    assert max(kl[wide], key=kl[wide].get) == "eNCE"
    for problem, price in (("Gaussian mean, 10-D", 1.4), (wide, 2.5)):
        assert kl[problem]["conditional"] / kl[problem]["maximum likelihood"] == pytest.approx(price, abs=0.05)
    assert sum(actual["NCE"] > actual["ranking, K = 10"] for actual in log_z.values()) == 6


def test_the_table_of_the_page_is_that_of_the_results():
    """Every row of it, from the file."""
    page = (ROOT / "docs" / "models" / "which-nce.md").read_text("utf-8")
    for problem, actual in results("estimators")["problems"].items():
        cells = []
        for each in actual.values():
            digits = 0 if 1000 * each["kl"] >= 10 else 1
            cells.append(f"{1000 * each['kl']:,.{digits}f} ± {1000 * each['kl_error']:,.{digits}f}")
        assert f"| {problem} | {' | '.join(cells)} |" in page


def test_where_one_softmax_is_better_than_binary_bridges_and_where_it_is_not():
    problems = results("bridges")["problems"]
    modes, far = problems["four modes, 2-D"], problems["shifted by 6, 2-D"]
    assert modes["softmax"]["on data"]["mean"] < 0.25 * modes["binary"]["on data"]["mean"]
    assert far["reference"]["on data"]["mean"] < far["binary"]["on data"]["mean"] < far["softmax"]["on data"]["mean"]
    assert far["softmax"]["on data"]["mean"] > far["one step"]["on data"]["mean"]
    times = [actual["softmax"]["seconds"]["mean"] / actual["binary"]["seconds"]["mean"] for actual in problems.values()]
    assert 0.2 < statistics.median(times) < 0.45
