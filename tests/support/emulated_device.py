"""An accelerator that is not there: tensors that report another device, and are computed on the CPU.

It refuses what CUDA refuses: operations that mix devices (but for CPU tensors without dimensions, which are scalars,
and CPU indices) and draws on the device from a generator of the CPU. It counts what makes the host wait for a device,
by the rules of ``torch.cuda.set_sync_debug_mode``: values that are read, results whose shape depends on values, and
blocking copies in either direction. Without ``double`` it also refuses float64, as MPS does.

The device is torch's "lazy", whose own backend is never started: it needs no registration, which would outlast a test,
and autograd runs its backward pass in the thread of the caller, where the emulation is active.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy:0")
aten = torch.ops.aten

_COPIES = (aten._to_copy.default, aten.copy_.default)
_READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten._linalg_eigh.default,
}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


#: The device's global generator, and what torch.cuda is for CUDA; torch.get_device_module remembers the first it finds.
_GENERATOR = torch.Generator()
_MODULE = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    device_count=lambda: 1,
    get_rng_state=lambda device=None: _GENERATOR.get_state(),
    set_rng_state=lambda state, device=None: _GENERATOR.set_state(state),
    manual_seed=_GENERATOR.manual_seed,
    manual_seed_all=_GENERATOR.manual_seed,
)


class DeviceTensor(Tensor):
    """A tensor of the emulated device; ``host`` holds its values."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"a tensor of the emulated device was used after its end, in {func}")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.host!r})"


class Emulation(TorchDispatchMode):
    """While open, ``torch.device("lazy")`` is an accelerator.

    Attributes:
        waits: names of the operations for which the host waited for the device.
    """

    def __init__(self, *, double: bool = True) -> None:
        super().__init__()
        self.double = double
        self.waits: list[str] = []
        self.generator = _GENERATOR.manual_seed(0)

    def __enter__(self) -> Emulation:
        # torch.tensor(…, device=…) then passes through the mode, as it does for torch's own fake tensors.
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifts)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = list(_tensors((args, kwargs)))
        here = [t for t in tensors if isinstance(t, DeviceTensor)]
        asked = kwargs.get("device")
        on_device = bool(here) if asked is None else torch.device(asked).type == DEVICE.type
        if not here and not on_device:
            return func(*args, **kwargs)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        if func in _COPIES:
            self._note_copy(func, args, kwargs, on_device)
        else:
            self._check(func, tensors, here, kwargs)
        plain_args, plain_kwargs = _mapped((args, kwargs), lambda t: t.host if isinstance(t, DeviceTensor) else t)
        with self._own_draws(func):
            found = func(*plain_args, **plain_kwargs)
        if func is aten.copy_.default:
            return args[0]
        return self._outputs(func, args, kwargs, found) if on_device else found

    def _note_copy(self, func: Any, args: Any, kwargs: Any, on_device: bool) -> None:
        if func is aten.copy_.default:
            ends = {isinstance(args[0], DeviceTensor), isinstance(args[1], DeviceTensor)}
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        else:
            ends = {isinstance(args[0], DeviceTensor), on_device}
            waits = not kwargs.get("non_blocking", False)
        # A copy to the host that does not wait would be read before it is there.
        if len(ends) == 2 and (waits or not on_device):
            self.waits.append("copy to the device" if on_device else "copy to the host")

    def _check(self, func: Any, tensors: list[Tensor], here: list[Tensor], kwargs: Any) -> None:
        generator = kwargs.get("generator")
        if generator is not None:
            raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found '{generator.device}'")
        others = [t for t in tensors if not isinstance(t, DeviceTensor) and (t.ndim or func in _INDEXED)]
        if func in _INDEXED:
            indices = [t for t in tensors[1:] if t.dtype in (torch.bool, torch.uint8, torch.int64)]
            others = [t for t in others if not any(t is index for index in indices)]
            copied = any(not isinstance(t, DeviceTensor) for t in indices)
            masked = any(t.dtype in (torch.bool, torch.uint8) for t in indices)
            self.waits += [str(func)] * (copied or masked)
        foreign = [t for t in others if t.ndim]
        if here and foreign:
            shapes = [tuple(t.shape) for t in foreign]
            raise RuntimeError(f"Expected all tensors to be on the same device, found {shapes} on cpu in {func}")
        if func in _READS:
            self.waits.append(str(func))

    @contextmanager
    def _own_draws(self, func: Any) -> Iterator[None]:
        if not _draws(func):
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)

    def _outputs(self, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
        """Results as tensors of the device; what was written in place is what came in."""
        places = _written(func)
        values = [args[i] if i < len(args) else kwargs.get(name) for i, name in places]
        written = {id(t.host): t for t in _tensors(values) if isinstance(t, DeviceTensor)}

        def wrapped(host: Tensor) -> Tensor:
            if host.dtype is torch.float64 and not self.double:
                raise TypeError(f"Cannot convert a tensor to float64 dtype: this device does not have it, in {func}")
            return written[id(host)] if id(host) in written else DeviceTensor(host)

        return _mapped(found, wrapped)


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operation writes to."""
    arguments = enumerate(func._schema.arguments)
    return [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def _mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    return {name: _mapped(item, function) for name, item in value.items()} if isinstance(value, dict) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@contextmanager
def emulated_device(monkeypatch: Any, **options: Any) -> Iterator[Emulation]:
    """An emulation that ``fit`` runs on, whatever accelerator it is asked for."""
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators import CPUAccelerator
    from lightning_fabric.strategies import SingleDeviceStrategy

    from fvnce.training import trainer

    class Accelerator(CPUAccelerator):
        def setup_device(self, device: torch.device) -> None:
            assert device == DEVICE

    def fabric(accelerator: str, precision: str | None, *options: Any) -> Fabric:
        strategy = SingleDeviceStrategy(device=DEVICE, accelerator=Accelerator())
        made = Fabric(strategy=strategy, precision=precision or "32-true")
        made.launch()
        return made

    optimizer = sys.modules["torch.optim.optimizer"]
    supported = [*optimizer._get_fused_kernels_supported_devices(), DEVICE.type]
    monkeypatch.setattr(trainer, "make_fabric", fabric)
    monkeypatch.setattr(torch, "lazy", _MODULE, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: DEVICE)
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: supported)
    with Emulation(**options) as emulation:
        yield emulation
