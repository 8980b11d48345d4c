"""Storage of noise: nested members, plain torch distributions, damaged and foreign files."""

from __future__ import annotations

import json
import math

import pytest
import safetensors.torch
import torch
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, StudentT, Uniform

from fvnce.io import FileError, describe, rebuild
from fvnce.noise import KernelDensity, NoiseMixture, draw, load_noise, save_noise
from noise_contract import data, mixture

WIDTH = 3
PLAIN = [
    Normal(torch.arange(3.0), torch.tensor(2.0)),
    Uniform(torch.zeros(3), torch.arange(1.0, 4.0), validate_args=False),
    Independent(Normal(torch.arange(3.0, dtype=torch.float64), 1.5), 1),
    MultivariateNormal(torch.zeros(3), covariance_matrix=torch.eye(3) + 0.3),
    MultivariateNormal(torch.zeros(3), precision_matrix=torch.eye(3) + 0.3),
]


@pytest.mark.parametrize("noise", PLAIN, ids=lambda noise: type(noise).__name__)
def test_plain_torch_distributions_come_back_bit_for_bit(noise, tmp_path) -> None:
    save_noise(noise, tmp_path)
    back = load_noise(tmp_path)
    x = torch.rand(20, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(noise.mean.dtype)
    assert torch.equal(back.log_prob(x), noise.log_prob(x))
    assert torch.equal(*(draw(n, 10, torch.Generator().manual_seed(0)) for n in (noise, back)))
    assert checks(back) == checks(noise)


def checks(noise: Distribution) -> bool:
    try:
        noise.log_prob(torch.full((WIDTH,), math.nan, dtype=noise.mean.dtype))
    except ValueError:
        return True
    return False


def test_one_factor_for_a_whole_batch_is_written_once() -> None:
    noise = MultivariateNormal(torch.arange(12.0).reshape(4, 3), covariance_matrix=torch.eye(3) + 0.3)
    _, tensors = describe(noise)
    assert sorted(tensor.numel() for tensor in tensors.values()) == [9, 12]
    each = MultivariateNormal(torch.zeros(3), scale_tril=torch.stack([torch.eye(3), 2 * torch.eye(3)]))
    for one in (noise, each):
        back = rebuild(*describe(one), Distribution)
        assert back.batch_shape == one.batch_shape
        x = data(one.batch_shape[0], WIDTH, torch.float32)
        assert torch.equal(back.log_prob(x), one.log_prob(x))


def test_mixtures_of_mixtures_pass_through_json(tmp_path) -> None:
    inner = mixture(WIDTH, torch.float32)
    kernel = KernelDensity(data(20, WIDTH, torch.float32), 0.3, torch.rand(20))
    noise = NoiseMixture([inner, kernel], [0.3, 0.9])
    config, tensors = describe(noise)
    back = rebuild(json.loads(json.dumps(config)), tensors, Distribution)
    x = data(30, WIDTH, torch.float32, seed=1)
    assert torch.equal(back.log_prob(x), noise.log_prob(x))
    assert torch.equal(back.weights, noise.weights)


def test_two_components_may_share_one_tensor(tmp_path) -> None:
    X = data(20, WIDTH, torch.float32)
    noise = NoiseMixture([KernelDensity(X, 0.1), KernelDensity(X, 1.0), KernelDensity(X[::2], 1.0)])
    save_noise(noise, tmp_path)
    assert torch.equal(load_noise(tmp_path).log_prob(X), noise.log_prob(X))


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch) -> None:
    X = data(20, WIDTH, torch.float32)
    save_noise(KernelDensity(X, 0.1), tmp_path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_noise(KernelDensity(X, 9.0), tmp_path)
    assert float(load_noise(tmp_path).bandwidth) == pytest.approx(0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["noise.safetensors"]


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path) -> None:
    with pytest.raises(TypeError, match=r"noise.*KernelDensity, .*found StudentT"):
        save_noise(StudentT(3.0), tmp_path)
    with pytest.raises(FileError, match=r"config.*'os.system'"):
        rebuild({"structure": {"$kind": "os.system", "$id": 0, "$arguments": {}}}, {}, Distribution, what="config")
    with pytest.raises(FileError, match=r"config.*Distribution.*found.*ReLU"):
        rebuild(*describe(torch.nn.ReLU()), Distribution, what="config")
    with pytest.raises(FileNotFoundError, match=r"noise.safetensors"):
        load_noise(tmp_path)
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "noise.safetensors")
    with pytest.raises(ValueError, match=r"noise.safetensors"):
        load_noise(tmp_path)
