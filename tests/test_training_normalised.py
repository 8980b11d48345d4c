"""Normalised gradient descent: the length of its steps, and a flat landscape where plain descent does not arrive."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from fvnce import Exponential, Logarithmic
from fvnce.training import NormalisedSGD, fit
from test_benchmarks import ROOT, load
from training_runs import contrastive, digest, rows

RULES = {"NCE": Logarithmic(), "eNCE": Exponential(clip=None)}


def test_every_step_has_the_length_of_the_rate_whatever_the_gradient():
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    optimiser = NormalisedSGD(weights, lr=0.3)
    for factor in (1e-35, 1.0, 1e30):
        before = [weight.detach().clone() for weight in weights]
        gradients = [factor * torch.randn_like(weight) for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimiser.step()
        moved = torch.cat([(b - w.detach()).flatten() for w, b in zip(weights, before, strict=True)])
        direction = torch.cat([gradient.double().flatten() for gradient in gradients])
        torch.testing.assert_close(moved.double(), 0.3 * direction / direction.norm(), rtol=1e-4, atol=1e-6)


def test_a_gradient_of_zero_moves_nothing_and_a_group_has_its_own_rate():
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = NormalisedSGD([{"params": [weight]}, {"params": [other], "lr": 2.0}], lr=1.0)
    weight.grad, other.grad = torch.zeros(2), torch.zeros(2)
    optimiser.step()
    assert torch.equal(weight.detach(), torch.ones(2))
    weight.grad, other.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    optimiser.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1 - 0.6, 1.0]))
    torch.testing.assert_close(other.detach(), torch.tensor([1.0, 1 - 1.6]))
    with pytest.raises(ValueError, match=r"weight_decay must be 0 for normalised steps, found 0\.1"):
        NormalisedSGD([{"params": [weight], "weight_decay": 0.1}])


def test_fit_knows_it_by_name_and_resumes_it_to_the_bit(tmp_path):
    found = []
    for pieces in ([4], [2, 4]):
        for epochs in pieces:
            objective = contrastive()
            fit(
                objective,
                rows(40),
                epochs=epochs,
                batch_size=8,
                optimizer="normalised-sgd",
                lr=0.01,
                seed=3,
                checkpoint_dir=tmp_path / str(len(pieces)),
                resume=True,
                progress=False,
            )
        found.append(digest(objective))
    assert found[0] == found[1]


@pytest.mark.parametrize(("rule", "optimiser", "arrives"), [("NCE", "sgd", False), ("eNCE", "normalised", True)])
def test_far_noise_stops_plain_descent_and_not_the_normalised(rule, optimiser, arrives):
    """Data N(6, 1), noise N(0, 1), gradients of the population, 512 steps: plain ones at the best rate of a grid."""
    landscape = load(ROOT / "benchmarks" / "flat_landscape.py").Landscape(6.0, RULES[rule])
    errors = []
    for rate in [0.5] if arrives else 2.0 ** np.arange(-6, 6):
        weight = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
        descent = NormalisedSGD([weight], rate) if arrives else torch.optim.SGD([weight], rate)
        schedule = LambdaLR(descent, lambda step: 1 - step / 512 if arrives else 1.0)
        for _ in range(512):
            weight.grad = torch.from_numpy(landscape.gradient(weight.detach().numpy()))
            descent.step()
            schedule.step()
        errors.append(np.linalg.norm(weight.detach().numpy() - landscape.truth))
    assert (np.nanmin(errors) < 0.2) == arrives
