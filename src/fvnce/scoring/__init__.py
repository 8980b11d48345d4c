"""Proper scoring rules: pairs (f1, f0) as functions of Δ = log r, and their algebra.

======================  ===============================================================
``rule``                a rule, the cone of rules, normalisation
``power``               the paper's family (α, β)
``classical``           the logarithmic, quadratic, spherical and exponential rules
``categorical``         rules of more than two outcomes
``construct``           rules from a weight, a generator, or a pair of functions
``check``               the double-ELBO property, examined
``chords``              the same laws between points, where no derivative sees them
``text``                rules as text
======================  ===============================================================
"""

from ..serialization import Kind, add
from .categorical import CategoricalRule
from .check import DoubleElboReport, Law, check_double_elbo
from .classical import Exponential, Logarithmic, Quadratic, Spherical
from .construct import from_generator, from_pair, from_weight
from .power import PowerRule
from .rule import ScoringRule
from .text import parse

__all__ = [
    "CategoricalRule",
    "DoubleElboReport",
    "Exponential",
    "Law",
    "Logarithmic",
    "PowerRule",
    "Quadratic",
    "ScoringRule",
    "Spherical",
    "check_double_elbo",
    "from_generator",
    "from_pair",
    "from_weight",
    "parse",
]


def _written(rule: ScoringRule) -> dict[str, str]:
    try:
        return {"text": str(rule)}
    except ValueError as error:
        raise TypeError(f"must be a built-in rule or a sum of them to be saved: {error}") from None


# A file holds a rule as its text.
add(Kind("rule", ScoringRule, _written, parse, frozenset({"text"})), subclasses=True)
