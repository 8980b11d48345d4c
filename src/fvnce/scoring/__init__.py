"""Proper scoring rules: pairs (f1, f0) as functions of Δ = log r, and their algebra.

======================  ===============================================================
``rule``                a rule, the cone of rules, normalization
``power``               the paper's family (α, β)
``classical``           the logarithmic, quadratic, spherical and exponential rules
``construct``           rules from a weight, a generator, or a pair of functions
``check``               a numerical check of the double-ELBO property
``text``                rules as text
======================  ===============================================================
"""

from .check import DoubleElboReport, Law, check_double_elbo
from .classical import Exponential, Logarithmic, Quadratic, Spherical
from .construct import CategoricalRule, from_generator, from_pair, from_weight
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
