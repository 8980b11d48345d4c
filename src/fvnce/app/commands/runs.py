"""``fvnce fit``, ``score`` and ``evaluate``: how a run is made, and what is done with it."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import (
    Array,
    Categorical,
    Delimiter,
    Header,
    Missing,
    Quiet,
    like_training,
    make_echo,
    one_character,
    plot_file,
    progress,
    writable,
    writing,
)

#: Settings of the detector that are lists, of one entry too.
LISTS = ("hidden", "members")


def fit(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="The rows.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings of an earlier run; options on the line replace its own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="The folder to write, by default runs/NAME.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a run that is there; all others stay.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same weights. 0 by default.")] = None,
    outliers: Annotated[str | None, typer.Option(metavar="FILE", help="Known outliers, laid out like DATA.")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=VALUE]",
            help="The column that marks known outliers by 1, or by VALUE: a name, a number from 1, an npz array.",
        ),
    ] = None,
    mostly_outliers: Annotated[
        bool, typer.Option("--mostly-outliers", help="The label may mark more than half of the rows.")
    ] = False,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; repeatable.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column to use though it seems to name rows; repeatable."),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that names rows; it is carried into the scores.")
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    categorical: Categorical = None,
    array: Array = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting of the detector, as n_trees=50; repeatable."
        ),
    ] = None,
    contamination: Annotated[
        float | None, typer.Option(help="Share of training rows above the threshold; the detector finds its own.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """DATA is csv or tsv (any delimiter, header or not, missing values and text columns welcome), parquet, npy, npz,
    idx(.gz), a folder of PNG images, or - for standard input. Rows that would take more than 2G of memory are
    refused before any of it is taken; the environment variable FVNCE_MAX_MEMORY, such as FVNCE_MAX_MEMORY=16G,
    allows more.

    Amounts of money, shares, truths, dates and times are read as what they are. Columns that name rows (identifiers,
    row counters, account numbers) are left out unless --keep names them; --id carries one into the scores.

    Examples:

    fvnce fit transactions.csv --label fraud --id number --out run

    fvnce fit normal.npy --outliers bad.npy --seed 1 --out run

    fvnce fit digits/ --set members=neighbours,autoencoder --out run

    fvnce fit --config run/config.toml --out again
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if data is None and config is None:
        raise typer.BadParameter("give DATA, or --config of an earlier run")
    if outliers is not None and label is not None:
        raise typer.BadParameter("give --outliers or --label, not both")
    if out is None:
        if config is not None:
            raise typer.BadParameter("give --out: a config repeats a run, and its folder must be a new one")
        out = Path("runs") / (Path(str(data)).name.split(".")[0] or "stdin" if data != "-" else "stdin")

    from ..runs.fitting import make_run

    wanted = _settings(given, config)
    say = make_echo(quiet)
    run = make_run(wanted, out, say, overwrite=overwrite, progress=None if not quiet else False)
    say(f"threshold {run.threshold:.4g}; open {out / 'report.html'}, or score rows with: fvnce score {out} FILE")
    typer.echo(out)


def _settings(given: dict[str, Any], config: Path | None) -> Any:
    """The settings of the config, or else the usual ones, with what the line gives in their place."""
    from dataclasses import replace

    from ..runs.settings import DataSettings, RunSettings, read_config

    base = RunSettings(DataSettings("")) if config is None else read_config(config)
    source: dict[str, Any] = {name: given[name] for name in ("label", "id", "header", "array") if name in given}
    if given["mostly_outliers"]:
        source["mostly_outliers"] = True
    if "data" in given:
        source |= {"path": _absolute(given["data"]), "sha256": None}
    if "outliers" in given:
        source["outliers"] = _absolute(given["outliers"])
    if "delimiter" in given:
        source["delimiter"] = one_character(given["delimiter"])
    source |= {name: tuple(given[name]) for name in ("drop", "keep", "missing", "categorical") if given.get(name)}
    detector = {name: given[name] for name in ("contamination",) if name in given}
    detector |= dict(_pair(text) for text in given.get("settings", []))
    return replace(
        base,
        seed=given.get("seed", base.seed),
        data=replace(base.data, **source),
        detector={**base.detector, **detector},
    )


def _absolute(path: str) -> str:
    return path if path == "-" else str(Path(path).absolute())


def _pair(text: str) -> tuple[str, Any]:
    """A setting as text: a number, true, false, a list of either with commas, or a word.

    >>> _pair("alpha=0.5"), _pair("hidden=32"), _pair("members=auto")
    (('alpha', 0.5), ('hidden', [32]), ('members', 'auto'))
    """
    name, found, value = text.partition("=")
    if not found or not name or not value:
        raise typer.BadParameter(f"--set takes NAME=VALUE, found {text!r}")
    name, parts = name.strip(), [_plain(part.strip()) for part in value.split(",")]
    return name, parts if len(parts) > 1 or (name in LISTS and parts != ["auto"]) else parts[0]


def _plain(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="The rows, laid out as in training; - for standard input.")
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write; - for standard output.")] = "-",
    top: Annotated[int | None, typer.Option(min=1, help="Only so many of the strangest rows, strangest first.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the three columns that add most to a score.")
    ] = False,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that names rows; by default that of the run.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An error instead of a warning if DATA is unlike the training rows.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, one object a line, instead of csv.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if a row is above the threshold.")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Rows are numbered from 1; images go by their file's name. Higher scores are stranger; outlier is 1 above the
    threshold of the run. p_value is the share of rows like those of training that are at least as strange: below
    0.01, one in a hundred usual rows lies. DATA may be larger than memory, and - reads csv or npy from standard
    input.

    A column that is empty, texts that were never seen and numbers far from those of training are warned of at the end;
    with --json a last line, its only entry "summary", tells of them, and with --strict they are an error.

    In csv, a name that a spreadsheet would compute (one that begins with =, +, - or @) has ' before it, and control
    characters are shown as \\x1b; --json gives names as they are.

    Examples:

    fvnce score run new.csv --out scores.csv --explain

    fvnce score run huge.npy --top 20 --json

    cat new.csv | fvnce score run - --check > scores.csv || echo outliers found
    """
    from contextlib import closing, nullcontext

    from ..runs import load_run
    from ..runs.evaluation import labels_in
    from ..runs.scoring import add_id, stream_scores
    from ..runs.training_data import read_like

    fitted = load_run(run)
    settings = like_training(fitted.config.data, delimiter, header, missing, array)
    source = read_like(fitted.layout, data, settings)
    say = make_echo(quiet)
    with closing(source):
        label = labels_in(source, data, fitted)
        if label is not None:
            say(
                f"{label!r} of {data} holds labels, which are ignored; fvnce evaluate {run} {data} tells how well they "
                "are found"
            )
        name = add_id(source, id or fitted.config.data.id, say, asked=id is not None)
        if out != "-":
            writable(out, "--out")
        with (
            progress("scoring", quiet) as tick,
            nullcontext(sys.stdout) if out == "-" else writing(Path(out)) as file,
        ):
            summary = stream_scores(
                fitted, source, file, top=top, explain=explain, as_json=json, id=name, strict=strict, tick=tick
            )
    for warning in summary.warnings:
        say(f"warning: {warning}")
    where = "" if out == "-" else f", written to {out}"
    unlike = f"; {len(summary.warnings)} warnings above" if summary.warnings else ""
    say(f"{summary.rows:,} rows, {summary.outliers:,} above the threshold {fitted.threshold:.4g}{where}{unlike}")
    if check and summary.outliers:
        raise typer.Exit(3)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")],
    labelled: Annotated[
        str, typer.Argument(metavar="LABELLED", help="Rows with labels, laid out as in training; - for standard input.")
    ],
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=VALUE]",
            help="The column that marks outliers by 1, or by VALUE; by default that of the run.",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the strangest rows are looked at; by default as many as outliers."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw scores and both curves into a png, pdf or svg file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The numbers as JSON.")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """AUROC, average precision, and precision and recall at the threshold of the run and among the k strangest rows,
    each with a 95 % interval that holds for few outliers, too. LABELLED should hold rows that had no part in training:
    on rows that it has seen, a model looks better than it is. Rows without a label count as no outliers.

    Examples:

    fvnce evaluate run labelled.csv

    fvnce evaluate run labelled.csv --label fraud=yes --k 50 --plot found.png

    fvnce evaluate run labelled.npz --label y --json
    """
    plot_file(plot)
    from ..runs import load_run
    from ..runs.evaluation import evaluate as measure
    from ..runs.evaluation import read_labelled
    from ..runs.settings import fingerprint

    fitted, say = load_run(run), make_echo(quiet)
    data = fitted.config.data
    with progress("scoring", quiet) as tick:
        settings = like_training(data, delimiter, header, missing, array)
        scores, outlier = read_labelled(fitted, labelled, label, settings, say, tick)
    found = measure(scores, outlier, fitted.threshold, k, fitted.config.seed)
    if data.sha256 is not None and fingerprint(labelled) == data.sha256:
        say(f"{labelled} is what {run} was trained on: on rows that it has seen, a model looks better than it is")
    typer.echo(json_module.dumps(found.content()) if json else found.text())
    if plot is not None:
        typer.echo(found.plot(plot), err=json)
