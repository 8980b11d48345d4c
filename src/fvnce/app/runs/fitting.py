"""``fit``: from settings to the folder of a run.

    model.safetensors   the model            config.toml    what makes it again
    run.json            layout, versions     history.json   every step and epoch
    report.html         the page             figures/*.svg  its curves

The folder is put together beside its place and moved there whole, so that a run that was killed leaves none. There is
one writer at a time, and a new run takes the place of an old one file by file: what lies in the folder and was written
by no run, notes or scores of the user's, is never touched.
"""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...detection import NoiseContrastiveDetector
from ...detection.batch_scorer import MODEL
from ...detection.frame import Frame
from ...serialization import locked, write_document, write_text
from ..report import write_run_page
from ..report.context import build_context
from . import HISTORY, RECORD, FittedRun, RunError
from .settings import RunSettings, SettingsError, fingerprint
from .training_data import Say, TrainingData, read_training_data

#: Written to the config in full, but for what is no setting of the run.
_NO_SETTING = ("verbose", "random_state")
#: Files that a run writes, beside its figures.
WRITTEN = (RECORD, MODEL, "config.toml", HISTORY, "report.html")
FIGURES = "figures"
#: How every figure of a run begins; another svg beside them is the user's.
_FIGURE = b'<svg class="chart"'


def make_run(
    settings: RunSettings, out: Path, say: Say, *, overwrite: bool = False, progress: bool | None = None
) -> FittedRun:
    """Train and write the folder ``out``; with ``overwrite``, files in it that no run wrote are left alone."""
    with sole_writer(out):
        check_replaceable(out, overwrite=overwrite)
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            run = _make(settings, place, out, say, progress)
            put_in_place(place, out)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return run


def _make(settings: RunSettings, place: Path, out: Path, say: Say, progress: bool | None) -> FittedRun:
    """Train, and write all files of the run into ``place``."""
    seconds: dict[str, float] = {}
    notices: list[str] = []
    found = fingerprint(settings.data.path)
    if None not in (found, settings.data.sha256) and found != settings.data.sha256:
        say(f"{settings.data.path} has changed since the config was written: the weights will differ")
    settings = replace(settings, data=replace(settings.data, sha256=found))

    def note(sentence: str) -> None:
        notices.append(sentence)
        say(sentence)

    with _timed(seconds, "reading"):
        data = read_training_data(settings.data, note, settings.seed)
    say(_described(data))
    with _timed(seconds, "training"), warnings.catch_warnings():
        # Who gives outliers a file of their own, or says --mostly-outliers, knows.
        warnings.filterwarnings("ignore", message="y must be 1 for known outliers .* more than half")
        run = _fit_detector(settings, data, out, progress)
        run.detector.save(place / MODEL)
    config = run.config.to_toml()
    write_text(place / "config.toml", config)
    record = {**_record(data, run), "notices": notices, "seconds": seconds}
    write_document(place / RECORD, "run", record)
    histories = {f"network {i + 1}": json.loads(history.to_json()) for i, history in enumerate(run.history)}
    write_document(place / HISTORY, "history", histories)
    write_run_page(place, build_context(run, data), record, config)
    return run


def _fit_detector(settings: RunSettings, data: TrainingData, out: Path, progress: bool | None) -> FittedRun:
    parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.detector.items()}
    allowed = [name for name in NoiseContrastiveDetector().get_params() if name not in _NO_SETTING]
    for name in parameters:
        if name not in allowed:
            raise SettingsError(f"the detector has no setting {name!r}; its settings are {', '.join(allowed)}")
    detector = NoiseContrastiveDetector(**parameters, random_state=settings.seed, verbose=int(bool(progress)))
    detector.fit(data.rows, data.known.astype(int) if data.known.any() else None)
    detector.set_params(verbose=0)
    full = detector.get_params()
    config = {name: list(full[name]) if isinstance(full[name], tuple) else full[name] for name in allowed}
    return FittedRun(out, replace(settings, detector=config), detector, data.layout)


def _record(data: TrainingData, run: FittedRun) -> dict[str, Any]:
    layout = data.layout
    return {
        "name": "standard input" if run.config.data.path == "-" else Path(run.config.data.path).name,
        "rows": len(data.known),
        "known": int(data.known.sum()),
        "frame": isinstance(data.rows, Frame),
        "layout": {
            "kinds": layout.kinds and {name: reading.kind for name, reading in layout.kinds.items()},
            "shape": None if layout.shape is None else list(layout.shape),
        },
        "versions": {
            "fvnce": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scikit-learn")},
        },
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "members": list(run.detector.ensemble_.names),
    }


def _described(data: TrainingData) -> str:
    rows, known = len(data.known), int(data.known.sum())
    shape = data.layout.shape
    what = "columns" if data.layout.columns else "pixels"
    size = len(data.layout.columns) if shape is None or len(shape) == 1 else "×".join(map(str, shape))
    return f"{rows:,} rows of {size} {what}, {known:,} known outliers"


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 3)


def sole_writer(out: Path) -> AbstractContextManager[None]:
    """Be the only one who makes the run ``out``, which need not exist yet."""
    return locked(out.parent / f".{out.name}.lock", out)


def check_replaceable(out: Path, *, overwrite: bool) -> None:
    """Refuse a place where something is that may not be replaced."""
    if out.exists() and not overwrite:
        raise RunError(f"{out} exists already; choose another folder with --out, or pass --overwrite")
    if out.exists() and not (out / RECORD).is_file():
        raise RunError(
            f"{out} exists and is no run, so --overwrite will not replace it; choose another folder with --out"
        )
    if (out / FIGURES).is_symlink():
        raise RunError(f"{out / FIGURES} is a link, and --overwrite does not write through it; remove it first")


def put_in_place(made: Path, out: Path) -> None:
    """Move the run ``made`` to ``out``; of a run that is there, its own files go and all others stay."""
    if not out.exists():
        made.chmod(0o755)
        made.rename(out)
        return
    new = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    for path in new:
        if (out / path).is_dir():
            raise RunError(f"{out / path} is a folder where a run has a file; move it away first")
    # Without its record the folder is no run, so nobody reads a mixture of two; the new record comes last.
    (out / RECORD).unlink()
    for path in _written(out):
        path.unlink()
    for path in sorted(new, key=lambda path: path.name == RECORD):
        (out / path.parent).mkdir(exist_ok=True)
        (made / path).replace(out / path)
    shutil.rmtree(made)


def _written(out: Path) -> list[Path]:
    """The files in ``out`` that a run wrote."""
    figures = [path for path in (out / FIGURES).glob("*.svg") if path.is_file()]
    ours = [path for path in figures if path.read_bytes().startswith(_FIGURE)]
    return [path for path in (out / name for name in WRITTEN) if path.is_file()] + ours
