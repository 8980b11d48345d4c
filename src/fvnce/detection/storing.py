"""A fitted detector in one file, without pickle: settings and encodings as JSON, trees and weights as tensors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ..serialization import RecordError, describe, flatten, read_record, reading, rebuild, unflatten, write_record
from ..training import History
from . import stored as validity
from . import table
from .calibration import Calibration
from .members.pca import OnCodes, PrincipalCodes
from .members.forest import RatioForest
from .images import ImageShape
from .ensemble import Ensemble, LatentModel, Member, RatioNetworks

if TYPE_CHECKING:
    from .estimator import NoiseContrastiveDetector

KIND = "detector"


def write(detector: NoiseContrastiveDetector, path: Path) -> Path:
    """Write a fitted detector, whole or not at all."""
    parameters = {name: _plain(value) for name, value in detector.get_params(deep=False).items()}
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None  # a generator's state is no setting
    names = getattr(detector, "feature_names_in_", None)
    fitted: dict[str, Any] = {
        "n_features_in_": int(detector.n_features_in_),
        "feature_names_in_": None if names is None else [str(name) for name in names],
        "offset_": float(detector.offset_),
        "n_known_": int(detector.n_known_),
        "calibration_": asdict(detector.calibration_),
        "columns": None if detector._columns is None else table.to_json(detector._columns),
        "categories": detector._categories,
        "image": None if detector._image is None else asdict(detector._image),
    }
    fitted["histories"], tensors = flatten([history.state_dict() for history in detector.history_], "history")
    members = []
    for position, (name, member) in enumerate(zip(detector.ensemble_.names, detector.ensemble_.members, strict=True)):
        content, own = _take_apart(member)
        members.append({"name": name, **content})
        tensors.update({f"{position}.{key}": value for key, value in own.items()})
    fitted["ensemble"] = {
        "members": members,
        "centres": detector.ensemble_.centres,
        "scales": detector.ensemble_.scales,
    }
    write_record(path, KIND, {"parameters": parameters, "fitted": fitted}, tensors)
    return path


def read(detector_class: type[NoiseContrastiveDetector], path: Path, max_bytes: int) -> NoiseContrastiveDetector:
    """The detector that :func:`write` wrote."""
    validity.check_size(path, max_bytes)
    content, tensors = read_record(path, KIND)
    with reading(path):
        return _read(detector_class, path, content, tensors)


def _read(
    detector_class: type[NoiseContrastiveDetector], path: Path, content: dict[str, Any], tensors: dict[str, Tensor]
) -> NoiseContrastiveDetector:
    parameters, fitted = content["parameters"], content["fitted"]
    known = set(detector_class._get_param_names())
    if set(parameters) != known:
        raise RecordError(f"{path} was written by another version: its settings are {sorted(set(parameters) ^ known)}")
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
    detector = detector_class(**parameters)
    detector.n_features_in_ = fitted["n_features_in_"]
    if fitted["feature_names_in_"] is not None:
        detector.feature_names_in_ = np.array(fitted["feature_names_in_"], dtype=object)
    detector.offset_, detector.n_known_ = fitted["offset_"], fitted["n_known_"]
    detector.calibration_ = Calibration(**fitted["calibration_"])
    detector.prior_ = detector.calibration_.prior
    detector._columns = None if fitted["columns"] is None else table.from_json(fitted["columns"])
    detector._categories = fitted["categories"]
    image = fitted["image"]
    detector._image = None if image is None else ImageShape(tuple(image["shape"]), image["low"], image["high"])
    detector.history_ = []
    for state in unflatten(fitted["histories"], tensors):
        history = History()
        history.load_state_dict(state)
        detector.history_.append(history)
    saved = fitted["ensemble"]
    members = []
    for position, item in enumerate(saved["members"]):
        prefix = f"{position}."
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        members.append(_put_together(item, own))
    names = [item["name"] for item in saved["members"]]
    detector.ensemble_ = Ensemble(names, members, saved["centres"], saved["scales"])
    validity.check(detector, str(path))
    return detector


def _plain(value: Any) -> Any:
    """A setting without numpy's own numbers, which JSON does not know."""
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _take_apart(member: Member) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(member, RatioForest):
        return {"kind": "forest"}, member.tensors()
    if isinstance(member, RatioNetworks):
        content, tensors = describe(nn.Sequential(*member.networks))
        return {"kind": "networks", "module": content, "centres": member.centres, "scales": member.scales}, tensors
    if isinstance(member, OnCodes):
        content, tensors = _take_apart(member.member)
        codes = {f"codes.{name}": value for name, value in member.codes.tensors().items()}
        return {"kind": "codes", "member": content}, codes | tensors
    assert isinstance(member, LatentModel)
    content, tensors = describe(nn.Sequential(member.encoder, member.decoder))
    return {"kind": "latent", "module": content}, tensors


def _put_together(content: dict[str, Any], tensors: dict[str, Tensor]) -> Member:
    if content["kind"] == "forest":
        return RatioForest.from_tensors(tensors)
    if content["kind"] == "codes":
        own = {name: value for name, value in tensors.items() if not name.startswith("codes.")}
        codes = {name.removeprefix("codes."): value for name, value in tensors.items() if name not in own}
        return OnCodes(PrincipalCodes.from_tensors(codes), _put_together(content["member"], own))  # type: ignore[arg-type]
    module: Any = rebuild(content["module"], tensors)
    if content["kind"] == "networks":
        return RatioNetworks(list(module), content["centres"], content["scales"])
    return LatentModel(module[0], module[1])
