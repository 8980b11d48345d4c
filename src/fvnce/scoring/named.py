r"""Named scoring rules: the paper's family (α, β), the classical symmetric rules, and their text form.

The paper's family of double-ELBO rules, with its corrected f0: with r = e^Δ, for 0 ≤ α ≤ 1 and β ≥ 0,

    f1 = ((r+β)^α − 1)/α,      f0 = β((r+β)^α − 1)/α − ((r+β)^(1+α) − β)/(1+α),

whose constants are chosen so that α → 0 has a limit, log(r+β) and β log(r+β) − r. The derivatives are

    df1/dΔ = r (r+β)^(α−1),    df0/dΔ = −r² (r+β)^(α−1).

(0,0) is the rule of the variational autoencoder and (1,0) least squares; β = 0 is the density power divergence with
base measure p_n.

The classical rules are proper and f1 is concave in r, but f0 is not. All but the exponential one are computed from
ℓ₊ = log σ(Δ) = log μ and ℓ₋ = log σ(−Δ) = log(1−μ), because 1 − μ would lose its tail to rounding.

A text, for the command line and for files, is a sum of rules with non-negative factors, such as
``0.9*power(1/64)+0.1*power(0)``; a rule is ``power(alpha, beta, clip=…)`` with ``clip=none`` for the exact one,
``logarithmic()``, ``quadratic()``, ``spherical()``, ``exponential(clip)`` or ``normalized(…)``; a number may be a
fraction. The text is parsed as a Python expression of these forms and is never evaluated.
"""

from __future__ import annotations

import ast
import inspect
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .. import _validation
from ..io import Kind, add
from .rule import ScoringRule, SmoothRule, number_text, with_slope

#: e^75 · 1e4 is within float32: with a clip up to this, every |Δ| ≤ 1e4 gives finite values and gradients.
MAX_CLIP = 75.0


@dataclass(frozen=True)
class PowerRule(SmoothRule):
    r"""Power scoring rule (α, β), the paper's double-ELBO family.

    Args:
        alpha: α in [0, 1]. 0 is maximum likelihood; larger values weight a data sample by r^α.
        beta: β ≥ 0. Above 0, data samples with r ≪ β have nearly no influence.
        clip: T of the paper's clipped exponential: f0 continues along its tangent above Δ = T/(1+α) and f1 above
            Δ = T/α, so that a large log-ratio does not overflow. Above T/(1+α) the pair is no longer compatible or
            concave, hence neither proper nor a bound; :func:`~fvnce.scoring.check_double_elbo` reports this Δ as
            ``valid_below``. ``None`` is the exact rule.

    >>> rule = PowerRule(alpha=0.0, beta=0.0)
    >>> delta = torch.tensor([-1.0, 0.0, 1.0])
    >>> rule.f1(delta), rule.f0(delta)  # log r and −r
    (tensor([-1.,  0.,  1.]), tensor([-0.3679, -1.0000, -2.7183]))
    >>> str(PowerRule(1 / 64))
    'power(1/64)'
    """

    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", _validation.number("alpha", self.alpha, low=0.0, high=1.0))
        object.__setattr__(self, "beta", _validation.number("beta", self.beta, low=0.0))
        if self.clip is not None:
            clip = _validation.number("clip, if not None,", self.clip, low=0.0, high=MAX_CLIP)
            object.__setattr__(self, "clip", clip)
            # At α = 0, f1 = log(r+β) needs no clip.
            above1 = clip / self.alpha if self.alpha else math.inf
            object.__setattr__(self, "tangent_above", (above1, clip / (1 + self.alpha)))

    @property
    def variational(self) -> bool:
        """Whether the rule has the double-ELBO property: True for the whole family."""
        return True

    def unclipped(self) -> PowerRule:
        """Return the exact rule, without clip."""
        return PowerRule(self.alpha, self.beta, clip=None)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return Δ + (α−1) log(r+β), and 1 + (α−1) r/(r+β)."""
        with torch.no_grad():
            if self.beta == 0:
                return self._log_slope1(delta), torch.full_like(delta, self.alpha)
            r_over_sum = torch.sigmoid(delta - math.log(self.beta))
            return self._log_slope1(delta), 1 + (self.alpha - 1) * r_over_sum

    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        u = delta if self.beta == 0 else self._log_r_plus_beta(delta)
        if outcome == 1:
            return u if self.alpha == 0 else torch.expm1(self.alpha * u) / self.alpha
        power = torch.exp((1 + self.alpha) * u)
        if self.beta == 0:
            return -power / (1 + self.alpha)
        value = self.beta * self._value(1, delta) - (power - self.beta) / (1 + self.alpha)
        # If the higher power overflows, the lower one may too; the difference is −∞, not ∞ − ∞.
        return torch.where(power == math.inf, -power, value)

    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        if outcome == 1:
            return torch.exp(self._log_slope1(delta))
        if self.beta == 0:
            return -torch.exp((1 + self.alpha) * delta)
        delta = _below_infinity(delta)
        return -torch.exp(2 * delta + (self.alpha - 1) * self._log_r_plus_beta(delta))

    def _autograd_is_exact(self, outcome: int) -> bool:
        return self.beta == 0 and (outcome == 0 or self.alpha == 0)  # a multiple of an exponential, or Δ itself

    def _log_slope1(self, delta: Tensor) -> Tensor:
        if self.beta == 0:
            return torch.zeros_like(delta) if self.alpha == 0 else self.alpha * delta  # 0·∞ is not 0
        delta = _below_infinity(delta)
        return delta + (self.alpha - 1) * self._log_r_plus_beta(delta)

    def _log_r_plus_beta(self, delta: Tensor) -> Tensor:
        log_beta = math.log(self.beta)
        # The derivative of logaddexp as torch writes it is ∞/∞ in second order at Δ ≪ 0; a sigmoid is not.
        u = torch.logaddexp(delta, delta.new_full((), log_beta))
        return with_slope(delta, u, torch.sigmoid(delta - log_beta))

    def __str__(self) -> str:
        arguments = [number_text(self.alpha)]
        if self.beta != 0:
            arguments.append(number_text(self.beta))
        if self.clip != 10.0:
            arguments.append(f"clip={'none' if self.clip is None else number_text(self.clip)}")
        return f"power({', '.join(arguments)})"


def _below_infinity(delta: Tensor) -> Tensor:
    """Return Δ with the largest number for ∞, so that Δ − log(r+β) is 0 there and not ∞ − ∞."""
    return delta.clamp(max=torch.finfo(delta.dtype).max)


class _Symmetric(SmoothRule):
    """Symmetric rule: S(0, μ) = S(1, 1−μ), that is f0(Δ) = f1(−Δ). Subclasses define f1 and its slope."""

    @abstractmethod
    def _value1(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope1(self, delta: Tensor) -> Tensor: ...

    @property
    def variational(self) -> bool:
        """False: f0 is not concave in r, so the noise term has no evidence lower bound."""
        return False

    def unclipped(self) -> SmoothRule:
        """Return the rule itself, which grows at most linearly in Δ and needs no clip."""
        return self

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}()"

    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        return self._value1(delta) if outcome == 1 else self._value1(-delta)

    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        return self._slope1(delta) if outcome == 1 else -self._slope1(-delta)


@dataclass(frozen=True)
class Logarithmic(_Symmetric):
    """Logarithmic rule S(1, μ) = log μ, the cross-entropy of ordinary NCE (Eq. NCE_r).

    >>> Logarithmic().f0(torch.tensor(0.0))  # −soft-plus(Δ)
    tensor(-0.6931)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return ℓ₋ and its derivative −μ."""
        with torch.no_grad():
            return logsigmoid(-delta), -torch.sigmoid(delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return logsigmoid(delta)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(-delta))


@dataclass(frozen=True)
class Quadratic(_Symmetric):
    """Quadratic rule S(1, μ) = −(1−μ)², the Brier score.

    >>> Quadratic().f1(torch.tensor(0.0))
    tensor(-0.2500)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return log 2 + ℓ₊ + 2ℓ₋ and 1 − 3μ."""
        with torch.no_grad():
            return math.log(2) + logsigmoid(delta) + 2 * logsigmoid(-delta), 1 - 3 * torch.sigmoid(delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return -torch.exp(2 * logsigmoid(-delta))

    def _slope1(self, delta: Tensor) -> Tensor:
        return 2 * torch.exp(logsigmoid(delta) + 2 * logsigmoid(-delta))


@dataclass(frozen=True)
class Spherical(_Symmetric):
    """Spherical rule S(1, μ) = μ/√(μ² + (1−μ)²) = √σ(2Δ).

    >>> Spherical().f1(torch.tensor(0.0))
    tensor(0.7071)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return ½ log σ(2Δ) + log σ(−2Δ) and 1 − 3σ(2Δ)."""
        with torch.no_grad():
            return logsigmoid(2 * delta) / 2 + logsigmoid(-2 * delta), 1 - 3 * torch.sigmoid(2 * delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(2 * delta) / 2)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(2 * delta) / 2 + logsigmoid(-2 * delta))


@dataclass(frozen=True)
class Exponential(_Symmetric):
    """Exponential rule S(1, μ) = −√((1−μ)/μ) = −e^(−Δ/2), that of boosting and eNCE (Liu et al. 2021; Eq. eNCE).

    Mistakes have exponential weight. If data and noise are far apart, the other rules are flat and this one is steep:
    the condition number of the curvature at the truth is polynomial in their distance instead of exponential.

    Args:
        clip: the |Δ| of a mistake above which the function continues along its tangent. None is the exact rule, which
            may overflow.

    >>> Exponential().f1(torch.tensor([0.0, -2.0]))
    tensor([-1.0000, -2.7183])
    """

    clip: float | None = 40.0

    def __post_init__(self) -> None:
        if self.clip is not None:
            object.__setattr__(self, "clip", _validation.number("clip", self.clip, low=0.0, open_low=True))
            object.__setattr__(self, "tangent_above", (math.inf, self.clip))  # f1 follows its tangent below −clip

    def unclipped(self) -> Exponential:
        """Return the rule without its clip."""
        return Exponential(None)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return −log 2 − Δ/2 and −1/2."""
        with torch.no_grad():
            return -math.log(2) - delta / 2, torch.full_like(delta, -0.5)

    def _value1(self, delta: Tensor) -> Tensor:
        inner = self._inner(delta)
        beyond = torch.zeros_like(delta) if self.clip is None else (-self.clip - delta).clamp(min=0)
        return -torch.exp(-inner / 2) * (1 + beyond / 2)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(-self._inner(delta) / 2) / 2

    def _inner(self, delta: Tensor) -> Tensor:
        return delta if self.clip is None else delta.clamp(min=-self.clip)

    def __str__(self) -> str:
        return f"exponential({'none' if self.clip is None else f'{self.clip!r}'})"


_CONSTRUCTORS: dict[str, type[ScoringRule]] = {
    "power": PowerRule,
    "logarithmic": Logarithmic,
    "quadratic": Quadratic,
    "spherical": Spherical,
    "exponential": Exponential,
}
_FORM = 'write it like "power(1/64)" or "0.9*power(1/64)+0.1*power(0)"'
_LONGEST_RULE = 2000


def parse(text: str) -> ScoringRule:
    """Parse a scoring rule from text, the inverse of ``str(rule)`` for built-in rules and their sums.

    Args:
        text: a sum of rules with factors, such as ``0.5*power(1/64)+0.5*power(0,1)``.

    Returns:
        The rule.

    Raises:
        TypeError: if ``text`` is not a string.
        ValueError: if it is not a rule, or an argument of a rule is out of range.

    >>> parse("0.9*power(1/64) + 0.1*power(0, 1, clip=none)")
    0.9*PowerRule(alpha=0.015625, beta=0.0, clip=10.0) + 0.1*PowerRule(alpha=0.0, beta=1.0, clip=None)
    >>> parse("power(2)")
    Traceback (most recent call last):
    ValueError: rule 'power(2)': alpha must be a number in [0, 1], found 2.0
    """
    if not isinstance(text, str):
        raise TypeError(f"rule must be a string, found {type(text).__name__}; {_FORM}")
    if len(text) > _LONGEST_RULE:
        raise ValueError(f"rule must be at most {_LONGEST_RULE} characters long, found {len(text)}; {_FORM}")
    try:
        return _rule(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"rule must be a sum of named rules, found {text[:40]!r}; {_FORM}") from None
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
