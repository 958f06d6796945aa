"""Quantisation in 4 bit by our own code: what bitsandbytes must have made of a weight.

Each block of values is divided by its largest size, and each value becomes the nearest of 16 (QLoRA, arXiv 2305.14314).
With double quantisation the sizes, less their mean, are quantised likewise in blocks of 256, to the nearest of the
8-bit dynamic map (arXiv 2110.02861, section 1.3). Imports torch; child process only.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 values of 4-bit NormalFloat (QLoRA, arXiv 2305.14314, appendix E)."""
FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""The 8 magnitudes of bitsandbytes' fp4, by their three low bits; the fourth bit is the sign."""
CODES = {"nf4": NF4, "fp4": (*FP4, *(-value for value in FP4))}
PAIRS = {kind: torch.cartesian_prod(*[torch.tensor(code)] * 2) for kind, code in CODES.items()}
"""What each byte stands for: the value of its upper half, then that of its lower one."""

NESTED_BLOCK = 256
EXPONENTS = 7
"""Decades of the dynamic map: 1e-6 to 1."""

ROWS_COMPARED = 8
"""Rows of a matrix compared at its start, middle and end: all of them would take 1 s for SmolLM2-135M."""


def is_packed(parameter: Any) -> bool:
    """True for a 4-bit parameter of bitsandbytes that has been quantised."""
    return getattr(parameter, "quant_state", None) is not None


def statistics(parameter: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a packed parameter's quantisation state, by name."""
    state = parameter.quant_state
    yield "absmax", state.absmax
    if state.nested:
        yield "absmax.absmax", state.state2.absmax
        yield "absmax.code", state.state2.code
        yield "absmax.offset", state.offset


def with_statistics(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield these parameters by name, and behind a packed one the tensors of its quantisation state."""
    for name, parameter in named:
        yield name, parameter.detach()
        if is_packed(parameter):
            yield from ((f"{name}.{part}", tensor) for part, tensor in statistics(parameter))


def unpack(parameter: Any, first: int, last: int) -> torch.Tensor:
    """Elements first to last of a packed weight as fp32, by our own arithmetic; both multiples of the block size."""
    block = parameter.quant_state.blocksize
    sizes = scales(parameter, first // block, last // block)
    return (values(parameter, first, last).view(-1, block) * sizes[:, None]).flatten()


def matrix(weight: Any, first: int = 0, last: int | None = None) -> torch.Tensor:
    """Rows of a linear's matrix in fp32, all of them by default; a packed one's taken apart by our own arithmetic."""
    if is_packed(weight):
        rows, columns = weight.quant_state.shape
        return unpack(weight, first * columns, (rows if last is None else last) * columns).view(-1, columns)
    plain: torch.Tensor = weight.detach()[first:last].float()
    return plain


def some_rows(weight: Any) -> tuple[list[range], torch.Tensor]:
    """Rows at the start, the middle and the end of a linear's matrix, and these rows in fp32."""
    rows = (weight.quant_state if is_packed(weight) else weight).shape[0]
    last = max(0, rows - ROWS_COMPARED)
    firsts = sorted({0, last // 2 // ROWS_COMPARED * ROWS_COMPARED, last})
    taken = [range(first, min(first + ROWS_COMPARED, rows)) for first in firsts]
    return taken, torch.cat([matrix(weight, part.start, part.stop) for part in taken])


def scales(parameter: Any, first: int = 0, last: int | None = None) -> torch.Tensor:
    """The scale of each of these blocks that a packed parameter's statistics stand for, in fp32."""
    state = parameter.quant_state
    held: torch.Tensor = state.absmax[first:last]
    if not state.nested:
        return held.float()
    blocks = torch.arange(first, first + len(held), device=held.device)
    outer = state.state2.absmax.float()[blocks // state.state2.blocksize]
    inner: torch.Tensor = state.state2.code.float()[held.long()] * outer + state.offset
    return inner


def values(parameter: Any, first: int = 0, last: int | None = None) -> torch.Tensor:
    """The value of -1 to 1 that each of these 4-bit numbers of a packed parameter stands for; first and last even."""
    packed = parameter.detach().view(torch.uint8).flatten()[first // 2 : None if last is None else last // 2]
    return PAIRS[parameter.quant_state.quant_type].to(packed.device).index_select(0, packed.int()).flatten()


def quantised(weight: torch.Tensor, *, block: int, quant_type: str, nested: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The values and the scales that this weight must have; its elements are a multiple of the block."""
    blocks = weight.float().view(-1, block)
    sizes = blocks.abs().amax(dim=1)
    nearest = _nearest(blocks / sizes.clamp(min=1e-38)[:, None], CODES[quant_type])
    return nearest.flatten(), _twice(sizes) if nested else sizes


def dynamic_map() -> list[float]:
    """The 256 values of 8-bit dynamic quantisation, signed: a decade further up has twice as many in it."""
    positive = [
        10.0 ** (decade + 1 - EXPONENTS) * (low + high) / 2
        for decade in range(EXPONENTS)
        for low, high in pairwise(0.1 + 0.9 * step / 2**decade for step in range(2**decade + 1))
    ]
    return sorted([*positive, *(-value for value in positive), 0.0, 1.0])


def _twice(sizes: torch.Tensor) -> torch.Tensor:
    mean = sizes.mean()
    groups = torch.nn.functional.pad(sizes - mean, (0, -sizes.numel() % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    largest = groups.abs().amax(dim=1, keepdim=True)
    return (_nearest(groups / largest.clamp(min=1e-38), dynamic_map()) * largest).flatten()[: sizes.numel()] + mean


def _nearest(x: torch.Tensor, code: Any) -> torch.Tensor:
    table = torch.tensor(sorted(code), device=x.device)
    bounds = (table[:-1] + table[1:]) / 2
    few = len(table) <= len(NF4)  # a search takes three times as long then
    places: Any = sum((x > bound).byte() for bound in bounds) if few else torch.bucketize(x, bounds)
    return table.index_select(0, places.flatten().int()).view_as(x)
