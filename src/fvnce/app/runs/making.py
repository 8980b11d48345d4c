"""``fit``: from settings to the folder of a run.

    model.safetensors   the model            config.toml    what makes it again
    run.json            layout, versions     history.json   every step and epoch
    study.json          what the page tells  figures/*.svg  its curves
    report.html         the page

The folder is put together beside its place and moved there whole, so that a run that was killed leaves none.
"""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...detection import NoiseContrastiveDetector
from ...serialization import RecordError, read_document, write_document, write_text
from ...serialization.text import checksum
from ...training import History
from ..readers.frame import Frame
from ..report.run import write_run_page
from ..report.run.shape import check_facts
from .folder import check_replaceable, put_in_place, sole_writer
from .latent import train
from .material import Material, gather
from .scorer import (
    MODEL,
    RECORD,
    LoadedRun,
    OfDetector,
    OfLatent,
    RunError,
    check_config,
    damaged,
    read_record_file,
)
from .settings import RunSettings, SettingsError, fingerprint, read_config
from .study import study

Say = Callable[[str], None]
#: Written to the config in full, but for what is no setting of the run.
_NO_SETTING = ("verbose", "random_state")


def make_run(
    settings: RunSettings, out: Path, say: Say, *, overwrite: bool = False, progress: bool | None = None
) -> Path:
    """Train and write the folder ``out``; with ``overwrite``, files in it that no run wrote are left alone."""
    with sole_writer(out):
        check_replaceable(out, overwrite=overwrite)
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            _make(settings, place, say, progress)
            put_in_place(place, out)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return out


def _make(settings: RunSettings, folder: Path, say: Say, progress: bool | None) -> None:
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    settings = _with_fingerprint(settings, say)
    with clock("reading"):
        material = gather(settings.data, say, settings.seed)
    say(_described(material))
    with clock("training"):
        if settings.kind == "detector":
            run, histories, held_out = _detector(settings, material, folder, progress)
        else:
            run, histories, held_out = _latent(settings, material, folder, progress)
    with clock("studying"):
        facts = study(run, material, histories, held_out)
    config = run.settings.to_toml()
    write_text(folder / "config.toml", config)
    durations = {name: round(value, 3) for name, value in seconds.items()}
    write_document(folder / RECORD, "run", {**run.record, "seconds": durations, "config_sha256": checksum(config)})
    told = {name: json.loads(history.to_json()) for name, history in histories}
    write_document(folder / "history.json", "history", told)
    write_document(folder / "study.json", "study", facts)
    make_page(folder)


def make_page(folder: Path) -> Path:
    """Draw figures and page of a run anew from its files."""
    for name in (RECORD, "study.json", "config.toml"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is no whole run: {name} is missing; make it with fvnce fit DATA --out {folder}")
    record = read_record_file(folder / RECORD)
    try:
        facts = read_document(folder / "study.json", "study")
        check_facts(facts)
    except RecordError as error:
        raise RunError(f"{error}; make the run again with fvnce fit") from None
    except (ValueError, RecursionError) as error:
        raise damaged(folder / "study.json", error) from None
    settings = read_config(folder / "config.toml")
    check_config(folder, record)
    config = (folder / "config.toml").read_text(encoding="utf-8")
    rule = settings.model.rule if settings.kind == "latent" else f"power({settings.detector.get('alpha', 0.3)})"
    try:
        return write_run_page(folder, record, facts, config, rule)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # The checksums are right, so somebody made these files by hand.
        raise RunError(
            f"{folder / 'study.json'} does not hold what the page tells ({type(error).__name__}: {error}); make the "
            "run again with fvnce fit"
        ) from error


def _detector(
    settings: RunSettings, material: Material, folder: Path, progress: bool | None
) -> tuple[LoadedRun, list[tuple[str, History]], None]:
    parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.detector.items()}
    known = NoiseContrastiveDetector().get_params()
    for name in parameters:
        if name not in known or name in _NO_SETTING:
            allowed = ", ".join(key for key in known if key not in _NO_SETTING)
            raise SettingsError(f"the detector has no setting {name!r}; its settings are {allowed}")
    detector = NoiseContrastiveDetector(**parameters, random_state=settings.seed, verbose=int(bool(progress)))
    detector.fit(material.rows, material.known.astype(int) if material.known.any() else None)
    detector.verbose = 0
    detector.save(folder / MODEL)
    full = {k: list(v) if isinstance(v, tuple) else v for k, v in detector.get_params().items() if k not in _NO_SETTING}
    settings = replace(settings, detector=full)
    record = _record(material, settings)
    record["members"] = list(detector.ensemble_.names)
    run = LoadedRun(
        folder, settings, record, material.layout, OfDetector(NoiseContrastiveDetector.load(folder / MODEL))
    )
    return run, [(f"network {i + 1}", history) for i, history in enumerate(detector.history_)], None


def _latent(
    settings: RunSettings, material: Material, folder: Path, progress: bool | None
) -> tuple[LoadedRun, list[tuple[str, History]], Any]:
    detector, history, model, held_out = train(
        material.rows, material.known, settings.model, settings.seed, progress=progress
    )
    detector.save(folder / MODEL)
    settings = replace(settings, model=model)
    run = LoadedRun(folder, settings, _record(material, settings), material.layout, OfLatent(detector))
    return run, [("model", history)], held_out


def _record(material: Material, settings: RunSettings) -> dict[str, Any]:
    layout = material.layout
    return {
        "kind": settings.kind,
        "rows": len(material.known),
        "known": int(material.known.sum()),
        "frame": isinstance(material.rows, Frame),
        "layout": {"kinds": layout.kinds, "shape": None if layout.shape is None else list(layout.shape)},
        "versions": {
            "fvnce": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scikit-learn")},
        },
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _with_fingerprint(settings: RunSettings, say: Say) -> RunSettings:
    found = fingerprint(settings.data.path)
    earlier = settings.data.sha256
    if earlier is not None and found is not None and found != earlier:
        say(f"{settings.data.path} has changed since the config was written: the weights will differ")
    return replace(settings, data=replace(settings.data, sha256=found))


def _described(material: Material) -> str:
    rows, known = len(material.known), int(material.known.sum())
    shape = material.layout.shape
    what = "columns" if material.layout.columns else "pixels"
    size = len(material.layout.columns) if shape is None or len(shape) == 1 else "×".join(map(str, shape))
    return f"{rows:,} rows of {size} {what}, {known:,} known outliers"


class _Clock:
    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._name, self._start = seconds, "", 0.0

    def __call__(self, name: str) -> _Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = time.perf_counter() - self._start
