"""Consistency: every member of the family finds the truth, with an error that shrinks like 1/√n.

Models are well specified and encoders exact, so each estimate is the maximum of its empirical objective, found by
L-BFGS in float64 from a start near the truth (the objectives are not concave in θ; far starts are another question).
Between n = 900 and n = 8100 the geometric mean of the error over ten independent data sets should fall by √9 = 3. Its
logarithm varies by about 0.35 between data sets, so the log of the ratio by 0.16: the bounds are 3.5 of that wide.
(The geometric mean, because at α = 1 a single noise sample can spoil an estimate.)
"""

import pytest
import torch

from consistency import (
    LinearProblem,
    MaximumLikelihood,
    MixtureProblem,
    UnnormalisedLinearProblem,
    UnnormalisedMixtureProblem,
    check_rate,
)
from fvnce import NCE, FullyVariationalNCE, PowerRule, VariationalNCE
from fvnce.scoring import Exponential

pytestmark = pytest.mark.usefixtures("double_precision")

RULES = [PowerRule(alpha, beta, clip=None) for alpha, beta in ((0, 0), (0.25, 0), (1, 0), (0, 1), (0.5, 1))]
RULES.append(0.5 * PowerRule(0.1, clip=None) + PowerRule(0, clip=None))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [MixtureProblem(), LinearProblem()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_normalised_models(problem, rule):
    check_rate(lambda m, noise: FullyVariationalNCE(m, m.posterior, noise, rule), problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [UnnormalisedMixtureProblem(), UnnormalisedLinearProblem()], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_unnormalised_models_with_log_z_profiled(problem, rule):
    check_rate(
        lambda m, noise: FullyVariationalNCE(m, m.posterior, noise, rule, partition="profiled"),
        problem,
        with_log_z=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", [PowerRule(0, clip=None), PowerRule(0.5, clip=None)], ids=str)
def test_unnormalised_models_with_log_z_learned(rule):
    check_rate(
        lambda m, noise: FullyVariationalNCE(m, m.posterior, noise, rule, partition="learned"),
        UnnormalisedMixtureProblem(),
        with_log_z=True,
    )


@pytest.mark.slow
def test_an_unnormalised_model_by_the_exponential_rule():
    check_rate(
        lambda m, noise: NCE(m, noise, Exponential(None), partition="learned"),
        UnnormalisedMixtureProblem(),
        with_log_z=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda m, noise: MaximumLikelihood(m),
        NCE,
        lambda m, noise: VariationalNCE(m, m.posterior, noise),
        lambda m, noise: NCE(m, noise, PowerRule(0.5, clip=None)),
        lambda m, noise: NCE(m, noise, Exponential(None)),
    ],
    ids=["MLE", "NCE", "VNCE", "power", "eNCE"],
)
@pytest.mark.parametrize("problem", [MixtureProblem(), LinearProblem()], ids=lambda p: type(p).__name__)
def test_the_others_beside_them(problem, make):
    check_rate(make, problem)


def test_at_the_posterior_vnce_is_nce():
    problem = MixtureProblem()
    model = problem.truth()
    x, y = model.sample(50), problem.noise().sample((50,))
    torch.testing.assert_close(
        VariationalNCE(model, model.posterior, problem.noise())(x, y), NCE(model, problem.noise())(x, y)
    )
