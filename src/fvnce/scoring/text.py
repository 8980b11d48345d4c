"""Rules written as text, for the command line and for files: ``0.9*power(1/64)+0.1*power(0)``.

A text is a sum of rules with non-negative factors; a rule is ``power(alpha, beta, clip=…)`` with ``clip=none`` for the
exact one, ``logarithmic()``, ``quadratic()``, ``spherical()``, ``exponential(clip)`` or ``normalized(…)``; a number may
be a fraction. The text is read as a Python expression of these forms alone and is never evaluated.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ..io import Kind, add
from .classical import Exponential, Logarithmic, Quadratic, Spherical
from .power import PowerRule
from .rule import ScoringRule

_CONSTRUCTORS: dict[str, type[ScoringRule]] = {
    "power": PowerRule,
    "logarithmic": Logarithmic,
    "quadratic": Quadratic,
    "spherical": Spherical,
    "exponential": Exponential,
}
_FORM = 'write it like "power(1/64)" or "0.9*power(1/64)+0.1*power(0)"'
_LONGEST = 2000


def parse(text: str) -> ScoringRule:
    """Return the rule that a text describes; the inverse of ``str(rule)`` for built-in rules and their sums.

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
        return _rule(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"rule {text[:40]!r} cannot be read; {_FORM}") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"rule {text!r}: {error}") from None


def _rule(node: ast.expr) -> ScoringRule:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _rule(left) + _rule(right)
        case ast.BinOp(factor, ast.Mult(), ast.Call() | ast.BinOp(op=ast.Add()) as rule):
            weight: object = _number(factor)
            return weight * _rule(rule)
        case ast.Call(ast.Name("normalized" | "normalised"), [rule], []):  # files of 0.2 have the second
            return _rule(rule).normalized()
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CONSTRUCTORS:
            signature = inspect.signature(_CONSTRUCTORS[name])
            named = {str(keyword.arg): _number(keyword.value) for keyword in keywords}
            try:
                bound = signature.bind(*map(_number, arguments), **named)
            except TypeError as error:
                raise ValueError(f"{name} takes ({', '.join(signature.parameters)}): {error}") from None
            return _CONSTRUCTORS[name](*bound.args, **bound.kwargs)
        case ast.Call(ast.Name(name)):
            raise ValueError(f"unknown rule {name!r}; the rules are {', '.join([*_CONSTRUCTORS, 'normalized'])}")
    raise ValueError(f"{ast.unparse(node)!r} is not a rule; {_FORM}")


def _number(node: ast.expr) -> Any:
    match node:
        case ast.Name("none" | "None") | ast.Constant(None):
            return None
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand)
        case ast.BinOp(numerator, ast.Div(), denominator):
            return _number(numerator) / _number(denominator)
    raise ValueError(f"{ast.unparse(node)!r} is not a number")


def _as_text(rule: ScoringRule) -> dict[str, str]:
    try:
        return {"text": str(rule)}
    except ValueError as error:
        raise TypeError(f"must be a built-in rule or a sum of them to be saved: {error}") from None


# A file holds a rule as its text.
add(Kind("rule", ScoringRule, _as_text, parse, frozenset({"text"})), subclasses=True)
