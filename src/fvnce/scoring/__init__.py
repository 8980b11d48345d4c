"""Proper scoring rules: pairs (f1, f0) as functions of Δ = log r, and their algebra.

======================  ===============================================================
``rule``                a rule, the cone of rules, normalization
``named``               the paper's family (α, β), the classical rules, and rules as text
``construct``           rules from a weight, a generator, or a pair of functions
``check``               a numerical check of the double-ELBO property
======================  ===============================================================
"""

from .check import DoubleElboReport, Law, check_double_elbo
from .construct import CategoricalRule, from_pair, from_weight
from .named import Exponential, Logarithmic, PowerRule, Quadratic, Spherical, parse
from .rule import ScoringRule

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
    "from_pair",
    "from_weight",
    "parse",
]
