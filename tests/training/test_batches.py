"""Batches: every row once an epoch with its own density, noise fresh or from a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Uniform

from fvnce import KernelDensity
from fvnce._random import order
from fvnce.objectives import Batch
from fvnce.training import Callback, FitOptions, fit
from training_runs import WIDTH, contrastive, digest, kernels, mapped, rows

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}


def trained(objective: nn.Module, data: object, **settings: Any) -> str:
    fit(objective, data, **{**SETTINGS, **settings})
    return digest(objective)


def test_tensor_array_and_memory_map_are_the_same_data(tmp_path: Path) -> None:
    first = trained(contrastive(noise=kernels()), rows(50))
    assert trained(contrastive(noise=kernels()), rows(50).numpy()) == first
    assert trained(contrastive(noise=kernels()), mapped(tmp_path, 50)) == first
    assert trained(contrastive(noise=kernels()), rows(50).double()) == first
    assert trained(contrastive(noise=kernels()), rows(50).flip(0).numpy()[::-1]) == first
    assert trained(contrastive(noise=kernels()), rows(50).numpy().astype(">f4")) == first


def test_a_memory_map_is_read_by_batches(tmp_path: Path) -> None:
    """A map of 4 GiB of zeros, sparse on the disk: reading it whole would need the memory, its rows do not."""
    path = tmp_path / "big.dat"
    big = np.memmap(path, dtype=np.float32, mode="w+", shape=(2**22, 256))
    torch.manual_seed(0)
    seen = []

    class Stop(Exception):
        pass

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 1)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape)
            if len(seen) > 3:
                raise Stop
            return self.layer(x).square().mean()

    with pytest.raises(Stop):
        fit(Look(), big, epochs=1, batch_size=32, seed=1)
    assert seen == [(32, 256)] * 4


def test_every_row_is_seen_once_an_epoch_in_a_new_order() -> None:
    seen: list[Tensor] = []

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return (self.weight * x).square().mean()

    data = torch.arange(10.0).unsqueeze(1)
    fit(Look(), data, epochs=2, batch_size=4, seed=1)
    assert [len(x) for x in seen] == [4, 4, 2] * 2
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert torch.equal(first.sort(0).values, data)
    assert torch.equal(second.sort(0).values, data)
    assert not torch.equal(first, second)
    assert torch.equal(first[:, 0].long(), order(1, 0, 10))


def test_every_row_comes_with_its_own_density() -> None:
    seen = []
    objective = contrastive(noise=kernels())
    plain = objective.terms_of

    def spy(batch: Batch) -> Any:
        seen.append((batch.x, batch.log_noise_x, batch.x_noise, batch.log_noise_noise))
        return plain(batch)

    objective.terms_of = spy
    fit(objective, rows(50), epochs=2, batch_size=16, seed=1, options=FitOptions(noise_pool=40))
    assert len(seen) == 8
    for x, log_x, noise, log_noise in seen:
        assert len(noise) == len(x)
        assert torch.allclose(log_x, kernels().log_prob(x), atol=1e-5)
        assert torch.allclose(log_noise, kernels().log_prob(noise), atol=1e-5)


def test_noise_that_misses_a_row_names_it() -> None:
    box = Independent(Uniform(torch.full((WIDTH,), -1e3), torch.full((WIDTH,), 1e3)), 1)
    data = rows(20)
    data[13] += 1e4
    with pytest.raises(ValueError, match=r"noise must .*row 13"):
        fit(contrastive(noise=box), data, **SETTINGS)


def test_cheap_noise_is_fresh_and_expensive_noise_is_pooled() -> None:
    drawn = []

    class Counted(KernelDensity):
        def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
            drawn.append(n)
            return super().draw_with_log_prob(n, generator)

    fit(contrastive(noise=Counted(rows(1), 1.0)), rows(32), epochs=1, batch_size=16, seed=1)
    assert drawn == [16, 16]
    drawn.clear()
    fit(contrastive(noise=Counted(rows(5000), 1.0)), rows(32), epochs=1, batch_size=16, seed=1)
    assert sum(drawn) >= 8192


def test_a_pool_is_renewed_only_while_noise_is_live() -> None:
    """Where the density of the noise is e^80 times the model's, r^(1+α) is zero: nothing can be learnt by heart."""

    def renewed(noise: KernelDensity) -> int:
        pools = []

        class Look(Callback):
            def start(self, run: Any) -> None:
                pools.append(run.batches.pool)

        objective = contrastive(alpha=0.5, noise=noise)
        options = FitOptions(noise_pool=64)
        fit(objective, rows(100), epochs=20, batch_size=20, seed=1, callbacks=[Look()], options=options)
        return int(pools[0].renewed)

    assert renewed(KernelDensity(rows(100), 1.0)) > 0
    assert renewed(KernelDensity(rows(100), 1e-9)) == 0
