"""The laws of categorical scoring rules (Eq. PSR), in float64: proper, and short of honesty by a Bregman divergence."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import DOUBLE, EVERY_RULE, rules
from fvnce.scoring import CategoricalRule, Logarithmic, Quadratic, Spherical

GENERATORS = {
    "logarithmic": lambda q: -torch.special.entr(q).sum(-1),
    "brier": lambda q: q.square().sum(-1) - 1,
    "spherical": lambda q: q.square().sum(-1).sqrt(),
    "Tsallis 1/2": lambda q: -2 * q.sqrt().sum(-1),
    "log-sum-exp": lambda q: (3 * q).logsumexp(-1),
    "boosting": lambda q: -(q[..., :-1] * q[..., 1:]).sqrt().sum(-1),
}
every_generator = pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
ALLOWANCE = 1e-12


def distributions(count: int, d: int, seed: int, spread: float = 2.0) -> torch.Tensor:
    """Rows on the simplex, some of them near its boundary."""
    normal = torch.randn(count, d, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    return (spread * normal).softmax(-1)


simplex_pairs = st.integers(2, 7).flatmap(
    lambda d: st.tuples(*[st.lists(st.floats(-9, 9), min_size=d, max_size=d).map(softmax) for _ in range(2)])
)


def softmax(logits: list[float]) -> torch.Tensor:
    return torch.tensor(logits, dtype=DOUBLE).softmax(-1)


def bregman(generator, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The definition, with a gradient of its own."""
    gradient = torch.stack([torch.func.grad(generator)(row) for row in q])
    return generator(p) - generator(q) - ((p - q) * gradient).sum(-1)


@every_generator
@settings(max_examples=60, deadline=None)
@given(simplex_pairs)
def test_proper(generator, pair):
    p, q = pair
    rule = CategoricalRule(generator)
    honest, other = (p * rule.scores(p)).sum(), (p * rule.scores(q)).sum()
    scale = 1 + rule.scores(q).abs().max() + rule.scores(p).abs().max()
    assert honest >= other - ALLOWANCE * scale
    torch.testing.assert_close(honest, generator(p), rtol=0, atol=float(ALLOWANCE * scale))  # E_p S(x, p) = G(p)


@every_generator
def test_what_a_forecast_loses_is_the_bregman_divergence(generator):
    p, q = distributions(200, 4, 0), distributions(200, 4, 1)
    rule = CategoricalRule(generator)
    lost = (p * (rule.scores(p) - rule.scores(q))).sum(-1)
    torch.testing.assert_close(lost, bregman(generator, p, q), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rule.divergence(p, q), bregman(generator, p, q), rtol=1e-10, atol=1e-12)
    assert (rule.divergence(p, q) > 0).all()
    torch.testing.assert_close(rule.divergence(q, q), torch.zeros(200, dtype=DOUBLE), rtol=0, atol=1e-12)


def test_a_generator_that_is_not_convex_is_not_proper():
    """So that the two tests above can fail."""
    rule = CategoricalRule(lambda q: torch.special.entr(q).sum(-1))
    p, q = distributions(50, 4, 0), distributions(50, 4, 1)
    assert (rule.divergence(p, q) < 0).all()


@every_generator
def test_gradients_match_finite_differences(generator):
    """In logits, so that every step stays on the simplex."""
    rule = CategoricalRule(generator)
    logits = torch.randn(5, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)).requires_grad_()
    p = distributions(5, 3, 3)
    assert torch.autograd.gradcheck(lambda t: rule.scores(t.softmax(-1)), logits)
    assert torch.autograd.gradcheck(lambda t: rule.divergence(p, t.softmax(-1)), logits)
    # at the truth the expected score is stationary, Σ_x q_x dS(x, q) = 0
    q = logits.softmax(-1)
    expected = (q.detach() * rule.scores(q)).sum()
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_the_scores_of_a_generator_against_slopes_by_finite_differences():
    generator, q, h = GENERATORS["spherical"], distributions(20, 4, 4), 1e-6
    slopes = torch.stack([(generator(q + h * e) - generator(q - h * e)) / (2 * h) for e in torch.eye(4, dtype=DOUBLE)])
    by_hand = slopes.T + (generator(q) - (q * slopes.T).sum(-1)).unsqueeze(-1)
    torch.testing.assert_close(CategoricalRule(generator).scores(q), by_hand, rtol=0, atol=1e-8)


def test_closed_forms():
    p, q = distributions(100, 5, 5), distributions(100, 5, 6)
    norm = q.square().sum(-1, keepdim=True).sqrt()
    one_hot = torch.eye(5, dtype=DOUBLE)
    closed = {
        "logarithmic": (q.log(), (p * (p / q).log()).sum(-1)),
        "brier": (-(one_hot - q.unsqueeze(-2)).square().sum(-1), (p - q).square().sum(-1)),
        "spherical": (q / norm, p.square().sum(-1).sqrt() - (p * q / norm).sum(-1)),
    }
    for name, (scores, divergence) in closed.items():
        rule = CategoricalRule(GENERATORS[name])
        torch.testing.assert_close(rule.scores(q), scores, rtol=0, atol=1e-13)
        torch.testing.assert_close(rule.divergence(p, q), divergence, rtol=0, atol=1e-13)


def test_the_logarithmic_rule_is_local_and_the_others_are_not():
    """S(x, q) = log q_x does not change if the rest of the mass is divided otherwise."""
    q = softmax([0.3, 1.0, -1.0])
    rest = 1 - q[0]
    other = torch.stack([q[0], 0.9 * rest, 0.1 * rest])
    moved = {
        name: float(CategoricalRule(g).score(0, q) - CategoricalRule(g).score(0, other))
        for name, g in GENERATORS.items()
    }
    assert moved.pop("logarithmic") == pytest.approx(0, abs=1e-14)
    assert all(abs(value) > 1e-3 for value in moved.values())


@every_generator
def test_only_the_values_on_the_simplex_matter(generator):
    q = distributions(50, 4, 7)
    continued = CategoricalRule(lambda q: generator(q) + 5 * (q.sum(-1) - 1) + (q.sum(-1) - 1).square())
    torch.testing.assert_close(continued.scores(q), CategoricalRule(generator).scores(q), rtol=0, atol=1e-12)


@rules(EVERY_RULE)
def test_two_outcomes_are_the_binary_rules(rule):
    """With G of a binary rule and q = (1−μ, μ): S(1, q) = f1(Δ), S(0, q) = f0(Δ), and D_G is the binary divergence."""
    delta = torch.linspace(-5, 5, 41, dtype=DOUBLE)
    q = torch.stack([(-delta).sigmoid(), delta.sigmoid()], -1)
    categorical = CategoricalRule(lambda q: rule.generator(q[..., 1]))
    scores = categorical.scores(q)
    torch.testing.assert_close(scores[..., 1], rule.f1(delta), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scores[..., 0], rule.f0(delta), rtol=1e-9, atol=1e-9)
    truth = q.flip(0)[7:8]
    mu = truth[..., 1]
    loss = rule.generator(mu) - mu * rule.f1(delta) - (1 - mu) * rule.f0(delta)
    torch.testing.assert_close(categorical.divergence(truth.expand_as(q), q), loss, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("rule", "name", "scale"),
    [(Logarithmic(), "logarithmic", 1), (Quadratic(), "brier", 0.5), (Spherical(), "spherical", 1)],
    ids=repr,
)
def test_the_classical_rules_are_two_outcomes_of_the_closed_forms(rule, name, scale):
    delta = torch.linspace(-5, 5, 41, dtype=DOUBLE)
    q = torch.stack([(-delta).sigmoid(), delta.sigmoid()], -1)
    scores = scale * CategoricalRule(GENERATORS[name]).scores(q)
    torch.testing.assert_close(scores, torch.stack([rule.f0(delta), rule.f1(delta)], -1), rtol=0, atol=1e-12)


def test_a_model_is_fitted_by_any_strictly_proper_rule():
    """Samples of p suffice: the mean score of their frequencies peaks at the frequencies."""
    outcomes = torch.multinomial(softmax([0.0, 1.0, 2.0]), 500, True, generator=torch.Generator().manual_seed(0))
    shares = outcomes.bincount(minlength=3).double() / 500
    for name in ("logarithmic", "brier", "spherical"):
        logits = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
        optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=0)

        def closure(name=name, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            loss = -CategoricalRule(GENERATORS[name]).score(outcomes, logits.softmax(-1)).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        torch.testing.assert_close(logits.detach().softmax(-1), shares, rtol=0, atol=1e-6)


def test_shapes_and_modes():
    rule, q = CategoricalRule(GENERATORS["brier"]), distributions(6, 3, 8).reshape(2, 3, 3)
    scores = rule.scores(q)
    assert scores.shape == (2, 3, 3)
    assert not scores.requires_grad
    assert rule.score(1, q).equal(scores[..., 1])
    assert rule.score(torch.tensor([0, 1, 2]), q).equal(scores.diagonal(dim1=1, dim2=2))
    assert rule.score(torch.tensor([2, 0]), q[0, 0]).equal(scores[0, 0, [2, 0]])
    assert rule.divergence(q[0, 0], q).shape == (2, 3)
    with torch.inference_mode():
        assert rule.scores(q).equal(scores)
    with torch.no_grad():
        assert not rule.scores(q.clone().requires_grad_()).requires_grad
    zeros = torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE)
    log = CategoricalRule(GENERATORS["logarithmic"])
    assert float(log.divergence(zeros, q[0, 0])) == pytest.approx(-math.log(float(q[0, 0, 0])))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda rule: rule.scores(torch.tensor([0.5, 0.6])), ValueError, "q must .* sum to 1"),
        (lambda rule: rule.scores(torch.tensor([1.5, -0.5])), ValueError, "q must .* sum to 1"),
        (lambda rule: rule.scores(torch.tensor([float("nan"), 0.5])), ValueError, "q must .* sum to 1"),
        (lambda rule: rule.scores(torch.tensor([1.0, 0.0])), ValueError, "q must .* > 0, found 0"),
        (lambda rule: rule.scores(torch.tensor(1.0)), ValueError, "q must"),
        (lambda rule: rule.scores([0.5, 0.5]), TypeError, "q must .* found list"),
        (lambda rule: rule.divergence(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.5])), ValueError, "p must"),
        (lambda rule: rule.score(2, torch.tensor([0.5, 0.5])), ValueError, "outcome .* 0 to 1, found 2"),
        (lambda rule: rule.score(-1, torch.tensor([0.5, 0.5])), ValueError, "outcome .* found -1"),
        (lambda rule: rule.score(0.5, torch.tensor([0.5, 0.5])), ValueError, "outcome .* found 0.5"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(CategoricalRule(GENERATORS["brier"]))


def test_a_generator_of_the_wrong_kind_is_refused():
    q = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match=r"generator must map shape \(2,\) to \(\), found \(2,\)"):
        CategoricalRule(lambda q: q.square()).scores(q)
    with pytest.raises(ValueError, match="generator must be differentiable"):
        CategoricalRule(lambda q: q.detach().square().sum(-1)).scores(q)
