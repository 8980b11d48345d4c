"""Commands by name and summary, each imported when it is called: the help of the program needs no more."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

#: The first sentence of each command's help, in the order in which they are listed.
SUMMARIES = {
    "fit": "Train on DATA and write a run folder: the model, config.toml, history, figures and report.html.",
    "score": "Score the rows of DATA with a run: csv (or JSON lines) of row, score, probability, p_value and outlier.",
    "evaluate": "Tell how well a run finds the outliers that the labels of LABELLED mark.",
    "report": "Draw report.html and figures of a run anew from its files, and print the page's path.",
    "rules": "List the scoring rules, or check one for the double-ELBO property.",
    "data": "Fetch a data set (mnist) and print its folder; or tell how a file will be read; or list the data sets.",
    "reproduce": "Reproduce the paper: the items named, or all and a page, report.html.",
}


class DeferredGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List names and summaries without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


class _Commands(dict[str, Any]):
    """From a name to its command, made when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(SUMMARIES))

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            alone = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
            import_module(f".{name}", __package__).register(alone)
            self[name] = typer.main.get_command(alone)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The command, or the default for a name that is none."""
        try:
            return self[name]
        except KeyError:
            return default
