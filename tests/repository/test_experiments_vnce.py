"""The problems of variational NCE: the machinery against closed forms, and every item end to end on tiny settings."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from experiments import vnce
from experiments.vnce import boltzmann, boltzmann_estimates, missing, mixture, mixture_theory, posterior, toys
from experiments.vnce.densities import TOYS
from experiments.vnce.estimation import best_estimate, score_and_curvature, value
from experiments.vnce.truncated_normal import (
    MaskedEncoder,
    MaskedHalfNormal,
    TruncatedNormal,
    log_orthant_partition,
    sample,
)
from fvnce import NCE, FullyVariationalNCE, Logarithmic, PowerRule
from fvnce.paper.cells import one_thread
from fvnce.paper.setting import Options

PROBLEMS = {
    problem.__name__.removeprefix("experiments.").replace(".", "-"): problem
    for problem in (mixture, boltzmann, posterior, missing, toys)
}


def coverage_bounds(trials: int, share: float = 0.95, width: float = 4.0) -> tuple[float, float]:
    """Between which the measured coverage of so many independent intervals should lie."""
    margin = width * math.sqrt(share * (1 - share) / max(trials, 1))
    return share - margin, share + margin


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function from an item to (its files, its results), made once with tiny settings."""
    out, known = tmp_path_factory.mktemp("vnce"), {}

    def make(item):
        if item not in known:
            with one_thread():
                section = PROBLEMS[item].run(out, Options(quick=True))
            known[item] = section.files, json.loads((out / f"{item}.json").read_text())
        return known[item]

    return make


@pytest.mark.slow
def test_a_problem_is_a_program(tmp_path, monkeypatch, capsys):
    """Paths on standard output, words on standard error, and mistakes with exit code 2."""
    program = "experiments.vnce.boltzmann"
    monkeypatch.setattr(sys, "argv", [program, "--quick", "--out", str(tmp_path / "out")])
    vnce.main(boltzmann.run, boltzmann.__doc__)
    said = capsys.readouterr()
    assert [Path(line).name for line in said.out.splitlines()] == [
        "vnce-boltzmann.png",
        "vnce-boltzmann.pdf",
        "vnce-boltzmann.json",
    ]
    assert "KL(p*‖p_θ)" in said.err
    (tmp_path / "file").touch()
    for arguments, words in (
        (["--out", str(tmp_path / "file")], "must be a folder"),
        (["--epochs", "0"], "at least 1"),
    ):
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as stop:
            vnce.main(boltzmann.run, boltzmann.__doc__)
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("item", PROBLEMS)
def test_every_item_says_how_it_was_made_and_draws(made, item):
    files, content = made(item)
    assert content["command"] == f"python -m {PROBLEMS[item].__name__} --quick"
    assert content["seconds"] > 0
    assert content["settings"]
    assert f"{item}.json" in {path.name for path in files}
    pictures = [path for path in files if path.suffix == ".png"]
    assert len(pictures) == (2 if item == "vnce-mixture" else 1)
    for path in pictures:
        assert imread(path)[..., :3].std() > 0.02


@pytest.mark.slow
def test_mixture_recovers_its_parameter(made):
    """Coverage of 95% intervals over 40 runs and two parameters; log Z within 3 errors; errors fall with n."""
    results = made("vnce-mixture")[1]["results"]
    for name in ("NCE = VNCE", "fvNCE (0, 0)", "fvNCE (1/4, 0)"):
        small, large = results["measured"][name]
        low, high = coverage_bounds(40)  # the two parameters of a run go together
        assert low <= large["coverage"] <= high
        assert large["log_partition_within_3_errors"] >= 0.95
        assert large["log_partition_mean_error"] < 0.05
        assert large["deciles"][4] < small["deciles"][4]
        assert large["deciles"] == sorted(large["deciles"])
    for row in results["joint_training"].values():
        assert abs(row["learned_encoder"] - row["exact_posterior"]) < 1e-4


@pytest.mark.slow
def test_mixture_shows_what_alpha_costs_and_what_it_buys(made):
    results = made("vnce-mixture")[1]["results"]
    for scale, curve in results["efficiency"]["by_alpha"].items():
        assert curve == sorted(curve)  # the most efficient α is 0
        assert 1 < results["efficiency"]["logarithmic"][scale] < curve[0]
    bias = results["contaminated_bias"]["noise_scale"]["8.0"]
    assert abs(bias["by_alpha"][-1]) < 0.2 < 2 < abs(bias["by_alpha"][0])


@pytest.mark.slow
def test_boltzmann_machine_is_recovered(made):
    results = made("vnce-boltzmann")[1]["results"]
    rows = results["measured"]["3000"]
    parameters = 8 * 2 + 8 + 2
    expected = parameters / (2 * 3000)  # Wilks: E KL of maximum likelihood
    assert 0.6 * expected < rows["MLE"]["kl_mean"] < 1.6 * expected
    for name in boltzmann_estimates.RULES:
        assert rows["MLE"]["kl_mean"] < rows[name]["kl_mean"] < 3 * expected
        assert 0.88 < rows[name]["coverage"] <= 1
        assert rows[name]["log_partition_within_3_errors"] >= 0.9
        assert rows[name]["log_partition_mean_error"] < 0.05
    for row in results["learned_encoder"].values():
        assert abs(row["learned_encoder"] - row["exact_posterior"]) < 1e-4
    assert results["crude_encoder"]["fvNCE (0, 0)"] < results["crude_encoder"]["independent units"]


@pytest.mark.slow
def test_posteriors_are_learned(made):
    results = made("vnce-posterior")[1]["results"]
    for shape in results.values():
        for row in shape.values():
            for name, divergences in row.items():
                if name.startswith("kl_"):
                    assert min(divergences) > -0.02  # on a coarse grid
            assert abs(row["log_partition"] - row["true_log_partition"]) < 4 * row["log_partition_error"]


@pytest.mark.slow
def test_missing_values_are_survived(made):
    results = made("vnce-missing")[1]["results"]
    complete = results["0.0"]
    for method in missing.METHODS[:3]:
        assert complete[method][0]["coverage"] >= 0.75  # of 21 entries that go together
        assert complete[method][0]["relative_error"] < 2 * complete[method][0]["expected_error"]
    # With entries missing from so few rows a matrix may be far off, even indefinite: then the exact value is null.
    for share, methods in results.items():
        for method, rows in methods.items():
            (value, error), exact = rows[0]["log_partition"], rows[0]["exact_log_partition"]
            assert exact is not None or (share != "0.0" and method != missing.METHODS[3])
            if exact is not None:
                assert abs(value - exact) < 4 * error
                assert error < 0.05
    # With nothing missing, filling in changes nothing.
    assert complete["VNCE"][0]["matrix"] == complete["mean imputation, NCE"][0]["matrix"]


@pytest.mark.slow
def test_log_partition_of_the_toys_is_right_by_three_routes(made):
    for row in made("vnce-toys")[1]["results"]["moons"].values():
        assert abs(row["log_partition"] - row["quadrature"]) < max(3 * row["log_partition_error"], 1e-3)
        assert abs(row["log_partition"] - row["quadrature"]) < 0.05
        assert abs(row["annealed"] - row["quadrature"]) < 4 * row["annealed_error"] + 0.01


def test_orthants_of_three_normals_have_a_closed_form():
    """P(u ≥ 0) = 1/8 + Σ asin(ρ_ij)/4π; and K that is not positive definite has no such P."""
    covariance = torch.tensor([[1.0, 0.5, -0.2], [0.5, 2.0, 0.3], [-0.2, 0.3, 0.7]], dtype=torch.float64)
    scale = covariance.diagonal().sqrt()
    angles = (covariance / scale / scale[:, None])[torch.triu_indices(3, 3, 1).unbind()].asin()
    probability = 1 / 8 + float(angles.sum()) / (4 * math.pi)
    expected = 1.5 * math.log(2 * math.pi) + float(torch.logdet(covariance)) / 2 + math.log(probability)
    assert log_orthant_partition(torch.linalg.inv(covariance)) == pytest.approx(expected, abs=1e-5)
    assert math.isnan(log_orthant_partition(torch.tensor([[1.0, -2.0], [-2.0, 1.0]])))


def test_the_same_seed_gives_the_same_numbers():
    settings = missing.Settings(rows=100, steps=3, polish=3, importance_samples=5)
    one, two = (missing._one(settings, 0.3, "fvNCE (0, 0)", seed=1) for _ in range(2))
    other = missing._one(settings, 0.3, "fvNCE (0, 0)", seed=2)
    assert one | {"seconds": 0} == two | {"seconds": 0}
    assert one["matrix"] != other["matrix"]


@pytest.mark.parametrize("name", TOYS)
def test_toys_are_densities_of_their_samples(name):
    """Integral 1 over the plane, and two averages over samples against the grid to 5 standard errors."""
    axis = torch.linspace(-5, 5, 201)[:-1] + 0.025
    grid = torch.cartesian_prod(axis, axis)
    density = torch.cat([TOYS[name].log_prob(part) for part in grid.split(40_000)]).double().exp() * 0.05**2
    assert abs(float(density.sum()) - 1) < 2e-3
    x = TOYS[name].sample(20_000, torch.Generator().manual_seed(0))
    for statistic in (lambda u: u.square().sum(-1), lambda u: (u[:, 0] > 0.3).float() * u[:, 1]):
        values = statistic(x)
        assert (
            abs(float(values.mean()) - float(density @ statistic(grid).double())) < 5 * float(values.std()) / 141 + 3e-3
        )


def test_gradients_of_the_mixture_and_the_machine_are_derivatives():
    settings = mixture_theory.Settings()
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)[None]
    theta = torch.tensor([[0.9, 2.5]], dtype=torch.float64)
    _check_gradient(lambda t: mixture_theory.side(x, x, t, settings, 8.0), theta)
    states = boltzmann_estimates.binary_states(3).double()
    theta = torch.randn(1, 3 * 2 + 3 + 2 + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_noise = torch.full((1, 8), -3 * math.log(2.0), dtype=torch.float64)
    _check_gradient(lambda t: boltzmann_estimates.side(states, t, log_noise.exp(), log_noise, 2), theta)


def _check_gradient(side, theta):
    analytic = side(theta).gradient[0]
    numeric = torch.autograd.functional.jacobian(lambda t: side(t).delta[0], theta)[:, 0]
    torch.testing.assert_close(analytic, numeric)


@pytest.mark.parametrize("rule", [Logarithmic(), PowerRule(0, clip=None), PowerRule(0.5, 1, clip=None)], ids=str)
def test_the_batch_machinery_has_the_librarys_objective_and_its_gradient(rule):
    settings, nu = boltzmann_estimates.Settings(), 2.0
    model = boltzmann_estimates.machine(settings)
    states = boltzmann_estimates.binary_states(8).double()
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(256, (n,), generator=generator) for n in (40, 80)]
    noise = torch.distributions.Independent(
        torch.distributions.Bernoulli(torch.full((8,), 0.5, dtype=torch.float64)), 1
    )
    how = {"noise_ratio": nu, "log_scale": -2.0}
    objective = (
        FullyVariationalNCE(model, None, noise, rule, **how) if rule.variational else NCE(model, noise, **how)
    ).double()
    loss = objective(states[rows[0]], states[rows[1]])
    loss.backward()
    weights = [torch.bincount(r, minlength=256).double()[None] / len(r) for r in rows]
    theta = boltzmann_estimates.packed(model)[None]
    theta[0, -1] = 2.0
    log_noise = torch.full((1, 256), -8 * math.log(2.0) + math.log(nu), dtype=torch.float64)
    sides = [boltzmann_estimates.side(states, theta, w, log_noise, settings.hidden) for w in weights]
    torch.testing.assert_close(value(rule, *sides, nu)[0], -loss.detach())
    score, _ = score_and_curvature(rule, *sides, nu)
    expected = -torch.cat([model.weight.grad.flatten(), model.visible.grad, model.hidden.grad])
    torch.testing.assert_close(score[0, :-1], expected)


def test_asymptotic_variances_have_their_known_limits():
    """Much noise: NCE and (0, 0) are maximum likelihood. And the logarithmic rule is the best at any amount."""
    settings = mixture_theory.Settings()
    x, cell = mixture_theory._grid()
    density = mixture_theory._true_density(x, 3.0, settings)
    noise_density = mixture_theory._normal_density(x, 8.0)
    tau = torch.tensor([math.log(3.0)], dtype=torch.float64)

    def variance(rule, nu):
        c = mixture_theory.log_partition(tau, 4.0) + math.log(nu)
        theta = torch.stack([tau, c], 1)
        sides = [mixture_theory.side(x[None], (p * cell)[None], theta, settings, 8.0) for p in (density, noise_density)]
        return float(mixture_theory.covariance(rule, *sides, nu, 1.0)[0, 0, 0])

    slope = mixture_theory.side(x[None], x[None], torch.stack([tau, tau], 1), settings, 8.0).gradient[0, :, 0]
    mean = (density * cell * slope).sum()
    fisher = float((density * cell * (slope - mean).square()).sum())
    assert abs(variance(PowerRule(0, clip=None), 1e6) * fisher - 1) < 1e-4
    assert abs(variance(Logarithmic(), 1e6) * fisher - 1) < 1e-4
    for nu in (0.5, 1.0, 5.0):
        best = variance(Logarithmic(), nu)
        for alpha, beta in ((0, 0), (0.3, 0), (1, 0), (0, 1), (0, 0.1)):
            assert variance(PowerRule(alpha, beta, clip=None), nu) > best


def test_the_maximum_of_the_population_is_the_truth():
    settings = mixture_theory.Settings()
    x, cell = mixture_theory._grid()
    weights = [
        (p * cell)[None]
        for p in (mixture_theory._true_density(x, 3.0, settings), mixture_theory._normal_density(x, 8.0))
    ]

    def sides(theta):
        return tuple(mixture_theory.side(x[None], w, theta, settings, 8.0) for w in weights)

    for rule in (Logarithmic(), PowerRule(0, clip=None), PowerRule(0.5, 1, clip=None)):
        estimate = best_estimate(rule, sides, mixture_theory.starts(1, settings))
        assert abs(float(estimate[0, 0].exp()) - 3.0) < 1e-3


def test_the_truncated_normal_and_its_noise():
    settings = missing.Settings(dimensions=2)
    model = TruncatedNormal(settings.precision)
    torch.testing.assert_close(model.matrix, settings.precision)
    u = torch.rand(5, 2)
    row = torch.cat([u * torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]).expand(5, -1)], -1)
    full = -((u @ model.matrix) * u).sum(-1) / 2
    torch.testing.assert_close(model.log_joint(row, u), full)
    (gradient,) = torch.autograd.grad(model.log_joint(row, u).sum(), model.entries)
    torch.testing.assert_close(model.gradient(u).sum(0), gradient)
    # The marginal of the observed entry, by importance samples of an encoder, against quadrature.
    torch.manual_seed(0)
    q = MaskedEncoder(2, 4)(row)
    z = q.rsample((40_000,))
    estimate = (model.log_joint(row, z) - q.log_prob(z)).logsumexp(0) - math.log(40_000)
    axis = torch.linspace(0, 8, 8001)[1:]
    grid = torch.stack([u[:, :1].expand(-1, 8000), axis.expand(5, -1)], -1)
    exact = (-((grid @ model.matrix) * grid).sum(-1) / 2).logsumexp(-1) + math.log(1e-3)
    torch.testing.assert_close(estimate, exact, atol=0.03, rtol=0)
    noise = MaskedHalfNormal(torch.tensor([0.5, 2.0]), torch.tensor([[1.0, 0.0]]))
    points = torch.stack([axis, 0 * axis, axis * 0 + 1, 0 * axis], -1)
    assert abs(float(noise.log_prob(points).exp().sum() * 1e-3) - 1) < 2e-3
    drawn = noise.draw(20_000, torch.Generator().manual_seed(0))
    assert abs(float(drawn[:, 0].square().mean()) - 0.25) < 5 * 0.25 * math.sqrt(2 / 20_000)


def test_samples_of_the_truncated_normal_have_its_moments():
    """E[u_i (Ku)_i] = 1, by integration by parts with u_i = 0 at the wall."""
    settings = missing.Settings()
    u = sample(settings.precision, 20_000, torch.Generator().manual_seed(0))
    values = u * (u @ settings.precision)
    errors = values.std(0) / math.sqrt(len(u))
    assert ((values.mean(0) - 1).abs() < 5 * errors).all()


def test_the_true_log_partition_of_the_shaped_models():
    settings = posterior.Settings()
    axis = torch.linspace(-7, 7, 71)
    z = torch.cartesian_prod(axis, axis)
    for shape in posterior.SHAPES.values():
        model = posterior.ShapedModel(shape, settings.spread, 1.0)
        x = torch.linspace(-40, 40, 401)
        total = sum(
            model.log_joint(part[:, None, None], z[None]).detach().double().exp().sum() for part in x.split(100)
        )
        log_total = math.log(float(total) * 0.2 * 0.2 * 0.2)
        assert abs(log_total - posterior.true_log_partition(settings)) < 2e-3
