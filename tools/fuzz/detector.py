"""Fuzzing of the detector with odd inputs: each must end in a valid result or one clear error.

A try draws a table, images, a data frame or something else altogether, labels, weights and settings, sane ones and
others, fits, and asks everything of what was fitted, with the same rows and with other ones. Sound are finite scores,
one for each row, predictions of ±1, probabilities in [0, 1], and the same scores from a file. Clear is a ValueError or
a TypeError that was raised on purpose: by this package, or by scikit-learn's checks of arrays. Anything else, a warning
about an overflow included, is a failure. Each try has a generator of its own: ``detector(seed, 1, n)`` repeats try n.
"""

from __future__ import annotations

import io
import linecache
import tempfile
import traceback
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch

import fvnce
from fvnce.detection import MEMBERS, Explanation, NoiseContrastiveDetector
from fvnce.detection.estimator import EXPERT as ALL_EXPERT

Generator = np.random.Generator
OWN = str(Path(fvnce.__file__).parent)
CHECKS = ("sklearn/utils", "sklearn/base.py")
CLEAR = ("ValueError", "TypeError", "NotFittedError", "FileError", "InvalidParameterError")
HUGE = np.finfo(np.float64).max
SPECIAL = (np.nan, np.inf, -np.inf, HUGE, -HUGE, 5e-324, -5e-324, 1e-310, 1e300, -0.0, 0.0, 1e16, 0.1)
SMALL: dict[str, Any] = {"n_trees": 2, "n_networks": 1, "steps": 2}
EXPERT: dict[str, Any] = {"batch_size": 8, "hidden": (4,)}
WRONG = (None, -1, 0, 1.5, "x", "auto", np.nan, np.inf, (), [], True, {}, 1j, b"x", np.float32(0.5), np.int8(3))


def pick(rng: Generator, options: Any) -> Any:
    """Return one of the options at random, without conversion."""
    return options[int(rng.integers(len(options)))]


def numbers(rng: Generator, shape: tuple[int, ...]) -> Any:
    """Return random numbers, a few of them special values."""
    made = pick(
        rng,
        (
            lambda: rng.normal(size=shape),
            lambda: rng.integers(0, 3, size=shape).astype(float),
            lambda: rng.standard_cauchy(size=shape) ** 3,
            lambda: np.zeros(shape),
            lambda: np.full(shape, pick(rng, SPECIAL)),
            lambda: rng.normal(size=shape) * pick(rng, (1e-320, 1e-300, 1e-5, 1e5, 1e300)),
        ),
    )()
    if made.size and rng.random() < 0.4:
        few = rng.integers(0, made.size, size=int(rng.integers(1, 4)))
        finite = [value for value in SPECIAL if np.isfinite(value)]
        made.ravel()[few] = [pick(rng, SPECIAL if rng.random() < 0.3 else finite) for _ in few]
    return made


def array(rng: Generator) -> Any:
    """Return an array of random shape, type and layout."""
    rows, columns = int(pick(rng, (0, 1, 2, 3, 8, 20, 40))), int(pick(rng, (0, 1, 2, 3, 7)))
    shape = pick(
        rng,
        (
            *[(rows, columns)] * 8,
            *[(rows, 4, 4), (rows, 1, 5, 3), (rows, 2, 4, 4)] * 2,
            (),
            (rows,),
            (rows, 0, 4),
            (rows, 1, 1),
            (2, 2, 2, 2, 2),
        ),
    )
    values = numbers(rng, shape)
    kind = pick(
        rng,
        ("f8", "f8", "f8", "f8", "f4", "f2", "i1", "i4", "i8", "u1", "u8", "?", "c16", "O", "U5", "M8[s]", "g", ">f8"),
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = values.astype(kind)
        except (ValueError, TypeError, OverflowError):
            values = np.nan_to_num(values).clip(-9, 9).astype(kind)
    return pick(rng, LAYOUTS)(np.asarray(values))


LAYOUTS: tuple[Callable[[Any], Any], ...] = (
    *[lambda a: a] * 8,
    np.asfortranarray,
    lambda a: a[::-1] if a.ndim else a,
    lambda a: a.tolist(),
    lambda a: np.ma.masked_array(a, mask=np.zeros(a.shape, bool)),
    lambda a: np.ma.masked_array(a, mask=np.ones(a.shape, bool)),
    lambda a: np.matrix(a) if a.ndim == 2 else a,
    lambda a: scipy.sparse.csr_matrix(a) if a.ndim == 2 and a.dtype.str in ("<f8", "<f4") else a,
    lambda a: torch.from_numpy(np.ascontiguousarray(a)) if a.dtype.str in ("<f8", "<f4", "|u1", "<i8") else a,
    lambda a: _read_only(a),
    lambda a: pd.DataFrame(a) if a.ndim == 2 else a,
    lambda a: pd.Series(a) if a.ndim == 1 else a,
)


def _read_only(values: Any) -> Any:
    values = np.array(values)
    values.flags.writeable = False
    return values


def column(rng: Generator, n: int) -> Any:
    """Return a random column of a data frame."""
    whole = rng.integers(0, 4, n)
    holes = rng.random(n) < 0.3

    def odd() -> Any:
        things = (
            None,
            "a",
            1,
            2.5,
            np.nan,
            pd.NA,
            pd.NaT,
            Decimal("1.5"),
            Decimal("nan"),
            1j,
            (1, 2),
            b"x",
            True,
            "\x00",
            "é",
            {},
            [],
        )
        return pd.Series([pick(rng, things) for _ in range(n)], dtype=object)

    def nullable(kind: str) -> Any:
        return pd.array(
            [None if hole else value for hole, value in zip(holes, whole.tolist(), strict=True)], dtype=kind
        )

    return pick(
        rng,
        (
            lambda: numbers(rng, (n,)),
            lambda: np.where(holes, np.nan, rng.normal(size=n)),
            lambda: np.full(n, np.nan),
            lambda: whole.astype(pick(rng, ("i1", "u8", "f2", "f4"))),
            lambda: whole > 1,
            lambda: nullable(pick(rng, ("Int64", "Float64", "UInt8"))),
            lambda: pd.array([None if h else bool(v) for h, v in zip(holes, whole > 1, strict=True)], dtype="boolean"),
            lambda: pd.array([None if h else f"t{v}" for h, v in zip(holes, whole, strict=True)], dtype="string"),
            lambda: pd.Categorical([None if h else f"c{v}" for h, v in zip(holes, whole, strict=True)]),
            lambda: pd.Categorical(whole),
            lambda: pd.to_datetime(pd.Series(whole * 10**9)).where(~pd.Series(holes)),
            lambda: pd.to_timedelta(pd.Series(whole)),
            lambda: pd.Series(pd.period_range("2020", periods=n, freq="D")),
            lambda: pd.arrays.SparseArray(np.where(holes, np.nan, whole)),
            lambda: pd.arrays.IntervalArray.from_breaks(np.arange(n + 1)),
            lambda: whole + 1j,
            odd,
        ),
    )()


def frame(rng: Generator) -> Any:
    """Return a data frame with columns and names of any kind."""
    n, width = int(pick(rng, (0, 1, 2, 12, 30))), int(pick(rng, (0, 1, 2, 4)))
    made = pd.DataFrame({f"c{i}": column(rng, n) for i in range(width)})
    if width:
        names: Any = pick(
            rng,
            (
                *[list(made.columns)] * 6,
                list(range(width)),
                ["same"] * width,
                ["a", *range(1, width)],
                pd.MultiIndex.from_tuples([("m", i) for i in range(width)]),
                [None, *made.columns[1:]],
            ),
        )
        made.columns = names
    if n and rng.random() < 0.3:
        made.index = pick(rng, (np.zeros(n, int), [f"r{i}" for i in range(n)], np.arange(n)[::-1]))
    return made


def rows(rng: Generator) -> Any:
    """Return anything that might be passed as X."""
    chance = rng.random()
    if chance < 0.6:
        return array(rng)
    if chance < 0.95:
        return frame(rng)
    return pick(
        rng,
        (
            None,
            3,
            "text",
            b"bytes",
            {},
            {"a": [1, 2]},
            [],
            [[]],
            [[1, 2], [3]],
            [["a", 1], ["b", 2]],
            iter([[1.0]]),
            object(),
        ),
    )


def labels(rng: Generator, n: int) -> Any:
    """Return anything that might be passed as y."""
    good = (rng.random(n) < pick(rng, (0.0, 0.1, 0.5))).astype(int)
    return pick(
        rng,
        (
            *[lambda: None] * 4,
            *[lambda: good] * 8,
            lambda: good.tolist(),
            lambda: good.astype(bool),
            lambda: good.astype(float),
            lambda: good[:, None],
            lambda: np.stack([good, good], 1),
            lambda: good[:-1],
            lambda: np.ones(n),
            lambda: 2 * good - 1,
            lambda: good * 3,
            lambda: good.astype(str),
            lambda: good.astype(object),
            lambda: np.where(good == 1, np.nan, 0.0),
            lambda: pd.Series(good, dtype="Int64"),
            lambda: pd.array([None if v else 0 for v in good], dtype="Int64"),
            lambda: pd.Series(good.astype(bool), dtype="boolean"),
            lambda: pd.Categorical(good),
            lambda: pd.to_datetime(pd.Series(good)),
            lambda: good * 1j,
            lambda: "y",
            lambda: 1,
            lambda: [None] * n,
            lambda: [[]] * n,
            lambda: scipy.sparse.csr_matrix(good[:, None].astype(float)),
            lambda: torch.from_numpy(good),
        ),
    )()


def weights(rng: Generator, n: int) -> Any:
    """Return anything that might be passed as sample_weight."""
    good = rng.random(n)
    return pick(
        rng,
        (
            *[lambda: None] * 10,
            *[lambda: good] * 3,
            lambda: good * pick(rng, (1e308, 1e-308, 5e-324)),
            lambda: np.where(good < 0.5, 1e308, 1e-308),
            lambda: np.where(good < 0.9, 0.0, 1.0),
            lambda: rng.integers(0, 3, n),
            lambda: np.zeros(n),
            lambda: -good,
            lambda: good[:-1],
            lambda: np.where(good < 0.2, np.nan, 1.0),
            lambda: pick(rng, (0.0, 1.0, 2, "w", np.inf)),
            lambda: good[:, None],
            lambda: pd.array([None if v < 0.2 else 1 for v in good], dtype="Int64"),
            lambda: good.astype(str),
            lambda: [Decimal(1)] * n,
        ),
    )()


def settings(rng: Generator) -> dict[str, Any]:
    """Return settings of a small detector, one of them invalid in a fifth of the calls."""
    chosen = dict(SMALL, calibration_folds=pick(rng, (0, 0, 2)), random_state=pick(rng, (0, 1, 2**32 - 1)))
    chosen["members"] = pick(rng, ("auto", *[(name,) for name in MEMBERS], MEMBERS[:2]))
    for name, options in {
        "contamination": ("auto", "auto", 0.1, 0.5, 1e-9),
        "prior": (None, None, 0.5, 1e-12),
        "alpha": (0.3, 0.0, 1.0, 5e-324),
        "outlier_share": (0.8, 0.0, 1.0),
        "max_rows": (20_000, 2, 5),
        "min_samples_leaf": (5, 1, 10**6),
    }.items():
        if rng.random() < 0.3:
            chosen[name] = pick(rng, options)
    chosen["expert"] = dict(EXPERT)
    for name, options in {
        "outlier_bandwidth": (0.5, 1e-300, 1e300),
        "data_bandwidth": (1.0, 1e-300, 1e300),
        "weight_decay": (1.0, 0.0),
        "learning_rate": (3e-3, 1e-300),
    }.items():
        if rng.random() < 0.3:
            chosen["expert"][name] = pick(rng, options)
    if rng.random() < 0.2:
        name = pick(rng, sorted((set(NoiseContrastiveDetector().get_params()) | set(ALL_EXPERT)) - {"expert"}))
        # A new seed at every try could not be repeated, and progress bars are not needed here.
        wrong = pick(rng, WRONG[1:] if name == "random_state" else WRONG)
        (chosen["expert"] if name in ALL_EXPERT else chosen)[name] = wrong
        chosen["verbose"] = False
    return chosen


def attempt(rng: Generator) -> None:
    """Make one try, which may end in a clear exception, another exception, or none."""
    X = rows(rng)
    n = length(X) or 0
    detector = NoiseContrastiveDetector(**settings(rng))
    fit = detector.fit_predict if rng.random() < 0.1 else detector.fit
    y = labels(rng, n)
    fit(X, y, sample_weight=weights(rng, n))
    sound(detector, X)
    if rng.random() < 0.3:
        with tempfile.TemporaryDirectory() as folder:
            loaded = NoiseContrastiveDetector.load(detector.save(Path(folder) / "detector.safetensors"))
        if not np.array_equal(loaded.score_samples(X), detector.score_samples(X)):
            raise AssertionError("a saved detector scores otherwise")
    if rng.random() < 0.2:
        detector.plot_scores(X, y).figure.savefig(io.BytesIO())
    if rng.random() < 0.2:
        detector.score(X, y)
    for _ in range(2):
        sound(detector, rows(rng) if rng.random() < 0.5 else like(rng, X))


def like(rng: Generator, X: Any) -> Any:
    """Return other rows of the same layout."""
    if isinstance(X, pd.DataFrame):
        return (
            pd.DataFrame(
                {
                    name: column(rng, 5) if rng.random() < 0.3 else X.iloc[:5, i].to_numpy()
                    for i, name in enumerate(X.columns)
                }
            )
            if X.columns.is_unique and len(X) >= 5
            else X[:1]
        )
    shape = np.shape(X)
    return numbers(rng, (int(pick(rng, (1, 3))), *shape[1:])) if len(shape) > 1 else X


def sound(detector: NoiseContrastiveDetector, X: Any) -> None:
    """Call all methods and check their results."""
    n = length(X)
    scores, decision = detector.score_samples(X), detector.decision_function(X)
    probability, predicted, explanation = detector.outlier_probability(X), detector.predict(X), detector.explain(X)
    for values in (scores, decision, probability, predicted):
        if values.shape != (n,) or not np.isfinite(values).all():
            raise AssertionError(f"{values.shape} of {n} rows, {np.isfinite(values).sum()} finite")
    if not set(np.unique(predicted)) <= {-1, 1} or probability.min() < 0 or probability.max() > 1:
        raise AssertionError("a prediction that is not ±1, or a probability outside of [0, 1]")
    if (
        not isinstance(explanation, Explanation)
        or len(explanation.total) != n
        or not np.isfinite(explanation.total).all()
    ):
        raise AssertionError("contributions that are not finite")


def length(X: Any) -> int | None:
    """Return the number of rows of X, or None."""
    if hasattr(X, "shape"):
        return int(X.shape[0]) if X.shape else None
    return len(X) if hasattr(X, "__len__") else None


def is_clear(error: BaseException) -> bool:
    """Return whether an exception is a deliberate error message."""
    if type(error).__name__ not in (
        "ValueError",
        "TypeError",
        "NotFittedError",
        "FileError",
        "InvalidParameterError",
    ) or not str(error):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    if any(part in frame.filename.replace("\\", "/") for frame in frames for part in CHECKS):
        return True
    return last.filename.startswith(OWN) and linecache.getline(last.filename, last.lineno or 0).strip().startswith(
        "raise"
    )


def detector(seed: int, tries: int, first: int = 0) -> list[str]:
    """Return the failures of the given tries, each with its number and where it ended."""
    failures = []
    for number in range(first, first + tries):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            try:
                attempt(np.random.default_rng([seed, number]))
            except Exception as error:  # noqa: BLE001 (which ones are failures is the question)
                if not is_clear(error):
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(last.filename).name}:{last.lineno}"
                    failures.append(f"try {number}: {type(error).__name__}: {str(error)[:200]} ({where})")
    return failures
