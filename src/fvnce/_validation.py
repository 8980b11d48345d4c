"""Checks of user input and of file contents, with uniform error messages.

An error names the argument, what it must be, and what was found: ``alpha must be a number in [0, 1], found 2``. A check
takes (name, value) and returns the converted value. For files, :func:`fields` applies the same checks to the entries of
a mapping and raises :class:`FileError` instead of ValueError.

Packages that must not import torch import this module, so torch is imported inside the functions that need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from torch.distributions import Distribution

#: A check of one value: (name for errors, value) to the converted value.
Check = Callable[[str, Any], Any]
#: Advice in errors about a file that this version cannot use.
AGAIN = "write it again with this version of fvnce"


# --- numbers, choices and text ---------------------------------------------------------------------------------------


def number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """Return a finite real number in [low, high], or in (low, high] with ``open_low``.

    >>> number("alpha", 0.5, low=0, high=1)
    0.5
    >>> number("alpha", 2, low=0, high=1)
    Traceback (most recent call last):
    ValueError: alpha must be a number in [0, 1], found 2
    """
    is_number = not isinstance(value, bool) and isinstance(value, Real)
    if is_number:
        given = float(value)  # type: ignore[arg-type]
        if math.isfinite(given) and low <= given <= high and not (open_low and given == low):
            return given
    if high == math.inf:
        bound = "" if low == -math.inf else f" {'>' if open_low else '>='} {low:g}"
        requirement = f"a finite number{bound}"
    elif low == -math.inf:
        requirement = f"a finite number <= {high:g}"
    else:
        requirement = f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"
    raise _mismatch(name, requirement, value, is_type=not is_number)


def count(name: str, value: object, *, low: int = 1, high: int | None = None) -> int:
    """Return an integer of at least ``low``, and at most ``high`` if given.

    >>> count("size", 0)
    Traceback (most recent call last):
    ValueError: size must be an integer >= 1, found 0
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and low <= int(value) and (high is None or int(value) <= high):  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload, no-any-return]
    requirement = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    raise _mismatch(name, requirement, value, is_type=not is_integer)


def flag(name: str, value: object) -> bool:
    """Check that a value is True or False.

    >>> flag("clean", "yes")
    Traceback (most recent call last):
    TypeError: clean must be True or False, found 'yes' of type str
    """
    if isinstance(value, bool):
        return value
    raise _mismatch(name, "True or False", value, is_type=True)


def text(name: str, value: object) -> str:
    """Check that a value is a string.

    >>> text("label", 3)
    Traceback (most recent call last):
    TypeError: label must be a text, found 3 of type int
    """
    if isinstance(value, str):
        return value
    raise _mismatch(name, "a text", value, is_type=True)


def choice(name: str, value: object, options: Sequence[object]) -> str:
    """Check that a value is one of the named options.

    >>> choice("covariance", "round", ("diagonal", "full"))
    Traceback (most recent call last):
    ValueError: covariance must be one of 'diagonal', 'full', found 'round'
    """
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, found {short(value)}")
    return str(value)


def outcome(value: object) -> int:
    """Check an outcome of the classification: 1 for data, 0 for noise.

    >>> outcome(2)
    Traceback (most recent call last):
    ValueError: outcome must be 1 (data) or 0 (noise), found 2
    """
    if value not in (0, 1):
        raise ValueError(f"outcome must be 1 (data) or 0 (noise), found {value!r}")
    return int(value)


def optional(check: Check) -> Check:
    """Return a check that also accepts None.

    >>> optional(count)("seed", None)
    """
    return lambda name, value: None if value is None else check(name, value)


def listed(check: Check, length: int | None = None) -> Check:
    """Return a check of every item of a list, and of the list's length.

    >>> listed(count)("sizes", [3, 0])
    Traceback (most recent call last):
    ValueError: sizes[1] must be an integer >= 1, found 0
    """

    def check_list(name: str, value: object) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _mismatch(name, "a list", value, is_type=True)
        if length is not None and len(value) != length:
            raise ValueError(f"{name} must have {length} items, found {len(value)}")
        return [check(f"{name}[{index}]", item) for index, item in enumerate(value)]

    return check_list


def _mismatch(name: str, requirement: str, value: object, *, is_type: bool) -> Exception:
    message = f"{name} must be {requirement}, found {short(value)}"
    return TypeError(f"{message} of type {type(value).__name__}") if is_type else ValueError(message)


def short(value: object) -> str:
    """Describe a value in an error message: its ``repr`` if that is short, else its type and length.

    >>> short("method"), short([0.0]), short([0] * 1000)
    ("'method'", '[0.0]', 'a list of 1000')
    """
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, Mapping) or (isinstance(plain, list | tuple) and len(plain) > 3):
        return f"a {type(plain).__name__} of {len(plain)}"
    return repr(plain)[:100]


# --- files -----------------------------------------------------------------------------------------------------------


class FileError(ValueError):
    """A file that cannot be used: damaged, altered, of another version, or without what it must hold.

    >>> import tempfile
    >>> import fvnce
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     fvnce.load(file.name)
    Traceback (most recent call last):
        ...
    fvnce.io.FileError: ... is damaged or not a file of fvnce: ...
    """

    __module__ = "fvnce.io"


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Re-raise errors that a file's content causes in the block as :class:`FileError`.

    A checksum shows that a file is unchanged, not that fvnce wrote it: a forged file may lack a key, hold text instead
    of a number, or name shapes that do not fit. Errors of the file system are not caught.

    >>> with reading("run.safetensors"):
    ...     {}["module"]
    Traceback (most recent call last):
    fvnce.io.FileError: run.safetensors does not hold what it must (KeyError: 'module'); write it again with this \
version of fvnce
    """
    try:
        yield
    except FileError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise FileError(f"{what} does not hold what it must ({type(error).__name__}: {first}); {AGAIN}") from error


def fields(content: object, where: str, *names: str, **checks: Check) -> list[Any]:
    """Return the values of a mapping that must have these keys and no other, in this order.

    Args:
        content: the mapping, as read from a file.
        where: name of the mapping in errors.
        names: keys of values that are returned unchecked.
        checks: keys of values to check, each with a check such as :func:`number`.

    Raises:
        FileError: if a key is missing or unknown, or a value fails its check.

    >>> fields({"rows": 3, "prior": 0.5}, "the layout", rows=count, prior=number)
    [3, 0.5]
    >>> fields({"rows": 0}, "the layout", rows=count)
    Traceback (most recent call last):
    fvnce.io.FileError: rows of the layout must be an integer >= 1, found 0; write it again with this version of fvnce
    >>> fields({"rows": 3}, "the layout", "rows", "columns")
    Traceback (most recent call last):
    fvnce.io.FileError: the layout must hold rows and columns, found no 'columns'; write it again with this \
version of fvnce
    """
    keys = (*names, *checks)
    if not isinstance(content, Mapping) or content.keys() != set(keys):
        if not isinstance(content, Mapping):
            problem = f"a {type(content).__name__}"
        elif missing := [key for key in keys if key not in content]:
            problem = f"no {missing[0]!r}"
        else:
            problem = f"{short(sorted(map(str, content.keys() - set(keys)))[0])} as well"
        listing = " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
        raise FileError(f"{where} must hold {listing}, found {problem}; {AGAIN}")
    try:
        checked = [check(f"{key} of {where}", content[key]) for key, check in checks.items()]
    except FileError:
        raise
    except (TypeError, ValueError) as error:
        raise FileError(f"{error}; {AGAIN}") from None
    return [*(content[name] for name in names), *checked]


def require(condition: bool, requirement: str, value: object, *, of: str = "it") -> None:
    """Raise :class:`FileError` unless a condition on a file's content is met.

    >>> require(False, "have positive scales", [0.0], of="a column")
    Traceback (most recent call last):
    fvnce.io.FileError: a column must have positive scales, found 0.0
    """
    if not condition:
        plain = value.tolist() if hasattr(value, "tolist") else value
        plain = plain[0] if isinstance(plain, list) and len(plain) == 1 else plain
        raise FileError(f"{of} must {requirement}, found {plain[:100] if isinstance(plain, str) else short(plain)}")


def stored_array(name: str, value: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> Any:
    """Return a NumPy array that must have this dtype and shape and finite numbers.

    >>> import numpy as np
    >>> stored_array("weights", np.ones(2), np.float64, (3,))
    Traceback (most recent call last):
    fvnce.io.FileError: weights must have shape (3,) in float64, found (2,) in float64
    """
    import numpy as np

    good = isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape
    described = f"{np.shape(value)} in {getattr(value, 'dtype', type(value).__name__)}"
    require(good, f"have shape {shape} in {dtype.__name__}", described, of=name)
    require(bool(np.isfinite(value).all()), "be finite", "NaN or infinity", of=name)
    return value


# --- tensors ---------------------------------------------------------------------------------------------------------


def floating(name: str, value: object, *, keep_half: bool = False) -> Tensor:
    """Return a tensor of floating dtype, half precision upcast to float32 unless it is kept.

    >>> import torch
    >>> floating("delta", torch.zeros(2, dtype=torch.int64))
    Traceback (most recent call last):
    TypeError: delta must be a floating-point tensor, found dtype torch.int64; convert it with .float()
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, found {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, found dtype {value.dtype}; convert it with .float()")
    return value if keep_half or value.dtype in (torch.float32, torch.float64) else value.float()


def is_half(value: Tensor) -> bool:
    """Return whether a tensor is in half precision, in which log-densities are not computed."""
    import torch

    return value.dtype in (torch.bfloat16, torch.float16)


def probability(name: str, value: object) -> Tensor:
    """Return a floating tensor of probabilities strictly between 0 and 1.

    >>> import torch
    >>> probability("mu", torch.tensor([0.5, 1.5]))
    Traceback (most recent call last):
    ValueError: mu must lie strictly between 0 and 1, found 1.5 at position 1
    """
    tensor = floating(name, value)
    return entries(name, tensor, (tensor > 0) & (tensor < 1), "lie strictly between 0 and 1")


def as_tensor(name: str, value: object) -> Tensor:
    """Return a tensor, array, data frame or list of numbers as a tensor, without a copy where torch can do without.

    >>> import numpy as np
    >>> as_tensor("X", np.arange(3, dtype=">f8")[::-1])
    tensor([2., 1., 0.], dtype=torch.float64)
    """
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor) or not hasattr(value, "__array__"):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be an array of numbers, found {type(value).__name__} ({error})") from error
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if isinstance(array, np.ma.MaskedArray) and array.mask.any():
        raise ValueError(f"{name} must have no masked entries, found {int(array.mask.sum())}; fill them or drop rows")
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be an array of numbers, found dtype {array.dtype}")
    if not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        # Nothing writes through the tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def array(name: str, value: object) -> Tensor:
    """Return a floating tensor; integers and booleans become torch's default dtype, or float64 if that rounds them.

    >>> import torch
    >>> array("X", torch.ones(2, dtype=torch.int64))
    tensor([1., 1.])
    """
    import torch

    given = as_tensor(name, value)
    if given.is_complex():
        raise TypeError(f"{name} must be real, found dtype {given.dtype}")
    if not given.is_floating_point():
        default = given.to(torch.get_default_dtype())
        return default if torch.equal(default.double(), given.double()) else given.double()
    return given if given.dtype in (torch.float32, torch.float64) else given.float()


def table(name: str, value: object, *, rows: int = 1) -> Tensor:
    """Return a finite floating matrix of shape (n, D) with at least ``rows`` rows and one column.

    >>> import torch
    >>> table("X", torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))
    Traceback (most recent call last):
    ValueError: X must be finite, found nan at row 1, column 0
    """
    return samples(name, value, rows=rows, any_rank=False)


def samples(name: str, value: object, *, rows: int = 1, any_rank: bool = True) -> Tensor:
    """Return finite floating samples of shape (n, ...), vectors or arrays of any rank, at least ``rows`` of them.

    >>> import torch
    >>> samples("X", torch.zeros(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    >>> samples("X", torch.zeros(2))
    Traceback (most recent call last):
    ValueError: X must have shape (n, D) with n >= 1 and D >= 1, found shape (2,); rows may be arrays of any rank
    """
    tensor = array(name, value)
    if tensor.ndim < 2 or (tensor.ndim > 2 and not any_rank) or len(tensor) < rows or not all(tensor.shape[1:]):
        requirement = f"have shape (n, D) with n >= {rows} and D >= 1, found shape {tuple(tensor.shape)}"
        raise ValueError(f"{name} must {requirement}{'; rows may be arrays of any rank' if any_rank else ''}")
    return finite_rows(name, tensor)


def finite_rows(name: str, value: Tensor) -> Tensor:
    """Return the tensor if no entry is NaN or infinite; otherwise the error names the first bad entry.

    >>> import torch
    >>> finite_rows("x", torch.tensor([0.0, float("inf")]))
    Traceback (most recent call last):
    ValueError: x must be finite, found inf at column 1
    """
    # Zero times a finite number is zero, so one reduction checks the whole tensor.
    if not are_deferred() and not bool((value * 0).sum() == 0):
        index = (~value.isfinite()).nonzero()[0].tolist()
        place = f"column {index[-1]}"
        if len(index) > 1:
            place = f"row {index[0] if len(index) == 2 else tuple(index[:-1])}, {place}"
        raise ValueError(f"{name} must be finite, found {value[tuple(index)].item()} at {place}")
    return value


def points(name: str, value: object, width: int | tuple[int, ...]) -> Tensor:
    """Return floating points of shape (..., width), or (...) + an event's; they may still hold NaN.

    >>> import torch
    >>> points("x", torch.zeros(4, 2), 3)
    Traceback (most recent call last):
    ValueError: x must have shape (..., 3), found shape (4, 2)
    """
    tensor, event = floating(name, value), (width,) if isinstance(width, int) else tuple(width)
    if tensor.ndim < len(event) or tensor.shape[tensor.ndim - len(event) :] != event:
        raise ValueError(
            f"{name} must have shape (..., {', '.join(map(str, event))}), found shape {tuple(tensor.shape)}"
        )
    return tensor


def scale(name: str, value: object, width: int | tuple[int, ...], like: Tensor) -> Tensor:
    """Return positive finite scales, a scalar tensor or one of an event's shape, in dtype and device of ``like``.

    >>> import torch
    >>> scale("bandwidth", [0.5, 0.0], 2, torch.zeros(1))
    Traceback (most recent call last):
    ValueError: bandwidth must be finite and > 0, found 0.0 at position 1
    """
    import torch

    event = (width,) if isinstance(width, int) else tuple(width)
    requirement = f"a positive number or a tensor of shape {event}"
    if isinstance(value, str | bytes | bool | None):
        raise _mismatch(name, requirement, value, is_type=True)
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.ndim and tensor.shape != event:
        raise ValueError(f"{name} must be {requirement}, found shape {tuple(tensor.shape)}")
    return entries(name, tensor, tensor.isfinite() & (tensor > 0), "be finite and > 0")


def entries(name: str, value: Tensor, good: Tensor, requirement: str) -> Tensor:
    """Return the tensor if all its entries are good; otherwise the error names the first that is not.

    >>> import torch
    >>> probs = torch.tensor([0.5, 1.5])
    >>> entries("probs", probs, probs <= 1, "be at most 1")
    Traceback (most recent call last):
    ValueError: probs must be at most 1, found 1.5 at position 1
    """
    if not bool(good.all()):
        first = tuple((~good).nonzero()[0].tolist())
        place = f" at position {first[0] if len(first) == 1 else first}" if first else ""
        raise ValueError(f"{name} must {requirement}, found {value[first].item()}{place}")
    return value


def varying(scale: Tensor, what_for: str, remedy: str) -> None:
    """Raise ValueError for constant columns of X, which have scale 0.

    >>> import torch
    >>> varying(torch.tensor([1.0, 0.0]), "without shrinkage", "drop it")
    Traceback (most recent call last):
    ValueError: X must vary in every column without shrinkage, found 1 constant column(s): 1; drop it
    """
    constant = (scale.flatten() == 0).nonzero()[:, 0].tolist()
    if constant:
        listing = ", ".join(map(str, constant[:5])) + (", …" if len(constant) > 5 else "")
        raise ValueError(
            f"X must vary in every column {what_for}, found {len(constant)} constant column(s): {listing}; {remedy}"
        )


def weights(name: str, value: object, count: int, *, device: torch.device | None = None) -> Tensor:
    """Return non-negative weights of shape (count,) in float64, scaled to sum 1.

    >>> weights("weights", [1, 3], 2)
    tensor([0.2500, 0.7500], dtype=torch.float64)
    >>> weights("weights", [1.0, -3.0], 2)
    Traceback (most recent call last):
    ValueError: weights must be finite and >= 0, found -3.0 at position 1
    """
    import torch

    tensor = torch.as_tensor(value, dtype=torch.float64, device=device)
    if tensor.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), found shape {tuple(tensor.shape)}")
    entries(name, tensor, tensor.isfinite() & (tensor >= 0), "be finite and >= 0")
    # Dividing by the largest first keeps the sum of huge weights finite and that of tiny ones above zero.
    largest = tensor.max()
    if not bool(largest > 0):
        raise ValueError(f"{name} must have a positive sum, found {tensor.sum().item()}")
    tensor = tensor / largest
    return tensor / tensor.sum()


def rows(name: str, value: object, event_shape: tuple[int, ...]) -> Tensor:
    """Return a batch of at least one row of the noise's event shape.

    >>> import torch
    >>> rows("x", torch.zeros(4, 2), (3,))
    Traceback (most recent call last):
    ValueError: x must have shape (B, 3) to match the noise, found shape (4, 2)
    """
    tensor = floating(name, value, keep_half=True)
    if tensor.dim() < 1 or tensor.shape[1:] != event_shape:
        listing = ", ".join(["B", *map(str, event_shape)])
        raise ValueError(f"{name} must have shape ({listing}) to match the noise, found shape {tuple(tensor.shape)}")
    if len(tensor) == 0:
        raise ValueError(f"{name} must hold at least one row, found shape {tuple(tensor.shape)}")
    return tensor


def finite_log_noise(name: str, log_noise: Tensor) -> None:
    """Raise ValueError if a log-density of the noise is not finite; the error names the row.

    >>> import torch
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
    """Check that all entries are 0 or 1; if checks are deferred, other entries become NaN.

    >>> import torch
    >>> binary("x", torch.tensor([1.0, 0.5]), "round it")
    Traceback (most recent call last):
    ValueError: x must hold zeros and ones, found 0.5; round it
    """
    good = (value == 0) | (value == 1)
    if are_deferred():
        return value.where(good, math.nan)
    if not values_are_hidden() and not bool(good.all()):
        raise ValueError(f"{name} must hold zeros and ones, found {value[~good].flatten()[0].item():g}; {remedy}")
    return value


# --- distributions ---------------------------------------------------------------------------------------------------


def distribution(name: str, value: object) -> None:
    """Raise an error unless a value is one torch distribution over whole rows.

    >>> distribution("noise", 3)
    Traceback (most recent call last):
    TypeError: noise must be a torch distribution, found 3 of type int
    """
    from torch.distributions import Distribution

    if not isinstance(value, Distribution):
        raise _mismatch(name, "a torch distribution", value, is_type=True)
    if len(value.batch_shape):
        raise ValueError(
            f"{name} must be one distribution over whole rows, found batch shape {tuple(value.batch_shape)} and event "
            f"shape {tuple(value.event_shape)}; wrap it in torch.distributions.Independent"
        )


def latents(q: Distribution, prior: Distribution) -> None:
    """Raise ValueError if the encoder's latents and the prior's differ in shape, or in being discrete.

    >>> import torch
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
    if not prior.has_rsample and _is_discrete(prior) is True and _is_discrete(q) is False:
        raise ValueError(
            f"encoder must give discrete latents for the prior, whose support is {prior.support}, found "
            f"{type(q).__name__}; use a CategoricalEncoder or a BinaryEncoder, or a continuous prior"
        )


def _is_discrete(of: Distribution) -> bool | None:
    try:
        return getattr(of.support, "is_discrete", None)
    except NotImplementedError:
        return None


def conditional(given: object, x: Tensor) -> Distribution:
    """Check the output of a conditional for rows x: one distribution over rows for each row.

    >>> import torch
    >>> conditional(torch.distributions.Normal(torch.zeros(4, 2), 1.0), torch.zeros(4, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: conditional must give one distribution over rows of shape (2,) for each of 4 rows, found batch shape ...
    """
    from torch.distributions import Distribution

    if not isinstance(given, Distribution):
        raise TypeError(f"conditional must map rows x to a torch distribution, found {type(given).__name__}")
    if (tuple(given.batch_shape), tuple(given.event_shape)) != ((len(x),), tuple(x.shape[1:])):
        raise ValueError(
            f"conditional must give one distribution over rows of shape {tuple(x.shape[1:])} for each of {len(x)} "
            f"rows, found batch shape {tuple(given.batch_shape)} and event shape {tuple(given.event_shape)}; wrap it "
            "in torch.distributions.Independent"
        )
    return given


# --- when values can be checked --------------------------------------------------------------------------------------

_deferred: ContextVar[bool] = ContextVar("deferred", default=False)


class deferred:
    """Let checks in the block return NaN instead of raising, so that no check synchronizes with an accelerator.

    Code that finds a loss of NaN evaluates the same batch again outside the block, where the check raises its error.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        self.token = _deferred.set(self.enabled)

    def __exit__(self, *error: object) -> None:
        _deferred.reset(self.token)


def are_deferred() -> bool:
    """Return whether checks are deferred; always False in a compiled graph, where no value can be checked."""
    import torch

    # Dynamo cannot trace a context variable.
    return not torch.compiler.is_compiling() and _deferred.get()


def values_are_hidden() -> bool:
    """Return whether a compiler or a function transform is tracing, so that no value can be checked."""
    import torch

    # Only a private name of torch shows whether a transform of torch.func, such as vmap or grad, is active.
    return torch.compiler.is_compiling() or bool(torch._C._are_functorch_transforms_active())
