"""Realistic messy files with known content: how many are read correctly at first, and which outliers are found.

    python -m experiments.messy_tables

Each file is written from columns whose values are known, with some rows planted that differ from the others in one or
two columns. Nothing is said about a file: no option, no schema. Counted are

    files     read right: not refused, and every column as it was meant, gaps included
    columns   read right: of the kind that was meant, with the values that were meant, to the bit; identifiers left out
    rows      planted rows found: AUROC of the scores, and how many of the planted and of the other rows are flagged

A file that is refused is read a second time with the options that the refusal names; it counts as read right, but not
at the first attempt. The result is results/bench/messy_tables.json.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fvnce import NoiseContrastiveDetector, __version__
from fvnce.app.runs.settings import DataSettings
from fvnce.app.runs.training_data import read_training_data
from fvnce.tables import ColumnType, Frame
from fvnce.tables.errors import TableError

ROWS, PLANTED = 400, 20
RESULT = Path("results/bench/messy_tables.json")


@dataclass(frozen=True)
class Column:
    """Texts of a column, what they mean, and the kind that they are; an "id" must be left out."""

    texts: Sequence[str]
    kind: str
    truth: Any = None


@dataclass(frozen=True)
class Messy:
    """A file: its columns, how it is written, and which rows are planted."""

    name: str
    columns: dict[str, Column]
    planted: NDArray[np.bool_]
    delimiter: str = ","
    encoding: str = "utf-8"
    before: str = ""  # lines before the header
    newline: str = "\n"
    suffix: str = ".csv"

    def content(self) -> bytes:
        """Return the bytes of the file."""
        lines = [list(self.columns), *zip(*(column.texts for column in self.columns.values()), strict=True)]
        quoted = ([f'"{text}"' if self.delimiter in text else text for text in line] for line in lines)
        return (self.before + "".join(self.delimiter.join(line) + self.newline for line in quoted)).encode(
            self.encoding
        )


Texts = Callable[[float], str]


def number(values: Any, text: Texts = str, gap: str = "", gaps: Any = None) -> Column:
    """Return a column of numbers, each written by ``text``, with a gap in some rows; the truth is what was written."""
    gone = np.zeros(len(values), bool) if gaps is None else gaps
    return Column(
        [gap if g else text(v) for v, g in zip(values, gone, strict=True)],
        "number",
        np.where(gone, np.nan, np.asarray(values, float)),
    )


def dates(moments: NDArray[Any], form: str) -> Column:
    """Return a column of dates in a form of strftime."""
    return Column([moment.strftime(form) for moment in moments.tolist()], "time", moments.astype("datetime64[us]"))


def texts(values: Sequence[str]) -> Column:
    """Return a column of words, which are missing where they are empty."""
    return Column(list(values), "text", np.array([value or None for value in values], dtype=object))


def truths(values: Any, yes: str, no: str) -> Column:
    """Return a column of yes and no, in these words."""
    return Column([yes if value else no for value in values], "truth", np.asarray(values, float))


def moments(rng: Generator, n: int) -> NDArray[Any]:
    """Seconds of two years, by office hours."""
    days = np.datetime64("2023-01-02") + rng.integers(0, 700, n)
    return (days + np.timedelta64(9, "h")).astype("datetime64[s]") + rng.integers(0, 8 * 3600, n)


def clocks(pairs: NDArray[Any], form: str) -> Column:
    """Return a column of hours and minutes."""
    hours = pairs[:, 0] + pairs[:, 1] / 60
    return Column([form.format(hour, minute) for hour, minute in pairs.tolist()], "clock", hours)


def comma(digits: int) -> Texts:
    """Return how numbers with a decimal comma are written."""
    return lambda v: f"{v:.{digits}f}".replace(".", ",")


def some(rng: Generator, n: int, share: float) -> NDArray[np.bool_]:
    """Return which of n rows are chosen, a share of them on average."""
    return np.asarray(rng.random(n) < share)


def transactions(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """American money in quotes, yes and no, dates with AM and PM."""
    amount = np.where(odd, rng.normal(78_000, 4_000, n), rng.normal(1_500, 300, n)).round(2)
    return Messy("transactions", {
        "transaction_id": Column([f"T{i:06d}" for i in rng.permutation(n)], "id"),
        "account": Column([str(v) for v in rng.integers(10**9, 10**10, n)], "id"),
        "when": dates(moments(rng, n), "%m/%d/%Y %I:%M:%S %p"),
        "amount": number(amount, lambda v: f"${v:,.2f}"),
        "fee": number(rng.uniform(0, 5, n).round(1), lambda v: f"{v:.1f}", "", some(rng, n, 0.1)),
        "member": truths(rng.random(n) < 0.5, "Y", "N"),
        "currency": texts(rng.choice(["USD", "CAD"], n).tolist()),
    }, odd)  # fmt: skip


def hospital(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Decimal commas, German dates, one word for what is unknown."""
    heart = np.where(odd, 190, rng.normal(75, 9, n)).round()
    return Messy("hospital", {
        "patient_id": Column([str(v) for v in 40_000 + rng.permutation(10 * n)[:n]], "id"),
        "admitted": dates(moments(rng, n), "%d.%m.%Y %H:%M:%S"),
        "temperature": number(rng.normal(37, 0.4, n).round(1), comma(1)),
        "heart rate": number(heart, lambda v: f"{v:.0f}", "unbekannt", some(rng, n, 0.3) & ~odd),
        "crp": number(rng.gamma(2, 4, n).round(2), comma(2), "-", some(rng, n, 0.55)),
        "ward": texts(rng.choice(["Chirurgie", "Innere", "Geriatrie"], n).tolist()),
    }, odd, delimiter=";")  # fmt: skip


def logs(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """The dates of a web server, addresses, and a dash for no bytes."""
    return Messy("logs", {
        "time": dates(moments(rng, n), "%d/%b/%Y:%H:%M:%S +0100"),
        "address": texts([f"10.0.{i}.{j}" for i, j in rng.integers(0, 5, (n, 2))]),
        "status": number(np.where(odd, 500, 200), lambda v: f"{v:.0f}"),
        "bytes": number(rng.integers(900, 9_000, n), lambda v: f"{v:.0f}", "-", some(rng, n, 0.4)),
        "ms": number(np.where(odd, 900.125, rng.gamma(3, 9, n).round(3)), lambda v: f"{v:.3f}"),
    }, odd, delimiter="|", suffix=".log")  # fmt: skip


def sensors(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Whole numbers first and decimals later, a dead channel, one that fails, one that never was."""
    pressure = rng.normal(50, 3, n).round()
    pressure[-9:] = 50.125
    load = np.where(odd, 9.75, rng.normal(2, 0.25, n)).round(2)
    return Messy("sensors", {
        "time": dates(moments(rng, n), "%Y-%m-%dT%H:%M:%SZ"),
        "pressure": number(pressure, lambda v: f"{v:g}"),
        "load": number(load, lambda v: f"{v:.2f}"),
        "dead": number(np.zeros(n), lambda v: "0"),
        "failing": number(rng.normal(20, 2, n).round(1), lambda v: f"{v:.1f}", "ERR", some(rng, n, 0.8)),
        "absent": number(np.zeros(n), str, "", np.ones(n, bool)),
    }, odd, delimiter="\t", suffix=".tsv")  # fmt: skip


def survey(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Answers from 1 to 5 with refusals, bands of age, and words of all kinds."""
    return Messy("survey", {
        "respondent": Column([str(uuid.UUID(int=int(v))) for v in rng.integers(0, 2**62, n)], "id"),
        "satisfaction": number(rng.integers(1, 6, n), lambda v: f"{v:.0f}", "refused", some(rng, n, 0.2)),
        "hours": number(np.where(odd, 95, rng.normal(38, 4, n)).round(1), lambda v: f"{v:.1f}"),
        "age": texts(rng.choice(["18-24", "25-34", "35-49", "50+"], n).tolist()),
        "owner": truths(rng.random(n) < 0.4, "yes", "no"),
        "comment": texts(rng.choice(["good, really", "", "bad; never again", 'so "so"'], n).tolist()),
    }, odd, delimiter="\t", suffix=".txt")  # fmt: skip


def laboratory(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Values below and above the limits of an instrument, and one word for not determined."""
    lead = np.where(odd, 40.0, rng.gamma(1.5, 1, n)).round(2)
    limited = np.clip(lead, 0.5, 30.0)
    return Messy("laboratory", {
        "sample": Column([f"L-{v:05d}" for v in rng.permutation(10 * n)[:n]], "id"),
        "drawn": dates(moments(rng, n).astype("datetime64[D]").astype("datetime64[s]"), "%Y-%m-%d"),
        "lead": Column([f"<{0.5}" if v <= 0.5 else ">30" if v > 30 else f"{v:.2f}" for v in lead], "number", limited),
        "zinc": number(rng.normal(12, 2, n).round(1), lambda v: f"{v:.1f}", "n.d.", some(rng, n, 0.12)),
        "ph": number(np.where(odd, 4.2, rng.normal(7.4, 0.05, n)).round(2), lambda v: f"{v:.2f}"),
    }, odd)  # fmt: skip


def german(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Euros with points between thousands, of which one column has nothing else, and shares with commas."""

    def plain(v: float) -> str:
        return f"{v:,.2f}".translate(str.maketrans(",.", ".,"))

    shares = rng.uniform(0, 50, n).round(1)
    return Messy("german", {
        "Betrag": number(np.where(odd, 64_000, rng.normal(2_000, 300, n)).round(2), lambda v: f"{plain(v)} €"),
        "Menge": number(rng.integers(1_000, 9_999, n), lambda v: f"{v:,}".replace(",", ".")),
        "Anteil": Column([f"{comma(1)(v)} %" for v in shares], "number", shares / 100),
        "Tag": dates(moments(rng, n).astype("datetime64[D]").astype("datetime64[s]"), "%d.%m.%y"),
        "Ort": texts(rng.choice(["Köln", "Düsseldorf", "Bonn"], n).tolist()),
    }, odd, delimiter=";", encoding="utf-8-sig", newline="\r\n")  # fmt: skip


def swiss(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Francs with apostrophes, and numbers with three decimals next to others that show the point."""
    balance = np.where(odd, -45_000, rng.normal(3_000, 500, n)).round(2)
    return Messy("swiss", {
        "Saldo": number(balance, lambda v: f"CHF {v:,.2f}".replace(",", "'")),
        "Kurs": number(rng.uniform(1, 2, n).round(3), lambda v: f"{v:.3f}"),
        "Stück": number(rng.integers(1_000, 5_000, n), lambda v: f"{v:,}".replace(",", "’")),
        "Zeit": clocks(np.column_stack([rng.integers(8, 18, n), 15 * rng.integers(0, 4, n)]), "{:02d}:{:02d}"),
    }, odd, delimiter=";")  # fmt: skip


def excel_text(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Unicode text of Excel: UTF-16 with tabs, errors of formulas, amounts owed in brackets."""
    balance = np.where(odd, -9_000, rng.normal(500, 80, n)).round(2)
    return Messy("excel text", {
        "Region": texts(rng.choice(["Nord", "Süd"], n).tolist()),
        "Balance": number(balance, lambda v: f"({-v:,.2f})" if v < 0 else f"{v:,.2f}"),
        "Ratio": number(rng.normal(1, 0.1, n).round(3), lambda v: f"{v:.3f}", "#DIV/0!", some(rng, n, 0.15)),
        "Active": truths(rng.random(n) < 0.7, "TRUE", "FALSE"),
        "Date": dates(moments(rng, n).astype("datetime64[D]").astype("datetime64[s]"), "%m/%d/%y"),
    }, odd, delimiter="\t", encoding="utf-16", newline="\r\n", suffix=".txt")  # fmt: skip


def excel_csv(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """A csv of Excel with its own first line, a mark of byte order, and #N/A."""
    values, gaps = np.where(odd, 88.5, rng.normal(10, 1, n)).round(2), some(rng, n, 0.1) & ~odd
    return Messy("excel csv", {
        "Zone": texts(rng.choice(["A", "B", "C"], n).tolist()),
        "Wert": number(values, comma(2), "#N/A", gaps),
        "Stunden": clocks(rng.integers(1, 60, (n, 2)), "{}:{:02d}:00"),
    }, odd, delimiter=";", encoding="utf-8-sig", before="sep=;\r\n", newline="\r\n")  # fmt: skip


def identifiers(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Everything that names rows, around two columns that describe them."""
    numbers, phones = rng.permutation(n), rng.permutation(10**6)[:n]
    return Messy("identifiers", {
        "row": Column([str(i + 1) for i in range(n)], "id"),
        "customerID": Column([f"{v:08d}" for v in rng.permutation(100 * n)[:n]], "id"),
        "uuid": Column([str(uuid.UUID(int=int(v))) for v in rng.integers(0, 2**62, n)], "id"),
        "hash": Column([f"{v:012x}" for v in rng.integers(2**44, 2**48, n)], "id"),
        "iban": Column([f"DE{v}" for v in rng.integers(10**15, 10**16, n)], "id"),
        "order no": Column([f"A-{v:05d}" if v % 9 else str(v) for v in numbers], "id"),
        "phone": Column([f"+41 79 {v // 1000:03d} {v % 1000 // 10:02d} {v % 10}0" for v in phones], "id"),
        "weight": number(np.where(odd, 19.5, rng.normal(5, 0.5, n)).round(2), lambda v: f"{v:.2f}"),
        "grade": texts(rng.choice(["1a", "2b", "x"], n).tolist()),
    }, odd)  # fmt: skip


def calendar(rng: Generator, n: int, odd: NDArray[np.bool_]) -> Messy:
    """Return a table with dates in every format."""
    at = moments(rng, n)
    days = at.astype("datetime64[D]").astype("datetime64[s]")
    return Messy("calendar", {
        "iso": dates(at, "%Y-%m-%d %H:%M:%S"),
        "american": dates(days, "%m/%d/%Y"),
        "british": dates(days, "%d/%m/%Y"),
        "named": dates(days, "%d-%b-%Y"),
        "long": dates(days, "%B %d, %Y"),
        "mail": dates(at, "%a, %d %b %Y %H:%M:%S GMT"),
        "compact": dates(days, "%Y%m%d"),
        "stroked": dates(at, "%Y/%m/%d %H:%M:%S"),
        "size": number(np.where(odd, 31.5, rng.normal(9, 1, n)).round(1), lambda v: f"{v:.1f}"),
    }, odd, delimiter=";")  # fmt: skip


CASES = (
    transactions, hospital, logs, sensors, survey, laboratory, german, swiss, excel_text, excel_csv, identifiers,
    calendar,
)  # fmt: skip


def made(seed: int = 0, rows: int = ROWS) -> list[Messy]:
    """Make all files, the planted rows at random places."""
    files = []
    for i, case in enumerate(CASES):
        rng = np.random.default_rng([seed, i])
        odd = np.zeros(rows, bool)
        odd[rng.choice(rows, PLANTED, replace=False)] = True
        files.append(case(rng, rows, odd))
    return files


def right(frame: Frame, name: str, column: Column) -> bool:
    """Return whether a column was read as it was meant."""
    if column.kind == "id":
        return name not in frame
    if name not in frame or frame.types.get(name, ColumnType()).kind != column.kind:
        return False
    if column.truth is None:
        return not np.isnan(frame[name]).any()
    equal = frame[name] == column.truth
    if column.kind != "text":
        equal |= (frame[name] != frame[name]) & (column.truth != column.truth)
    return bool(equal.all())


def pasted(options: str) -> dict[str, Any]:
    """Return options of the command line as settings.

    >>> pasted("--missing ERR --decimal .")
    {'missing': ('ERR',), 'categorical': (), 'decimal': '.'}
    """
    words = shlex.split(options)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    several = {name: tuple(value for key, value in pairs if key == f"--{name}") for name in ("missing", "categorical")}
    return {**several, "decimal": dict(pairs).get("--decimal")}


def tried(file: Messy, folder: Path, **settings: Any) -> dict[str, Any]:
    """Write a file, read it without a word about it, and look for the planted rows."""
    path = folder / f"{file.name.replace(' ', '_')}{file.suffix}"
    path.write_bytes(file.content())
    said: list[str] = []
    result: dict[str, Any] = {"file": file.name, "columns": len(file.columns), "attempts": 1}
    data = DataSettings(str(path))
    try:
        rows = read_training_data(data, said.append).rows
    except TableError as error:
        result |= {"attempts": 2, "refused": str(error).removeprefix(f"{folder}/"), "options": error.paste}
        rows = read_training_data(replace(data, **pasted(error.paste)), said.append).rows
    assert isinstance(rows, Frame)
    wrong = [name for name, column in file.columns.items() if not right(rows, name, column)]
    detector = NoiseContrastiveDetector(**settings).fit(rows)
    scores, flagged = detector.anomaly_score(rows), detector.predict(rows) == -1
    return {
        **result,
        "right": len(file.columns) - len(wrong),
        "wrong": wrong,
        "notices": len(said),
        "auroc": round(float(roc_auc_score(file.planted, scores)), 4),
        "planted_flagged": int(flagged[file.planted].sum()),
        "others_flagged": int(flagged[~file.planted].sum()),
    }


def counted(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all files."""
    return {
        "files": len(results),
        "files_right_at_first_attempt": sum(not r["wrong"] and r["attempts"] == 1 for r in results),
        "files_right": sum(not result["wrong"] for result in results),
        "columns": sum(result["columns"] for result in results),
        "columns_right": sum(result["right"] for result in results),
        "least_auroc": min(result["auroc"] for result in results),
        "planted": PLANTED * len(results),
        "planted_flagged": sum(result["planted_flagged"] for result in results),
        "others_flagged": sum(result["others_flagged"] for result in results),
    }


def main(seed: int = 0) -> None:
    """Try all files, and write results/bench/messy_tables.json."""
    with tempfile.TemporaryDirectory() as folder:
        results = [tried(file, Path(folder)) for file in made(seed)]
    for result in results:
        typer.echo(json.dumps(result, ensure_ascii=False))
    settings = {"rows": ROWS, "planted": PLANTED, "seed": seed, "fvnce": __version__}
    content = {"settings": settings, "sums": counted(results), "files": results}
    RESULT.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    typer.echo(json.dumps(content["sums"]))


if __name__ == "__main__":
    typer.run(main)
