"""Kernel density: accuracy on images near and far, every route of its evaluation, blocks, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn.datasets import load_digits

from fvnce.noise import KernelDensity, _logsum, kde


def images(n: int) -> torch.Tensor:
    """Digits blown up to 28 x 28 pixels in [0, 1] with a dark border, as 784 columns."""
    small = torch.tensor(load_digits().images[:n], dtype=torch.float32) / 16
    large = torch.nn.functional.interpolate(small[:, None], size=(24, 24), mode="bilinear")
    return torch.nn.functional.pad(large, (2, 2, 2, 2)).reshape(n, 784)


def exact(x: torch.Tensor, centres: torch.Tensor, h: float) -> np.ndarray:
    """Direct evaluation from differences in float64."""
    points, width = x.double().numpy(), centres.shape[1]
    at = centres.double().numpy()
    squares = np.stack([np.square((point - at) / h).sum(1) for point in points])
    return special.logsumexp(-0.5 * squares, axis=1) - math.log(len(at)) - width * math.log(h * math.sqrt(2 * math.pi))


def room(wanted: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    if dtype == torch.float32:
        return np.maximum(1e-3, 2 * np.spacing(np.abs(wanted).astype(np.float32)))
    # The reference rounds too: its squares, their sum and the final differences.
    return np.maximum(1e-8, 4 * np.spacing(np.abs(wanted)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("h", [1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0])
@pytest.mark.parametrize("distance", ["data", "draws", 1, 10, 100])
def test_images_near_and_far(dtype: torch.dtype, h: float, distance: str | int) -> None:
    generator = torch.Generator().manual_seed(0)
    all_images = images(460).to(dtype)
    noise = KernelDensity(all_images[:400], h)
    if distance == "data":
        x = all_images[400:]
    elif distance == "draws":
        x = noise.draw(60, generator)
    else:
        away = torch.randn(60, 784, generator=generator, dtype=dtype)
        x = all_images[:60] + away / away.norm(dim=1, keepdim=True) * distance * h * 28
    expected = exact(x, noise.centres, h)
    assert (np.abs(noise.log_prob(x).double().numpy() - expected) <= room(expected, dtype)).all()


ROUTES = {
    "sum": (1e9, 256, 0),
    "nearest": (-1.0, 10**9, 0),
    "double or direct": (-1.0, 0, 0),
    "few": (-1.0, 0, 10**9),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_routes_agree_in_value_and_gradient(monkeypatch, route: str, dtype: torch.dtype) -> None:
    """Every route, forced, gives the value and gradient of autograd through the plain formula."""
    tolerance, nearest, few = ROUTES[route]
    monkeypatch.setattr(kde, "_FEW", few)
    monkeypatch.setattr(_logsum.Centers, "tolerance", lambda self, half, dtype: torch.full_like(half, tolerance))
    monkeypatch.setattr(_logsum, "_NEAREST", nearest)
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(700, 5, generator=generator, dtype=dtype)
    weights = torch.rand(700, generator=generator)
    noise = KernelDensity(centres, torch.linspace(0.3, 0.8, 5), weights)
    x = torch.randn(90, 5, generator=generator, dtype=dtype).requires_grad_()
    value = noise.log_prob(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    again = x.detach().double().requires_grad_()
    gaps = (again[:, None] - centres.double()) / noise.bandwidth.double()
    plain = torch.logsumexp(noise.weights.log() - 0.5 * gaps.square().sum(-1), 1)
    plain = plain - noise.bandwidth.double().log().sum() - 2.5 * math.log(2 * math.pi)
    (expected,) = torch.autograd.grad(plain.sum(), again)
    loose = dtype == torch.float32
    assert torch.allclose(value.double(), plain, rtol=1e-6 if loose else 1e-13, atol=1e-5 if loose else 1e-12)
    assert torch.allclose(gradient.double(), expected, rtol=1e-4 if loose else 1e-11, atol=1e-4 if loose else 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_block_boundaries_change_nothing(monkeypatch, h: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(1300, 7, generator=generator, dtype=dtype)
    x = torch.randn(333, 7, generator=generator, dtype=dtype)
    whole = KernelDensity(centres, h).log_prob(x)
    # Another shape of tile may round a product in another order, within the promised accuracy.
    relative, absolute = (5e-7, 2e-4) if dtype == torch.float32 else (1e-15, 1e-10)
    for columns in (1, 64, 129, 1299, 1300, 1301):
        monkeypatch.setattr(_logsum, "TILE_COLUMNS", columns)
        for block_bytes in (2**16, 2**18):
            monkeypatch.setattr(_logsum, "BLOCK_BYTES", block_bytes)
            part = KernelDensity(centres, h).log_prob(x)
            assert torch.allclose(part, whole, rtol=relative, atol=absolute)
    single = torch.cat([KernelDensity(centres, h).log_prob(row)[None] for row in x[:20]])
    assert torch.allclose(single, whole[:20], rtol=relative, atol=absolute)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    q=st.integers(1, 9),
    width=st.integers(1, 6),
    log_h=st.floats(-6, 6),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e6]),
    offset=st.sampled_from([0.0, 1.0, -1e5]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    few=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_shape_scale_and_offset(n, q, width, log_h, spread, offset, dtype, few, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    centres = (offset + spread * torch.randn(n, width, generator=generator, dtype=torch.float64)).to(dtype)
    x = (offset + spread * torch.randn(q, width, generator=generator, dtype=torch.float64)).to(dtype)
    h = float(torch.tensor(10**log_h, dtype=dtype))
    expected = exact(x, centres, h)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kde, "_FEW", 10**9 if few else 0)
        actual = KernelDensity(centres, h).log_prob(x).double().numpy()
    assert (np.abs(actual - expected) <= room(expected, dtype)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("few", [0, 10**9])
def test_finite_up_to_1e15_bandwidths_and_an_error_beyond(monkeypatch, dtype: torch.dtype, few: int) -> None:
    monkeypatch.setattr(kde, "_FEW", few)
    noise = KernelDensity(torch.zeros(3, 2, dtype=dtype), 1e-3)
    edge = torch.tensor([[0.99e12, 0.0]], dtype=dtype)
    assert float(noise.log_prob(edge)) == pytest.approx(-0.5 * 0.99e15**2, rel=1e-6)
    with pytest.raises(ValueError, match=r"x.*1e15.*found row 0"):
        noise.log_prob(1.02 * edge)
    # Between the farthest centre's reach and the limit only the distance to the nearest centre decides.
    split = KernelDensity(torch.tensor([[-0.9e15, 0.0], [0.9e15, 0.0]], dtype=dtype), 1.0)
    assert math.isfinite(float(split.log_prob(torch.tensor([[1.8e15, 0.0]], dtype=dtype))))
    with pytest.raises(ValueError, match=r"x.*found row 1 at 1\.75e\+15"):
        split.log_prob(torch.tensor([[0.0, 0.0], [0.0, 1.5e15]], dtype=dtype))
    with pytest.raises(ValueError, match=r"centres.*1e15.*found"):
        KernelDensity(torch.tensor([[-1e10], [1e10]], dtype=dtype), 1e-6)


def test_a_mixed_pair_of_dtypes_is_evaluated_in_double() -> None:
    centres = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    x = torch.ones(4, 3, dtype=torch.float64)
    single, double = KernelDensity(centres, 0.5), KernelDensity(centres.double(), 0.5)
    assert torch.equal(single.log_prob(x), double.log_prob(x))
    assert torch.equal(double.log_prob(x.float()), double.log_prob(x))


def test_the_mean_is_that_of_the_density() -> None:
    noise = KernelDensity(torch.tensor([[0.0], [4.0]]), 0.5, torch.tensor([3.0, 1.0]))
    assert noise.mean.tolist() == pytest.approx([1.0])


def test_weights_act_as_repeated_centres() -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)[:, None]
    centres = torch.tensor([[-1.0], [0.5], [2.0]], dtype=torch.float64)
    weighted = KernelDensity(centres, 0.7, torch.tensor([2, 0, 1]))
    repeated = KernelDensity(centres[[0, 0, 2]], 0.7)
    assert torch.allclose(weighted.log_prob(x), repeated.log_prob(x), rtol=1e-14)
    draws = weighted.draw(2000, torch.Generator().manual_seed(0))
    assert float(draws.mean()) == pytest.approx(0.0, abs=5 * math.sqrt(2.49 / 2000))


def test_functional_transforms_see_the_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = KernelDensity(torch.randn(30, 3, generator=generator, dtype=torch.float64), 0.6)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    each = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(noise.log_prob(each).sum(), each)
    assert torch.allclose(torch.func.vmap(noise.log_prob)(x), noise.log_prob(x), rtol=1e-13)
    assert torch.allclose(torch.func.grad(noise.log_prob)(x[0]), expected[0], rtol=1e-12)
    assert torch.allclose(torch.func.vmap(torch.func.grad(noise.log_prob))(x), expected, rtol=1e-12)


def test_second_derivatives_fail_loudly() -> None:
    noise = KernelDensity(torch.zeros(2, 1), 1.0)
    x = torch.ones(1, 1, requires_grad=True)
    (first,) = torch.autograd.grad(noise.log_prob(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(0, 3), 1.0), r"centres.*found.*\(0, 3\)"),
        ((torch.zeros(3), 1.0), r"centres.*found.*\(3,\)"),
        ((torch.tensor([[0.0], [math.inf]]), 1.0), r"centres.*found inf.*row 1, column 0"),
        ((torch.zeros(2, 1), 0.0), r"bandwidth.*found 0.0"),
        ((torch.zeros(2, 1), -1.0), r"bandwidth.*found -1.0"),
        ((torch.zeros(2, 1), math.nan), r"bandwidth.*found nan"),
        ((torch.zeros(2, 2), torch.ones(3)), r"bandwidth.*\(2,\).*found.*\(3,\)"),
        ((torch.zeros(2, 1), 1.0, torch.tensor([1.0, -1.0])), r"weights.*found -1.0"),
        ((torch.zeros(2, 1), 1.0, torch.zeros(2)), r"weights.*found 0.0"),
        ((torch.zeros(2, 1), 1.0, torch.ones(3)), r"weights.*\(2,\).*found.*\(3,\)"),
    ],
)
def test_wrong_arguments_say_what_was_found(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelDensity(*arguments)


def test_a_bandwidth_rule_belongs_to_from_data() -> None:
    with pytest.raises(TypeError, match=r"bandwidth.*found 'scott'"):
        KernelDensity(torch.zeros(2, 1), "scott")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bandwidth.*'scott', 'silverman', 'loo'.*found 'best'"):
        KernelDensity.from_data(torch.zeros(2, 1), "best")


@pytest.mark.slow
@pytest.mark.parametrize("h", [1 / 64, 1 / 8, 1 / 4, 1 / 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_images_and_their_draws(monkeypatch, h: float, weighted: bool) -> None:
    """Draws and far points in 784 dimensions: the density is that of a direct evaluation."""
    generator = torch.Generator().manual_seed(6)
    shown = images(1500)
    weights = torch.rand(1500, generator=generator) * (torch.arange(1500) % 5 > 0) if weighted else None
    noise = KernelDensity(shown, h, weights)
    monkeypatch.setattr(kde, "_FEW", 0)
    x, log_prob = noise.draw_with_log_prob(300, generator)
    assert torch.equal(x, noise.draw(300, torch.Generator().manual_seed(6))) or weighted
    away = x + 20 * h * torch.randn(300, 784, generator=generator)
    far = noise.log_prob(away)
    for points, actual in ((x[:40], log_prob[:40]), (away[:40], far[:40])):
        used = shown if weights is None else shown[weights > 0]
        squares = np.stack([np.square((p - used.double().numpy()) / h).sum(1) for p in points.double().numpy()])
        shares = np.full(1500, 1 / 1500) if weights is None else noise.weights[weights > 0].numpy()
        expected = special.logsumexp(-0.5 * squares, axis=1, b=shares) - 784 * math.log(h * math.sqrt(2 * math.pi))
        assert (np.abs(actual.double().numpy() - expected) <= room(expected, torch.float32)).all()
