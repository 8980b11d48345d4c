"""Settings that cannot be used are refused by name; old keywords of fit warn."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fvnce import training
from fvnce.training import FitOptions, fit
from training_runs import WIDTH, contrastive, rows, vae

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 1}


# What is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must .*found 0"),
        ({"lr": -1.0}, "lr must .*found -1"),
        ({"optimizer": "adamm"}, "optimizer must .*found 'adamm'"),
        ({"schedule": "cos"}, "schedule must .*found 'cos'"),
        ({"precision": "16-true"}, "precision must .*found '16-true'"),
        ({"options": FitOptions(noise_pool=3)}, "noise_pool must .*16.*found 3"),
        ({"data": torch.zeros(0, WIDTH)}, r"data must .*found shape \(0, 4\)"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    chosen = {"data": rows(32), **SETTINGS, **settings}
    with pytest.raises(ValueError, match=words):
        fit(contrastive(), **chosen)


def test_wrong_objects_are_named() -> None:
    with pytest.raises(TypeError, match=r"objective must .*found function"):
        fit(lambda x: x.mean(), rows(10))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data must .*found str"):
        fit(vae(), "rows.csv")
    with pytest.raises(ValueError, match=r"objective must .*found none"):
        fit(nn.Identity(), rows(10))
    with pytest.raises(TypeError, match=r"objective must .*found shape \(10, 1\)"):
        fit(nn.Linear(WIDTH, 1), rows(10))
    with pytest.raises(TypeError, match=r"data must give tensors.*found dict"):
        fit(vae(), DataLoader([{"x": torch.zeros(4)}], batch_size=1))  # type: ignore[arg-type]


def test_what_a_function_of_the_user_returned_is_named() -> None:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(TypeError, match=r"schedule must return .* found ReduceLROnPlateau"):
        fit(vae(), rows(20), epochs=1, seed=1, schedule=lambda optimizer, steps: plateau(optimizer))


def test_options_that_were_keywords_of_fit_still_work_and_warn() -> None:
    old: dict[str, Any] = {"log_every": 3, "validate_every": 2}
    with pytest.warns(DeprecationWarning, match=r"fit\(log_every, validate_every\) .*FitOptions\(log_every=3, "):
        before = fit(vae(), rows(40), validation=rows(5), **old, **SETTINGS)
    now = fit(vae(), rows(40), validation=rows(5), options=FitOptions(**old), **SETTINGS)
    assert before.steps["loss"] == now.steps["loss"]
    assert before["val_loss"] == pytest.approx(now["val_loss"], rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(("name", "words"), [("accept_changes", "load_weights"), ("log_evry", "unexpected keyword")])
def test_keywords_that_fit_does_not_have_are_refused(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*{words}|{words}.*{name}"):
        fit(vae(), rows(20), **{name: True}, **SETTINGS)


def test_fit_has_few_parameters_and_the_rest_in_one_place() -> None:
    names = inspect.signature(fit).parameters
    assert len(names) <= 18
    assert not set(names) & {field.name for field in dataclasses.fields(FitOptions)}


@pytest.mark.parametrize(("old", "new"), [("Table", "HistoryTable"), ("NormalisedSGD", "NormalizedSGD")])
def test_old_names_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(training, old) is getattr(training, new)


def test_the_old_name_of_an_optimizer_warns() -> None:
    with pytest.warns(DeprecationWarning, match="normalized-sgd"):
        fit(vae(), rows(20), optimizer="normalised-sgd", **SETTINGS)
