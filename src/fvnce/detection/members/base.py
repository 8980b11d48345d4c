"""What a member of the detector can do, from training to a file: the contract that each of them keeps.

    anomaly(x) = base + Σ_j contributions_j(x) + rest(x)

A member is a class in a file of its own: it has a name, fits itself to rows, scores, explains its score as the sum
above, and gives and takes its state. :data:`fvnce.detection.members.CLASSES` lists them.

A checksum proves that nobody altered a file, not that its writer was honest. A forged tree can lead back to itself and
a row walk in it for ever; an index can lie outside of its table, a network be one that fills the memory. So every part
of a detector compares its own state with what ``fit`` makes, in its ``from_state``, and ``require`` and its like say in
which words it is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...serialization import RecordError
from ...training import History
from ..plan import Array, Folds, HeldOutScores, Plan, TrainingRows

State = tuple[dict[str, Any], dict[str, Tensor]]
#: The largest file that is read unless told otherwise.
MAX_BYTES = 4 * 2**30


class Scorer(ABC):
    """A trained model of how strange a row is, which explains what it says."""

    #: Whether contributions are errors of a reconstruction; otherwise they are parts of a ratio.
    reconstructs: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """Whether the sum above holds to rounding; otherwise up to a quadrature."""
        return True

    @abstractmethod
    def anomaly(self, X: Array) -> Array:
        """Higher for stranger rows, shape (n,)."""

    @abstractmethod
    def contributions(self, X: Array) -> Array:
        """The part of the anomaly that each column is the reason for, shape (n, D)."""

    def rest(self, X: Array) -> Array:
        """The part that belongs to no column, shape (n,)."""
        return np.zeros(len(X))

    @property
    def base(self) -> float:
        """The anomaly that all rows start from."""
        return 0.0

    @abstractmethod
    def state(self) -> State:
        """What JSON can hold, and tensors, from which ``from_state`` makes the same."""


class Member(Scorer):
    """A kind of scorer that trains itself.

    Attributes:
        name: what settings call it.
        needs_outliers: whether it cannot be trained without known outliers.
        sees_pixels: whether it takes images as they are; other members see their principal components.
        averages_folds: whether it is an average of models anyway, each of which can do without a fold: scores of rows
            that a model has not seen then cost no further training.
    """

    name: ClassVar[str]
    needs_outliers: ClassVar[bool] = False
    sees_pixels: ClassVar[bool] = False
    averages_folds: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fit(cls, rows: TrainingRows, plan: Plan, seed: int) -> tuple[Self, list[History]]:
        """A member trained on these rows, and the history of each network in it."""

    @classmethod
    def fit_held_out(
        cls, rows: TrainingRows, plan: Plan, seed: int, folds: Folds
    ) -> tuple[Self, list[History], HeldOutScores]:
        """The same, and what models that had not seen a training row say of it.

        Here a smaller one is trained without each fold; members that average many models leave a fold out of each.
        """
        member, histories = cls.fit(rows, plan, seed)
        return member, histories, refitted(cls.fit, member, rows, plan, seed, folds)

    @classmethod
    @abstractmethod
    def from_state(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor], width: int, image: tuple[int, int, int] | None
    ) -> Self:
        """The member of a state that may be a stranger's.

        Args:
            content: from :meth:`state`.
            tensors: likewise.
            width: columns of the rows that it will see.
            image: (channels, height, width) of what these columns are the pixels of, or None.

        Raises:
            RecordError: if :meth:`fit` could not have made it.
        """


def refitted(
    fit: Callable[[TrainingRows, Plan, int], tuple[Scorer, list[History]]],
    member: Scorer,
    rows: TrainingRows,
    plan: Plan,
    seed: int,
    folds: Folds,
) -> HeldOutScores:
    """Scores of each fold by a smaller member trained without it, in units of the whole one.

    Units are those of the anomaly over the rows that each was trained on: its mean and its deviation.
    """
    centre, scale = standard(member.anomaly(rows.X), rows.weights)
    others = []
    for fold in range(folds.count):
        kept = rows.without(folds.rows == fold, folds.outliers == fold)
        other, _ = fit(kept, plan.for_calibration(), seed + 1 + fold)
        others.append((other, *standard(other.anomaly(kept.X), kept.weights)))

    def anomaly(X: Array, fold: int) -> Array:
        other, own_centre, own_scale = others[fold]
        return (other.anomaly(X) - own_centre) / own_scale * scale + centre

    return HeldOutScores.by(anomaly, rows, folds)


def standard(anomaly: Array, weights: Array) -> tuple[float, float]:
    """Mean and deviation of weighted anomalies; a deviation of 1 where all are alike, as nothing is to be divided by.

    >>> standard(np.array([1.0, 3.0]), np.ones(2))
    (2.0, 1.0)
    """
    centre = float(np.average(anomaly, weights=weights))
    spread = math.sqrt(float(np.average((anomaly - centre) ** 2, weights=weights)))
    return centre, spread if spread > 1e-12 else 1.0


def shares_of(values: Array) -> Array:
    """Each row divided by its sum; of a row without any, the same share for every column.

    >>> shares_of(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    total = values.sum(1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / values.shape[1])


def check_size(path: Path, max_bytes: int) -> None:
    """Refuse a file that is too large before it is read."""
    if path.is_file() and path.stat().st_size > max_bytes:
        raise RecordError(
            f"{path} must have at most {max_bytes:,} bytes, found {path.stat().st_size:,}; if you trust it, raise "
            "max_bytes"
        )


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, without that beginning.

    >>> part_of({"0.a": torch.ones(1), "1.a": torch.zeros(1)}, "1.")
    {'a': tensor([0.])}
    """
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def require(condition: bool, wanted: str, found: Any, *, of: str = "it") -> None:
    """Refuse what does not meet a condition.

    >>> require(False, "have positive scales", [0.0])
    Traceback (most recent call last):
    fvnce.serialization.records.RecordError: it must have positive scales, found 0.0
    """
    if condition:
        return
    shown = found.tolist() if isinstance(found, np.ndarray) else found
    shown = shown[0] if isinstance(shown, list) and len(shown) == 1 else shown
    raise RecordError(f"{of} must {wanted}, found {str(shown)[:100]}")


def require_number(what: str, value: Any) -> None:
    """Refuse what is no finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(good, f"have a finite number as {what}", value)


def require_count(what: str, value: Any, low: int) -> None:
    """Refuse what is no integer from ``low`` on."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= low
    require(good, f"have an integer >= {low} as {what}", value)


def require_array(what: str, values: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Refuse an array of another kind or shape, or with numbers that are not finite."""
    good = isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == shape
    require(good, f"have {what} of shape {shape} in {dtype.__name__}", f"{np.shape(values)} in {values.dtype}")
    require(bool(np.isfinite(values).all()), f"have finite {what}", "NaN or infinity")


def require_lengths(what: str, wanted: int, *lists: Any) -> None:
    """Refuse lists of another length."""
    found = [len(values) for values in lists]
    require(all(length == wanted for length in found), f"have {wanted} of each thing in {what}", found)


def require_standardising(what: str, centres: Sequence[Any], scales: Sequence[Any]) -> None:
    """Refuse centres that are not finite, and scales that are not positive."""
    for value in (*centres, *scales):
        require_number(f"centres and scales of {what}", value)
    require(all(scale > 0 for scale in scales), f"have positive scales of {what}", scales)


def require_weights(what: str, weights: Sequence[Any]) -> None:
    """Refuse weights that are negative or do not sum to one."""
    for value in weights:
        require_number(f"weights of {what}", value)
    good = all(value >= 0 for value in weights) and math.isclose(sum(weights), 1.0, rel_tol=1e-9)
    require(good, f"have weights of {what} with sum one", weights)


def require_network(found: nn.Module, wanted: nn.Module) -> None:
    """Refuse a network of other layers, settings or shapes than are wanted, or with weights that are not finite."""
    pairs = list(zip(found.named_modules(), wanted.named_modules(), strict=False))
    alike = len(list(found.modules())) == len(list(wanted.modules())) and all(
        name == other and type(layer) is type(model) and _settings(layer) == _settings(model)
        for (name, layer), (other, model) in pairs
    )
    require(alike, f"have a network like {type(wanted).__name__} of this detector", _line(found))
    shapes = {name: tuple(value.shape) for name, value in wanted.state_dict().items()}
    require({n: tuple(v.shape) for n, v in found.state_dict().items()} == shapes, "have weights that fit", _line(found))
    for name, value in found.state_dict().items():
        require(bool(torch.isfinite(value).all()), f"have finite weights in {name}", "NaN or infinity")


def _settings(layer: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "training"}


def _line(module: nn.Module) -> str:
    return " ".join(str(module).split())
