"""Nothing that is handed to the detector ends in anything but a sound result or a clear sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fvnce import NoiseContrastiveDetector
from tools.fuzz import __main__ as fuzz
from tools.fuzz import detector as fuzz_detector

QUICK: dict[str, Any] = {"n_trees": 2, "n_networks": 1, "steps": 2, "expert": {"batch_size": 8}}


@pytest.mark.parametrize("first", [0, 100, 200])
def test_fuzzed_inputs_end_in_a_sound_result_or_a_clear_sentence(first: int) -> None:
    assert fuzz.run("detector", seed=1, tries=100, first=first) == []


def test_the_fuzzer_notices_what_is_neither(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise KeyError("depth")

    with monkeypatch.context() as patched:
        patched.setattr(NoiseContrastiveDetector, "score_samples", broken)
        failures = fuzz.run("detector", seed=1, tries=30)
    assert failures
    assert all("KeyError" in failure for failure in failures)
    # A try is repeated by its number.
    with monkeypatch.context() as patched:
        patched.setattr(NoiseContrastiveDetector, "score_samples", broken)
        number = int(failures[-1].split()[1].rstrip(":"))
        assert fuzz.run("detector", seed=1, tries=1, first=number) == failures[-1:]
    assert fuzz.main(["detector", "--tries", "3", "--jobs", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "fuzz-detector.json").read_text())
    assert (result["tries"], result["failures"], result["seed"]) == (3, [], 0)


def test_an_exception_is_clear_only_if_it_was_raised_on_purpose() -> None:
    for make, clear in (
        (lambda: NoiseContrastiveDetector(alpha=2.0).fit(np.zeros((4, 2))), True),
        (lambda: NoiseContrastiveDetector().fit(np.full((4, 2), np.nan)), True),
        (lambda: np.zeros(3) + np.zeros(4), False),
        (lambda: {}["key"], False),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011 (any: which are clear is the question)
            make()
        assert fuzz_detector.is_clear(caught.value) is clear


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("members", 3),
        ("members", ()),
        ("alpha", 1e-300),
        ("random_state", -1),
        ("random_state", 2**32),
        ("verbose", 1j),
        ("contamination", np.array([0.1, 0.2])),
    ],
)
def test_settings_of_a_wrong_kind_are_named(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        NoiseContrastiveDetector(**{name: value}).fit(np.random.default_rng(0).normal(size=(10, 2)))


@pytest.mark.parametrize(
    ("name", "value"), [("hidden", 64), ("hidden", "64"), ("device", float("nan")), ("batch_size", 1)]
)
def test_expert_settings_of_a_wrong_kind_are_named(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        NoiseContrastiveDetector(expert={name: value}).fit(np.random.default_rng(0).normal(size=(10, 2)))


def test_frames_without_columns_and_with_a_name_twice_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(10, 2)), columns=["a", "a"])
    fitted = NoiseContrastiveDetector(**QUICK).fit(X.to_numpy())
    for method in (NoiseContrastiveDetector(**QUICK).fit, fitted.score_samples):
        with pytest.raises(ValueError, match="'a'"):
            method(X)
        with pytest.raises(ValueError, match="column"):
            method(X.iloc[:, :0])
        with pytest.raises(ValueError, match="row"):
            method(X.iloc[:0, :1])
    with pytest.raises(ValueError, match="'d'"):
        fitted.score_samples(pd.DataFrame({"c": [1.0], "d": pd.to_timedelta([1])}))


def test_a_single_infinite_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample_weight.*inf"):
        NoiseContrastiveDetector(**QUICK).fit(np.eye(4), sample_weight=np.inf)


def test_tensors_are_arrays() -> None:
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(0).random((8, 4, 4))
    detector = NoiseContrastiveDetector(**QUICK).fit(torch.from_numpy(images))
    np.testing.assert_array_equal(detector.score_samples(torch.from_numpy(images)), detector.score_samples(images))


def test_labels_of_a_wrong_shape_are_refused_in_a_plot() -> None:
    X = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(ValueError, match=r"y .*10"):
        NoiseContrastiveDetector(**QUICK).fit(X).plot_scores(X, np.zeros((10, 2)))


def test_settings_in_numpys_numbers_can_be_saved(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    hidden = (np.int8(3),)
    settings: dict[str, Any] = {"n_trees": np.int64(2), "expert": {"hidden": hidden}, "contamination": np.float32(0.25)}
    detector = NoiseContrastiveDetector(**settings).fit(X)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    assert loaded.get_params() == detector.get_params()


def test_lists_of_different_lengths_are_no_images() -> None:
    detector = NoiseContrastiveDetector(**QUICK).fit(np.random.default_rng(0).random((8, 4, 4)))
    with pytest.raises(ValueError, match=r"X .*list"):
        detector.score_samples([[1, 2], [3]])


@pytest.mark.parametrize("seed", range(8))
def test_images_score_to_the_same_bits_from_a_file(seed: int, tmp_path: Path) -> None:
    # Few images of many pixels: scikit-learn works on the transpose, and its directions lie in another order in memory.
    images = np.random.default_rng(seed).integers(0, 255, size=(20, 2, 4, 4))
    detector = NoiseContrastiveDetector(**QUICK, members=("network",), random_state=seed).fit(images)
    loaded = NoiseContrastiveDetector.load(detector.save(tmp_path / "detector.safetensors"))
    np.testing.assert_array_equal(loaded.score_samples(images), detector.score_samples(images))
