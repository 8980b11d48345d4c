"""Taking a run up again, if it is the same run: facts about its objective and its settings, by name, are compared.

Weights say nothing about what they were trained for. So a checkpoint also holds, in words, the rule, the noise, the
class and settings of every part and the shape of every parameter. Of a class of the user's the settings are its public
attributes; of tensors outside of the weights there is a digest. What training itself changes, such as a counter, is no
fact about the run: only what is still as it was at the start is compared.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform

from .. import _random
from ..models.fixed import FixedDistribution
from ..models.latent import LatentVariableModel
from ..noise import from_state, to_state
from ..scoring import ScoringRule
from ..serialization import RecordError, decode, fields
from ..serialization.registry import kind_of_class
from .checkpoint import UNREADABLE, read_checkpoint
from .distributed import first_failure, on_main
from .optimiser import take_over

if TYPE_CHECKING:
    from .loop import Run

#: Of a noise's settings, those that change no bit.
_WITHOUT_EFFECT = ("validate_args", "block_bytes")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Attributes by which a distribution that is no noise of ours holds others.
_INNER = ("base_dist", "transforms", "component_distribution", "mixture_distribution")
#: Buffers that are settings. Others are restored with the weights.
_CHOSEN = ("log_scale", "centres", "coefficients", "offsets")
_MODULE = frozenset(vars(nn.Module()))
_DEEPEST = 6
_LONGEST = 160


def resume(run: Run, how: bool | str | Path, *, accept_changes: bool) -> None:
    """Take up the run that a checkpoint holds; see :func:`fvnce.fit`."""
    run.saver.prepare(resumes=how is not False)
    found = _find(run, how)
    if found is None:
        return
    path, state, own = found
    changes = (run.saver.key or RunKey(run)).differences(state)
    if changes and not accept_changes:
        raise ValueError(
            f"{path} is of another run: {listed(changes)}. Pass what that run had, or accept_changes=True to go on "
            "from its weights all the same"
        )
    if changes:
        warnings.warn(f"{path} is of another run, and it goes on as this one: {listed(changes, 99)}", stacklevel=4)
    noise = state.get("noise")
    if noise is not None:
        config, tensors, since = fields(noise, f"the noise in {path}", "config", "tensors", "since")
        run.replace_noise(from_state(decode(config, path), tensors))
        run.noise_since = since
    run.objective.load_state_dict(state["objective"])
    run.step, run.epoch, run.position = state["step"], state["epoch"], state["position"]
    run.stopped = state["stopped"]
    run.history.load_state_dict(state["history"])
    run.fabric.strategy.precision.load_state_dict(state["scaler"])
    _random.restore(own["random"], run.device)
    same_callbacks = state["settings"]["callbacks"] == [type(callback).__name__ for callback in run.callbacks]
    for callback, saved in zip(run.callbacks, state["callbacks"] if same_callbacks else (), strict=False):
        callback.load_state_dict(saved)
    if changes:
        # Rates, schedule and noise are those that were asked for now, as they would be at this step.
        take_over(run.raw_optimizer, run.scheduler, state["optimizer"], run.step)
        run.stopped = None
        run.saver.write_objective()
        return
    run.raw_optimizer.load_state_dict(state["optimizer"])
    if run.scheduler is not None:
        run.scheduler.load_state_dict(state["scheduler"])
    run.batches.load_state_dict(own["batches"])
    run.saver.goes_on_from(path)


def _find(run: Run, how: bool | str | Path) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """The checkpoint to go on from: its path, its state, and the part of this process."""

    def read(path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        state, part = read_checkpoint(path, run.fabric.global_rank)
        return path, state, state["own"] if part is None else part

    if how is False:
        return None
    if how is not True:
        return read(Path(how))
    checkpoints = run.saver.checkpoints
    assert checkpoints is not None
    bad: list[int] = []
    why: Exception | None = None
    for step in reversed(checkpoints.steps()):
        failure: Exception | None = None
        try:
            found = read(checkpoints.path(step))
        except (RecordError, FileNotFoundError) as error:
            failure = error
        # One process that cannot read its part is enough.
        failure = first_failure(run.fabric, failure)
        if failure is None:
            if bad:
                names = ", ".join(checkpoints.path(step).name for step in bad)
                warnings.warn(
                    f"{names} cannot be read ({why}); the run goes on from {found[0].name}, and what cannot be read is "
                    f"kept as *{UNREADABLE}",
                    stacklevel=5,
                )
                on_main(run.fabric, lambda: checkpoints.set_aside(bad))
            return found
        bad.append(step)
        why = why or failure
    if why is not None:
        raise why
    return None


class RunKey:
    """What a run is a run of: its settings and its objective."""

    def __init__(self, run: Run) -> None:
        self._settings, self._objective = _settings_facts(run), ObjectiveKey(run.objective)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"settings": self._settings, "objective_key": self._objective.state()}

    def differences(self, saved: Mapping[str, Any]) -> list[str]:
        """In words, what is not as it was."""
        return compare(saved["settings"], self._settings) + self._objective.differences(saved["objective_key"])


class ObjectiveKey:
    """Facts about an objective, taken when a run starts.

    >>> key = ObjectiveKey(nn.Sequential(nn.Linear(2, 3)))
    >>> key.structure["0"], key.structure["0.weight"]
    ('Linear(in_features=2, out_features=3, bias=True)', 'parameter (3, 2) float32')
    """

    def __init__(self, objective: nn.Module) -> None:
        self._objective = objective
        # A kernel density's centres need not be digested again at every checkpoint.
        self._noises: dict[int, tuple[object, str]] = {}
        self.structure = _structure(objective)
        self.attributes = self._attributes()

    def state(self) -> dict[str, dict[str, str]]:
        """What a checkpoint holds: all of the structure, and the attributes that are still as they were."""
        now = self._attributes()
        return {
            "structure": self.structure,
            "attributes": {name: text for name, text in self.attributes.items() if now.get(name) == text},
        }

    def differences(self, saved: Mapping[str, Mapping[str, str]]) -> list[str]:
        """In words, what of the objective is not as it was; where its parts are others, only that."""
        before, now = saved["structure"], self.structure
        names = ["objective"] if before["objective"] != now["objective"] else sorted(before.keys() | now.keys())
        kinds = [
            (path, kind_of_class(cls)) for path, part in self._objective.named_modules() for cls in type(part).mro()
        ]
        retired = {_path(path, name) for path, kind in kinds if kind is not None for name in kind.retired}
        attributes = {name: text for name, text in saved["attributes"].items() if name not in retired}
        return _differences(before, now, names) or _differences(attributes, self.attributes, None)

    def _attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path, module in self._objective.named_modules():
            if isinstance(module, FixedDistribution):
                found[_path(path)] = self._noise(module.distribution)
                continue
            for name, value in vars(module).items():
                if not (name in _MODULE or name.startswith("_")):
                    text = self._noise(value) if isinstance(value, Distribution) else _text(value)
                    found[_path(path, name)] = _short(text)
            if isinstance(module, LatentVariableModel):
                # Of a learned prior it is computed anew, perhaps on another device: its last bits say nothing.
                found[_path(path, "highest_log_prior")] = f"{module.highest_log_prior():.6g}"
            for name, buffer in module.named_buffers(recurse=False):
                if name in _CHOSEN or (buffer.numel() == 1 and not _is_ours(module)):
                    found[_path(path, name)] = _text(buffer)
        return found

    def _noise(self, noise: Distribution) -> str:
        if id(noise) not in self._noises:
            self._noises[id(noise)] = noise, _distribution(noise, 0)
        return self._noises[id(noise)][1]


def compare(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, which settings are not what they were; what one of the two does not know is not compared.

    >>> compare({"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1})
    ['lr was 0.1, is 0.2']
    """
    return [
        f"{name} was {_short(_text(saved[name]))}, is {_short(_text(now[name]))}"
        for name in sorted(saved.keys() & now.keys())
        if saved[name] != now[name]
    ]


def listed(differences: list[str], most: int = 3) -> str:
    """Some differences in one phrase.

    >>> listed(["a was 1, is 2", "b was 3, is 4"], most=1)
    'a was 1, is 2; and 1 more'
    """
    rest = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {rest} more" if rest > 0 else "")


def _settings_facts(run: Run) -> dict[str, Any]:
    """What decides the bits of a run beside its objective."""
    facts: dict[str, Any] = {
        **run.settings.resume_key(),
        "seed": run.seed,
        "processes": run.world,
        "precision": str(run.fabric.strategy.precision.precision),
        "data": run.batches.fingerprint,
        "validation": None,
        "callbacks": [type(callback).__name__ for callback in run.callbacks],
    }
    if run.validation is not None:
        facts |= {"validation": run.validation.rows.fingerprint(), "validate_every": run.settings.validate_every}
    # A user's function is known by its name, and by what it made.
    if callable(run.settings.optimizer):
        groups = run.raw_optimizer.param_groups
        for name in sorted(set(groups[0]) - {"params", "lr", "initial_lr", "foreach", "fused"}):
            facts[f"optimizer.{name}"] = _text([group.get(name) for group in groups])
    if callable(run.settings.schedule) and run.scheduler is not None:
        for name, value in run.scheduler.state_dict().items():
            if not name.startswith("_") and name not in ("base_lrs", "last_epoch"):
                facts[f"schedule.{name}"] = _text(value)
    return facts


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("fvnce.")


def _structure(objective: nn.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, module in objective.named_modules():
        kind = type(module).__qualname__
        if type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            kind += f"({module.extra_repr()})" if module.extra_repr() else ""
        if not isinstance(module, FixedDistribution):
            found[_path(path) or "objective"] = kind
        for name, value in module.named_parameters(recurse=False):
            text = f"parameter {tuple(value.shape)} {_dtype(value.dtype)}"
            found[_path(path, name)] = text if value.requires_grad else f"{text}, frozen"
    return found


def _differences(before: Mapping[str, str], now: Mapping[str, str], names: list[str] | None) -> list[str]:
    return [
        f"{name} was {_short(before.get(name, 'absent'))}, is {_short(now.get(name, 'absent'))}"
        for name in (sorted(before) if names is None else names)
        if before.get(name) != now.get(name)
    ]


def _text(value: object, depth: int = 0) -> str:
    """A value in words that are the same in every process: no addresses, no order that depends on hashes."""
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {_dtype(value.dtype)} {_digest(value)}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return f"array {array.shape} {array.dtype} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"
    if isinstance(value, Distribution):
        return _distribution(value, depth)
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, ScoringRule) and type(value).__repr__ is not object.__repr__:
        return _ADDRESS.sub("", repr(value))
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    if depth >= _DEEPEST:
        return type(value).__qualname__
    if isinstance(value, functools.partial):
        return f"{_text(value.func, depth + 1)}{_text((value.args, value.keywords), depth + 1)}"
    if isinstance(value, nn.Module):
        return f"{type(value).__qualname__} {_text(value.state_dict(), depth + 1)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{key}: {_text(item, depth + 1)}' for key, item in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_text(item, depth + 1) for item in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_text(item, depth + 1) for item in value))}}}"
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__qualname__}{_text(fields, depth + 1)}"
    if isinstance(value, ScoringRule | Transform):
        public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        return f"{type(value).__qualname__}{_text(public, depth + 1)}"
    # Whatever else a user's class holds, a logger or a clock, may change by itself.
    return type(value).__qualname__


def _distribution(noise: Distribution, depth: int) -> str:
    try:
        config, tensors = to_state(noise)
    except (TypeError, ValueError):
        return _foreign(noise, depth)
    digest = hashlib.sha256(json.dumps(_deciding(config), sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {_text(tensors[name])}".encode())
    return f"{_ADDRESS.sub('', repr(noise))} {digest.hexdigest()[:12]}"


def _foreign(noise: Distribution, depth: int) -> str:
    """A distribution that is no noise of ours: its parameters, the arguments of its constructor, those inside it."""
    name = type(noise).__qualname__
    if depth >= _DEEPEST:
        return name
    try:
        constraints = noise.arg_constraints
    except NotImplementedError:
        constraints = {}
    names = dict.fromkeys((*constraints, *inspect.signature(type(noise)).parameters, *_INNER))
    values = {key: getattr(noise, key, None) for key in names if key != "validate_args"}
    inside = ", ".join(f"{k}: {_text(v, depth + 1)}" for k, v in values.items() if v is not None)
    return f"{name}({inside})"


def _deciding(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {key: _deciding(value) for key, value in config.items() if key not in _WITHOUT_EFFECT}
    return [_deciding(item) for item in config] if isinstance(config, list) else config


def _digest(value: Tensor) -> str:
    if value.layout is not torch.strided or value.is_meta:
        return str(value.layout)
    plain = value.detach().cpu().contiguous()
    if plain.numel() == 1:
        return repr(plain.item())
    return hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).hexdigest()[:12]


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _path(*parts: str) -> str:
    names = [name.lstrip("_") for part in parts for name in part.split(".")]
    return ".".join(name for name in names if name)


def _short(text: str) -> str:
    return (
        text if len(text) <= _LONGEST else f"{text[: _LONGEST - 13]}… {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    )
