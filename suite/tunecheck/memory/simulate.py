"""Child process that trains on fake tensors, with torch: shapes and lifetimes are a training's, values are missing.

All is on one device in it, so what would be on the other is registered with the count, `LiveStorages`.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tunecheck.config.schema import Run
from tunecheck.memory.live import CUDA_ROUNDING_BYTES, ELSEWHERE, LiveStorages
from tunecheck.memory.prediction import Simulation, assumed_precision
from tunecheck.models.description import Quantization
from tunecheck.models.layer_names import decoder_layers
from tunecheck.models.shapes import is_layer_linear
from tunecheck.probes.reference.four_bit import is_packed, statistics
from tunecheck.training import native, placement
from tunecheck.training.data import Batch
from tunecheck.training.hooks import tensors_of
from tunecheck.training.load import DTYPES
from tunecheck.training.placement import home
from tunecheck.training.restore import having
from tunecheck.training.session import Session

CPU = torch.device("cpu")
"""Device that fake tensors claim: without a GPU, torch runs no backward pass on tensors that claim one."""


@dataclass(slots=True, eq=False)
class _Group:
    """Parameters that move to the GPU and leave it together: a decoder layer, or all the rest."""

    parameters: list[torch.nn.Parameter]
    gathered: list[torch.Tensor] = field(default_factory=list)
    """Copies on the GPU; empty while the parameters are not used."""
    reduced: bool = False
    """Whether its gradients of this micro-batch have left the GPU."""


class Offloaded:
    """Stand-in for FSDP2 with CPU offload on one rank, as in torch 2.13 (FSDPParamGroup, foreach_reduce).

    A parameter arrives on the GPU as one copy and is used from a second one (wait_for_unshard). A group is freed after
    its forward pass, gathered again with the gradient of its output, and freed at the gradient of its input. Then its
    gradients become one flat tensor and that a second one, which goes to the CPU; the flat one stays until the next
    group's.
    """

    def __init__(self, session: Session, live: LiveStorages) -> None:
        self._live = live
        self._flat: torch.Tensor | None = None
        model = session.model
        self._layers = [self._watched(layer, [*layer.parameters()]) for layer in decoder_layers(model, at_least=1)]
        inside = {id(parameter) for group in self._layers for parameter in group.parameters}
        self._rest = self._watched(model, [p for p in model.parameters() if id(p) not in inside])
        model.as_forward = self._as_forward
        live.hold(model.parameters(), ELSEWHERE)

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Drop the gradients first, which are on the CPU by now, and free the last layers and gradients at the end."""
        for group in self._groups:
            group.reduced = False
            for parameter in group.parameters:
                parameter.grad = None  # autograd allocates new ones
        yield
        for group in self._groups:
            self._after_backward(group)
        self._flat = None

    @property
    def _groups(self) -> list[_Group]:
        return [*self._layers, self._rest]

    def _watched(self, module: Any, parameters: list[torch.nn.Parameter]) -> _Group:
        group = _Group(parameters)
        module.register_forward_pre_hook(partial(self._enter, group))
        module.register_forward_hook(partial(self._leave, group))
        return group

    def _as_forward(self, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        self._gather(self._rest)
        output = function()
        self._used(self._rest, output)
        return output

    def _enter(self, group: _Group, _module: Any, inputs: tuple[Any, ...]) -> None:
        self._gather(group)
        if inputs and torch.is_grad_enabled() and inputs[0].requires_grad:
            inputs[0].register_hook(lambda _: self._after_backward(group))

    def _leave(self, group: _Group, _module: Any, _inputs: Any, output: Any) -> None:
        self._used(group, output if isinstance(output, torch.Tensor) else output[0])

    def _used(self, group: _Group, output: Any) -> None:
        """Free the group after its forward pass; one in the backward pass is recomputed, and followed by its own."""
        if torch._C._current_graph_task_id() == -1:
            group.gathered.clear()
            if output.requires_grad:
                output.register_hook(lambda _: self._gather(group))

    def _after_backward(self, group: _Group) -> None:
        group.gathered.clear()
        if group.reduced or not (gradients := [p.grad for p in group.parameters if p.grad is not None]):
            return
        group.reduced = True
        self._flat = None
        self._flat = gradients[0].new_empty(sum(gradient.numel() for gradient in gradients))
        self._live.hold(gradients, ELSEWHERE)
        torch.empty_like(self._flat)

    def _gather(self, group: _Group) -> None:
        if group.gathered:
            return
        with torch.no_grad():
            for parameter in group.parameters:
                arrived = torch.empty_like(parameter)  # while that of the previous parameter still exists
                group.gathered.append(torch.empty_like(parameter))
            del arrived
        self._live.hold(group.gathered, "gathered")


def simulated(run: str) -> Simulation:
    """Simulate this run, which is JSON."""
    gc.freeze()  # spares the collector the libraries' half million objects
    return simulate(Run.model_validate_json(run))


def simulate(run: Run, *, rounding_bytes: int = CUDA_ROUNDING_BYTES, fake: bool = True) -> Simulation:
    """Return the run's allocator peaks, in bytes, over the first micro-batch, a later one and an evaluation.

    A later micro-batch finds the optimizer's state and, where gradients are accumulated, the gradients of the ones
    before. A batch of several rows is taken as padded, a single row only where the run pads it. With `fake=False` the
    same is done with real tensors on the CPU, for tests.
    """
    if run.quantization is not None:  # bitsandbytes keeps a table from its first call: it should not be a fake one
        _quantised(torch.zeros(64, 64), run.quantization)
    with _dora_unpacks_plain_parameters(), _without_numbers() if fake else nullcontext():
        session = build(run)
        live = LiveStorages(rounding_bytes, deterministic=run.training.deterministic)
        claim(live, session)
        offloaded = Offloaded(session, live) if run.training.offload == "parameters" else None
        loaded_bytes, several = live.live_bytes, run.training.gradient_accumulation_steps > 1
        # what `placement.activations_on_cpu` moves to the CPU is not on the GPU
        with live, mock.patch.object(placement, "_to_host", live.elsewhere()(placement._to_host)):
            batch = _batch(run.training.micro_batch_size, run)
            first_bytes = _step(session, live, batch, keep_gradients=several, offloaded=offloaded)
            live.hold((tensor for state in session.optimizer.state.values() for tensor in state.values()), "optimizer")
            steady_bytes = _step(session, live, batch, keep_gradients=False, offloaded=offloaded)
            del batch
            at_peak, operation, remainder_bytes = live.peak_by_kind, live.peak_operation, live.peak_remainder_bytes
            rows = min(run.evaluation.rows, run.evaluation.batch_size)
            evaluation_bytes = _evaluate(session, live, _batch(rows, run))
        return Simulation(
            loaded_bytes=loaded_bytes,
            first_step_bytes=first_bytes,
            steady_bytes=steady_bytes,
            evaluation_bytes=evaluation_bytes,
            remainder_bytes=remainder_bytes,
            between_steps=live.by_kind(),
            at_peak=at_peak,
            peak_operation=operation,
        )


def build(run: Run) -> Session:
    """Return the trainer's session without weights, tokenizer and data. Raises Unsupported for a missing target."""
    precision = assumed_precision(run)
    with _dtypes_of_fake_parameters_can_change():
        model = native.adapt(_base(run, precision), run)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Session(
        run=run,
        device=CPU,
        precision=precision,
        folder=Path(),
        model=model,
        batches=cast(Any, None),
        # as on a GPU, where AdamW is fused unless its state is on the CPU
        optimizer=native.make_optimizer(trainable, run.training, home(run, torch.device("cuda"))),
        loss=native.token_weighted_loss,
    )


def claim(live: LiveStorages, session: Session) -> None:
    """Count the session's weights by kind, and gradients as soon as they exist."""
    adapted = session.run.lora is not None
    live.hold(session.model.buffers(), "other_weights")
    for parameter in session.model.parameters():
        if is_packed(parameter):
            held = [tensor for _, tensor in statistics(parameter)]
            live.hold([parameter, parameter.quant_state.code, *held], "quantised_weights")
            continue
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda trained: live.hold([trained.grad], "gradients"))
        live.hold([parameter], "adapters" if adapted and parameter.requires_grad else "other_weights")


@contextmanager
def _without_numbers() -> Iterator[None]:
    """Make tensors in the block have shape, dtype and lifetime, but no values."""
    from transformers import masking_utils

    # Without a mask transformers searches the positions for packed sequences; it cannot read fake ones, and would make
    # a mask to be safe. The trainer packs none. A mock would keep the tensors that it is called with.
    unpacked = having([(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)])
    with FakeTensorMode(allow_non_fake_inputs=True), unpacked:
        yield


def _step(
    session: Session, live: LiveStorages, batch: Batch, *, keep_gradients: bool, offloaded: Offloaded | None = None
) -> int:
    """Run one micro-batch and its update, as `native.train` does, and return the peak in bytes."""
    session.model.train()
    live.start_phase()
    with offloaded.micro_batch() if offloaded else nullcontext():
        native.forward(session, batch, batch.supervised_tokens).backward()  # type: ignore[no-untyped-call]
    with live.elsewhere() if offloaded else nullcontext():  # then the update happens on the CPU
        native.clip_gradients(tensors_of(session.optimizer), session.run.training.max_grad_norm)
        session.optimizer.step()
    if not keep_gradients:
        session.optimizer.zero_grad(set_to_none=True)
    return live.peak_bytes


def _evaluate(session: Session, live: LiveStorages, batch: Batch) -> int:
    session.model.eval()
    live.start_phase()
    with torch.no_grad():
        native.forward(session, batch, 1)
    return live.peak_bytes


def _batch(rows: int, run: Run) -> Batch:
    """Return the largest batch that the run may see. A padded one lacks a token: attention with a mask differs."""
    padding = int(rows > 1 or run.data.pad_to_sequence_len)
    shape = (rows, run.data.max_length)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[-1, run.data.max_length - padding :] = 0
    return Batch(
        keys=(),
        input_ids=torch.zeros(shape, dtype=torch.int64),
        attention_mask=mask,
        labels=torch.zeros(shape, dtype=torch.int64),
        supervised_tokens=rows * (run.data.max_length - 1),
        tokens=rows * run.data.max_length - padding,
    )


def _base(run: Run, precision: str) -> Any:
    """Return the base model as `tunecheck.training.load.load_base` makes it, without values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**run.model.architecture.model_dump())
    dtype = torch.float32 if run.trains_base else DTYPES[precision]
    auto: Any = AutoModelForCausalLM
    # flash-attn cannot be imported without a GPU; it saves what torch's own flash kernel saves
    kernel = "eager" if run.training.attention == "eager" else "sdpa"
    model = auto.from_config(config, dtype=dtype, attn_implementation=kernel)
    model.requires_grad_(False)
    model.config.use_cache = False
    if run.quantization is None:
        return model
    for name, linear in list(model.named_modules()):
        if isinstance(linear, torch.nn.Linear) and is_layer_linear(f"{name}.weight", tuple(linear.weight.shape)):
            packed, state = _quantised(linear.weight.data, run.quantization)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _linear_4bit(linear, packed, state, DTYPES[precision]))
    model.is_loaded_in_4bit = True  # peft selects its layer class by it
    return model


def _quantised(weight: torch.Tensor, quantization: Quantization) -> tuple[torch.Tensor, Any]:
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(
        weight,
        blocksize=quantization.block_size,
        quant_type=quantization.quant_type,
        compress_statistics=quantization.double_quant,
    )
    if state.nested:  # shared on the CPU; on a GPU each weight has its own copy
        state.state2.code = state.state2.code.clone()
    return packed, state


def _linear_4bit(linear: torch.nn.Linear, packed: torch.Tensor, state: Any, compute_dtype: torch.dtype) -> Any:
    """Return a Linear4bit with the packed weight as a plain parameter: Params4bit cannot wrap a fake tensor."""
    from bitsandbytes.nn import Linear4bit  # type: ignore[attr-defined]

    weight: Any = torch.nn.Parameter(packed, requires_grad=False)
    weight.quant_state, weight.compress_statistics, weight.quant_type = state, state.nested, state.quant_type
    module: Any = Linear4bit.__new__(Linear4bit)
    torch.nn.Module.__init__(module)
    module.in_features, module.out_features = linear.in_features, linear.out_features
    module.weight, module.bias, module.quant_state = weight, linear.bias, state
    module.compute_dtype, module.compute_type_is_set = compute_dtype, True
    module.support_avx512bf16_for_cpu = False
    return module


def _dora_unpacks_plain_parameters() -> Any:
    """Make DoRA dequantise plain parameters in the block: peft recognises a packed weight by the class Params4bit."""
    from bitsandbytes.functional import dequantize_4bit

    def weight_of(linear: Any) -> Any:
        state = getattr(linear.weight, "quant_state", None)
        return linear.weight if state is None else dequantize_4bit(linear.weight.data, state)

    # peft's copy of the linear, for FSDP, is left out: a fake tensor cannot be copied so
    replaced: dict[str, Any] = {"dequantize_module_weight": weight_of, "deepcopy": lambda linear: linear}
    return mock.patch.multiple("peft.tuners.lora.dora", **replaced)


def _dtypes_of_fake_parameters_can_change() -> Any:
    """Replace Module.to in the block: it swaps a fake parameter's identity, which torch refuses."""

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        dtype = torch._C._nn._parse_to(*args, **kwargs)[1]
        for owner in module.modules():
            for name, parameter in owner._parameters.items():
                if dtype is not None and parameter is not None and parameter.is_floating_point():
                    owner._parameters[name] = torch.nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
        return module

    return mock.patch.object(torch.nn.Module, "to", to)
