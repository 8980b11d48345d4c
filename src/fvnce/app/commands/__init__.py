"""The command line. Everything heavy is imported by the command that needs it, so ``--help`` starts at once.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 ``score --check`` found outliers, 130 interrupted.
"""

from .main import app, main

__all__ = ["app", "main"]
