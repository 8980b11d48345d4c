"""What the page of a run tells follows from the run, not from what was drawn before it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fvnce.runs.making import make_run
from fvnce.runs.settings import read_config
from fvnce.serialization import read_document


def told(folder: Path, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    make_run(read_config(folder / "c.toml"), folder / f"run-{seed}", lambda _: None, progress=False)
    return read_document(folder / f"run-{seed}" / "study.json", "study")


def test_the_ratios_of_a_page_do_not_depend_on_the_global_generator(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(60, 3)))
    (tmp_path / "c.toml").write_text(
        f'[run]\nkind = "latent"\n[data]\npath = "{tmp_path / "rows.npy"}"\n[model]\nepochs = 1\nhidden = [4]\n'
    )
    first, second = (told(tmp_path, seed) for seed in (1, 2))
    for fact in ("ratios", "reliability", "log_partition", "samples"):
        assert first[fact] == second[fact], fact
