"""Models, decoders and encoders: densities integrate to one and two routes to one number agree."""

import math

import pytest
import torch
from scipy import integrate
from torch import nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    TransformedDistribution,
    Uniform,
    kl_divergence,
)

from exact_models import GaussianMixtureModel, LinearGaussianModel
from fvnce import (
    BernoulliDecoder,
    CategoricalEncoder,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    mlp,
)
from fvnce.models import (
    ContinuousBernoulliDecoder,
    CoveringEncoder,
    DiagonalNormal,
    PointMass,
    convolutional_pair,
)
from fvnce.models.distributions import rsample_with_log_ratio
from fvnce.models.fixed import map_tensors

pytestmark = pytest.mark.usefixtures("double_precision")


def standard(d):
    return Independent(Normal(torch.zeros(d), torch.ones(d)), 1)


@pytest.mark.parametrize("scale", [torch.tensor(0.3), torch.tensor([0.3, 1.0, 2.0]), torch.rand(4, 3) + 0.1])
def test_diagonal_normal_is_torch_s_own(scale):
    loc = torch.randn(4, 3)
    scale = scale.to(loc.dtype)
    ours, theirs = DiagonalNormal(loc, scale), Independent(Normal(loc, scale), 1)
    x = torch.randn(5, 4, 3)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(kl_divergence(ours, standard(3)), kl_divergence(theirs, standard(3)))
    torch.testing.assert_close(ours.expand((5, 4)).log_prob(x), theirs.log_prob(x))
    torch.manual_seed(3)
    samples = ours.rsample((20_000,))
    assert (samples.mean(0) - loc).abs().max() < 5 * float(scale.max()) / math.sqrt(20_000)
    torch.testing.assert_close(samples.std(0), ours.stddev, rtol=0.04, atol=0)
    torch.manual_seed(4)
    z = ours.rsample((5,))
    torch.manual_seed(4)
    assert torch.equal(ours.rsample_from(ours.base_sample((5,)))[0], z)


@pytest.mark.parametrize("single", [True, False])
def test_the_log_density_along_a_draw_is_that_at_the_draw(single):
    """In value, and in its derivative through the draw, where location and draw cancel."""
    loc = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    log_scale = (torch.tensor(0.3) if single else 0.5 * torch.randn(4, 3)).double().requires_grad_()
    q = DiagonalNormal(loc, log_scale.exp())
    z, log_q = q.rsample_from(q.base_sample((5,)))
    expected = Independent(Normal(loc, log_scale.exp()), 1).log_prob(z)
    torch.testing.assert_close(log_q, expected)
    weights = torch.rand(5, 4, dtype=torch.float64)
    actual = torch.autograd.grad((weights * log_q).sum() + z.square().sum(), (loc, log_scale), retain_graph=True)
    wanted = torch.autograd.grad((weights * expected).sum() + z.square().sum(), (loc, log_scale))
    torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("prior_scale", [1.0, 2.0])
@pytest.mark.parametrize("single", [True, False])
def test_a_prior_against_a_draw_is_the_difference_of_log_densities(single, prior_scale):
    """In value, and in the derivative through the draw."""
    loc = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    log_scale = (torch.tensor(0.3) if single else 0.5 * torch.randn(4, 3)).double().requires_grad_()
    p = Independent(Normal(torch.zeros(3).double(), torch.full((3,), prior_scale).double()), 1)
    q = DiagonalNormal(loc, log_scale.exp(), log_scale=log_scale)
    z, gained = rsample_with_log_ratio(q, p, q.base_sample((5,)))
    expected = p.log_prob(z) - Independent(Normal(loc, log_scale.exp()), 1).log_prob(z)
    torch.testing.assert_close(gained, expected)
    weights = torch.rand(5, 4, dtype=torch.float64)
    actual = torch.autograd.grad((weights * gained).sum(), (loc, log_scale), retain_graph=True)
    wanted = torch.autograd.grad((weights * expected).sum(), (loc, log_scale))
    torch.testing.assert_close(actual, wanted)


def test_kept_constants_follow_the_scale():
    """A decoder's fixed σ and a prior's are looked up, not computed: a change of value or precision must be seen."""
    decoder = GaussianDecoder(nn.Identity(), scale=0.3)
    x, z = torch.randn(4, 3), torch.randn(4, 3)
    for change in (lambda: None, lambda: decoder.log_scale.data.fill_(0.7), lambda: decoder.double()):
        change()
        decoder(z).log_prob(x)
        scale = decoder.log_scale.exp()
        torch.testing.assert_close(decoder(z).log_prob(x), Independent(Normal(z, scale), 1).log_prob(x))
    prior = Independent(Normal(torch.zeros(3), torch.full((3,), 0.3)), 1)
    model = LatentVariableModel(prior, decoder).double()
    exact = Independent(Normal(torch.zeros(3).double(), torch.full((3,), 0.3).double()), 1).log_prob(z.double())
    torch.testing.assert_close(model.prior.log_prob(z.double()), exact, rtol=1e-12, atol=0)


def test_a_transform_whose_inverse_was_asked_for_moves():
    """The inverse is kept by the transform and refers back to it."""
    scale = AffineTransform(torch.zeros(2), torch.tensor([2.0, 3.0]))
    for transform in (scale, scale.inv):
        distribution = TransformedDistribution(Independent(Normal(torch.zeros(2), torch.ones(2)), 1), [transform])
        x = torch.randn(4, 2)
        before = distribution.log_prob(x)  # asks for the inverse
        moved = map_tensors(distribution, torch.Tensor.float)
        actual = moved.log_prob(x.float())
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, before.float())


def test_diagonal_normal_over_images():
    loc = torch.randn(2, 1, 3, 3)
    d = DiagonalNormal(loc, torch.tensor(0.5), event_dims=3)
    x = torch.randn(2, 1, 3, 3)
    torch.testing.assert_close(d.log_prob(x), Independent(Normal(loc, 0.5), 3).log_prob(x))


def test_point_mass():
    q = PointMass(torch.randn(4, 3))
    assert q.rsample((2,)).shape == (2, 4, 3)
    assert torch.equal(q.log_prob(q.rsample((2,))), torch.zeros(2, 4))
    assert torch.equal(q.mean, q.rsample())


@pytest.mark.parametrize(
    ("decoder", "bounds"),
    [
        (lambda net: GaussianDecoder(net, 0.4), (-12, 12)),
        (lambda net: GaussianDecoder(net, 0.4, learned="shared"), (-12, 12)),
        (lambda net: GaussianDecoder(net, 0.4, learned="per_dimension", event_shape=(1,)), (-12, 12)),
        (lambda net: ContinuousBernoulliDecoder(net), (0, 1)),
    ],
)
def test_decoders_integrate_to_one(decoder, bounds):
    p = decoder(mlp([2, 1]))(torch.randn(1, 2))
    total = integrate.quad(lambda x: p.log_prob(torch.tensor([[x]])).exp().item(), *bounds, limit=200)[0]
    assert total == pytest.approx(1, abs=1e-6)


def test_bernoulli_decoder_sums_to_one_and_refuses_grey():
    p = BernoulliDecoder(mlp([2, 3]))(torch.randn(1, 2))
    binary = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    assert p.log_prob(binary.unsqueeze(1)).exp().sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"x.*found 0\.5.*ContinuousBernoulliDecoder"):
        p.log_prob(torch.full((1, 3), 0.5))


def test_learned_scales_learn():
    """The maximum-likelihood σ is the residual's root mean square."""
    torch.manual_seed(0)
    for learned, shape in (("shared", None), ("per_dimension", (2,))):
        zero = nn.Linear(1, 2)
        nn.init.zeros_(zero.weight)
        nn.init.zeros_(zero.bias)
        decoder = GaussianDecoder(zero, 1.0, learned=learned, event_shape=shape)
        x = torch.randn(500, 2) * torch.tensor([0.5, 2.0])
        optimiser = torch.optim.LBFGS([decoder.log_scale], max_iter=50, line_search_fn="strong_wolfe")

        def closure(decoder=decoder, x=x, optimiser=optimiser):
            optimiser.zero_grad()
            loss = -decoder(torch.zeros(500, 1)).log_prob(x).mean()
            loss.backward()
            return loss

        optimiser.step(closure)
        expected = x.square().mean() if learned == "shared" else x.square().mean(0)
        torch.testing.assert_close(decoder.scale.detach() ** 2, expected, rtol=1e-4, atol=0)
    assert "log_scale" not in dict(GaussianDecoder(zero, 0.1).named_parameters())


def test_joint_integrates_to_the_marginal():
    """∫ p(x, z) dz over a one-dimensional latent, against importance sampling's target p(x), then ∫ p(x) dx = 1."""
    torch.manual_seed(0)
    model = LatentVariableModel(standard(1), GaussianDecoder(mlp([1, 4, 1], nn.Tanh), 0.6))
    z = torch.linspace(-9, 9, 1201).reshape(-1, 1, 1)
    x = torch.linspace(-8, 8, 801).reshape(-1, 1)
    joint = model.log_joint(x, z.expand(1201, 801, 1)).exp()
    marginal = torch.trapezoid(joint, z.squeeze(), dim=0)
    assert torch.trapezoid(marginal, x.squeeze()).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("model", "d"),
    [
        (LinearGaussianModel(torch.randn(3, 2), torch.randn(3), 0.6), 3),
        (GaussianMixtureModel(torch.randn(4), torch.randn(4, 2), torch.rand(4) + 0.3), 2),
    ],
)
def test_exact_models_obey_bayes(model, d):
    """log p(x, z) − log p(z|x) = log p(x) for every z, and the marginal has the mean of the samples."""
    model = model.double()
    x = model.sample(50)
    q = model.posterior(x)
    for _ in range(3):
        z = q.sample()
        torch.testing.assert_close(model.log_joint(x, z) - q.log_prob(z), model.log_prob(x))
    samples = model.sample(20_000)
    assert samples.shape == (20_000, d)
    # E[∇ log p] = 0 under the model: each component within 5 standard errors
    samples.requires_grad_()
    (score,) = torch.autograd.grad(model.log_prob(samples).sum(), samples)
    z = score.mean(0) / (score.std(0) / math.sqrt(len(samples)))
    assert z.abs().max() < 5


def test_gamma_is_the_height_of_the_prior():
    decoder = GaussianDecoder(mlp([2, 3]))
    assert LatentVariableModel(standard(2), decoder).highest_log_prior() == pytest.approx(-math.log(2 * math.pi))
    assert LatentVariableModel(Categorical(torch.ones(3)), decoder).highest_log_prior() == 0
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Normal(torch.randn(2, 2), 1.0), 1))
    assert LatentVariableModel(mixture, decoder).highest_log_prior() == 0
    assert LatentVariableModel(mixture, decoder, highest_log_prior=1.5).highest_log_prior() == 1.5
    uniform = Independent(Uniform(torch.zeros(2), torch.full((2,), 0.5)), 1)
    assert LatentVariableModel(uniform, decoder).highest_log_prior() == pytest.approx(2 * math.log(2))


def test_a_learned_prior():
    class Prior(nn.Module):
        def __init__(self):
            super().__init__()
            self.loc = nn.Parameter(torch.zeros(2))

        def forward(self):
            return DiagonalNormal(self.loc, torch.tensor(1.0))

    model = LatentVariableModel(Prior(), GaussianDecoder(mlp([2, 3])))
    model.log_joint(torch.randn(4, 3), torch.randn(4, 2)).sum().backward()
    assert model._prior.loc.grad.abs().sum() > 0


def test_samples_follow_the_model():
    """Mean and covariance of samples of a linear decoder: WWᵀ + σ²I, within 5 standard errors."""
    torch.manual_seed(0)
    linear = nn.Linear(2, 3)
    model = LatentVariableModel(standard(2), GaussianDecoder(linear, 0.5))
    x, z = model.sample(40_000, return_latent=True)
    assert z.shape == (40_000, 2)
    covariance = linear.weight @ linear.weight.T + 0.25 * torch.eye(3)
    centred = x - linear.bias
    products = centred.unsqueeze(2) * centred.unsqueeze(1)
    error = products.std(0) / math.sqrt(len(x))
    assert ((products.mean(0) - covariance).abs() < 5 * error).all()


@pytest.mark.parametrize("encoder", [PointEncoder, GaussianEncoder, CategoricalEncoder])
def test_encoders_return_distributions_over_leading_dimensions(encoder):
    q = encoder(mlp([5, 4]))(torch.randn(7, 5))
    assert q.batch_shape == (7,)


def test_the_convolutional_pair_keeps_leading_dimensions():
    encoder, decoder = convolutional_pair(3, channels=2, width=4, outputs=6)
    x = torch.randn(2, 5, 2, 28, 28)
    code = encoder(x)
    assert code.shape == (2, 5, 6)
    image = decoder(code[..., :3])
    assert image.shape == x.shape
    torch.testing.assert_close(image[1, 2], decoder(code[1, 2, :3].unsqueeze(0))[0])
    q = GaussianEncoder(encoder)(x[0])
    model = LatentVariableModel(standard(3), GaussianDecoder(decoder, 0.5, event_shape=(2, 28, 28)))
    assert model.log_joint(x[0], q.rsample()).shape == (5,)
    assert model.log_joint(x[0], q.rsample((4,))).shape == (4, 5)


def test_a_prior_of_other_latents_does_not_cover():
    prior = Independent(Normal(torch.zeros(5), torch.ones(5)), 1)
    with pytest.raises(ValueError, match=r"encoder.*\(5,\).*found.*\(2,\)"):
        CoveringEncoder(GaussianEncoder(mlp([3, 4])), prior)(torch.zeros(2, 3)).rsample()
