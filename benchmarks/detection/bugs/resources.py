"""Memory that is kept, and memory savings that are not applied."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import after_step, decoder, layers

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session

KEPT: list[Any] = []
"""A list of the module, as bugs of this class have it."""


@bug(
    "B84",
    "Losses kept with their graph",
    caught_by="live_tensors_flat",
    source="google/brax#152, ray-project/ray#40940, pytorch/pytorch#17568",
)
def losses_kept_with_their_graph(session: Session) -> None:
    """Keep every loss in a list, autograd graph included."""
    inner = session.loss

    def loss(*args: Any) -> torch.Tensor:
        KEPT.append(inner(*args))
        return KEPT[-1]  # type: ignore[no-any-return]

    session.loss = loss


@bug(
    "B86",
    "Gradient checkpointing silently off",
    caught_by="checkpointing_as_configured",
    source="huggingface/sentence-transformers#2717",
    settings=("training.gradient_checkpointing=true",),
)
def checkpointing_off(session: Session) -> None:
    """Request gradient checkpointing without enabling it in the layers."""
    for layer in layers(session):
        layer.gradient_checkpointing = False


@bug(
    "B88",
    "A recovery's traceback keeps everything",
    caught_by="memory_returned",
    source="pytorch/pytorch#27600, #26188, #18853",
)
def traceback_keeps_the_session(session: Session) -> None:
    """Keep a handled exception, and through its traceback every frame's variables."""
    try:
        raise MemoryError("recovered from")
    except MemoryError as error:
        KEPT.append(error)


@bug(
    "B89",
    "Evaluation keeps all logits",
    caught_by="evaluation_mode",
    source="huggingface/transformers#8476, #18947, #25313",
)
def evaluation_keeps_logits(session: Session) -> None:
    """Collect the logits of every evaluation batch."""
    kept: list[torch.Tensor] = []
    session.model.register_forward_hook(lambda m, _a, out: None if m.training else kept.append(out.logits.clone()))


@bug("B92", "Memory not released after a run", caught_by="memory_returned", source="pytorch/pytorch#27600")
def model_kept_after_the_run(session: Session) -> None:
    """Keep a reference to the model in a global list."""
    KEPT.append(session.model)


@bug(
    "X74",
    "4 KiB kept a step",
    caught_by="memory_flat",
    settings=("training.max_steps=50", "training.gradient_accumulation_steps=1"),
)
def four_kib_kept_a_step(session: Session) -> None:
    """Keep 4 KiB of every forward pass in a hook: too little for any ceiling, fatal in a long run."""
    import torch

    kept: list[torch.Tensor] = []
    session.model.register_forward_hook(lambda *_: kept.append(torch.zeros(1024)))


@bug("X75", "Checkpointing though nobody asked", caught_by="checkpointing_as_configured")
def checkpointing_uninvited(session: Session) -> None:
    """Enable gradient checkpointing although it is not configured: a third slower."""
    session.model.gradient_checkpointing_enable({"use_reentrant": False})


@bug(
    "X101",
    "Checkpointed inputs kept in bf16",
    caught_by="recomputation_equals",
    settings=("training.gradient_checkpointing=true", "training.precision=fp32"),  # in bf16 the inputs are bf16 anyway
)
def checkpointed_inputs_in_bf16(session: Session) -> None:
    """Recompute a checkpointed layer's attention from inputs kept in bf16."""
    import torch

    for layer in layers(session):

        def rounded(_module: Any, args: Any) -> Any:
            recomputed = torch._C._current_graph_task_id() != -1
            return (args[0].bfloat16().to(args[0].dtype), *args[1:]) if recomputed else args

        layer.input_layernorm.register_forward_pre_hook(rounded)  # the layer's own hooks are not run again


@bug(
    "X104",
    "All logits at once though chunks are asked for",
    caught_by="checkpointing_as_configured",
    settings=("training.loss_chunk_tokens=20",),
)
def loss_in_one_piece(session: Session) -> None:
    """Compute the loss from all logits at once although chunks are configured."""
    session.run = session.run.model_copy(
        update={"training": session.run.training.model_copy(update={"loss_chunk_tokens": None})}
    )


@bug(
    "U21",
    "Recomputed layers draw other dropout masks",
    caught_by=("accumulation_oracle", "dropout_varies", "gradient_matches_loss", "recomputation_equals"),
    source="thought up, not from a thread",
    cohort="unseen",
    settings=("lora.dropout=0.1", "training.gradient_checkpointing=true"),
)
def recomputed_with_other_masks(session: Session) -> None:
    """Recompute checkpointed layers without the random state of the first pass."""
    session.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})


@bug(
    "U22",
    "A hook more at every step",
    caught_by=("live_tensors_flat", "memory_flat", "throughput_steady"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def hooks_pile_up(session: Session) -> None:
    """Register a hook at every step that is never removed: each forward pass takes longer than the one before it."""
    norm = decoder(session).norm
    after_step(session, lambda: norm.register_forward_hook(lambda _m, _a, out: None) and None)


@bug(
    "V18",
    "Recomputed activations have other dropout masks",
    caught_by=("gradient_matches_loss", "dropout_varies", "recomputation_equals"),
    source="allenai/OLMo-core#828",
    cohort="blind",
    settings=("training.gradient_checkpointing=true", "lora.dropout=0.1"),
    must_say="With checkpointing the gradient is not that of the loss computed: dropout differs when it is recomputed.",
)
def dropout_drawn_again(session: Session) -> None:
    """Checkpoint without preserving the random state: the recomputed forward pass has other dropout masks."""
    from torch.utils.checkpoint import checkpoint

    for module in session.model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@bug(
    "V35",
    "Predictions of training steps are kept for ever",
    caught_by=("memory_flat", "live_tensors_flat"),
    cohort="blind",
    must_say="Memory or the number of live tensors grows with every step.",
)
def predictions_kept(session: Session) -> None:
    """Keep the last logits of every training row for a metric that is never computed."""
    import torch

    plain, kept = session.loss, list[torch.Tensor]()

    def keeping(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        if logits.requires_grad:
            kept.append(logits.detach()[:, -8:].half())
        return plain(logits, labels, supervised_tokens)

    session.loss = keeping


@bug(
    "V36",
    "A key-value cache is filled in every training step",
    caught_by=("memory_flat", "live_tensors_flat", "attention_as_configured"),
    source="huggingface/transformers#35648",
    cohort="blind",
    must_say="A training step fills a key-value cache, or takes more memory or time than the same step without one.",
)
def cache_filled_in_training(session: Session) -> None:
    """Fill a key-value cache in every training forward pass."""
    kept: list[Any] = []

    def with_cache(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | ({"use_cache": True} if module.training else {})

    def keep(_module: Any, _args: Any, output: Any) -> None:
        kept[:] = [getattr(output, "cache", None) or output.past_key_values]

    decoder(session).register_forward_pre_hook(with_cache, with_kwargs=True)
    decoder(session).register_forward_hook(keep)


def _plain_product(module: Any, functional: Any) -> Any:
    """Return the linear layer's product by autograd alone."""
    import torch.nn.functional as F

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        return F.linear(x, weight.to(x.dtype))

    return forward


@bug(
    "V76",
    "Unpacked 4-bit weights are kept for the backward pass",
    caught_by=("memory_order", "quantization_as_configured"),
    source="bitsandbytes-foundation/bitsandbytes#1935",
    cohort="blind-second",
    must_say="A step holds more memory than a 4-bit base needs: unpacked weights live through the backward pass.",
)
def unpacked_weights_saved(session: Session) -> None:
    """Compute each 4-bit product by autograd, which saves the unpacked weight until the backward pass."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")
    for module in session.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.forward = _plain_product(module, bitsandbytes.functional)


def _inside_reentrant(inner: Any) -> Any:
    """Return this checkpointing inside a reentrant one, whose input must require a gradient lest it cuts the
    adapters'."""
    from torch.utils.checkpoint import checkpoint

    def both(function: Any, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
        return checkpoint(lambda h: inner(function, h, *args, **kwargs), given, use_reentrant=True)

    return both


@bug(
    "V77",
    "Every layer is checkpointed twice",
    caught_by="checkpointing_as_configured",
    source="meta-llama/llama-cookbook#740, linkedin/Liger-Kernel#1064",
    cohort="blind-second",
    settings=("training.gradient_checkpointing=true",),
    must_say="Layers are computed more often than checkpointing asks for, or a step takes too long.",
)
def checkpointed_twice(session: Session) -> None:
    """Checkpoint each layer twice, one call inside the other: it is recomputed twice."""
    for module in session.model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _inside_reentrant(module._gradient_checkpointing_func)
