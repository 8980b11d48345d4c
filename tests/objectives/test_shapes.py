"""Rows of any shape: every objective with every decoder, in batches of 1, 28 and 64 rows, as images and flattened.

Values are compared with formulas written out here; shapes that do not fit are refused with the argument's name.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, ContinuousBernoulli, Distribution, Independent, Normal

from fvnce import (
    IWAE,
    NCE,
    VAE,
    Autoencoder,
    BernoulliDecoder,
    ConditionalNCE,
    EnergyModel,
    FullyVariationalNCE,
    GaussianDecoder,
    GaussianEncoder,
    LatentVariableModel,
    PointEncoder,
    PowerRule,
    RankingNCE,
    VariationalNCE,
)
from fvnce.diagnostics import diagnose
from fvnce.models import ContinuousBernoulliDecoder
from fvnce.noise import GaussianSteps
from fvnce.objectives import Batch, Objective, Terms
from fvnce.training.optimizer import make_optimizer, make_schedule

IMAGE, LATENT = (1, 28, 28), 2
SIZES = pytest.mark.parametrize("rows", [1, 28, 64])


class Decoding(nn.Module):
    """From codes to images or to rows, with the same weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(math.prod(shape), LATENT, generator=generator) / 4)
        self.shape = shape

    def forward(self, z: Tensor) -> Tensor:
        return (z @ self.weight.T).unflatten(-1, self.shape)


class Encoding(nn.Module):
    """From images or rows to ``outputs`` numbers, with the same weights."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.weight = nn.Parameter(torch.randn(outputs, math.prod(IMAGE), generator=generator) / 40)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


class Energy(nn.Module):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x.flatten(1).square().sum(-1) / 2 + z.sum(-1)


DECODERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "gaussian": lambda network: GaussianDecoder(network, 0.5),
    "gaussian shared": lambda network: GaussianDecoder(network, 0.5, learned="shared"),
    "gaussian each": lambda network: GaussianDecoder(network, 0.5, learned="per_dimension", event_shape=network.shape),
    "bernoulli": BernoulliDecoder,
    "continuous": ContinuousBernoulliDecoder,
}
OBJECTIVES = ["Autoencoder", "VAE", "VAE drawn", "IWAE", "fvNCE", "fvNCE reduced", "VNCE", "Ranking", "Conditional"]


def standard(shape: tuple[int, ...], scale: float = 1.0) -> Distribution:
    return Independent(Normal(torch.zeros(shape), scale * torch.ones(shape)), len(shape))


def density(decoder: str, output: Tensor, x: Tensor) -> Tensor:
    """log p(x|z), summed over everything but the batch: the formula anew."""
    output, x = output.flatten(-x.dim() + 1), x.flatten(1)
    if decoder.startswith("gaussian"):
        return (-0.5 * ((x - output) / 0.5) ** 2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)).sum(-1)
    if decoder == "bernoulli":
        return (x * torch.log(output.sigmoid()) + (1 - x) * torch.log(1 - output.sigmoid())).sum(-1)
    return ContinuousBernoulli(logits=output).log_prob(x.expand_as(output)).sum(-1)


def build(name: str, decoder: str, shape: tuple[int, ...]) -> Objective:
    point = name == "Autoencoder"
    encoding = Encoding(LATENT if point else 2 * LATENT)
    model = LatentVariableModel(standard((LATENT,)), DECODERS[decoder](Decoding(shape)))
    encoder = PointEncoder(encoding) if point else GaussianEncoder(encoding)
    noise: Distribution = standard(shape, 2.0)
    if decoder == "bernoulli":
        noise = Independent(Bernoulli(torch.full(shape, 0.5)), len(shape))
    if decoder == "continuous":
        noise = Independent(torch.distributions.Uniform(torch.zeros(shape), torch.ones(shape)), len(shape))
    made: dict[str, Callable[[], Objective]] = {
        "Autoencoder": lambda: Autoencoder(model, encoder),
        "VAE": lambda: VAE(model, encoder),
        "VAE drawn": lambda: VAE(model, encoder, latent_samples=3, closed_form=False),
        "IWAE": lambda: IWAE(model, encoder, latent_samples=3),
        "fvNCE": lambda: FullyVariationalNCE(model, encoder, noise, PowerRule(0)),
        "fvNCE reduced": lambda: FullyVariationalNCE(model, encoder, noise, PowerRule(0), variance_reduced=True),
        "VNCE": lambda: VariationalNCE(model, encoder, noise, importance_samples=3),
        "Ranking": lambda: RankingNCE(model, encoder, noise, noise_samples=2, latent_samples=3),
        "Conditional": lambda: ConditionalNCE(model, encoder, Same(), latent_samples=3),
    }
    return made[name]()


class Same(nn.Module):
    """Steps of no length, with which J is −2 log 2 at equal latents, and binary rows stay binary."""

    symmetric = True

    def forward(self, x: Tensor) -> Distribution:
        return Independent(_Point(x), x.dim() - 1, validate_args=False)


class _Point(Normal):
    def __init__(self, x: Tensor) -> None:
        super().__init__(x, torch.ones_like(x), validate_args=False)

    def sample(self, sample_shape=()):  # type: ignore[no-untyped-def]
        return self.loc.expand(*sample_shape, *self.loc.shape).clone()


def rows_of(decoder: str, rows: int) -> Tensor:
    x = torch.rand(rows, *IMAGE, generator=torch.Generator().manual_seed(rows))
    return x.round() if decoder == "bernoulli" else x


def value(objective: Objective, x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return objective(x)


@SIZES
@pytest.mark.parametrize("decoder", DECODERS)
def test_losses_are_those_of_the_formula(decoder: str, rows: int) -> None:
    """Sums over all pixels, means over rows."""
    x = rows_of(decoder, rows)
    network = Decoding(IMAGE)
    code = Encoding(LATENT)(x)
    expected = -density(decoder, network(code), x).mean()
    torch.testing.assert_close(build("Autoencoder", decoder, IMAGE)(x), expected, rtol=1e-4, atol=0)

    mean, _ = Encoding(2 * LATENT)(x).chunk(2, -1)
    objective = build("VAE", decoder, IMAGE)
    torch.manual_seed(5)
    z = objective.encoder(x).rsample()  # type: ignore[operator]
    scale = objective.encoder(x).scale  # type: ignore[operator]
    divergence = 0.5 * (scale**2 + mean**2 - 1 - 2 * scale.log()).sum(-1)
    likelihood = density(decoder, network(z), x)
    torch.testing.assert_close(value(objective, x), (divergence - likelihood).mean(), rtol=1e-4, atol=0)
    reduced = build("fvNCE reduced", decoder, IMAGE)
    log_noise = reduced.noise.log_prob(x)  # type: ignore[union-attr]
    assert log_noise.shape == (rows,)
    expected = (divergence - likelihood + log_noise).mean() + 1
    torch.testing.assert_close(value(reduced, x), expected, rtol=1e-4, atol=0)


@SIZES
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_images_and_flattened_rows_have_the_same_loss(name: str, decoder: str, rows: int) -> None:
    x = rows_of(decoder, rows)
    image, flat = build(name, decoder, IMAGE), build(name, decoder, (784,))
    terms = image.terms(x)
    assert terms.data.shape == (rows,)
    torch.testing.assert_close(value(image, x), value(flat, x.flatten(1)), rtol=1e-4, atol=1e-4)


@SIZES
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_rows_that_the_decoder_does_not_give_are_refused(name: str, decoder: str, rows: int) -> None:
    """Flat rows for a decoder of images and the other way round, whatever broadcasting would make of them."""
    x = rows_of(decoder, rows)
    for shape, given in ((IMAGE, x.flatten(1)), ((784,), x), ((28, 28), x), ((1, 1, 28), x)):
        with pytest.raises(ValueError, match=r"x must have .*\d.*found (x of )?shape \(" + f"{rows}, "):
            build(name, decoder, shape)(given)


@SIZES
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_encoder_of_lines_is_refused(name: str, rows: int) -> None:
    """A layer that maps the last dimension gives a code for each line of an image."""
    objective = build(name, "gaussian", IMAGE)
    objective.encoder.network = nn.Linear(28, 2 if name == "Autoencoder" else 4)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=rf"encoder must .*\({rows}, 1, 28, 28\), found batch shape \({rows}, 1, 28\)"):
        objective(rows_of("gaussian", rows))


@SIZES
def test_batches_that_do_not_go_together_are_refused(rows: int) -> None:
    x = rows_of("gaussian", rows)
    for name, given, actual in (
        ("x_noise", {"x_noise": x.flatten(1)}, (rows, 784)),
        ("x_noise", {"x_noise": x[:0]}, (0, 1, 28, 28)),
        ("log_noise_x", {"log_noise_x": torch.zeros(rows, 1)}, (rows, 1)),
        ("log_noise_noise", {"x_noise": x, "log_noise_noise": torch.zeros(rows + 1)}, (rows + 1,)),
    ):
        for objective in OBJECTIVES:
            with pytest.raises(ValueError, match=rf"{name} must .*found shape \({', '.join(map(str, actual))}"):
                build(objective, "gaussian", IMAGE)(x, **given)
    with pytest.raises(ValueError, match=r"data of an objective.s terms .*found shape"):
        Terms(torch.zeros(()), x)


def test_a_decoder_of_ones_own_needs_no_event() -> None:
    """A model sums over what x has beyond its batch, for latents of any shape."""
    x = rows_of("gaussian", 7)
    for prior, z in (
        (standard((LATENT,)), torch.randn(3, 7, LATENT)),
        (standard((2, 1)), torch.randn(3, 7, 2, 1)),
        (Normal(0.0, 1.0), torch.randn(3, 7)),
        (Categorical(torch.ones(4)), torch.randint(4, (3, 7))),
        (Independent(Categorical(torch.ones(2, 4)), 1), torch.randint(4, (3, 7, 2))),
    ):

        class Constant(nn.Module):
            def forward(self, z: Tensor, lead: int = z.dim() - len(prior.event_shape)) -> Tensor:
                return torch.zeros(*z.shape[:lead], *IMAGE)

        class Bare(Constant):
            def forward(self, z: Tensor) -> Normal:  # type: ignore[override]
                return Normal(super().forward(z), 0.5)

        expected = density("gaussian", torch.zeros(3, 7, *IMAGE), x)
        for decoder in (Bare(), GaussianDecoder(Constant(), 0.5)):
            actual = LatentVariableModel(prior, decoder).log_likelihood(x, z)
            torch.testing.assert_close(actual, expected)


def test_energies_of_images() -> None:
    """One energy a row, with and without latents, a reference, or noise of the same shape."""
    x, z = rows_of("gaussian", 28), torch.randn(28, LATENT)
    half = x.flatten(1).square().sum(1) / 2

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).square().sum(1, keepdim=True) / 2

    torch.testing.assert_close(EnergyModel(Square()).log_prob(x), -half)
    reference = standard(IMAGE, 2.0)
    torch.testing.assert_close(EnergyModel(Square(), reference=reference).log_prob(x), reference.log_prob(x) - half)
    assert NCE(EnergyModel(Square()), reference)(x).isfinite()
    assert ConditionalNCE(EnergyModel(Square()), conditional=GaussianSteps(0.1))(x).isfinite()
    torch.testing.assert_close(EnergyModel(Energy(), inputs="separate").log_joint(x, z), -half - z.sum(-1))
    with pytest.raises(ValueError, match=r"x must .*3\), found shape \(28, 1, 28, 28\)"):
        EnergyModel(Square(), reference=standard((3,))).log_prob(x)


def test_event_dims_still_works_and_warns() -> None:
    for make in (BernoulliDecoder, ContinuousBernoulliDecoder, EnergyModel):
        with pytest.warns(DeprecationWarning, match="event_dims"):
            made = make(Decoding(IMAGE), event_dims=3)
        if make is not EnergyModel:
            assert made(torch.zeros(4, LATENT)).event_shape == IMAGE
    with pytest.raises(ValueError, match=r"event_shape \(3,\), found shape \(4, 1, 28, 28\)"):
        GaussianDecoder(Decoding(IMAGE), event_shape=(3,))(torch.zeros(4, LATENT))


def test_a_batch_is_rows() -> None:
    with pytest.raises(TypeError, match=r"x must .*found list"):
        Batch([[0.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x must .*found shape \(\)"):
        Batch(torch.zeros(()))


def test_independent_discrete_parts_are_summed_over_up_to_the_limit() -> None:
    """Four parts of eight values have 4096 combinations: all that is allowed. The evidence is exact."""
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 8)
    prior = Independent(Categorical(torch.ones(4, 8)), 1)
    model = LatentVariableModel(prior, GaussianDecoder(Codes()))
    x = torch.randn(3, 4)
    loss = VAE(model, lambda _: Independent(Categorical(logits=logits), 1))(x)
    # Everything factorises over the parts: log N(x_i; z_i, 1) + log 1/8 − log q(z_i).
    q, z = logits.softmax(-1), torch.arange(8.0)
    each = -0.5 * (x.unsqueeze(-1) - z) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(8) - q.log()
    torch.testing.assert_close(loss, -(q * each).sum((1, 2)).mean(), rtol=1e-4, atol=0)
    wide = LatentVariableModel(Independent(Categorical(torch.ones(4, 9)), 1), GaussianDecoder(Codes()))
    objective = VAE(wide, lambda _: Independent(Categorical(torch.ones(3, 4, 9)), 1))
    with pytest.raises(ValueError, match=r"encoder must .*4096.*found Independent with 6,561"):
        objective(x)


class Codes(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.float()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", ["Autoencoder", "VAE", "IWAE", "fvNCE", "fvNCE reduced", "VNCE", "Ranking"])
def test_compiles_whole_without_a_plain_call_before(name: str) -> None:
    objective, x = build(name, "gaussian", IMAGE), rows_of("gaussian", 4)
    torch._dynamo.reset()
    torch.distributions.kl._KL_MEMOIZE.clear()
    assert torch.compile(objective, backend="eager", fullgraph=True)(x).isfinite()


def test_optimizers_and_schedules_of_the_wrong_kind_are_named() -> None:
    layer = nn.Linear(2, 1)
    made = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"optimizer must .*found"):
        make_optimizer(lambda parameters: layer, layer, 0.1)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"schedule must .*found"):
        make_schedule(lambda optimizer: None, made, 10)  # type: ignore[arg-type]


def test_gaps_below_zero_have_one_sign() -> None:
    actual = diagnose(build("fvNCE", "gaussian", IMAGE), rows_of("gaussian", 4), latent_samples=2)
    assert "data -2.1, noise +0.5" in str(replace(actual, gap_data=-2.1, gap_noise=0.5))
