"""A card that is not there: the branches for CUDA run on the CPU, with an allocator that counts as CUDA's does.

What is made "on cuda" is made on the CPU and counted as the card's; what is copied to the CPU is not. Sizes and
lifetimes are real, numbers are computed, times are the CPU's. Kernels, streams and what libraries take for themselves
are not there.

It is as strict as CUDA: its tensors say cuda:0, computing with tensors of card and host together raises, so do the
host's generators, `numpy()`, and operators without a deterministic kernel where a run is deterministic. It has a random
state of its own, and each backward pass runs in a thread of its own.
"""

from __future__ import annotations

import gc
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.autograd import graph
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from tunecheck.memory.live import ACTIVATIONS, LiveStorages
from tunecheck.training import hooks, ranks
from tunecheck.training import load as loading

MIB = 2**20
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
SMALL, SMALL_SEGMENT, MIDDLE, MIDDLE_SEGMENT = 1 * MIB, 2 * MIB, 10 * MIB, 20 * MIB
"""c10/cuda/CUDACachingAllocator: requests up to SMALL share segments of 2 MiB, those below MIDDLE segments of 20 MiB;
larger ones have a segment of their own, a multiple of 2 MiB."""


NOT_DETERMINISTIC = frozenset(
    {
        *("median.dim", "nanmedian.dim", "kthvalue", "put_", "histc", "cumsum", "cumsum_", "scatter_reduce.two"),
        *("nll_loss2d_forward", "nll_loss2d_backward", "upsample_bilinear2d", "reflection_pad1d_backward"),
    }
)
"""Operators whose CUDA kernel raises under torch.use_deterministic_algorithms, as its documentation lists them; cumsum
for floating numbers alone."""
COPIES = ("aten::copy_", "aten::_to_copy", "aten::set_", "aten::_foreach_copy_", "aten::_foreach_norm")
"""Operators that take tensors of card and host together, or go through a list one by one where it has both; of an
index, the indices may be the host's."""
INDICES = ("aten::index", "aten::_index_put_impl_", "aten::_unsafe_index")
RANDOM = ("aten::native_dropout", "aten::bernoulli", "aten::rand", "aten::normal", "aten::uniform", "aten::multinomial")
MAKERS = ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty")
"""Methods that make a tensor where theirs is."""


class Segments:
    """What a caching allocator reserves: best fit in the segments that there are, else a new one; none is returned."""

    def __init__(self, room: Callable[[], float] = lambda: math.inf) -> None:
        """`room` returns how many bytes of the card's memory are there for this process."""
        self.reserved_bytes = self.peak_bytes = self.refusals = 0
        self._room = room
        self._free: dict[bool, dict[tuple[int, int], int]] = {True: {}, False: {}}
        """By pool: (segment, offset) to size."""
        self._numbers = itertools.count()

    def take(self, size: int) -> tuple[bool, int, int, int]:
        """Allocate so many bytes; return the block."""
        small = size <= SMALL
        free = self._free[small]
        fitting = [(length, place) for place, length in free.items() if length >= size]
        if not fitting:
            length = SMALL_SEGMENT if small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved_bytes + length > self._room():
                self.refusals += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB.")
            fitting = [(length, (next(self._numbers), 0))]
            self.reserved_bytes += length
            self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        length, (segment, offset) = min(fitting)
        free.pop((segment, offset), None)
        if length - size >= (512 if small else SMALL + 1):
            free[segment, offset + size] = length - size
            length = size
        return small, segment, offset, length

    def give(self, block: tuple[bool, int, int, int]) -> None:
        """Free this block and join it with its free neighbours."""
        small, segment, offset, length = block
        free = self._free[small]
        if (after := free.pop((segment, offset + length), None)) is not None:
            length += after
        before = next((place for place, size in free.items() if place == (segment, offset - size)), None)
        if before is not None:
            offset, length = before[1], length + free.pop(before)
        free[segment, offset] = length


class Card(LiveStorages):
    """The live storages of a card's memory, in segments; those of the CPU count nothing."""

    def __init__(self, room: Callable[[], float] = lambda: math.inf, before: Callable[[], object] = tuple) -> None:
        """`before` is called before each operation on the card, and may raise what that would."""
        super().__init__()
        self.segments = Segments(room)
        self._before = before
        self.making = False
        """Whether the tensor that is being made was asked for on the card."""
        self.inheriting = False
        """Whether a function is at work that was given a tensor of the card: what it makes of nothing lies there."""
        self.random = torch.get_rng_state()
        self._blocks: dict[int, tuple[bool, int, int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], int | float) and str(func._schema.arguments[0].type) == "Tensor":
            args = torch.tensor(args[0]), *args[1:]  # a graph keeps a number as a tensor, of which modes get the number
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        held = [x for x in given if self.holds(x)]
        if not (held or self.making or (self.inheriting and not given)):
            with self.elsewhere():
                return super().__torch_dispatch__(func, types, args, kwargs)
        self._before()
        name = func._schema.name
        if held and not self.making and not name.startswith(COPIES):
            if not (name.startswith(INDICES) and self.holds(args[0])):
                self._refuse_hosts(func, given)
            if torch.are_deterministic_algorithms_enabled() and _lacks_deterministic_kernel(func, args):
                raise RuntimeError(f"{func} does not have a deterministic implementation")
        if not name.startswith(RANDOM):
            return super().__torch_dispatch__(func, types, args, kwargs)
        hosts = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.random = torch.get_rng_state()
            torch.set_rng_state(hosts)

    def _refuse_hosts(self, func: Any, given: list[torch.Tensor]) -> None:
        """Raise what CUDA does where one of the tensors is the host's; numbers may be."""
        if hosts := [tuple(x.shape) for x in given if x.dim() and x.numel() and not self.holds(x)]:
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} was given {hosts} of the CPU")

    def seed(self, seed: int) -> None:
        """As torch.cuda.manual_seed_all."""
        self.random = torch.Generator().manual_seed(seed).get_state()

    def set_random(self, state: torch.Tensor, _device: Any = None) -> None:
        """As torch.cuda.set_rng_state."""
        self.random = state.clone()

    def take_over(self, tensors: list[torch.Tensor], kind: str) -> None:
        """Count these as the card's, also where they were made on the host: as a loader leaves them."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._storages and not self.holds(tensor):
                del self._storages[key], self._deaths[key]
        self.hold(tensors, kind)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is in the card's memory."""
        return self._storages.get(tensor.untyped_storage()._cdata, (0, ""))[0] > 0

    def _count(self, tensor: torch.Tensor) -> None:
        known = len(self._storages)
        super()._count(tensor)
        key = tensor.untyped_storage()._cdata
        if len(self._storages) > known and (size := self._storages[key][0]):
            self._blocks[key] = self.segments.take(size)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        if (block := self._blocks.pop(key, None)) is not None:
            self.segments.give(block)

    def live_tensors(self, kind: str) -> tuple[int, int]:
        """As tunecheck.training.tensors.live_tensors: storages that Python can reach, on the card or off it."""
        storages = {
            thing.untyped_storage()._cdata: thing.untyped_storage().nbytes()
            for thing in gc.get_objects()
            if issubclass(type(thing), torch.Tensor) and self.holds(thing) is (kind == "cuda")
        }
        return len(storages), sum(storages.values())

    def statistics(self, _device: Any = None) -> dict[str, Any]:
        """As torch.cuda.memory_stats_as_nested_dict."""
        peaks = {"allocated": self.peak_bytes, "requested": self.peak_bytes, "reserved": self.segments.peak_bytes}
        nested = {f"{name}_bytes": {"all": {"peak": peak}} for name, peak in peaks.items()}
        return {**nested, "num_alloc_retries": 0, "num_ooms": self.segments.refusals}

    def reset_peaks(self, _device: Any = None) -> None:
        """As torch.cuda.reset_peak_memory_stats."""
        self.start_phase()
        self.segments.peak_bytes = self.segments.reserved_bytes


def _lacks_deterministic_kernel(func: Any, args: Any) -> bool:
    names = {str(func).removeprefix("aten."), func.overloadpacket.__name__}
    return bool(names & NOT_DETERMINISTIC) and (not names & {"cumsum", "cumsum_"} or args[0].is_floating_point())


class _Placed(TorchFunctionMode):
    """What names the card as its device is done on the CPU and counted as the card's; copies to the CPU are copies."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if func in TOLD:
            return TOLD[func](True) if self._card.holds(args[0]) else func(*args)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.numpy and self._card.holds(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func in (torch.Tensor.to, torch.Tensor.type_as) and len(args) > 1 and isinstance(args[1], torch.Tensor):
            func, args = torch.Tensor.to, (args[0], self._place_of(args[1]), args[1].dtype, *args[2:])
        if func is torch.Tensor.cuda:
            func, args = torch.Tensor.to, (args[0], CUDA)
        on_card = any(isinstance(x, torch.Tensor) and self._card.holds(x) for x in tree_leaves((args, kwargs)))
        if getattr(func, "__name__", "") in MAKERS and on_card:
            kwargs.setdefault("device", CUDA)
        named = [x for x in (*args[1:], kwargs.get("device")) if _is_device(x)]
        if func is torch.Tensor.cpu or (func is torch.Tensor.to and any(_device(x).type == "cpu" for x in named)):
            with self._card.elsewhere():
                result = func(*args, **kwargs)
                return result.clone() if result is args[0] and self._card.holds(result) else result
        on_cuda = any(_device(x).type == "cuda" for x in named)
        if isinstance(kwargs.get("generator"), torch.Generator) and (on_cuda or (on_card and not named)):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if not on_cuda:
            before, self._card.inheriting = self._card.inheriting, on_card and not named
            try:
                return func(*args, **kwargs)
            finally:
                self._card.inheriting = before
        args = tuple(CPU if _is_device(x) else x for x in args)
        if "device" in kwargs:
            kwargs["device"] = CPU
        before, self._card.making = self._card.making, True
        try:
            result = func(*args, **kwargs)
            if func is torch.Tensor.to and not self._card.holds(result):
                return result.clone()
            self._card.hold([x for x in tree_leaves(result) if isinstance(x, torch.Tensor)], ACTIVATIONS)
            return result
        finally:
            self._card.making = before

    def _place_of(self, tensor: torch.Tensor) -> torch.device:
        return CUDA if self._card.holds(tensor) else CPU


TOLD: dict[Any, Callable[[bool], Any]] = {
    torch.Tensor.device.__get__: lambda held: CUDA,  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: lambda held: held,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda held: not held,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda held: 0,
}
"""What a tensor of the card says of itself."""


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"))


def _device(value: Any) -> torch.device:
    return torch.device(value)


class Event:
    """As torch.cuda.Event, by the CPU's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        """The moment is now."""
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """What is computed is done."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to the other one."""
        return (end._at - self._at) * 1000


class Stream:
    """As torch.cuda.Stream, of a device that has done its work when a call returns."""

    device = CUDA
    stream_id, device_index, device_type = 0, 0, 1

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        """Nothing is under way."""

    def is_capturing(self) -> bool:
        """Return False: nothing is captured."""
        return False

    def wait_event(self, event: Event) -> None:
        """Nothing is under way."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event of now."""
        event = event or Event()
        event.record()
        return event


@contextmanager
def fake_card(*, capability: tuple[int, int] = (8, 0), **broken: Callable[[], Any]) -> Iterator[Card]:
    """In the block torch.cuda is this card, and a run on `cuda` trains on it; `broken` as of Card."""
    card = Card(**broken)
    properties = SimpleNamespace(
        name="Made-up Card",
        uuid="00000000-0000-0000-0000-000000000000",
        major=capability[0],
        minor=capability[1],
        total_memory=24 * 2**30,
    )
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: capability,
        "synchronize": lambda device=None: None,
        "memory_allocated": lambda device=None: card.live_bytes,
        "memory_stats_as_nested_dict": card.statistics,
        "reset_peak_memory_stats": card.reset_peaks,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (properties.total_memory - card.live_bytes, properties.total_memory),
        "get_rng_state": lambda device=None: card.random.clone(),
        "set_rng_state": card.set_random,
        "manual_seed_all": card.seed,
        "Event": Event,
        "device_count": lambda: 1,
        "is_current_stream_capturing": lambda: False,
        "device": lambda device=None: nullcontext(),
        "device_of": lambda tensor=None: nullcontext(),
        "is_initialized": lambda: True,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(),
        "set_device": lambda device: None,
        "_lazy_init": lambda: None,
    }
    load = loading.load_base

    def load_base(run: Any, folder: Any, device: torch.device, precision: str) -> Any:
        card.making = True
        try:
            with mock.patch.object(torch.cuda, "is_available", return_value=False):
                model = load(run, folder, CPU, precision)
        finally:
            card.making = False
        for module in model.modules():  # a CPU's way of packing weights, which a card does not have
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        held = [*model.parameters(), *model.buffers()]
        states = [x.quant_state for x in held if hasattr(x, "quant_state")]
        for state in states:  # bitsandbytes shares its tables on a CPU; on a card each weight has its own
            state.code, state.state2.code = state.code.clone(), state.state2.code.clone()
            held += [state.absmax, state.code, state.state2.absmax, state.state2.code, state.offset]
        card.take_over(held, "weights")
        return model

    run_backward = graph._engine_run_backward

    def in_a_thread(*args: Any, **kwargs: Any) -> Any:
        """As autograd does for the nodes of a card: in a thread that has the caller's modes."""
        done: list[Any] = []
        learning = torch.is_grad_enabled()

        def work() -> None:
            try:
                with torch.set_grad_enabled(learning), card, placed:
                    done.append(run_backward(*args, **kwargs))
            except BaseException as error:
                done.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    placed = _Placed(card)
    saved_tensors_hooks, autocast = graph.saved_tensors_hooks, torch.autocast

    def with_devices(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:  # from within an operator, where the mode is off
            with placed:
                return function(*args)

        return called

    def hooks_of_saved_tensors(*hooks: Callable[..., Any]) -> Any:
        return saved_tensors_hooks(*map(with_devices, hooks))

    def autocast_to(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu", *args, **kwargs)

    with ExitStack() as stack:
        for name, fake in fakes.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, fake))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", fakes["current_stream"]))
        stack.enter_context(mock.patch.dict(ranks.BACKEND, cuda="gloo"))
        stack.enter_context(mock.patch.object(torch._C, "_cuda_clearCublasWorkspaces", create=True))
        stack.enter_context(mock.patch.object(loading, "load_base", load_base))
        stack.enter_context(mock.patch.object(hooks, "_out_of_modes", nullcontext))  # the card is no mode of a script's
        for module in (
            "tunecheck.probes.reference.measures",
            "tunecheck.probes.resources",
            "tunecheck.probes.evaluation",
        ):
            stack.enter_context(mock.patch(f"{module}.live_tensors", card.live_tensors))
        # what is saved is seen from within an operator, where this mode is off, and what is recomputed is not
        meta = {"default": lambda tensor: {"shape": tensor.shape, "dtype": tensor.dtype}}
        stack.enter_context(mock.patch.object(graph, "saved_tensors_hooks", hooks_of_saved_tensors))
        stack.enter_context(mock.patch.object(torch, "autocast", autocast_to))
        for name in ("is_autocast_enabled", "get_autocast_dtype"):
            real = getattr(torch, name)
            stack.enter_context(mock.patch.object(torch, name, lambda kind="cpu", real=real: real("cpu")))
        stack.enter_context(mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, meta))
        for module in (graph, torch.autograd):
            stack.enter_context(mock.patch.object(module, "_engine_run_backward", in_a_thread))
        stack.enter_context(placed)
        stack.enter_context(card)
        yield card
