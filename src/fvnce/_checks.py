"""Every check of a user's input, and the wording of its error.

An error names the argument, what it must be, and what was found.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.distributions import Distribution

from ._deferred import are_deferred as are_deferred
from ._deferred import deferred as deferred


def values_are_hidden() -> bool:
    """Whether a compiler or a function transform is tracing, so that no value can be looked at, let alone checked."""
    return torch.compiler.is_compiling() or is_transformed()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func``, such as vmap or grad, is at work."""
    # Torch tells under a private name only. Where that is gone, a function is tried which every transform refuses.
    return bool(getattr(torch._C, "_are_functorch_transforms_active", _is_refused)())


def _is_refused() -> bool:
    try:
        _WithoutSetup.apply(torch.zeros(()))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    return False


class _WithoutSetup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()


def is_half(value: Tensor) -> bool:
    """Whether a tensor is in half precision, in which log-densities are not computed."""
    return value.dtype in (torch.bfloat16, torch.float16)


def number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """A finite real number in [low, high], or in (low, high] with ``open_low``.

    >>> number("alpha", 0.5, low=0, high=1)
    0.5
    >>> number("alpha", 2, low=0, high=1)
    Traceback (most recent call last):
    ValueError: alpha must be a number in [0, 1], found 2
    """
    wanted = f"{name} must be {_interval(low, high, open_low)}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{wanted}, found {value!r} of type {type(value).__name__}")
    found = float(value)
    below = found <= low if open_low else found < low
    if not math.isfinite(found) or below or found > high:
        raise ValueError(f"{wanted}, found {value!r}")
    return found


def _interval(low: float, high: float, open_low: bool) -> str:
    if low == -math.inf and high == math.inf:
        return "a finite number"
    if high == math.inf:
        return f"a finite number {'>' if open_low else '>='} {low:g}"
    if low == -math.inf:
        return f"a finite number <= {high:g}"
    return f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"


def floating(name: str, value: object) -> Tensor:
    """A tensor of floating dtype, half precision upcast to float32.

    >>> floating("delta", torch.zeros(2, dtype=torch.int64))
    Traceback (most recent call last):
    TypeError: delta must be a floating-point tensor, found dtype torch.int64; convert it with .float()
    """
    found = _floating(name, value)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def _floating(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, found {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, found dtype {value.dtype}; convert it with .float()")
    return value


def probability(name: str, value: object) -> Tensor:
    """A floating tensor of probabilities strictly between 0 and 1.

    >>> probability("mu", torch.tensor([0.5, 1.5]))
    Traceback (most recent call last):
    ValueError: mu must lie strictly between 0 and 1, found 1.5
    """
    found = floating(name, value)
    bad = ~((found > 0) & (found < 1))
    if bool(bad.any()):
        raise ValueError(f"{name} must lie strictly between 0 and 1, found {found[bad].flatten()[0].item():g}")
    return found


def outcome(value: object) -> int:
    """An outcome of the classification: 1 for data, 0 for noise.

    >>> outcome(2)
    Traceback (most recent call last):
    ValueError: outcome must be 1 (data) or 0 (noise), found 2
    """
    for known in (0, 1):
        if value == known:
            return known
    raise ValueError(f"outcome must be 1 (data) or 0 (noise), found {value!r}")


def array(name: str, value: object, *, like: Tensor | None = None) -> Tensor:
    """A floating tensor from a tensor or NumPy array; integers and booleans become torch's default dtype.

    >>> array("X", torch.ones(2, dtype=torch.int64))
    tensor([1., 1.])
    """
    found = value if isinstance(value, Tensor) else torch.as_tensor(value)
    if found.is_complex():
        raise TypeError(f"{name} must be real, found dtype {found.dtype}")
    if not found.is_floating_point():
        found = found.to(torch.get_default_dtype() if like is None else like.dtype)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def table(name: str, value: object, *, rows: int = 1) -> Tensor:
    """A finite floating matrix of shape (n, D) with at least ``rows`` rows and one column.

    >>> table("centres", torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))
    Traceback (most recent call last):
    ValueError: centres must be finite, found nan at row 1, column 0
    """
    found = array(name, value)
    if found.ndim != 2 or found.shape[0] < rows or found.shape[1] < 1:
        raise ValueError(f"{name} must have shape (n, D) with n >= {rows} and D >= 1, found shape {tuple(found.shape)}")
    return finite_rows(name, found)


def samples(name: str, value: object, *, rows: int = 1) -> Tensor:
    """Finite floating samples of shape (n, ...), vectors or arrays of any rank, with at least ``rows`` of them.

    >>> samples("X", torch.zeros(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    >>> samples("X", torch.zeros(2))
    Traceback (most recent call last):
    ValueError: X must have shape (n, D) with n >= 1 and D >= 1, found shape (2,); rows may be arrays of any rank
    """
    found = array(name, value)
    if found.ndim < 2 or found.shape[0] < rows or not all(found.shape[1:]):
        raise ValueError(
            f"{name} must have shape (n, D) with n >= {rows} and D >= 1, found shape {tuple(found.shape)}; "
            "rows may be arrays of any rank"
        )
    return finite_rows(name, found)


def finite_rows(name: str, value: Tensor) -> Tensor:
    """The tensor itself if no entry is NaN or infinite; otherwise an error that names the first bad entry.

    >>> finite_rows("x", torch.tensor([0.0, float("inf")]))
    Traceback (most recent call last):
    ValueError: x must be finite, found inf at column 1
    """
    # Zero times a finite number is zero, so one reduction answers for the whole tensor in the good case.
    if not are_deferred() and not bool((value * 0).sum() == 0):
        index = (~torch.isfinite(value)).nonzero()[0].tolist()
        found = value[tuple(index)].item()
        where = f"column {index[-1]}"
        if len(index) > 1:
            row = index[0] if len(index) == 2 else tuple(index[:-1])
            where = f"row {row}, {where}"
        raise ValueError(f"{name} must be finite, found {found} at {where}")
    return value


def points(name: str, value: object, width: int | tuple[int, ...]) -> Tensor:
    """Floating points of shape (..., width), or (...) + an event's; whether finite is for :func:`finite_rows` to say.

    >>> points("x", torch.zeros(4, 2), 3)
    Traceback (most recent call last):
    ValueError: x must have shape (..., 3), found shape (4, 2)
    """
    found, event = floating(name, value), (width,) if isinstance(width, int) else tuple(width)
    if found.ndim < len(event) or found.shape[found.ndim - len(event) :] != event:
        raise ValueError(
            f"{name} must have shape (..., {', '.join(map(str, event))}), found shape {tuple(found.shape)}"
        )
    return found


def scale(name: str, value: object, width: int | tuple[int, ...], like: Tensor) -> Tensor:
    """Positive finite scales, a scalar tensor or one of the shape of an event, in dtype and device of ``like``.

    >>> scale("bandwidth", [0.5, 0.0], 2, torch.zeros(1))
    Traceback (most recent call last):
    ValueError: bandwidth must be finite and > 0, found 0.0 at position 1
    """
    event = (width,) if isinstance(width, int) else tuple(width)
    wanted = f"{name} must be a positive number or a tensor of shape {event}"
    if isinstance(value, str | bytes) or value is None or isinstance(value, bool):
        raise TypeError(f"{wanted}, found {value!r} of type {type(value).__name__}")
    found = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if found.ndim and found.shape != event:
        raise ValueError(f"{wanted}, found shape {tuple(found.shape)}")
    return entries(name, found, torch.isfinite(found) & (found > 0), "be finite and > 0")


def entries(name: str, value: Tensor, good: Tensor, wanted: str) -> Tensor:
    """The tensor itself if all its entries are good; otherwise an error that names the first that is not.

    >>> probs = torch.tensor([0.5, 1.5])
    >>> entries("probs", probs, probs <= 1, "be at most 1")
    Traceback (most recent call last):
    ValueError: probs must be at most 1, found 1.5 at position 1
    """
    if not bool(good.all()):
        first = tuple((~good).nonzero()[0].tolist())
        where = f" at position {first[0] if len(first) == 1 else first}" if first else ""
        raise ValueError(f"{name} must {wanted}, found {value[first].item()}{where}")
    return value


def varying(scale: Tensor, what_for: str, remedy: str) -> None:
    """Columns of X that are not constant, by their scales.

    >>> varying(torch.tensor([1.0, 0.0]), "without shrinkage", "drop it")
    Traceback (most recent call last):
    ValueError: X must vary in every column without shrinkage, found 1 constant column(s): 1; drop it
    """
    flat = (scale.flatten() == 0).nonzero()[:, 0].tolist()
    if flat:
        listed = ", ".join(map(str, flat[:5])) + (", …" if len(flat) > 5 else "")
        raise ValueError(
            f"X must vary in every column {what_for}, found {len(flat)} constant column(s): {listed}; {remedy}"
        )


def weights(name: str, value: object, count: int, *, device: torch.device | None = None) -> Tensor:
    """Non-negative weights of shape (count,), returned in float64 with sum 1.

    >>> weights("weights", [1, 3], 2)
    tensor([0.2500, 0.7500], dtype=torch.float64)
    >>> weights("weights", [1.0, -3.0], 2)
    Traceback (most recent call last):
    ValueError: weights must be finite and >= 0, found -3.0 at position 1
    """
    found = torch.as_tensor(value, dtype=torch.float64, device=device)
    if found.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), found shape {tuple(found.shape)}")
    entries(name, found, torch.isfinite(found) & (found >= 0), "be finite and >= 0")
    # Dividing by the largest first keeps the sum of huge weights finite and that of tiny ones above zero.
    largest = found.max()
    if not bool(largest > 0):
        raise ValueError(f"{name} must have a positive sum, found {found.sum().item()}")
    found = found / largest
    return found / found.sum()


def count(name: str, value: object, *, low: int = 1) -> int:
    """An integer of at least ``low``.

    >>> count("size", 0)
    Traceback (most recent call last):
    ValueError: size must be an integer >= 1, found 0
    """
    wanted = f"{name} must be an integer >= {low}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{wanted}, found {value!r} of type {type(value).__name__}")
    if int(value) < low:
        raise ValueError(f"{wanted}, found {value!r}")
    return int(value)


def flag(name: str, value: object) -> bool:
    """True or False.

    >>> flag("clean", "yes")
    Traceback (most recent call last):
    TypeError: clean must be True or False, found 'yes' of type str
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, found {value!r} of type {type(value).__name__}")
    return value


def choice(name: str, value: object, options: tuple[object, ...]) -> str:
    """One of the named options.

    >>> choice("covariance", "round", ("diagonal", "full"))
    Traceback (most recent call last):
    ValueError: covariance must be one of 'diagonal', 'full', found 'round'
    """
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, found {value!r}")
    return str(value)


def distribution(name: str, value: object) -> None:
    """A torch distribution over single rows.

    >>> distribution("noise", 3)
    Traceback (most recent call last):
    TypeError: noise must be a torch distribution, found 3 of type int
    """
    if not isinstance(value, Distribution):
        raise TypeError(f"{name} must be a torch distribution, found {value!r} of type {type(value).__name__}")
    if len(value.batch_shape):
        raise ValueError(
            f"{name} must be one distribution over whole rows, found batch shape {tuple(value.batch_shape)} and event "
            f"shape {tuple(value.event_shape)}; wrap it in torch.distributions.Independent"
        )


def latents(q: Distribution, prior: Distribution) -> None:
    """Latents of the shape that the prior has.

    >>> from torch.distributions import Independent, Normal
    >>> standard = lambda d: Independent(Normal(torch.zeros(d), torch.ones(d)), 1)
    >>> latents(standard(3), standard(2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: encoder must give latents of the prior's shape (2,), found shape (3,); change its last layer ...
    """
    if q.event_shape != prior.event_shape:
        raise ValueError(
            f"encoder must give latents of the prior's shape {tuple(prior.event_shape)}, found shape "
            f"{tuple(q.event_shape)}; change its last layer or the prior"
        )
    if _is_discrete(prior) is True and _is_discrete(q) is False:
        raise ValueError(
            f"encoder must give discrete latents for the prior, whose support is {prior.support}, found "
            f"{type(q).__name__}; use a CategoricalEncoder or a BinaryEncoder, or a continuous prior"
        )


def _is_discrete(of: Distribution) -> bool | None:
    """Whether a distribution is over discrete values, or None where it does not say."""
    try:
        return getattr(of.support, "is_discrete", None)
    except NotImplementedError:
        return None


def conditional(found: object, x: Tensor) -> Distribution:
    """What a conditional gave for rows x: one distribution over rows for each.

    >>> conditional(torch.distributions.Normal(torch.zeros(4, 2), 1.0), torch.zeros(4, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: conditional must give one distribution over rows of shape (2,) for each of 4 rows, found batch shape ...
    """
    if not isinstance(found, Distribution):
        raise TypeError(f"conditional must map rows x to a torch distribution, found {type(found).__name__}")
    if (tuple(found.batch_shape), tuple(found.event_shape)) != ((len(x),), tuple(x.shape[1:])):
        raise ValueError(
            f"conditional must give one distribution over rows of shape {tuple(x.shape[1:])} for each of {len(x)} "
            f"rows, found batch shape {tuple(found.batch_shape)} and event shape {tuple(found.event_shape)}; wrap it "
            "in torch.distributions.Independent"
        )
    return found


def rows(name: str, value: object, event_shape: tuple[int, ...]) -> Tensor:
    """A batch of at least one row of the shape that the noise has.

    >>> rows("x", torch.zeros(4, 2), (3,))
    Traceback (most recent call last):
    ValueError: x must have shape (B, 3) to match the noise, found shape (4, 2)
    """
    found = _floating(name, value)
    if found.dim() < 1 or found.shape[1:] != event_shape:
        wanted = ", ".join(["B", *map(str, event_shape)])
        raise ValueError(f"{name} must have shape ({wanted}) to match the noise, found shape {tuple(found.shape)}")
    if len(found) == 0:
        raise ValueError(f"{name} must hold at least one row, found shape {tuple(found.shape)}")
    return found


def finite_log_noise(name: str, log_noise: Tensor) -> None:
    """Finite log-densities of the noise, or an error that names the row.

    >>> finite_log_noise("x", torch.tensor([0.0, -torch.inf]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the noise must cover x, found log p_n = -inf at row 1; mix in a component ...
    """
    bad = ~log_noise.isfinite()
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"the noise must cover {name}, found log p_n = {log_noise[row].item()} at row {row}; "
            "mix in a component that does, such as smoothed(X, bandwidth)"
        )


def binary(name: str, value: Tensor, remedy: str) -> Tensor:
    """Zeros and ones; where checks are deferred, anything else becomes NaN.

    >>> binary("x", torch.tensor([1.0, 0.5]), "round it")
    Traceback (most recent call last):
    ValueError: x must hold zeros and ones, found 0.5; round it
    """
    good = (value == 0) | (value == 1)
    if are_deferred():
        return torch.where(good, value, torch.nan)
    if not values_are_hidden() and not bool(good.all()):
        raise ValueError(f"{name} must hold zeros and ones, found {value[~good].flatten()[0].item():g}; {remedy}")
    return value
