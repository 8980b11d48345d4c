"""A file whose checksum is right and whose content no fit could have made is refused, before a row is scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fvnce import scorer
from fvnce.detection import NoiseContrastiveDetector
from fvnce.detection.members.forest import RatioForest
from fvnce.detection.preprocessing import preprocessor_from_state
from fvnce.detection.trust.calibration import Calibration
from fvnce.io import FileError
from fvnce.tables.parsing import ColumnType

QUICK: dict[str, Any] = {
    "n_trees": 3,
    "n_networks": 1,
    "steps": 5,
    "calibration_folds": 0,
    "min_samples_leaf": 1,
    "expert": {"batch_size": 16},
}
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(40, 3))
IMAGES = RNG.random((20, 8, 8))


@pytest.fixture(params=[NoiseContrastiveDetector.load, scorer.load], ids=["estimator", "scorer"])
def read(request: pytest.FixtureRequest) -> Any:
    """What reads a file, which may be forged."""
    return request.param


def fitted(members: str, images: bool = False) -> NoiseContrastiveDetector:
    X = IMAGES if images else TABLE
    y = (np.arange(len(X)) < 4).astype(int)
    return NoiseContrastiveDetector(**QUICK, members=(members,)).fit(X, y)


def with_forest(**arrays: Callable[[RatioForest], Any]) -> NoiseContrastiveDetector:
    detector = fitted("mixture_forest")
    forest: Any = detector.ensemble_.members[0]
    detector.ensemble_.members[0] = replace(forest, **{name: make(forest) for name, make in arrays.items()})
    return detector


def changed(array: Any, index: Any, value: Any) -> Any:
    array = array.copy()
    array[index] = value
    return array


def a_leaf(forest: RatioForest) -> int:
    return int(np.flatnonzero(forest.right == np.arange(len(forest.right)))[0])


def a_chain(depth: int) -> dict[str, Callable[[RatioForest], Any]]:
    """A tree whose every second node is a leaf, so that the last is ``depth`` levels down."""
    size = 2 * depth + 1
    own = np.arange(size)
    inner = (own % 2 == 0) & (own < size - 1)
    made: dict[str, Any] = {
        "roots": np.zeros(1, dtype=np.int32),
        "right": np.where(inner, own + 2, own),
        "feature": np.zeros(size, dtype=np.int64),
        "threshold": np.zeros(size),
        "share": np.full(size, 0.5),
    }
    return {name: lambda _, value=value: value for name, value in made.items()}  # type: ignore[misc]


FORESTS: dict[str, tuple[dict[str, Callable[[RatioForest], Any]], str]] = {
    "a cycle": ({"right": lambda f: changed(f.right, 1, 0)}, "later"),
    "a cycle at a leaf": ({"right": lambda f: changed(f.right, a_leaf(f), 0)}, "later"),
    "beyond the end": ({"right": lambda f: changed(f.right, 0, len(f.right))}, "later"),
    "a node shared": ({"right": lambda f: changed(f.right, 0, 1)}, "one other"),
    "half a leaf": ({"right": lambda f: changed(f.right, a_leaf(f), len(f.right) - 1)}, "one other|one piece"),
    "no such column": ({"feature": lambda f: changed(f.feature, 0, 3)}, "columns 0 to 2"),
    "a negative column": ({"feature": lambda f: changed(f.feature, 0, -1)}, "columns 0 to 2"),
    "a share of 2": ({"share": lambda f: changed(f.share, -1, 2.0)}, "2.0"),
    "a share of NaN": ({"share": lambda f: changed(f.share, 0, np.nan)}, "share.*finite"),
    "no threshold": ({"threshold": lambda f: changed(f.threshold, 0, np.inf)}, "threshold.*finite"),
    "a shorter array": ({"threshold": lambda f: f.threshold[:-1]}, "threshold of a forest"),
    "a matrix": ({"right": lambda f: f.right[:, None]}, "right of a forest"),
    "whole thresholds": ({"threshold": lambda f: f.threshold.astype(np.int64)}, "float32"),
    "no roots": ({"roots": lambda f: f.roots[:0]}, "roots"),
    "a root twice": ({"roots": lambda f: f.roots[[0, 0, 1]]}, "roots"),
    "a root outside": ({"roots": lambda f: changed(f.roots, -1, -1)}, "roots"),
    "a root inside": ({"roots": lambda f: changed(f.roots, 1, f.roots[1] + 1)}, "one other"),
    "a very deep tree": (a_chain(20_000), "10,000 levels"),
}


@pytest.mark.parametrize("case", FORESTS)
def test_a_forged_forest_is_refused(case: str, tmp_path: Path, read: Any) -> None:
    arrays, match = FORESTS[case]
    path = with_forest(**arrays).save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match=match):
        read(path)


def test_a_deep_tree_that_ends_is_read(tmp_path: Path, read: Any) -> None:
    detector = with_forest(**a_chain(300))
    loaded = read(detector.save(tmp_path / "deep.safetensors"))
    np.testing.assert_array_equal(loaded.score_samples(TABLE), detector.score_samples(TABLE))


def _set(path: str, value: Any) -> Callable[[NoiseContrastiveDetector], None]:
    def apply(detector: Any) -> None:
        *owners, last = path.split(".")
        for name in owners:
            detector = detector[int(name)] if name.isdigit() else getattr(detector, name)
        if last.isdigit():
            detector[int(last)] = value(detector[int(last)]) if callable(value) else value
        else:
            object.__setattr__(detector, last, value(getattr(detector, last)) if callable(value) else value)

    return apply


NUMBERS: dict[str, Callable[[NoiseContrastiveDetector], None]] = {
    "offset": _set("offset_", float("nan")),
    "slope": _set("calibration_.slope", 0.0),
    "prior": _set("calibration_.prior", 1.5),
    "known": _set("n_known_", -1),
    "features": _set("n_features_in_", 4),
    "scale of the ensemble": _set("ensemble_.units.0", (0.0, 0.0)),
    "tiny scale of the ensemble": _set("ensemble_.units.0", (0.0, 1e-320)),
    "a name twice": _set("feature_names_in_", ["a", "a", "b"]),
    "all rows known": _set("findings_.baseline.known", 1.0),
    "huge counts": _set("findings_.cells.counts.0", lambda counts: np.full_like(counts, 3e38)),
    "center of the ensemble": _set("ensemble_.units.0", (float("inf"), 1.0)),
    "too few units": _set("ensemble_.units", []),
    "unit of three numbers": _set("ensemble_.units.0", (0.0, 1.0, 1.0)),
    "scale of novelty": _set("ensemble_.novelty.0", (0.0, -1.0)),
    "too few units of novelty": _set("ensemble_.novelty", []),
    "neither K nor N": _set("ensemble_.weights.0", 0.0),
    "K without weights": _set("ensemble_.known", (0.0, 1.0)),
    "novelty without K": _set("novelty_calibration_", lambda _: Calibration(1.0, 0.0, 0.1, False)),
    "no gaps of novelty": _set("novelty_gaps_", None),
    "name of a member": _set("ensemble_.names.0", "exec"),
    "wrong member": _set("ensemble_.names.0", "network"),
    "scale of a column": _set("preprocessor_.columns.1", lambda column: replace(column, scale=0.0)),
    "center of a column": _set("preprocessor_.columns.1", lambda column: replace(column, center=float("nan"))),
    "tiny scale of a column": _set("preprocessor_.columns.1", lambda column: replace(column, center=1.0, scale=1e-320)),
    "categories without names": _set("preprocessor_.columns.1", lambda column: replace(column, categories=[0, 1])),
    "names without categories": _set(
        "preprocessor_.readings", [ColumnType(), ColumnType("text", codes={"a": 0}), ColumnType()]
    ),
    "no layout": _set("preprocessor_.columns", []),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_forged_numbers_are_refused(case: str, tmp_path: Path, read: Any) -> None:
    detector = fitted("mixture_forest")
    NUMBERS[case](detector)
    path = detector.save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match="not a detector that fvnce wrote"):
        read(path)


@pytest.mark.parametrize("columns", [None, 3, {}, [None, None, None], [{}, {}, {}]])
def test_a_forged_layout_is_refused(columns: Any) -> None:
    with pytest.raises(FileError):
        preprocessor_from_state({"kind": "table", "columns": columns, "readings": None}, 3)


def _network(change: Callable[[Any], None]) -> Callable[[], NoiseContrastiveDetector]:
    def make() -> NoiseContrastiveDetector:
        detector = fitted("network")
        change(detector.ensemble_.members[0])
        return detector

    return make


def _poison(member: Any) -> None:
    member.weights[0][0, 0, 0] = float("nan")


def _widen(member: Any) -> None:
    member.weights[0] = np.zeros((1, 7, 64))


def _break(member: Any) -> None:
    member.biases[1] = member.biases[1][..., :-1]


def _shorten(member: Any) -> None:
    member.weights, member.biases = member.weights[:-1], member.biases[:-1]


@pytest.mark.parametrize(
    "make",
    [
        _network(_poison),
        _network(_widen),
        _network(_break),
        _network(_shorten),
        _network(lambda member: member.centers.append(0.0)),
        _network(lambda member: member.scales.__setitem__(0, -1.0)),
        _network(lambda member: member.scales.__setitem__(0, 1e-320)),
    ],
    ids=[
        "NaN",
        "another width",
        "another bias",
        "no output",
        "one center more",
        "a scale below 0",
        "a tiny scale",
    ],
)
def test_forged_networks_are_refused(make: Callable[[], NoiseContrastiveDetector], tmp_path: Path, read: Any) -> None:
    path = make().save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match="not a detector that fvnce wrote"):
        read(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", np.zeros(5)),
        ("directions", np.zeros((0, 64))),
        ("scale", np.zeros(21)),
        ("center", np.full(21, np.nan)),
        ("floor", -1.0),
    ],
)
def test_forged_codes_are_refused(name: str, value: Any, tmp_path: Path, read: Any) -> None:
    detector = fitted("mixture_forest", images=True)
    member: Any = detector.ensemble_.members[0]
    detector.ensemble_.members[0] = replace(member, pca=replace(member.pca, **{name: value}))
    path = detector.save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match="not a detector that fvnce wrote"):
        read(path)


def test_a_large_file_is_read_if_it_is_allowed(tmp_path: Path, read: Any) -> None:
    detector = fitted("mixture_forest")
    path = detector.save(tmp_path / "detector.safetensors")
    size = path.stat().st_size
    with pytest.raises(FileError, match="max_bytes"):
        read(path, max_bytes=size - 1)
    loaded = read(path, max_bytes=size)
    np.testing.assert_array_equal(loaded.score_samples(TABLE), detector.score_samples(TABLE))


@pytest.mark.slow
def test_a_forest_of_many_trees_is_followed_in_parts() -> None:
    detector = fitted("mixture_forest")
    forest: Any = detector.ensemble_.members[0]
    many = replace(forest, roots=np.repeat(forest.roots, 200_000))
    X = np.zeros((4, 3))
    np.testing.assert_allclose(many.anomaly(X), forest.anomaly(X), rtol=1e-9)
    np.testing.assert_allclose(many.contributions(X), forest.contributions(X), atol=1e-9)


@pytest.mark.parametrize("settings", [{"verbose": "loud"}, {"n_trees": -1}, {"expert": 7}])
def test_settings_that_fit_refuses_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    detector = fitted("mixture_forest")
    path = detector.set_params(**settings).save(tmp_path / "forged.safetensors")
    with pytest.raises(FileError, match=next(iter(settings))):
        NoiseContrastiveDetector.load(path)


def test_rows_that_are_no_real_numbers_are_refused_without_torch(tmp_path: Path) -> None:
    detector = scorer.load(fitted("mixture_forest").save(tmp_path / "detector.safetensors"))
    for rows in (TABLE.astype(complex), [["a", "b", "c"]], [[1.0], [2.0, 3.0]], csr_matrix(TABLE), object()):
        with pytest.raises(ValueError, match=f"X must be a matrix of numbers, found {type(rows).__name__}"):
            detector.anomaly_score(rows)
    with pytest.raises(ValueError, match="infinity in row 7"):
        detector.anomaly_score(changed(TABLE, 7, np.inf))
