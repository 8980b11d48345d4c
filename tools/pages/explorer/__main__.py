"""Write the explorer's page: ``python -m tools.pages.explorer [RULE] [--out FILE]``."""

import argparse
from pathlib import Path

from fvnce.scoring import parse

from . import write_explorer

parser = argparse.ArgumentParser(description="Write a page that opens on a scoring rule.")
parser.add_argument("rule", nargs="?", default="power(0)")
parser.add_argument("--out", type=Path, default=Path("docs/assets/explorer.html"))
arguments = parser.parse_args()
print(write_explorer(arguments.out, parse(arguments.rule)))
