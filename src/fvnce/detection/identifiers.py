"""Columns that name rows instead of describing them: identifiers, row counters, account numbers.

Every row to come has a new one, so that it would be strange for its name alone.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows below which nothing can be told.
ENOUGH = 20
#: Digits of an account number, all of the same length.
DIGITS = 9
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ALONE = frozenset({"account", "index", "idx", "key", "no", "nr", "row", "rownum", "serial"})
_LAST = frozenset({"id", "ids", "uuid", "guid", "iban", "ssn", "rowid"})
_NUMBER = frozenset({"number", "no", "nr", "num", "code"})
_THINGS = frozenset(
    {"account", "card", "customer", "invoice", "order", "patient", "policy", "row", "serial", "transaction"}
)


def identifier_in(name: Any, values: NDArray[Any]) -> str | None:
    """What makes a column one that names rows, in words, or None.

    >>> identifier_in("n", np.arange(40)), identifier_in("patient_id", np.arange(100) // 2)
    ('counts rows', 'names rows: its name says so, and it holds 50 different values in 100 rows')
    >>> identifier_in("age", np.arange(100) // 2) is None
    True
    """
    if len(values) < ENOUGH or values.dtype.kind not in "iufO":
        return None
    if values.dtype.kind == "O":
        there: Any = [value for value in values.tolist() if value is not None]
        different = len(set(there)) if all(isinstance(value, str) for value in there) else len(set(map(str, there)))
    else:
        there = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        if not (np.isfinite(there).all() and (there == np.floor(there)).all()):
            return None
        different = len(np.unique(there))
    count = len(there)
    if count < ENOUGH:
        return None
    told = f"{different:,} different values in {count:,} rows"
    if _says_so(name) and different > max(ENOUGH, count // 20):
        return f"names rows: its name says so, and it holds {told}"
    if values.dtype.kind == "O":
        return f"names rows: it holds {told}" if different > max(50, count // 2) else None
    if different == count and float(there.max()) - float(there.min()) == count - 1:
        return "counts rows"
    low, high = float(there.min()), float(there.max())
    if different > 0.9 * count and low >= 10 ** (DIGITS - 1) and len(f"{low:.0f}") == len(f"{high:.0f}"):
        return f"looks like account numbers: {told}, all of {len(f'{low:.0f}')} digits"
    return None


def _says_so(name: Any) -> bool:
    """Whether a name says that a column holds names.

    >>> [_says_so(name) for name in ("patient_id", "customerID", "Account No", "account_balance", "paid")]
    [True, True, True, False, False]
    """
    words = [word for word in re.split(r"[^a-z]+", _CAMEL.sub(" ", str(name)).lower()) if word]
    if not words:
        return False
    alone = len(words) == 1 and words[0] in _ALONE
    return alone or words[-1] in _LAST or (words[-1] in _NUMBER and bool(_THINGS & set(words)))
