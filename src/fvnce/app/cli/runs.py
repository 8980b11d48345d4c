"""The commands ``fvnce fit``, ``score``, ``evaluate`` and ``monitor``, which make a run and use it."""

import json as json_module
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import (
    Array,
    Categorical,
    Decimal,
    Delimiter,
    Header,
    Missing,
    Quiet,
    like_training,
    make_echo,
    option,
    progress,
    text_table,
    writable,
    writing,
)

#: Settings of the detector that are lists, also if only one entry is given.
LISTS = ("hidden", "members")


def fit(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Training rows.", show_default=False)] = None,
    config: Annotated[
        Path | None, option(None, "Use the settings of an earlier run; other options override them.")
    ] = None,
    out: Annotated[Path | None, option("RUN", "Write the run to this folder; by default runs/NAME.")] = None,
    overwrite: Annotated[
        bool, option(None, "Replace the files of an earlier run, and keep all others.", "--overwrite")
    ] = False,
    seed: Annotated[
        int | None,
        option(None, "Seed all random draws, by default with 0; the same seed gives the same weights.", min=0),
    ] = None,
    outliers: Annotated[str | None, option("FILE", "Read known outliers from FILE, laid out like DATA.")] = None,
    label: Annotated[
        str | None,
        option(
            "COLUMN[=VALUE]",
            "Read known outliers from a column (name, number from 1, npz array) that holds 1 or VALUE for them.",
        ),
    ] = None,
    checked: Annotated[
        str | None, option("COLUMN", "Trust the label of the rows that this column marks, also where it says inlier.")
    ] = None,
    review: Annotated[
        list[str] | None,
        option("SHEET", "Learn from the verdicts in a sheet written by fvnce score --review; repeatable."),
    ] = None,
    mostly_outliers: Annotated[
        bool, option(None, "Allow the label to mark more than half of the rows.", "--mostly-outliers")
    ] = False,
    drop: Annotated[list[str] | None, option("COLUMN", "Leave out a column; repeatable.")] = None,
    keep: Annotated[
        list[str] | None, option("COLUMN", "Use a column although it looks like an identifier; repeatable.")
    ] = None,
    id: Annotated[
        str | None, option("COLUMN", "Copy this identifier column into the scores, and do not train on it.")
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    categorical: Categorical = None,
    schema: Annotated[
        str | None, option("FILE", "Read columns as described in FILE, written by fvnce data DATA --schema FILE.")
    ] = None,
    array: Array = None,
    settings: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Set another parameter of the detector, such as n_trees=50; repeatable.", "--set"),
    ] = None,
    contamination: Annotated[
        float | None, option(None, "Set the threshold such that this fraction of the training rows lies above it.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """DATA is csv or tsv (any delimiter, with or without a header, with missing values and text columns), parquet, npy,
    npz, a folder of PNG images, or - for standard input. Rows that need more than 2 GB of memory are refused before
    they are loaded; set the environment variable FVNCE_MAX_MEMORY to allow more, such as FVNCE_MAX_MEMORY=16G.

    Amounts of money, percentages, yes/no values, dates and times are recognized. Identifier columns (identifiers, row
    counters, account numbers) are not trained on unless --keep names them; --id copies one into the scores.

    --checked COLUMN marks rows that a person has reviewed: those that are not labeled as outliers are known inliers.
    --review adds the verdicts of sheets to the labels. With --config RUN they are added to the verdicts of that run,
    and a message compares both runs.

    Examples:

    fvnce fit transactions.csv --label fraud --id number --out run

    fvnce fit normal.npy --outliers bad.npy --seed 1 --out run

    fvnce fit digits/ --set members=neighbors,mixture_forest --out run

    fvnce fit --config run/config.toml --out again

    fvnce fit --config run --review sheet.csv --out run2
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if data is None and config is None:
        raise typer.BadParameter("give DATA, or --config of an earlier run")
    if outliers is not None and label is not None:
        raise typer.BadParameter("give --outliers or --label, not both")
    if out is None:
        if config is not None:
            raise typer.BadParameter("--config needs --out, a new folder for the run")
        out = Path("runs") / (Path(str(data)).name.split(".")[0] or "stdin" if data != "-" else "stdin")

    if (
        config is not None
        and config.exists()
        and out.exists()
        and out.samefile(config if config.is_dir() else config.parent)
    ):
        raise typer.BadParameter(f"--out must not be the folder of --config, found {str(out)!r}; choose another")
    from ..runs.fitting import make_run

    say = make_echo(quiet)
    run = make_run(_settings(given, config), out, say, overwrite=overwrite, progress=None if not quiet else False)
    if review and config is not None:
        from ..runs.review import say_gains

        say_gains(config, run, review, say)
    say(f"threshold {run.threshold:.4g}; open {out / 'report.html'}, or score rows with: fvnce score {out} FILE")
    typer.echo(out)


def _settings(given: dict[str, Any], config: Path | None) -> Any:
    """Return the settings of the config or the defaults, overridden by the options of the command line."""
    from dataclasses import fields, replace

    from ..runs.settings import DataSettings, RunSettings, read_config

    base = RunSettings(DataSettings("")) if config is None else read_config(config)
    # False means --no-header for header, and that the option was not given for all others.
    names = [f.name for f in fields(DataSettings) if given.get(f.name) or (f.name == "header" and "header" in given)]
    source: dict[str, Any] = {n: tuple(given[n]) if isinstance(given[n], list) else given[n] for n in names}
    if "data" in given:
        source |= {"path": _absolute(given["data"]), "sha256": None}
    if "review" in given:  # sheets accumulate
        source["review"] = tuple(dict.fromkeys([*base.data.review, *map(_absolute, given["review"])]))
    source |= {name: _absolute(given[name]) for name in ("outliers", "schema") if name in given}
    detector = {"contamination": given["contamination"]} if "contamination" in given else {}
    detector |= dict(_pair(text) for text in given.get("settings", []))
    seed, data = given.get("seed", base.seed), replace(base.data, **source)
    return replace(base, seed=seed, data=data, detector={**base.detector, **detector})


def _absolute(path: str) -> str:
    return path if path == "-" else str(Path(path).absolute())


def _pair(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, where the value is a number, true, false, a word, or a comma-separated list of these.

    >>> _pair("alpha=0.5"), _pair("hidden=32"), _pair("members=auto")
    (('alpha', 0.5), ('hidden', [32]), ('members', 'auto'))
    """
    name, _, value = text.partition("=")
    if not name or not value:
        raise typer.BadParameter(f"--set must be NAME=VALUE, found {text!r}")
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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder written by fvnce fit.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Rows, laid out as in training; - for standard input.")],
    out: Annotated[str, option("FILE", "Write to FILE; - for standard output.")] = "-",
    top: Annotated[int | None, option("N", "Output only the N highest-scoring rows.", min=1)] = None,
    alarms: Annotated[int | None, option("N", "Flag the N highest-scoring rows.", min=1)] = None,
    fdr: Annotated[float | None, option("Q", "Flag rows at a false discovery rate of at most Q.")] = None,
    threshold: Annotated[float | None, option("T", "Flag rows that score above T.")] = None,
    review: Annotated[
        int | None, option("N", "Write a sheet of N rows to be reviewed by a person, instead of scores.", min=1)
    ] = None,
    explain: Annotated[bool, option(None, "Add up to three reasons for each score, in words.", "--explain")] = False,
    id: Annotated[
        str | None, option("COLUMN", "Copy this identifier column into the output; by default that of the run.")
    ] = None,
    strict: Annotated[bool, option(None, "Fail if DATA is far from the training rows.", "--strict")] = False,
    json: Annotated[bool, option(None, "Write one JSON object per line instead of csv.", "--json")] = False,
    check: Annotated[bool, option(None, "Exit with 3 if any row is flagged.", "--check")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Rows are numbered from 1; images are named by their files. Higher scores are more anomalous; outlier is 1 above
    the threshold of the run, and for novel rows. p_value is the fraction of normal rows that score at least as
    high: about 1 % of normal rows have p < 0.01. A run with known outliers has two scores, like_known and novelty,
    and kind is "known" for rows like the known outliers and "novel" for other outliers. DATA may be larger than
    memory, and - reads csv or npy from standard input.

    Warnings follow at the end if a column is empty, texts did not occur in training, numbers are far from those of
    training, rows have few values, or the fraction of outliers, the fraction of missing values or the scores are far
    from those of training. With --json they are in the last line, an object with the only entry "summary"; with
    --strict they are an error.

    One of --alarms, --fdr and --threshold replaces the threshold of the run, also for --check. --alarms and
    --threshold go by the column score, as --top does, --fdr by p-values, and none flags a row for its novelty alone.
    --alarms and --fdr compare all rows, so they read DATA twice, and it must be a file. --fdr bounds the fraction of
    false alarms on average over training sets and rows. If outliers are known, it does not compare with held-out
    training rows that are probably like them. If no row is flagged, a warning says why.

    --review N writes N rows that have not been reviewed, in turn those with the highest scores, the most novel ones and
    those nearest to the threshold, with reasons, all their columns and an empty column verdict. Fill in yes or no (1 or
    0, outlier or inlier) where you know the answer, and pass the file to fvnce fit --review. Keep the column key, a
    hash of the row's values, by which fit finds the row again.

    In csv, a name that a spreadsheet would run as a formula (one that begins with =, +, - or @) gets a ' in front, and
    control characters are written as \\x1b; --json writes names unchanged.

    Examples:

    fvnce score run new.csv --out scores.csv --explain

    fvnce score run huge.npy --top 20 --json

    fvnce score run new.csv --alarms 50 --out scores.csv

    fvnce score run new.csv --review 20 --out sheet.csv

    cat new.csv | fvnce score run - --check > scores.csv || echo outliers found
    """
    given = locals()
    from contextlib import closing

    from ...detection.trust.conformal import check_budget
    from ..runs import load_run
    from ..runs.evaluation import label_column
    from ..runs.scoring import add_id, budget_at, budget_of, say_how, stream_scores
    from ..runs.training_data import read_like

    check_budget(alarms, threshold, fdr)
    twice = alarms is not None or fdr is not None
    pipe = data == "-" or (Path(data).exists() and not (Path(data).is_file() or Path(data).is_dir()))
    if pipe and (twice or review is not None):
        raise ValueError(f"--alarms, --fdr and --review read DATA twice: DATA must be a file, found {data}")
    fitted = load_run(run)
    settings = like_training(fitted.config.data, given)
    say = make_echo(quiet)
    if review is not None:
        from ..runs.review import write_sheet

        others = {"--top": top, "--alarms": alarms, "--fdr": fdr, "--threshold": threshold, "--json": json}
        if wrong := [name for name, value in {**others, "--check": check, "--strict": strict}.items() if value]:
            raise typer.BadParameter(f"--review must not be combined with {wrong[0]}; leave one of them out")
        if out != "-" and Path(out).exists():
            raise typer.BadParameter(f"--out must name a new file, found {out!r}, which may hold verdicts")
        writable(out, "--out", [data])
        with writing(out) as file:
            written, rows = write_sheet(fitted, data, settings, file, review)
        sheet = "SHEET" if out == "-" else out
        verb = f"{written:,} of {rows:,} {'row' if rows == 1 else 'rows'}: fill in verdict, then: fvnce fit"
        say(f"{verb} --config {run} --review {sheet} --out NEW")
        return
    budget = None if threshold is None else budget_at(threshold)
    if twice:
        with (
            warnings.catch_warnings(record=True) as caught,
            closing(read_like(fitted.layout, data, settings)) as source,
        ):
            warnings.simplefilter("always", UserWarning)
            budget = budget_of(fitted, source, alarms=alarms, fdr=fdr)
        for message in caught:
            say(f"warning: {message.message}")
    source = read_like(fitted.layout, data, settings)
    with closing(source):
        writable(out, "--out", [data, *run.iterdir()])
        label = label_column(source, fitted)
        if label is not None:
            say(
                f"{label!r} of {data} holds labels, which are ignored; fvnce evaluate {run} {data} measures how well "
                "they are found"
            )
        name = add_id(source, id or fitted.config.data.id, say, asked=id is not None)
        output: dict[str, Any] = {
            "top": top,
            "explain": explain,
            "as_json": json,
            "id": name,
            "strict": strict,
            "budget": budget,
        }
        with writing(out) as file:
            summary = stream_scores(fitted, source, file, watch=partial(progress, quiet=quiet), **output)
    say_how(source, say, {label, name})
    for warning in summary.warnings:
        say(f"warning: {warning}")
    where = "" if out == "-" else f", written to {out}"
    count = f"; {len(summary.warnings)} warnings above" if summary.warnings else ""
    above = f"{summary.outliers:,} flagged"
    novel = f", {summary.novel:,} of them novel" if summary.novel else ""
    if threshold is not None:
        above = f"{summary.outliers:,} above the threshold {threshold:.4g}"
    elif not twice:
        above = f"{summary.outliers - summary.novel:,} above the threshold {fitted.threshold:.4g}"
        novel = f" and {summary.novel:,} novel" if summary.novel else ""
    say(f"{summary.rows:,} rows, {above}{novel}{where}{count}")
    if check and summary.outliers:
        raise typer.Exit(3)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder written by fvnce fit.")],
    labeled: Annotated[
        str, typer.Argument(metavar="LABELED", help="Labeled rows, laid out as in training; - for standard input.")
    ],
    label: Annotated[
        str | None,
        option(
            "COLUMN[=VALUE]",
            "Read the outliers from a column that holds 1 or VALUE for them; by default that of the run.",
        ),
    ] = None,
    k: Annotated[
        int | None, option(None, "Set k of precision and recall at k; by default the number of outliers.", min=1)
    ] = None,
    plot: Annotated[
        Path | None, option("FILE", "Plot scores, ROC and precision-recall curve to a png, pdf or svg file.")
    ] = None,
    json: Annotated[bool, option(None, "Print the numbers as JSON.", "--json")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Prints AUROC, average precision, and precision and recall of the flagged rows and of the k highest-scoring rows,
    each with a 95 % interval that is also valid for few outliers. LABELED should hold rows that the run was not trained
    on: results on training rows are too optimistic. Rows without a label count as inliers.

    Examples:

    fvnce evaluate run labeled.csv

    fvnce evaluate run labeled.csv --label fraud=yes --k 50 --plot found.png

    fvnce evaluate run labeled.npz --label y --json
    """
    given = locals()
    if plot is not None:
        if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise typer.BadParameter(f"--plot must name a png, pdf or svg file, found {str(plot)!r}")
        writable(plot, "--plot", [labeled])
    from ..runs import load_run
    from ..runs.evaluation import evaluate as measure
    from ..runs.evaluation import read_labeled
    from ..runs.settings import fingerprint

    fitted, say = load_run(run), make_echo(quiet)
    data = fitted.config.data
    settings, watch = like_training(data, given), partial(progress, quiet=quiet)
    scores, flags, outlier = read_labeled(fitted, labeled, label, settings, say, watch)
    evaluation = measure(scores, flags, outlier, fitted.threshold, k, fitted.config.seed)
    if data.sha256 is not None and fingerprint(labeled) == data.sha256:
        say(f"{run} was trained on {labeled}: results on training rows are too optimistic")
    typer.echo(json_module.dumps(evaluation.content()) if json else text_table(*evaluation.table()))
    if plot is not None:
        typer.echo(evaluation.plot(plot), err=json)


def monitor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder written by fvnce fit.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Rows, laid out as in training; - for standard input.")],
    alpha: Annotated[float, option(None, "Set the largest probability of an alarm if nothing has changed.")] = 0.01,
    json: Annotated[bool, option(None, "Print the numbers as JSON.", "--json")] = False,
    out: Annotated[Path | None, option("FILE", "Write the numbers as JSON to FILE.")] = None,
    page: Annotated[Path | None, option("FILE", "Write an HTML page with charts to FILE.")] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Compares each column and the scores with those of training: missing values, texts that did not occur in training,
    the distribution, the fraction of flagged rows with a 95 % interval, and whether p-values are still valid. p-values
    are adjusted for the number of tests, so a file of rows from the same source causes an alarm with probability alpha
    at most. Exit codes: 0 no change found, 3 changed, 1 and 2 errors. DATA may be larger than memory.

    Examples:

    fvnce monitor run today.csv --page today.html || mail -s changed me@example.com < today.html

    fvnce monitor run today.csv --alpha 0.001 --out today.json --quiet
    """
    given = locals()
    from contextlib import closing

    from ..escaping import line_json, visible
    from ..runs import load_run
    from ..runs.training_data import check_finite_part, read_like

    for path, name in ((out, "--out"), (page, "--page")):
        if path is not None:
            writable(path, name, [data, *(run.iterdir() if run.is_dir() else ())])
    fitted, say = load_run(run), make_echo(quiet)
    settings = like_training(fitted.config.data, given)
    watch = fitted.detector.new_watch()
    with closing(read_like(fitted.layout, data, settings)) as source:
        for part in progress(source.parts(), quiet):
            check_finite_part(part.rows, source.name, part.start)
            fitted.detector.watch(watch, fitted.layout.prepare(part.rows))
    changes = watch.changes(alpha)
    if out is not None:
        with writing(out) as file:
            file.write(line_json(changes.as_dict()) + "\n")
    if page is not None:
        from ..report.monitoring import write_monitoring_page

        say(f"open {write_monitoring_page(page, data, changes)}")
    if json:
        typer.echo(line_json(changes.as_dict()))
    elif not quiet:
        for line in str(changes).splitlines():
            typer.echo(visible(line))
    if changes.alarm:
        raise typer.Exit(3)
