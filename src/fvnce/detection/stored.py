"""Whether what a file holds is a detector: a checksum proves that nobody altered it, not that its writer was honest.

A forged tree can lead back to itself and a row walk in it for ever; an index can lie outside of its table, a share
outside of [0, 1], a network be one that fills the memory. So everything is compared with what ``fit`` makes: trees
whose nodes lead to later nodes only, each from one other; numbers that are finite; networks of exactly the layers of
:mod:`fvnce.detection.architecture`, whose sizes follow from the tensors that the file really holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..models import GaussianDecoder, GaussianEncoder, PointEncoder
from ..serialization import RecordError
from .architecture import image_pair, ratio_network, table_pair
from .members.pca import OnCodes, PrincipalCodes
from .members.forest import RatioForest
from .images import ImageShape
from .networks import without_memory
from .ensemble import LATENT, NAMES, LatentModel, RatioNetworks
from .table import Column

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector

#: The largest file that is read unless told otherwise.
MAX_BYTES = 4 * 2**30
#: The deepest tree; honest ones are a few hundred deep at most, and every level costs a step for each row.
MAX_DEPTH = 10_000


def check_size(path: Path, max_bytes: int) -> None:
    """Refuse a file that is too large before it is read."""
    if path.is_file() and path.stat().st_size > max_bytes:
        raise RecordError(
            f"{path} must have at most {max_bytes:,} bytes, found {path.stat().st_size:,}; if you trust it, raise "
            "max_bytes"
        )


def check(detector: NoiseContrastiveDetector, where: str) -> None:
    """Refuse a detector that ``fit`` could not have made; ``where`` is its file."""
    try:
        _check_numbers(detector)
        width = _check_layout(detector)
        ensemble = detector.ensemble_
        _lengths("the ensemble", len(ensemble.names), ensemble.members, ensemble.centres, ensemble.scales)
        _standardising("the ensemble", ensemble.centres, ensemble.scales)
        image = None if detector._image is None else detector._image.padded
        for name, member in zip(ensemble.names, ensemble.members, strict=True):
            _require(name in NAMES, f"name a member, one of {', '.join(NAMES)}", name)
            _check_member(name, member, width, image)
    except RecordError as error:
        raise RecordError(f"{where} is no detector that fvnce wrote: {error}") from None


def check_forest(forest: RatioForest, width: int) -> None:
    """Trees over rows with ``width`` columns, in which every row arrives at a leaf.

    >>> one = np.zeros(1, dtype=np.int64)
    >>> check_forest(RatioForest(one, one, one, one, np.zeros(1), np.full(1, 0.5)), 2)
    """
    count = len(forest.share)
    whole = {name: getattr(forest, name) for name in ("roots", "left", "right", "feature")}
    for name, values in whole.items():
        _array(f"{name} of a forest", values, np.int64, (len(forest.roots) if name == "roots" else count,))
    _array("threshold of a forest", forest.threshold, np.float64, (count,))
    _array("share of a forest", forest.share, np.float64, (count,))
    outside = forest.share[(forest.share < 0) | (forest.share > 1)]
    _require(len(outside) == 0, "have shares in [0, 1]", outside[:1], of="a forest")
    wrong = forest.feature[(forest.feature < 0) | (forest.feature >= width)]
    _require(len(wrong) == 0, f"look at columns 0 to {width - 1}", wrong[:1], of="a forest")
    own = np.arange(count)
    inner = forest.left != own
    _require(bool(((forest.right != own) == inner).all()), "have two ways on from a node or none", "one", of="a forest")
    onward = np.concatenate([forest.left[inner], forest.right[inner]])
    later = (onward > np.tile(own[inner], 2)) & (onward < count)
    _require(bool(later.all()), "lead from each node to later ones", onward[~later][:1], of="a forest")
    is_root = np.zeros(count, dtype=bool)
    roots = forest.roots
    inside = len(roots) > 0 and bool(((roots >= 0) & (roots < count)).all()) and len(np.unique(roots)) == len(roots)
    _require(inside, "have roots among its nodes, each once", roots[:3], of="a forest")
    is_root[roots] = True
    led_to = np.bincount(onward, minlength=count)
    _require(
        bool((led_to == ~is_root).all()), "lead to each node from one other, and to no root", "otherwise", of="a forest"
    )
    level, depth = roots, 0
    while len(level):
        _require(depth <= MAX_DEPTH, f"have at most {MAX_DEPTH:,} levels", "more", of="a forest")
        level = level[inner[level]]
        level, depth = np.concatenate([forest.left[level], forest.right[level]]), depth + 1


def _check_member(name: str, member: Any, width: int, image: tuple[int, int, int] | None) -> None:
    if isinstance(member, OnCodes):
        _require(image is not None and name not in LATENT, "have codes for images only", name)
        _check_codes(member.codes, width)
        _check_member(name, member.member, len(member.codes.centre), None)
    elif isinstance(member, RatioForest):
        _require(name.endswith("forest") and image is None, "be the member that it is named", name)
        check_forest(member, width)
    elif isinstance(member, RatioNetworks):
        _require(name == "network" and image is None, "be the member that it is named", name)
        _lengths("networks", len(member.networks), member.centres, member.scales)
        _standardising("networks", member.centres, member.scales)
        for network in member.networks:
            sizes = [layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear)]
            _same(network, *without_memory(partial(_alone, width, sizes[:-1])))
    else:
        _require(isinstance(member, LatentModel) and name in LATENT, "be the member that it is named", name)
        _check_latent(member, width, image)


def _alone(width: int, hidden: Sequence[int]) -> Sequence[nn.Module]:
    return [ratio_network(width, hidden)]


def _check_latent(member: LatentModel, width: int, image: tuple[int, int, int] | None) -> None:
    first, second = (
        [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        for module in (member.encoder, member.decoder)
    )
    _require(bool(first) and bool(second), "have linear layers in a latent-variable model", "none")
    outputs, latent = first[-1].out_features, second[0].in_features
    stochastic = isinstance(member.encoder, GaussianEncoder)
    _require(outputs == latent * (2 if stochastic else 1), "have one code for encoder and decoder", [outputs, latent])
    hidden = [layer.out_features for layer in first[:-1]]

    def expected() -> Sequence[nn.Module]:
        pair = table_pair(width, hidden, latent, outputs) if image is None else image_pair(image, latent, outputs)
        encoder = GaussianEncoder(pair[0]) if stochastic else PointEncoder(pair[0])
        return encoder, GaussianDecoder(pair[1], learned="shared")

    for found, wanted in zip((member.encoder, member.decoder), without_memory(expected), strict=True):
        _same(found, wanted)


def _same(found: nn.Module, wanted: nn.Module) -> None:
    """The layers that are wanted, with settings and shapes, and finite numbers in them."""
    pairs = list(zip(found.named_modules(), wanted.named_modules(), strict=False))
    alike = len(list(found.modules())) == len(list(wanted.modules())) and all(
        name == other and type(layer) is type(model) and _settings(layer) == _settings(model)
        for (name, layer), (other, model) in pairs
    )
    _require(alike, f"have a network like {type(wanted).__name__} of this detector", _line(found))
    shapes = {name: tuple(value.shape) for name, value in wanted.state_dict().items()}
    _require(
        {n: tuple(v.shape) for n, v in found.state_dict().items()} == shapes, "have weights that fit", _line(found)
    )
    for name, value in found.state_dict().items():
        _require(bool(torch.isfinite(value).all()), f"have finite weights in {name}", "NaN or infinity")


def _settings(layer: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "training"}


def _check_codes(codes: PrincipalCodes, width: int) -> None:
    count = len(codes.directions) if np.ndim(codes.directions) == 2 else 0
    _require(count > 0, "have directions of codes", np.shape(codes.directions))
    for name, shape in (
        ("mean", (width,)),
        ("directions", (count, width)),
        ("centre", (count + 1,)),
        ("scale", (count + 1,)),
    ):
        _array(f"{name} of codes", getattr(codes, name), np.float64, shape)
    _require(math.isfinite(codes.floor) and codes.floor > 0, "have a positive floor of codes", codes.floor)
    _require(bool((codes.scale > 0).all()), "have positive scales of codes", codes.scale.min())


def _check_numbers(detector: NoiseContrastiveDetector) -> None:
    calibration = detector.calibration_
    for name in ("slope", "intercept", "prior"):
        _number(f"{name} of the calibration", getattr(calibration, name))
    _require(calibration.slope > 0, "have a positive slope of the calibration", calibration.slope)
    _require(0 <= calibration.prior <= 1, "have a prior in [0, 1]", calibration.prior)
    _require(isinstance(calibration.known, bool), "say whether outliers were known", calibration.known)
    _number("offset_", detector.offset_)
    _count("n_features_in_", detector.n_features_in_, 1)
    _count("n_known_", detector.n_known_, 0)
    names = getattr(detector, "feature_names_in_", None)
    if names is not None:
        _lengths("names of columns", detector.n_features_in_, names)
        _require(all(isinstance(name, str) for name in names), "have names of columns that are text", names)


def _check_layout(detector: NoiseContrastiveDetector) -> int:
    """The number of columns that members see."""
    image, columns, categories = detector._image, detector._columns, detector._categories
    if image is not None:
        _require(columns is None and categories is None, "be of images or of a table", "both")
        return _check_image(image, detector.n_features_in_)
    if columns is None:
        raise RecordError("it must be of images or of a table, found neither")
    _lengths("columns", detector.n_features_in_, columns)
    for column in columns:
        _check_column(column)
    if categories is not None:
        _lengths("categories", len(columns), categories)
        for names, column in zip(categories, columns, strict=True):
            _require((names is None) == (column.categories is None), "have categories where columns have them", names)
            if names is not None:
                good = isinstance(names, dict) and sorted(names.values()) == list(range(len(names)))
                _require(good, "number its categories from 0", names)
    else:
        _require(all(column.categories is None for column in columns), "name the categories of columns", "no names")
    return sum(column.width for column in columns)


def _check_column(column: Column) -> None:
    _number("centre of a column", column.centre)
    _number("scale of a column", column.scale)
    _require(column.scale > 0, "have positive scales of columns", column.scale)
    _require(isinstance(column.missing, bool), "say whether a column has missing values", column.missing)
    if column.categories is not None:
        _require(isinstance(column.categories, list), "list the categories of a column", column.categories)
        for code in column.categories:
            _count("a category of a column", code, 0)
        _require(len(set(column.categories)) == len(column.categories), "list each category once", column.categories)


def _check_image(image: ImageShape, features: int) -> int:
    _require(len(image.shape) in (2, 3), "have images of shape (H, W) or (C, H, W)", image.shape)
    for side in image.shape:
        _count("a side of an image", side, 1)
    _require(math.prod(image.shape) == features, f"have images of {features} pixels", image.shape)
    _number("low of images", image.low)
    _number("high of images", image.high)
    _require(image.low <= image.high, "have images of a range", [image.low, image.high])
    return math.prod(image.padded)


def _standardising(what: str, centres: Sequence[Any], scales: Sequence[Any]) -> None:
    for value in (*centres, *scales):
        _number(f"centres and scales of {what}", value)
    _require(all(scale > 0 for scale in scales), f"have positive scales of {what}", scales)


def _lengths(what: str, wanted: int, *lists: Any) -> None:
    found = [len(values) for values in lists]
    _require(all(length == wanted for length in found), f"have {wanted} of each thing in {what}", found)


def _array(what: str, values: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    good = isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == shape
    _require(good, f"have {what} of shape {shape} in {dtype.__name__}", f"{np.shape(values)} in {values.dtype}")
    _require(bool(np.isfinite(values).all()), f"have finite {what}", "NaN or infinity")


def _number(what: str, value: Any) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    _require(good, f"have a finite number as {what}", value)


def _count(what: str, value: Any, low: int) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= low
    _require(good, f"have an integer >= {low} as {what}", value)


def _require(condition: bool, wanted: str, found: Any, *, of: str = "it") -> None:
    if condition:
        return
    shown = found.tolist() if isinstance(found, np.ndarray) else found
    shown = shown[0] if isinstance(shown, list) and len(shown) == 1 else shown
    raise RecordError(f"{of} must {wanted}, found {str(shown)[:100]}")


def _line(module: nn.Module) -> str:
    return " ".join(str(module).split())
