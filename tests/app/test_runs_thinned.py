"""Rows that are chosen at random from very many keep the names and numbers that they have in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imsave

from fvnce.app.runs import training_data
from fvnce.app.runs.settings import DataSettings
from fvnce.app.runs.training_data import TrainingData, read_training_data


@pytest.fixture(autouse=True)
def small(monkeypatch: Any) -> None:
    monkeypatch.setattr(training_data, "LARGE_BYTES", 100)
    monkeypatch.setattr(training_data, "LARGE_ROWS", 10)


def read(path: Path, **settings: Any) -> TrainingData:
    return read_training_data(DataSettings(str(path), **settings), lambda text: None)


def test_rows_of_an_array_that_are_chosen_have_their_numbers_in_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(80.0).reshape(40, 2))
    np.save(tmp_path / "outliers.npy", np.zeros((3, 2)))
    data = read(tmp_path / "rows.npy", outliers=str(tmp_path / "outliers.npy"))
    assert data.names == [*(f"{int(row[0]) // 2 + 1}" for row in data.rows[:10]), "outlier 1", "outlier 2", "outlier 3"]
    assert len(set(data.names)) == 13


def test_images_that_are_chosen_have_their_own_names(tmp_path: Path) -> None:
    for kind, shades in (("rows", range(40)), ("outliers", range(100, 103))):
        (tmp_path / kind).mkdir()
        for shade in shades:
            imsave(tmp_path / kind / f"{shade}.png", np.full((3, 3, 3), shade, dtype=np.uint8))
    data = read(tmp_path / "rows", outliers=str(tmp_path / "outliers"))
    assert data.names is not None
    assert data.names[:10] == [f"{round(float(image[0, 0]) * 255)}.png" for image in data.rows[:10]]
    assert len(data.names) == len(data.rows) == 13


def test_a_row_without_an_identifier_has_its_number_in_the_file(tmp_path: Path) -> None:
    lines = [f"{'' if i % 2 else f'T{i}'},{i}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x", *lines]) + "\n")
    data = read(tmp_path / "rows.csv", id="id")
    assert len(data.rows) == 10
    assert data.names == [f"row {int(i) + 1}" if i % 2 else f"T{int(i)}" for i in data.rows["x"]]  # type: ignore[call-overload]
