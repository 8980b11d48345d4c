"""What follows a generator gives in several threads what it gives alone, and leaves the global generator as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from fvnce import FullyVariationalNCE, GaussianDecoder, GaussianEncoder, LatentVariableModel, PowerRule
from fvnce.noise import draw
from fvnce.ratio import multinomial_bridges


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def standard(width: int) -> Independent:
    return Independent(Normal(torch.zeros(width), torch.ones(width)), 1)


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [draw(standard(3), 10, generator) for _ in range(100)]


@lru_cache
def objective() -> FullyVariationalNCE:
    model = LatentVariableModel(standard(2), GaussianDecoder(torch.nn.Identity()))
    encoder = GaussianEncoder(torch.nn.Linear(2, 4))
    for parameter in encoder.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    return FullyVariationalNCE(model, encoder, standard(2), PowerRule(0))


def log_partitions(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [objective().log_partition(10, generator=generator).value for _ in range(30)]


def bridged(seed: int) -> list[Tensor]:
    """The weights that networks begin with."""
    actual: list[Tensor] = []

    def network(levels: int) -> nn.Module:
        layers = [nn.Linear(2, 2) for _ in range(200)]
        actual.extend(layer.weight.detach().clone() for layer in layers)
        return nn.Sequential(layers[0], nn.Linear(2, levels))

    multinomial_bridges(torch.arange(20.0).reshape(10, 2), standard(2), network=network, levels=1, epochs=1, seed=seed)
    return actual


@pytest.mark.parametrize("work", [drawn, log_partitions, bridged])
def test_threads_agree_with_turns(work, hasty):
    torch.manual_seed(0)
    alone = [work(seed) for seed in range(4)]
    before = torch.get_rng_state()
    actual: dict[int, list[Tensor]] = {}
    threads = [threading.Thread(target=lambda seed=seed: actual.update({seed: work(seed)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, values in enumerate(alone):
        assert all(map(torch.equal, actual[seed], values))
    assert torch.equal(torch.get_rng_state(), before)
