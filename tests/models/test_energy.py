"""Energy-based models: their values, their integrals, what refuses them, and how they are stored."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

from experiments.vnce import lbfgs
from experiments.vnce.couplings import CouplingEncoder
from fvnce import (
    NCE,
    VAE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PowerRule,
    fit,
    load,
    mlp,
    save,
)
from fvnce.models import (
    BinaryEncoder,
    BinaryVector,
    CoveringEncoder,
    KernelRatio,
    RestrictedBoltzmannMachine,
    TelescopedRatio,
    is_normalized,
)
from fvnce.models.distributions import binary_states
from fvnce.noise import BernoulliNoise


def normal(d, scale=1.0):
    return Independent(Normal(torch.zeros(d), torch.full((d,), scale)), 1)


class Pair(nn.Module):
    """A network of two arguments that equals another on their concatenation."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, z):
        return self.network(torch.cat([x, z], -1))


def test_the_value_is_minus_the_energy_and_the_references():
    network = mlp([5, 8, 1])
    model = EnergyModel(network, reference=normal(2), latent_reference=normal(3, 2.0))
    x, z = torch.randn(7, 2), torch.randn(4, 7, 3)
    joined = torch.cat([x.expand(4, -1, -1), z], -1)
    expected = -network(joined).squeeze(-1) + normal(2).log_prob(x) + normal(3, 2.0).log_prob(z)
    torch.testing.assert_close(model.log_joint(x, z), expected)
    separate = EnergyModel(Pair(network), inputs="separate")
    torch.testing.assert_close(separate.energy(x, z[0]), model.energy(x, z[0]))
    plain = EnergyModel(nn.Linear(2, 1), reference=normal(2))
    torch.testing.assert_close(plain.log_prob(x), normal(2).log_prob(x) - plain.network(x)[:, 0])


def test_what_needs_a_normalized_model_refuses_an_energy():
    model = EnergyModel(mlp([5, 8, 1]), latent_reference=normal(3))
    encoder = GaussianEncoder(nn.Linear(2, 6))
    with pytest.raises(ValueError, match=r"model of VAE must .*found EnergyModel"):
        VAE(model, encoder)
    with pytest.raises(ValueError, match=r"model must .*found EnergyModel"):
        FullyVariationalNCE(model, encoder, normal(2), PowerRule(0), variance_reduced=True)


@pytest.mark.parametrize("attribute", ["normalized", "normalised"])
def test_a_model_of_ones_own_says_that_it_is_not_normalized(attribute):
    """By ``normalized``; the name of version 0.2 is honoured too, and warned of, also in a subclass of ours."""

    def expected():
        old = attribute == "normalised"
        return pytest.warns(DeprecationWarning, match="normalised") if old else nullcontext()

    for base in (nn.Module, LatentVariableModel, EnergyModel):
        own = type("Own", (base,), {attribute: base is EnergyModel})
        with expected():
            assert is_normalized(own.__new__(own)) == (base is EnergyModel)
    decoder = type("Decoder", (nn.Module,), {attribute: False})()
    with expected():
        assert not LatentVariableModel(normal(3), decoder).normalized


def test_wrong_networks_are_named():
    with pytest.raises(ValueError, match=r"network.*\(4,\) or \(4, 1\).*found.*\(4, 3\)"):
        EnergyModel(nn.Linear(2, 3)).log_prob(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"inputs.*'joined', 'separate'.*found 'both'"):
        EnergyModel(nn.Linear(2, 1), inputs="both")
    with pytest.raises(ValueError, match=r"x .*inputs='joined'.*found.*\(4, 2, 2\)"):
        EnergyModel(nn.Linear(2, 1)).log_joint(torch.zeros(4, 2, 2), torch.zeros(4, 1))
    with pytest.raises(TypeError, match=r"reference.*found"):
        EnergyModel(nn.Linear(2, 1), reference=3)


class Quadratic(nn.Module):
    """E(x) = ½ xᵀAᵀAx: a Gaussian of precision AᵀA whose log Z is known."""

    def __init__(self, d):
        super().__init__()
        self.a = nn.Parameter(torch.eye(d, dtype=torch.float64))

    def forward(self, x):
        return (x @ self.a.T).square().sum(-1) / 2


@pytest.mark.parametrize("rule", [None, PowerRule(0), PowerRule(0.5)], ids=["nce", "0", "1/2"])
def test_an_energy_recovers_a_gaussian_and_its_log_partition(rule):
    """d = 2, n = 20,000: entries of the precision within 5 standard errors of an MLE, twice widened; log Z within 3."""
    generator = torch.Generator().manual_seed(0)
    covariance = torch.tensor([[1.0, 0.5], [0.5, 0.8]], dtype=torch.float64)
    x = torch.randn(20_000, 2, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    noise = MultivariateNormal(torch.zeros(2, dtype=torch.float64), 2 * torch.eye(2, dtype=torch.float64))
    y = torch.randn(20_000, 2, generator=generator, dtype=torch.float64) * 2**0.5
    model = EnergyModel(Quadratic(2))
    objective = (
        NCE(model, noise, partition="learned")
        if rule is None
        else FullyVariationalNCE(model, None, noise, rule, partition="profiled")
    ).double()
    lbfgs(lambda: objective(x, y), list(objective.parameters()))
    actual = (model.network.a.T @ model.network.a).detach()
    truth = torch.linalg.inv(covariance)
    assert (actual - truth).abs().max() < 2 * 5 * truth.max() * math.sqrt(2 / len(x))
    value, error = objective.log_partition(50_000, generator=generator)
    exact = math.log(2 * math.pi) - torch.linalg.slogdet(actual)[1] / 2
    assert (value - exact).abs() < 3 * error
    assert (value - exact).abs() < 0.05


def test_log_partition_of_an_energy_with_latents():
    """Against quadrature over x and z, in one dimension each, to 3 standard errors and 0.05 nats."""
    torch.manual_seed(0)
    model = EnergyModel(mlp([2, 8, 1], nn.Tanh), reference=normal(1, 2.0), latent_reference=normal(1))
    encoder = GaussianEncoder(nn.Linear(1, 2))
    nn.init.zeros_(encoder.network.weight)
    nn.init.zeros_(encoder.network.bias)
    objective = FullyVariationalNCE(model, encoder, normal(1, 2.5), PowerRule(0), partition="profiled")
    axis = torch.linspace(-12, 12, 1201)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        exact = model.log_joint(grid[:, :1], grid[:, 1:]).logsumexp(0) + 2 * math.log(0.02)
    value, error = objective.log_partition(100_000, generator=torch.Generator().manual_seed(1))
    assert (value - exact).abs() < 3 * error
    assert (value - exact).abs() < 0.05


def machine(d=5, m=3):
    generator = torch.Generator().manual_seed(0)
    return RestrictedBoltzmannMachine(*(torch.randn(s, generator=generator) for s in ((d, m), (d,), (m,))))


def test_a_boltzmann_machine_sums_to_what_it_says():
    model = machine()
    v, h = binary_states(5), binary_states(3)
    joint = model.log_joint(v, h[:, None].expand(-1, len(v), -1))
    torch.testing.assert_close(joint.logsumexp(0), model.log_prob(v))
    torch.testing.assert_close(model.posterior(v).log_prob(h[:, None]), joint - model.log_prob(v))
    torch.testing.assert_close(model.log_partition(), joint.flatten().logsumexp(0))
    wide = RestrictedBoltzmannMachine(model.weight.T, model.hidden, model.visible)  # layers exchanged
    torch.testing.assert_close(wide.log_partition(), model.log_partition())
    drawn = model.sample(40_000, torch.Generator().manual_seed(0))
    expected = (model.log_prob(v) - model.log_partition()).exp() @ v
    assert (drawn.mean(0) - expected).abs().max() < 5 * 0.5 / math.sqrt(40_000)
    with pytest.raises(ValueError, match=r"weight.*found"):
        RestrictedBoltzmannMachine(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"bits.*20.*found 21"):
        binary_states(21)


def test_bits_are_summed_over_by_objectives():
    """With the exact posterior the bound on both terms is the marginal's value."""
    model = machine()
    noise = BernoulliNoise(torch.full((5,), 0.5))
    x, y = model.sample(50), noise.draw(50)
    bound = FullyVariationalNCE(model, model.posterior, noise, PowerRule(0.5), log_scale=-3.0)(x, y)
    exact = FullyVariationalNCE(model, None, noise, PowerRule(0.5), log_scale=-3.0)(x, y)
    torch.testing.assert_close(bound, exact)
    q = BinaryVector(torch.randn(4, 3))
    torch.testing.assert_close(q.log_prob(q.enumerate_support()).exp().sum(0), torch.ones(4))
    assert (q.sample((2000,)).mean(0) - q.mean).abs().max() < 0.06


def test_a_coupling_encoder_is_a_density_and_inverts_its_own_draws():
    torch.manual_seed(0)
    encoder = CouplingEncoder(1, 2, layers=4, hidden=8)
    for parameter in encoder.parameters():  # away from the start, where it is N(0, I)
        nn.init.normal_(parameter, std=0.4)
    x = torch.tensor([[0.3], [-1.0]])
    q = encoder(x)
    z, log_q = q.rsample_from(q.base_sample((50,)))
    torch.testing.assert_close(q.log_prob(z), log_q, rtol=1e-3, atol=1e-3)
    axis = torch.linspace(-15, 15, 901)
    grid = torch.cartesian_prod(axis, axis)
    mass = q.log_prob(grid[:, None].expand(-1, 2, -1)).exp().sum(0) * (axis[1] - axis[0]) ** 2
    torch.testing.assert_close(mass, torch.ones(2), rtol=1e-2, atol=1e-2)
    start = CouplingEncoder(1, 3)(x)
    z = start.rsample()
    torch.testing.assert_close(start.log_prob(z), normal(3).log_prob(z))


@pytest.mark.parametrize("draws", [1, 3])
def test_a_coupled_draw_can_be_taken_again(draws):
    """Where few noise samples count, only these are differentiated, at the same latents: the gradient is the same."""
    torch.manual_seed(0)
    encoder = CouplingEncoder(2, 2, layers=2, hidden=4)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = LatentVariableModel(normal(2), GaussianDecoder(nn.Linear(2, 2)))
    objective = FullyVariationalNCE(model, encoder, normal(2, 9.0), PowerRule(0), latent_samples=draws)
    x, noise = torch.randn(8, 2), torch.cat([torch.randn(2, 2), 200 + torch.randn(30, 2)])
    actual = []
    for fraction in (1.0, 0.0):
        objective.live_fraction.fill_(fraction)
        torch.manual_seed(1)
        loss = objective(x, noise)
        actual.append((loss, *torch.autograd.grad(loss, list(objective.parameters()))))
        assert float(objective.live_fraction) == pytest.approx(2 / 32)
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other)


def test_a_conditional_flow_of_zuko_is_an_encoder():
    zuko = pytest.importorskip("zuko")
    torch.manual_seed(0)
    encoder = zuko.flows.NSF(2, 3, transforms=1, hidden_features=(8,))
    model = LatentVariableModel(normal(2), GaussianDecoder(nn.Linear(2, 3)))
    objective = FullyVariationalNCE(model, encoder, normal(3, 2.0), PowerRule(0), latent_samples=2)
    before = [value.clone() for value in encoder.parameters()]
    fit(objective, torch.randn(32, 3), epochs=2, seed=0)
    assert any(not torch.equal(old, new) for old, new in zip(before, encoder.parameters(), strict=True))


def test_a_covering_encoder_is_a_mixture_and_bounds_the_ratio():
    """Density the weighted mean, draws with its moments; log Z right where the encoder alone misses the posterior."""
    narrow = GaussianEncoder(nn.Linear(1, 2))
    for parameter in narrow.parameters():
        nn.init.zeros_(parameter)
    narrow.network.bias.data[0], narrow.network.bias.data[1] = 3.0, -3.0  # N(3, e⁻⁶), far from the posterior
    encoder = CoveringEncoder(narrow, normal(1), share=0.25)
    x, z = torch.zeros(3, 1), torch.tensor([[0.0], [3.0], [1.0]])
    expected = (0.75 * narrow(x).log_prob(z).exp() + 0.25 * normal(1).log_prob(z).exp()).log()
    torch.testing.assert_close(encoder(x).log_prob(z), expected)
    torch.manual_seed(0)
    drawn = encoder(torch.zeros(20_000, 1)).rsample().detach()
    assert abs(float(drawn.mean()) - 2.25) < 5 * float(drawn.std()) / math.sqrt(20_000)
    model = EnergyModel(nn.Linear(2, 1), reference=normal(1), latent_reference=normal(1))
    with torch.no_grad():
        model.network.weight.zero_()
        model.network.bias.zero_()  # p⁰ = N(x) N(z): log Z = 0
    generator = torch.Generator().manual_seed(0)
    alone = FullyVariationalNCE(model, narrow, normal(1, 2.0), PowerRule(0))
    covered = FullyVariationalNCE(model, narrow, normal(1, 2.0), PowerRule(0), noise_encoder=encoder)
    value, error = covered.log_partition(20_000, generator=generator)
    assert abs(float(value)) < 3 * float(error) < 0.1
    assert float(alone.log_partition(20_000, generator=generator)[0]) < -1
    with pytest.raises(ValueError, match=r"share.*found 1"):
        CoveringEncoder(narrow, normal(1), share=1.0)


@pytest.mark.parametrize("which", ["plain", "latents", "boltzmann", "covering"])
def test_saved_and_loaded(tmp_path, which):
    torch.manual_seed(0)
    x = torch.randn(6, 2)
    if which == "plain":
        model = EnergyModel(mlp([2, 4, 1]), reference=normal(2))
        objective = FullyVariationalNCE(model, None, normal(2, 2.0), PowerRule(0), partition="profiled")
    elif which == "latents":
        model = EnergyModel(mlp([5, 4, 1]), reference=normal(2), latent_reference=normal(3))
        objective = FullyVariationalNCE(model, GaussianEncoder(nn.Linear(2, 6)), normal(2, 2.0), PowerRule(0))
    elif which == "covering":
        model = EnergyModel(mlp([4, 4, 1]), latent_reference=normal(2))
        encoder = GaussianEncoder(nn.Linear(2, 4))
        covering = CoveringEncoder(encoder, normal(2), share=0.3)
        objective = FullyVariationalNCE(model, encoder, normal(2, 2.0), PowerRule(0), noise_encoder=covering)
    else:
        x = machine().sample(6)
        encoder = BinaryEncoder(nn.Linear(5, 3))
        objective = FullyVariationalNCE(machine(), encoder, BernoulliNoise(torch.full((5,), 0.5)), PowerRule(0))
    path = tmp_path / "run.safetensors"
    save(path, objective)
    again = load(path)
    values = []
    for each in (objective.eval(), again):
        torch.manual_seed(1)
        values.append(each(x, x.flip(0)))
    assert torch.equal(values[0], values[1])


@pytest.mark.parametrize("which", ["kernels", "bridges"])
def test_ratios_are_saved_and_loaded(tmp_path, which):
    torch.manual_seed(0)
    ratio = (
        KernelRatio(torch.randn(4, 2), torch.rand(4), 0.7)
        if which == "kernels"
        else TelescopedRatio([mlp([2, 3, 1]), mlp([2, 3, 1])], torch.tensor([0.1, -0.2]), normal(2))
    )
    save(tmp_path / "ratio.safetensors", ratio)
    again = load(tmp_path / "ratio.safetensors")
    x = torch.randn(5, 2)
    assert torch.equal(again.log_ratio(x), ratio.log_ratio(x))
    if which == "bridges":
        torch.testing.assert_close(again.log_prob(x), normal(2).log_prob(x) + ratio.log_ratio(x))
