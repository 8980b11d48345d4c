"""Multinomial bridges: one softmax over the levels between data and noise, where the true ratio is known."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.nn.functional import cross_entropy

from fvnce.models import MultinomialRatio
from fvnce.ratio import multinomial_bridges
from fvnce.training import load_module, save

NOISE = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)


def shifted(distance, n, seed):
    return distance / math.sqrt(2) + torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def truth(distance, x):
    return x.sum(-1) * distance / math.sqrt(2) - distance**2 / 2


def error(ratio, distance, seed=99):
    x = shifted(distance, 2000, seed)
    with torch.no_grad():
        return float((ratio.model.log_ratio(x) - truth(distance, x)).square().mean().sqrt())


def linear(levels):
    """Levels between two Gaussians of one covariance have linear logits: the model is well specified."""
    return nn.Linear(2, levels)


class Centred(nn.Module):
    """The middle between data at distance 6 and noise as the origin, so that slopes and biases are learned apart."""

    def forward(self, x):
        return x - 3 / math.sqrt(2)


def test_the_first_logit_less_the_last_is_the_ratio_of_a_perfect_classifier():
    """h_k = log p_k + anything that the levels share: the best cross-entropy, and h_0 − h_K = log p_0/p_K."""
    means = torch.tensor([2.0, 1.0, 0.0])
    x = torch.linspace(-3, 5, 50).unsqueeze(1)
    densities = -((x - means) ** 2) / 2

    class Perfect(nn.Module):
        def forward(self, x):
            return -((x - means) ** 2) / 2 + x.sin()

    ratio = MultinomialRatio(Perfect(), Independent(Normal(torch.zeros(1), torch.ones(1)), 1))
    torch.testing.assert_close(ratio.log_ratio(x), densities[:, 0] - densities[:, 2])
    torch.testing.assert_close(ratio.log_prob(x), Normal(2.0, 1.0).log_prob(x[:, 0]), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"log_prob.*log_ratio"):
        MultinomialRatio(Perfect()).log_prob(x)


def test_levels_reach_where_one_step_does_not():
    """Distance 6: a classifier of the two ends is right about all rows and knows nothing of the ratio."""
    x = shifted(6.0, 1000, 0)
    settings = {"network": lambda levels: nn.Sequential(Centred(), nn.Linear(2, levels)), "epochs": 40, "lr": 0.2}
    bridged = multinomial_bridges(x, NOISE, levels=6, copies=2, **settings)
    direct = multinomial_bridges(x, NOISE, levels=1, copies=2, **settings)
    assert direct.log_loss < 0.03 * math.log(2)
    assert error(bridged, 6.0) < 0.7 < 1.5 < error(direct, 6.0)
    assert len(bridged.shares) == 7
    assert (bridged.shares[0], bridged.shares[-1]) == (0.0, 1.0)
    assert 0 < bridged.log_loss < math.log(7)
    # Where no draw of the noise is near the data, the ratio cannot be checked.
    assert math.isnan(direct.missed.value)
    assert math.isnan(direct.missed.value)
    assert direct.advice


@pytest.mark.slow
def test_consistency():
    """A well specified classifier: sixteen times the rows, a quarter of the error.

    The geometric mean over eight data sets varies by about 0.2 in its logarithm, the ratio by 0.28: the bounds are more
    than three of that wide.
    """
    typical = []
    for rows, epochs in ((250, 160), (4000, 40)):
        errors = [
            error(
                multinomial_bridges(
                    shifted(2.0, rows, seed),
                    NOISE,
                    levels=3,
                    network=linear,
                    epochs=epochs,
                    copies=1,
                    seed=seed,
                    lr=0.02,
                ),
                2.0,
            )
            for seed in range(8)
        ]
        typical.append(torch.tensor(errors).log().mean().exp().item())
    assert 1.6 < typical[0] / typical[1] < 10, typical
    assert typical[1] < 0.15


def test_it_follows_its_seed_alone_and_comes_back_from_a_file(tmp_path):
    x = shifted(2.0, 200, 0)
    state = torch.get_rng_state()
    first = multinomial_bridges(x, NOISE, levels=2, epochs=3, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(17)
    second = multinomial_bridges(x, NOISE, levels=2, epochs=3, seed=4)
    assert torch.equal(first.model.log_ratio(x), second.model.log_ratio(x))
    assert not torch.equal(first.model.log_ratio(x), multinomial_bridges(x, NOISE, epochs=3).model.log_ratio(x))
    save(tmp_path / "ratio", first.model)
    again = load_module(tmp_path / "ratio")
    assert torch.equal(again.log_prob(x), first.model.log_prob(x))


def test_noise_that_is_known_by_samples_has_a_ratio_and_no_density():
    x = shifted(2.0, 200, 0)
    ratio = multinomial_bridges(x, torch.randn(300, 2), levels=2, epochs=3)
    assert ratio.model.log_ratio(x).shape == (200,)
    assert ratio.model.noise is None


def test_the_log_loss_is_that_of_the_levels():
    """Where data are the noise every level is alike, and nothing beats a guess."""
    ratio = multinomial_bridges(torch.randn(400, 2), NOISE, levels=3, epochs=5)
    assert ratio.log_loss == pytest.approx(float(cross_entropy(torch.zeros(1, 4), torch.tensor([0]))), abs=0.03)
    assert ratio.learned.value == pytest.approx(math.log(4) - ratio.log_loss)
    assert str(ratio.learned) in ratio.advice[0]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"noise.*3.*x.*2"):
        multinomial_bridges(torch.randn(20, 3), NOISE)
    with pytest.raises(ValueError, match=r"levels.*0"):
        multinomial_bridges(torch.randn(20, 2), NOISE, levels=0)
    for logits in (2, 9):  # of nine, the last would be that of no level
        with pytest.raises(ValueError, match=f"network.*5.*found {logits}"):
            multinomial_bridges(torch.randn(20, 2), NOISE, network=lambda _, n=logits: torch.nn.Linear(2, n), epochs=1)
