"""Rules written as text, for the command line and for run files: ``0.9*power(1/64)+0.1*power(0)``.

A sum of rules with non-negative factors; a rule is ``power(alpha, beta, clip=…)`` with ``clip=none`` for the exact
one, ``logarithmic()``, ``quadratic()``, ``spherical()``, ``exponential(clip)`` or ``normalised(…)``; a number may be a
fraction. The text is read as a Python expression of these forms alone and is never evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from .classical import Exponential, Logarithmic, Quadratic, Spherical
from .power import PowerRule
from .rule import ScoringRule

_CONSTRUCTORS: dict[str, tuple[Callable[..., ScoringRule], tuple[str, ...]]] = {
    "power": (PowerRule, ("alpha", "beta", "clip")),
    "logarithmic": (Logarithmic, ()),
    "quadratic": (Quadratic, ()),
    "spherical": (Spherical, ()),
    "exponential": (Exponential, ("clip",)),
}
_FORM = 'write it like "power(1/64)" or "0.9*power(1/64)+0.1*power(0)"'
_LONGEST = 2000


def parse(text: str) -> ScoringRule:
    """The rule that a text describes; the inverse of ``str(rule)`` for built-in rules and their sums.

    >>> parse("0.9*power(1/64) + 0.1*power(0, 1, clip=none)")
    0.9*PowerRule(alpha=0.015625, beta=0.0, clip=10.0) + 0.1*PowerRule(alpha=0.0, beta=1.0, clip=None)
    >>> parse("power(2)")
    Traceback (most recent call last):
    ValueError: rule 'power(2)': alpha must be a number in [0, 1], found 2.0
    """
    if not isinstance(text, str):
        raise TypeError(f"rule must be a string, found {type(text).__name__}; {_FORM}")
    if len(text) > _LONGEST:
        raise ValueError(f"rule must be at most {_LONGEST} characters long, found {len(text)}; {_FORM}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"rule {text!r} cannot be read; {_FORM}") from None
    try:
        return _rule(tree)
    except (ValueError, TypeError) as error:
        raise ValueError(f"rule {text!r}: {error}") from None
    except RecursionError:
        raise ValueError(f"rule {text[:40]!r}… cannot be read; {_FORM}") from None


def _rule(node: ast.expr) -> ScoringRule:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _rule(left) + _rule(right)
        case ast.BinOp(factor, ast.Mult(), ast.Call() | ast.BinOp(op=ast.Add()) as rule):
            return _number(factor) * _rule(rule)
        case ast.Call(ast.Name("normalised"), [rule], []):
            return _rule(rule).normalised()
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CONSTRUCTORS:
            return _call(name, arguments, keywords)
        case ast.Call(ast.Name(name)):
            raise ValueError(f"unknown rule {name!r}; the rules are {', '.join([*_CONSTRUCTORS, 'normalised'])}")
    raise ValueError(f"{ast.unparse(node)!r} is not a rule; {_FORM}")


def _call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> ScoringRule:
    constructor, names = _CONSTRUCTORS[name]
    if len(arguments) > len(names):
        raise ValueError(f"{name} takes at most {len(names)} arguments, found {len(arguments)}")
    given: dict[str, Any] = dict(zip(names, map(_number_or_none, arguments), strict=False))
    for keyword in keywords:
        if keyword.arg not in names or keyword.arg in given:
            raise ValueError(f"{name} has no free argument {keyword.arg!r}; it takes ({', '.join(names)})")
        given[keyword.arg] = _number_or_none(keyword.value)
    return constructor(**given)


def _number_or_none(node: ast.expr) -> float | None:
    match node:
        case ast.Name("none" | "None") | ast.Constant(None):
            return None
    return _number(node)


def _number(node: ast.expr) -> float:
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:  # an integer of hundreds of digits
                return math.inf
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand)
        case ast.BinOp(numerator, ast.Div(), denominator):
            divisor = _number(denominator)
            if divisor == 0:
                raise ValueError(f"{ast.unparse(node)!r} divides by zero")
            return _number(numerator) / divisor
    raise ValueError(f"{ast.unparse(node)!r} is not a number")
