"""Runs in threads give what they give alone, and leave the generators of the whole process as they were."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fvnce.training import fit
from training_runs import WIDTH, contrastive, digest, kernels, rows, vae


class Dropped(nn.Module):
    """Draws from all three global generators."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        shift = np.random.normal() + random.random()  # noqa: NPY002 (what users do)
        return (self.layers(x) - shift).square().mean()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
def test_threads_agree_with_turns(hasty: None) -> None:
    makers: list[Any] = [Dropped, vae, lambda: contrastive(noise=kernels(), partition="profiled")] * 2
    settings: dict[str, Any] = {"epochs": 4, "batch_size": 5, "validation": rows(20, seed=2), "progress": False}
    objectives = [make() for make in makers]
    alone = [make() for make in makers]
    for seed, objective in enumerate(alone):
        fit(objective, rows(60), seed=seed, **settings)
    threads = [
        threading.Thread(target=fit, args=(objective, rows(60)), kwargs={"seed": seed, **settings})
        for seed, objective in enumerate(objectives)
    ]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [digest(objective) for objective in objectives] == [digest(objective) for objective in alone]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]


def test_a_callback_may_train_something_itself() -> None:
    inner = vae()
    outer, alone = vae(), vae()
    fit(outer, rows(20), epochs=1, seed=1, callbacks=[lambda run: fit(inner, rows(20), epochs=1, seed=2)])  # type: ignore[list-item, return-value]
    fit(alone, rows(20), epochs=1, seed=1)
    assert digest(outer) == digest(alone)
