"""The optimiser of the CPU is torch's, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fvnce.training.adam import Adam
from fvnce.training.optimiser import make_optimizer


def _network(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 1)).to(dtype)


def _train(network: nn.Sequential, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Every third step leaves the middle layer without a gradient."""
    dtype = network[0].weight.dtype
    for step in steps:
        x = torch.randn(7, 5, generator=torch.Generator().manual_seed(step), dtype=dtype)
        hidden = network[1](network[0](x))
        middle = hidden[:, :3] if step % 3 == 2 else network[2](hidden)
        network[3](middle).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _weights(network: nn.Module) -> list[Tensor]:
    return list(network.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_takes_torchs_steps(dtype: torch.dtype) -> None:
    networks = _network(dtype), _network(dtype)
    theirs = torch.optim.Adam(networks[0].parameters(), lr=0.01, fused=True)
    ours = Adam(networks[1].parameters(), lr=0.01)
    for network, optimizer in zip(networks, (theirs, ours), strict=True):
        _train(network, optimizer, range(10))
    assert all(map(torch.equal, _weights(networks[0]), _weights(networks[1])))
    steps = [
        [float(state["step"]) for state in optimizer.state_dict()["state"].values()] for optimizer in (theirs, ours)
    ]
    assert steps[0] == steps[1]
    assert min(steps[0]) < max(steps[0])  # the middle layer has taken fewer


def test_numbers_of_two_kinds_in_one_group() -> None:
    """A network in float32 beside a constant in float64."""
    ends = []
    for make in (lambda p: torch.optim.Adam(p, lr=0.1, fused=True), lambda p: Adam(p, lr=0.1)):
        single, double = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, dtype=torch.float64))
        optimizer = make([single, double])
        for _ in range(3):
            optimizer.zero_grad()
            (single.square().sum() + double.square().sum()).backward()
            optimizer.step()
        ends.append((single.detach(), double.detach()))
    assert all(map(torch.equal, *ends))


def test_states_are_interchangeable_with_torchs() -> None:
    straight = _network(torch.float32)
    _train(straight, torch.optim.Adam(straight.parameters(), lr=0.01, fused=True), range(12))
    parts = _network(torch.float32)
    first = Adam(parts.parameters(), lr=0.01)
    _train(parts, first, range(4))
    second = torch.optim.Adam(parts.parameters(), lr=0.5, fused=True)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    _train(parts, second, range(4, 8))
    first.load_state_dict(copy.deepcopy(second.state_dict()))  # one that has collected its tensors before
    _train(parts, first, range(8, 12))
    assert all(map(torch.equal, _weights(straight), _weights(parts)))


def test_a_group_added_later_is_trained_and_the_rate_may_change() -> None:
    networks = _network(torch.float32), _network(torch.float32)
    for network, kind in zip(networks, (torch.optim.Adam, Adam), strict=True):
        fused = {"fused": True} if kind is torch.optim.Adam else {}
        optimizer = kind(network[0].parameters(), lr=0.01, **fused)
        _train(network, optimizer, range(3))
        optimizer.add_param_group({"params": list(network[3].parameters()), "lr": 0.1})
        optimizer.param_groups[0]["lr"] = 0.02
        network[3].zero_grad()
        _train(network, optimizer, range(3, 6))
    assert all(map(torch.equal, _weights(networks[0]), _weights(networks[1])))


def test_a_closure_is_called_and_its_loss_given_back() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = Adam([weight], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert torch.allclose(weight, torch.full((2,), 0.9))


def test_gradients_of_a_scaler_are_left_to_torch() -> None:
    assert type(make_optimizer("adam", _network(torch.float32), 0.1, fused=True, scaled=True)) is torch.optim.Adam
