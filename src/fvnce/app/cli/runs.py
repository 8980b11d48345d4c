"""``fvnce fit``, ``score``, ``evaluate`` and ``monitor``: make a run, and use it."""

import json as json_module
import sys
import warnings
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
    one_character,
    point_or_comma,
    progress,
    text_table,
    writable,
    writing,
)

#: Settings of the detector that are lists, of one entry too.
LISTS = ("hidden", "members")


def fit(
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="The rows.", show_default=False)] = None,
    config: Annotated[
        Path | None, typer.Option(help="Start from the settings of an earlier run; other options replace them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Write the run into this folder, by default runs/NAME.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier run; all others stay.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed everything random, by default by 0: same seed, same weights.")
    ] = None,
    outliers: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read known outliers from FILE, laid out like DATA.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=VALUE]",
            help="Find known outliers by a column (name, number from 1, npz array) that marks them by 1 or VALUE.",
        ),
    ] = None,
    checked: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Take the label of rows that this column marks for the truth."),
    ] = None,
    review: Annotated[
        list[str] | None,
        typer.Option(metavar="SHEET", help="Learn from verdicts in a sheet of fvnce score --review; repeatable."),
    ] = None,
    mostly_outliers: Annotated[
        bool, typer.Option("--mostly-outliers", help="Allow the label to mark more than half of the rows.")
    ] = False,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Leave out a column; repeatable.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Use a column though it seems to name rows; repeatable."),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Copy the column that names rows into the scores.")
    ] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    categorical: Categorical = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read columns as FILE says, which fvnce data DATA --schema FILE wrote."),
    ] = None,
    array: Array = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set any other parameter of the detector, as n_trees=50; repeatable."
        ),
    ] = None,
    contamination: Annotated[
        float | None, typer.Option(help="Put the threshold below this share of training rows.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """DATA is csv or tsv (any delimiter, header or not, missing values and text columns), parquet, npy, npz,
    a folder of PNG images, or - for standard input. Rows that would take more than 2G of memory are refused before
    any of it is taken; the environment variable FVNCE_MAX_MEMORY, such as FVNCE_MAX_MEMORY=16G, allows more.

    Amounts of money, percentages, yes and no, dates and times are read as such. Columns that name rows (identifiers,
    row counters, account numbers) are left out unless --keep names them; --id copies one into the scores.

    --checked COLUMN names rows that somebody looked at: without an outlier's label they are known inliers. --review
    adds the verdicts of sheets to the labels; with --config of a run to those of its sheets too, and says what changed.

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
            raise typer.BadParameter("give --out: a config repeats a run, and its folder must be a new one")
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
    """Return the settings of the config, or else the defaults, replaced by the options of the command line."""
    from dataclasses import fields, replace

    from ..runs.settings import DataSettings, RunSettings, read_config

    base = RunSettings(DataSettings("")) if config is None else read_config(config)
    # --no-header is given as False; other options that are False or empty were not given.
    names = [f.name for f in fields(DataSettings) if given.get(f.name) or (f.name == "header" and "header" in given)]
    source: dict[str, Any] = {n: tuple(given[n]) if isinstance(given[n], list) else given[n] for n in names}
    if "data" in given:
        source |= {"path": _absolute(given["data"]), "sha256": None}
    if "review" in given:  # sheets accumulate
        source["review"] = tuple(dict.fromkeys([*base.data.review, *map(_absolute, given["review"])]))
    if "outliers" in given:
        source["outliers"] = _absolute(given["outliers"])
    if "schema" in given:
        source["schema"] = _absolute(given["schema"])
    point_or_comma(given.get("decimal"))
    source |= {"delimiter": one_character(given["delimiter"])} if "delimiter" in given else {}
    detector = {"contamination": given["contamination"]} if "contamination" in given else {}
    detector |= dict(_pair(text) for text in given.get("settings", []))
    seed, data = given.get("seed", base.seed), replace(base.data, **source)
    return replace(base, seed=seed, data=data, detector={**base.detector, **detector})


def _absolute(path: str) -> str:
    return path if path == "-" else str(Path(path).absolute())


def _pair(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE: the value is a number, true, false, a word, or a list of these with commas.

    >>> _pair("alpha=0.5"), _pair("hidden=32"), _pair("members=auto")
    (('alpha', 0.5), ('hidden', [32]), ('members', 'auto'))
    """
    name, _, value = text.partition("=")
    if not name or not value:
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
    out: Annotated[str, typer.Option(metavar="FILE", help="Write to FILE; - for standard output.")] = "-",
    top: Annotated[int | None, typer.Option(min=1, help="Output only this many of the highest-scoring rows.")] = None,
    alarms: Annotated[int | None, typer.Option(min=1, metavar="N", help="Flag the N highest-scoring rows.")] = None,
    fdr: Annotated[
        float | None, typer.Option(metavar="Q", help="Flag rows such that a fraction Q of alarms is false at most.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(metavar="T", help="Flag rows that score above T.")] = None,
    review: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Write a sheet of N rows for a person's verdicts instead.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Give up to three reasons for each score, in words.")
    ] = False,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Name rows by this column; by default that of the run.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if DATA is unlike the training rows.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object a line instead of csv.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if a row is above the threshold.")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Rows are numbered from 1; images go by the names of their files. Higher scores are more anomalous; outlier is 1
    above the threshold of the run. p_value is the share of normal rows that score at least as high: about 1 % of
    normal rows have p < 0.01. For a run with known outliers, like_known and novelty are its two scores, and kind is
    "known" for rows like these outliers and "novel" for other outliers. DATA may be larger than memory, and - reads csv
    or npy from standard input.

    An empty column, texts that training did not have, numbers far from those of training, rows with few values, and a
    share of outliers, of missing values or scores far from those of training cause warnings at the end; with --json
    they are in a last line, whose only entry is "summary", and with --strict they are an error.

    One of --alarms, --fdr and --threshold replaces the threshold of the run, also for --check. The first two compare
    all rows, so they read DATA twice, and it must be a file. --fdr holds on average over training sets and rows, and
    where outliers are known it leaves training rows that surely are like them out of its comparison; if no row is
    flagged, a warning says why.

    --review N writes the N highest-scoring rows that nobody has reviewed, with reasons, all their columns and an empty
    column verdict: fill in yes or no (1 or 0, outlier or inlier) where you know, and pass the file to fvnce fit
    --review. Its key, a hash of a row's values in the columns of the model, is what the row is recognized by later.

    In csv, a name that a spreadsheet would compute (one that begins with =, +, - or @) has ' before it, and control
    characters are shown as \\x1b; --json writes names as they are.

    Examples:

    fvnce score run new.csv --out scores.csv --explain

    fvnce score run huge.npy --top 20 --json

    fvnce score run new.csv --alarms 50 --out scores.csv

    fvnce score run new.csv --review 20 --out sheet.csv

    cat new.csv | fvnce score run - --check > scores.csv || echo outliers found
    """
    from contextlib import closing, nullcontext

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
    settings = like_training(
        fitted.config.data, delimiter=delimiter, header=header, missing=missing, decimal=decimal, array=array
    )
    say = make_echo(quiet)
    if review is not None:
        from ..runs.review import write_sheet

        others = {"--top": top, "--alarms": alarms, "--fdr": fdr, "--threshold": threshold, "--json": json}
        if wrong := [name for name, value in {**others, "--check": check, "--strict": strict}.items() if value]:
            raise typer.BadParameter(f"--review writes a sheet of its own, found {wrong[0]} as well; leave it out")
        if out != "-" and Path(out).exists():
            raise typer.BadParameter(f"--out must name a new file, for {out!r} may hold verdicts; choose another name")
        if out != "-":
            writable(out, "--out", [data])
        with nullcontext(sys.stdout) if out == "-" else writing(Path(out)) as file:
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
        if out != "-":
            writable(out, "--out", [data, *run.iterdir()])
        label = label_column(source, fitted)
        if label is not None:
            say(
                f"{label!r} of {data} holds labels, which are ignored; fvnce evaluate {run} {data} measures how well "
                "they are found"
            )
        name = add_id(source, id or fitted.config.data.id, say, asked=id is not None)
        with (
            progress("scoring", quiet) as tick,
            nullcontext(sys.stdout) if out == "-" else writing(Path(out)) as file,
        ):
            summary = stream_scores(
                fitted,
                source,
                file,
                top=top,
                explain=explain,
                as_json=json,
                id=name,
                strict=strict,
                tick=tick,
                budget=budget,
            )
    say_how(source, say, {label, name})
    for warning in summary.warnings:
        say(f"warning: {warning}")
    where = "" if out == "-" else f", written to {out}"
    count = f"; {len(summary.warnings)} warnings above" if summary.warnings else ""
    above = f"{summary.outliers:,} flagged"
    novel = f", {summary.novel:,} of them unlike all others" if summary.novel else ""
    if not twice:
        limit = fitted.threshold if threshold is None else threshold
        above = f"{summary.outliers - summary.novel:,} above the threshold {limit:.4g}"
        novel = f" and {summary.novel:,} unlike all others" if summary.novel else ""
    say(f"{summary.rows:,} rows, {above}{novel}{where}{count}")
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
            help="Find outliers by a column that marks them by 1 or VALUE; by default that of the run.",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, help="Inspect the k highest-scoring rows; by default as many as there are outliers."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw scores and both curves into a png, pdf or svg file."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Prints AUROC, average precision, and precision and recall of the flagged rows and among the k
    highest-scoring rows, each with a 95 % interval that holds for few outliers too. LABELLED should hold rows that the
    run was not trained on: on training rows, a model looks better than it is. Unlabelled rows count as no outliers.

    Examples:

    fvnce evaluate run labelled.csv

    fvnce evaluate run labelled.csv --label fraud=yes --k 50 --plot found.png

    fvnce evaluate run labelled.npz --label y --json
    """
    if plot is not None:
        if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise typer.BadParameter(f"--plot must name a png, pdf or svg file, found {str(plot)!r}")
        writable(str(plot), "--plot", [labelled])
    from ..runs import load_run
    from ..runs.evaluation import evaluate as measure
    from ..runs.evaluation import read_labelled
    from ..runs.settings import fingerprint

    fitted, say = load_run(run), make_echo(quiet)
    data = fitted.config.data
    with progress("scoring", quiet) as tick:
        settings = like_training(
            data, delimiter=delimiter, header=header, missing=missing, decimal=decimal, array=array
        )
        scores, flags, outlier = read_labelled(fitted, labelled, label, settings, say, tick)
    evaluation = measure(scores, flags, outlier, fitted.threshold, k, fitted.config.seed)
    if data.sha256 is not None and fingerprint(labelled) == data.sha256:
        say(f"{run} was trained on {labelled}: on training rows, a model looks better than it is")
    typer.echo(json_module.dumps(evaluation.content()) if json else text_table(*evaluation.table()))
    if plot is not None:
        typer.echo(evaluation.plot(plot), err=json)


def monitor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that fvnce fit wrote.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="The rows, laid out as in training; - for standard input.")
    ],
    alpha: Annotated[float, typer.Option(help="Allow this probability of an alarm if nothing has changed.")] = 0.01,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON to FILE.")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures to FILE.")] = None,
    delimiter: Delimiter = None,
    header: Header = None,
    missing: Missing = None,
    decimal: Decimal = None,
    array: Array = None,
    quiet: Quiet = False,
) -> None:
    """Compares each column and the scores with those of training: the share of missing values, texts never seen, the
    distribution, the share flagged with a 95 % interval, and whether p-values are still valid. p-values account for
    the number of tests, so rows of the same source cause an alarm with probability alpha at most, for each file. Exit
    codes for a scheduler: 0 no change found, 3 changed, 1 and 2 errors. DATA may be larger than memory.

    Examples:

    fvnce monitor run today.csv --page today.html || mail -s changed me@example.com < today.html

    fvnce monitor run today.csv --alpha 0.001 --out today.json --quiet
    """
    from contextlib import closing

    from ..escaping import line_json, visible
    from ..runs import load_run
    from ..runs.training_data import check_finite_part, read_like

    for path, option in ((out, "--out"), (page, "--page")):
        if path is not None:
            writable(str(path), option, [data, *(run.iterdir() if run.is_dir() else ())])
    fitted, say = load_run(run), make_echo(quiet)
    settings = like_training(
        fitted.config.data, delimiter=delimiter, header=header, missing=missing, decimal=decimal, array=array
    )
    watch, rows = fitted.detector.new_watch(), 0
    with closing(read_like(fitted.layout, data, settings)) as source, progress("scoring", quiet) as tick:
        for part in source.parts():
            check_finite_part(part.rows, source.name, part.start)
            fitted.detector.watch(watch, fitted.layout.prepare(part.rows))
            rows += len(part.rows)
            if tick is not None:
                tick(rows, part.done)
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
