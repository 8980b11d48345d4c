"""A caller's modes of torch change no bit of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import fvnce


def objective() -> nn.Module:
    torch.manual_seed(0)
    noise = Independent(Normal(torch.zeros(2), 2 * torch.ones(2)), 1)
    return fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([2, 8, 1])), noise)


def weights(trained: nn.Module) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in trained.parameters()])


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_fit_has_the_same_bits_in_every_mode(mode: Any) -> None:
    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 0, "accelerator": "cpu"}
    expected, trained = objective(), objective()
    history = fvnce.fit(expected, torch.linspace(-1, 1, 128).reshape(64, 2), **options)
    with mode():
        rows = torch.linspace(-1, 1, 128).reshape(64, 2)
        again = fvnce.fit(trained, rows, validation=rows[:8], **options)
    assert torch.equal(weights(trained), weights(expected))
    assert again["loss"] == history["loss"]


def test_an_objective_of_inference_tensors_is_refused() -> None:
    with torch.inference_mode():
        made = objective()
        with pytest.raises(ValueError, match=r"objective .*inference_mode"):
            fvnce.fit(made, torch.zeros(8, 2), epochs=1, seed=0)
