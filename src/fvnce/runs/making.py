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

from .._version import __version__
from ..data.frame import Frame
from ..detection import NoiseContrastiveDetector
from ..report.run import write_run_page
from ..report.run.shape import check_facts
from ..training import History
from .latent import train
from .material import Material, gather
from .scorer import MODEL, RECORD, LoadedRun, OfDetector, OfLatent, RunError, damaged, read_record_file
from .settings import RunSettings, SettingsError, fingerprint, read_config
from .study import study

Say = Callable[[str], None]
#: Written to the config in full, but for what is no setting of the run.
_NO_SETTING = ("verbose", "random_state")


def make_run(
    settings: RunSettings, out: Path, say: Say, *, overwrite: bool = False, progress: bool | None = None
) -> Path:
    """Train and write the folder ``out``."""
    if out.exists() and not overwrite:
        raise RunError(f"{out} exists already; choose another folder with --out, or pass --overwrite")
    if out.exists() and not (out / RECORD).is_file():
        raise RunError(
            f"{out} exists and is no run, so --overwrite will not replace it; choose another folder with --out"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _make(settings, place, say, progress)
        if out.exists():
            shutil.rmtree(out)
        place.chmod(0o755)
        place.rename(out)
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
    (folder / "config.toml").write_text(run.settings.to_toml(), encoding="utf-8")
    _write(folder / RECORD, {**run.record, "seconds": {k: round(v, 3) for k, v in seconds.items()}})
    _write(folder / "history.json", {name: json.loads(history.to_json()) for name, history in histories})
    _write(folder / "study.json", facts)
    make_page(folder)


def make_page(folder: Path) -> Path:
    """Draw figures and page of a run anew from its files."""
    for name in (RECORD, "study.json", "config.toml"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is no whole run: {name} is missing; make it with fvnce fit DATA --out {folder}")
    record = read_record_file(folder / RECORD)
    try:
        facts = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        check_facts(facts)
    except (ValueError, RecursionError) as error:
        raise damaged(folder / "study.json", error) from None
    settings = read_config(folder / "config.toml")
    config = (folder / "config.toml").read_text(encoding="utf-8")
    rule = settings.model.rule if settings.kind == "latent" else f"power({settings.detector.get('alpha', 0.3)})"
    return write_run_page(folder, record, facts, config, rule)


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


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


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
