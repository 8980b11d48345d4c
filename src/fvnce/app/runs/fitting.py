"""Training of a run from its settings, and the files of its folder.

    model.safetensors   the detector
    config.toml         the settings, to repeat the run
    report.html         the page
    card.md             the model card

Files are written to a temporary folder, which is then moved into place, so an interrupted run leaves no folder behind.
Only one process at a time writes a run. A new run replaces an old one file by file; other files in the folder are kept.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...detection import NoiseContrastiveDetector
from ...detection.batch_scorer import MODEL
from ...detection.estimator import EXPERT, WITHOUT_EFFECT, current_names
from ...io import FileError, locked, write_text
from ...tables.schema import described
from ..report import write_run_page
from ..report.analysis import analyze
from ..report.card import card
from ..report.page import plural
from . import FittedRun
from .review import add_verdicts
from .scoring import FewValues
from .settings import CONFIG, RunSettings, fingerprint
from .training_data import Say, TrainingData, read_training_data

#: Parameters of the detector that are not settings of a run.
_NO_SETTING = ("verbose", "random_state", "expert")
PAGE, CARD = "report.html", "card.md"
#: Files of earlier versions that ``--overwrite`` removes.
_OLD = ("run.json", "history.json")


def make_run(
    settings: RunSettings, out: Path, say: Say, *, overwrite: bool = False, progress: bool | None = None
) -> FittedRun:
    """Train, and write the run to ``out``; ``overwrite`` replaces the files of an earlier run only."""
    with sole_writer(out):
        if out.exists() and not overwrite:
            raise FileError(f"{out} exists already; choose another folder with --out, or pass --overwrite")
        if out.exists() and not (out / MODEL).is_file():
            raise FileError(
                f"{out} exists and is not a run, so --overwrite does not replace it; choose another folder with --out"
            )
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            run = _make(settings, place, out, say, progress)
            _put_in_place(place, out)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return run


def sole_writer(out: Path) -> AbstractContextManager[None]:
    """Hold a lock for writing the run ``out``, which need not exist yet."""
    return locked(out.parent / f".{out.name}.lock", out)


def _make(settings: RunSettings, place: Path, out: Path, say: Say, progress: bool | None) -> FittedRun:
    """Train, and write all files of the run to ``place``."""
    notices: list[str] = []
    sha256 = fingerprint(settings.data.path)
    if None not in (sha256, settings.data.sha256) and sha256 != settings.data.sha256:
        say(f"{settings.data.path} has changed since the config was written: the weights will differ")
    settings = replace(settings, data=replace(settings.data, sha256=sha256))

    def note(sentence: str) -> None:
        notices.append(sentence)
        say(sentence)

    data = read_training_data(settings.data, note, settings.seed)
    if settings.data.review:
        data = add_verdicts(data, settings.data, note)
    for line in described(data.layout.types or {}):
        say(f"read as {line}")
    say(_described(data))
    detector, settings = _fit_detector(settings, data, progress)
    history = list(detector.history_)
    run = FittedRun(folder=out, config=settings, history=history, detector=detector, layout=data.layout)
    few, names = FewValues(detector), data.names
    few.add(data.rows, lambda i: i + 1 if names is None else names[i])
    for sentence in few.sentences():
        note(sentence)
    detector.save(place / MODEL)
    write_text(place / CONFIG, run.config.to_toml())
    analysis = analyze(run, data, notices)
    write_run_page(place / PAGE, analysis)
    write_text(place / CARD, card(analysis))
    return run


def _fit_detector(
    settings: RunSettings, data: TrainingData, progress: bool | None
) -> tuple[NoiseContrastiveDetector, RunSettings]:
    """Return the fitted detector, and the settings completed by its defaults."""
    parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.detector.items()}
    allowed = [name for name in (*NoiseContrastiveDetector().get_params(), *EXPERT) if name not in _NO_SETTING]
    for name in parameters:
        if name not in allowed:
            instead = WITHOUT_EFFECT.get(name, f"its settings are {', '.join(allowed)}")
            raise FileError(f"the detector has no setting {name!r}; {instead}")
    parameters = current_names(parameters)
    detector = NoiseContrastiveDetector(**parameters, random_state=settings.seed, verbose=int(bool(progress)))
    # --label was checked when it was read; with --outliers or --mostly-outliers the user asked for it.
    checked = data.checked if data.checked.any() else None
    labels = data.known.astype(int) if data.known.any() or checked is not None else None
    detector.fit(data.rows, labels, checked=checked, mostly_outliers=True)
    detector.set_params(verbose=0)
    full = {**EXPERT, **detector.get_params(), **parameters.get("expert", {})}
    config = {name: list(full[name]) if isinstance(full[name], tuple) else full[name] for name in allowed}
    return detector, replace(settings, detector=config)


def _described(data: TrainingData) -> str:
    shape = data.layout.shape
    what = "columns" if data.layout.columns else "pixels"
    size = len(data.layout.columns) if shape is None or len(shape) == 1 else "×".join(map(str, shape))
    inliers = int(data.inliers.sum())
    known = plural(int(data.known.sum()), "known outlier") + (f", {plural(inliers, 'known inlier')}" if inliers else "")
    return f"{len(data.known):,} rows of {size} {what}, {known}"


def _put_in_place(made: Path, out: Path) -> None:
    """Move the run ``made`` to ``out``; replace the files of a run that is there, and keep all others."""
    if not out.exists():
        made.chmod(0o755)
        made.rename(out)
        return
    for name in (MODEL, CONFIG, PAGE, CARD):
        if (out / name).is_dir():
            raise FileError(f"{out / name} must be a file, found a folder; move it away first")
    # The model is removed first and written last, so that no reader sees a mixture of two runs.
    for name in (MODEL, *_OLD):
        (out / name).unlink(missing_ok=True)
    for name in (CONFIG, PAGE, CARD, MODEL):
        (made / name).replace(out / name)
    shutil.rmtree(made)
