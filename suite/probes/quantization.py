"""The 4-bit linears as they really are, and their kernel against our own dequantisation."""

from __future__ import annotations

from collections import Counter
from math import isnan, prod
from types import SimpleNamespace
from typing import Any

import torch

from suite.evidence import Quantization
from suite.memory.static import is_layer_linear, packed_bytes
from suite.models.load import DTYPES
from suite.probe import Probe
from suite.tensors import WeightFile, file_name, is_packed, statistics, unpack
from suite.trainer import Session

KERNEL_ROWS = (1, 17)
"""bitsandbytes takes other kernels for one row than for many."""


class QuantizationProbe(Probe):
    """Looks at every quantised linear once, before training."""

    emits = (Quantization,)

    def start(self, session: Session) -> None:
        """Count, weigh, and multiply by one linear of each shape."""
        if session.run.quantization is None:
            return
        weights = WeightFile(session.folder)
        modules = {
            file_name(f"{name}.weight").removesuffix(".weight"): module
            for name, module in session.model.named_modules()
            if is_packed(getattr(module, "weight", None))
        }
        packed = [module.weight for module in modules.values()]
        error, at = self._kernel_error(session, modules)
        again = _quantized_again(session, weights, modules)
        keeping = tuple(name for name, module in _of_each_shape(modules) if _keeps_unpacked(session, module))
        self.emit(
            Quantization(
                expected_modules=tuple(
                    name.removesuffix(".weight") for name in weights.names if is_layer_linear(name, weights.shape(name))
                ),
                quantized_modules=tuple(sorted(modules)),
                quant_types=_count(weight.quant_state.quant_type for weight in packed),
                block_sizes=_count(weight.quant_state.blocksize for weight in packed),
                double_quant=_count(weight.quant_state.nested for weight in packed),
                compute_dtypes=_count(str(module.compute_dtype).removeprefix("torch.") for module in modules.values()),
                packed_bytes=sum(_bytes(weight) for weight in packed),
                expected_bytes=sum(
                    packed_bytes(prod(weights.shape(f"{name}.weight")), session.run.quantization.double_quant)
                    for name in modules
                    if f"{name}.weight" in weights
                ),
                requantized=len(again),
                requantized_differing=tuple(name for name, same in again.items() if not same),
                kernel_error=error,
                kernel_error_at=at,
                unpacked_kept=keeping,
            )
        )

    def _kernel_error(self, session: Session, modules: dict[str, Any]) -> tuple[float, str]:
        """Largest relative error of module(x) against x @ W.T + b, over one module of each shape."""
        generator = torch.Generator().manual_seed(0)
        dtype = DTYPES[session.precision]
        worst, worst_at = 0.0, ""
        for name, module in _of_each_shape(modules):
            rows, columns = module.weight.quant_state.shape
            weight = unpack(module.weight, 0, rows * columns).view(rows, columns)
            for count in KERNEL_ROWS:
                x = torch.randn(count, columns, generator=generator).to(session.device, dtype)
                with torch.no_grad():
                    got = module(x).float()
                bias = 0 if module.bias is None else module.bias.float()
                wanted = (x.double() @ weight.to(dtype).double().T + bias).float()
                error = float((got - wanted).norm() / wanted.norm())
                if isnan(error):  # no later good product may hide it
                    return error, f"{name}, {count} rows"
                if error > worst:
                    worst, worst_at = error, f"{name}, {count} rows"
        return worst, worst_at


def _of_each_shape(modules: dict[str, Any]) -> list[tuple[str, Any]]:
    """The last linear of each shape, with its name."""
    return list({tuple(m.weight.quant_state.shape): (n, m) for n, m in modules.items()}.values())


def _keeps_unpacked(session: Session, module: Any) -> bool:
    """Whether autograd is handed a floating tensor of the weight's size when the input needs a gradient."""
    rows, columns = module.weight.quant_state.shape
    x = torch.zeros(1, columns, device=session.device, dtype=DTYPES[session.precision], requires_grad=True)
    sizes = [0]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() if tensor.is_floating_point() else 0)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(x)
    return max(sizes) >= int(rows * columns)


def _quantized_again(session: Session, weights: WeightFile, modules: dict[str, Any]) -> dict[str, bool]:
    """Linears of the smallest shape: whether the file's weights, quantised by the library once more, are the same.

    What is wrong in the statistics alone moves every weight by less than the error of 4 bits, and hides in it.
    """
    from bitsandbytes.functional import quantize_4bit

    sizes = {name: prod(module.weight.quant_state.shape) for name, module in modules.items()}
    same: dict[str, bool] = {}
    for name in (name for name, size in sizes.items() if size == min(sizes.values()) and f"{name}.weight" in weights):
        held = modules[name].weight
        packed, state = quantize_4bit(
            weights.tensor(f"{name}.weight").to(session.device, DTYPES[session.precision]),
            blocksize=held.quant_state.blocksize,
            compress_statistics=held.quant_state.nested,
            quant_type=held.quant_state.quant_type,
        )
        pairs = zip(statistics(held), statistics(SimpleNamespace(quant_state=state)), strict=True)
        same[name] = torch.equal(held.view(-1), packed.view(-1)) and all(
            torch.allclose(one.float(), other.float(), rtol=1e-5, atol=0) for (_, one), (_, other) in pairs
        )
    return same


def _bytes(weight: Any) -> int:
    tensors = [weight, weight.quant_state.code, *(tensor for _, tensor in statistics(weight))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _count(values: Any) -> dict[str, int]:
    return {str(value): number for value, number in sorted(Counter(values).items(), key=str)}
