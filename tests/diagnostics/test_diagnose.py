"""What diagnose says of trained objectives: live noise, gaps of the bound, calibration, log Z."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from contracts import DOUBLE
from exact_models import GaussianMixtureModel
from fvnce import (
    NCE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    PowerRule,
    mlp,
)
from fvnce.diagnostics import calibrate, diagnose
from fvnce.models import WithContext
from objective_problems import normal


def standard(d: int, scale: float = 1.0) -> Independent:
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


ENCODERS = {
    "point": lambda: PointEncoder(mlp([6, 8, 2], nn.Tanh)),
    "gaussian": lambda: GaussianEncoder(mlp([6, 8, 4], nn.Tanh)),
}


def make(encoder="gaussian", rule=None, *, scale=0.5, **options):
    torch.manual_seed(0)
    model = LatentVariableModel(standard(2), GaussianDecoder(mlp([2, 8, 6], nn.Tanh), scale))
    return FullyVariationalNCE(model, ENCODERS[encoder](), standard(6, 2.0), rule or PowerRule(0), **options)


def test_diagnose_a_perfect_model():
    """Data from the model itself: log Z = 0, calibrated, no gap at the posterior."""
    torch.manual_seed(0)
    model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0.8, 0.8]))
    noise = standard(2, 1.8)
    objective = FullyVariationalNCE(model, model.posterior, noise, PowerRule(0, clip=None))
    report = diagnose(objective, model.sample(20_000), bins=8)
    assert report.live_noise > 0.95
    assert report.zero_noise == 0.0
    assert abs(report.gap_data) < 1e-4
    assert abs(report.log_partition) < 4 * report.log_partition_error
    assert report.calibration.error < 0.02
    assert not report.advice
    assert "log Z" in str(report)


def test_diagnose_sees_a_bad_encoder():
    """The gap is from one draw to many whatever K the objective trains with, and the true one for a summed latent."""
    gaps = []
    for draws in (1, 64):
        objective = make(scale=1.0, latent_samples=draws)
        report = diagnose(
            objective, torch.randn(400, 6), latent_samples=200, generator=torch.Generator().manual_seed(0)
        )
        gaps.append(report.gap_data)
    assert min(gaps) > 0.05
    assert gaps[0] == pytest.approx(gaps[1], rel=0.3)
    model = GaussianMixtureModel(torch.zeros(2), torch.tensor([[-2.0], [2.0]]), torch.tensor([0.5, 0.5]))
    x = torch.tensor([[-2.0], [2.0]]).repeat(50, 1)
    noise = standard(1, 2.0)
    blind = lambda x: torch.distributions.Categorical(logits=torch.zeros(len(x), 2))  # noqa: E731
    report = diagnose(FullyVariationalNCE(model, blind, noise, PowerRule(0)), x)
    log_joint = torch.stack([model.log_joint(x, torch.full((100,), k)) for k in (0, 1)])
    exact = (model.log_prob(x) - (log_joint - math.log(0.5)).mean(0)).mean().item()
    assert report.gap_data == pytest.approx(exact, rel=1e-4)
    assert exact > 10


def test_diagnose_is_reproducible():
    objective = make(scale=1.0)
    x = torch.randn(50, 6)
    reports = [diagnose(objective, x, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert str(reports[0]) == str(reports[1])


def test_diagnose_says_that_the_noise_term_is_dead():
    objective = make(scale=0.02)
    report = diagnose(objective, 0.1 * torch.randn(50, 6), samples=200)
    assert report.live_noise < 0.01
    assert report.zero_noise > 0.9
    assert any("the noise term is dead" in advice for advice in report.advice)
    assert "! the noise term is dead" in str(report)


def test_calibration_of_a_wrong_classifier_shows():
    torch.manual_seed(0)
    logits = torch.randn(40_000, dtype=DOUBLE)
    labels = torch.bernoulli(logits.sigmoid()).bool()
    right = calibrate(logits[labels], logits[~labels], float((~labels).sum() / labels.sum()))
    assert right.error < 0.01
    wrong = calibrate(3 * logits[labels], 3 * logits[~labels], float((~labels).sum() / labels.sum()))
    assert wrong.error > 0.08
    assert wrong.log_loss > right.log_loss


@pytest.mark.usefixtures("double_precision")
def test_the_bound_of_a_profiled_objective_is_studied_without_the_clip():
    """It ignores the clip, so with a low clip the gaps are those without one."""
    model = LatentVariableModel(normal(2), GaussianDecoder(mlp([2, 3]), scale=0.3))
    encoder, x = GaussianEncoder(mlp([3, 4])), torch.randn(50, 3)
    gaps = []
    for clip in (0.0, None):
        objective = FullyVariationalNCE(
            model, encoder, normal(3, 2.0), PowerRule(0.25, clip=clip), partition="profiled"
        )
        report = diagnose(objective, x, generator=torch.Generator().manual_seed(0))
        gaps.append((report.gap_data, report.gap_noise))
    assert gaps[0] == gaps[1]


@pytest.mark.parametrize(("log_scale", "is_worse"), [(0.0, False), (3.0, True)])
def test_a_classifier_worse_than_chance_is_not_passed_over(log_scale, is_worse):
    torch.manual_seed(0)
    objective = NCE(standard(2), standard(2, 1.3), log_scale=log_scale, noise_ratio=2)
    report = diagnose(objective, torch.randn(1000, 2))
    chance = math.log(3) - 2 / 3 * math.log(2)
    assert (report.calibration.log_loss > chance) == is_worse
    assert [f"chance {chance:.3g}" in advice for advice in report.advice] == ([True] if is_worse else [])


def test_diagnose_says_what_is_wrong_with_its_arguments():
    model = EnergyModel(WithContext(mlp([2 + 1, 4, 1])), reference=standard(2))
    conditional = NCE(model, lambda context: standard(2).expand((len(context),)))
    for objective, x, words in [
        (conditional, torch.zeros(4, 2), "^objective must .*context"),
        (NCE(standard(2), standard(2)), np.zeros((4, 2)), "^x must"),
        (NCE(standard(2), standard(2)), torch.full((4, 2), torch.nan), "^x must be finite"),
        (NCE(standard(2), standard(2)), torch.zeros(4, 3), "^x must have shape"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            diagnose(objective, x)
