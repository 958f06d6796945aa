"""Products of adapters, of the base beside them, and of norms, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")


def _adapted(session: Session, target: str) -> list[Any]:
    """Return the adapted linears of this name, layer by layer."""
    return [
        module for name, module in session.model.named_modules() if name.endswith(target) and hasattr(module, "lora_A")
    ]


@unseen(
    "Z02",
    "The last norm is skipped in training",
    caught_by=("loss_oracle", "forward_matches_architecture", "gradient_matches_loss", "weights_in_use"),
    must_say="The training's forward pass is not the model's, or the window's loss is not.",
)
def last_norm_skipped(session: Session) -> None:
    """Hand the hidden states past the final norm wherever a gradient is wanted in train mode."""
    import torch

    norm = session.model.get_decoder().norm
    normed = norm.forward
    norm.forward = lambda x: x if norm.training and torch.is_grad_enabled() else normed(x)


@unseen(
    "Z03",
    "The last layer trains without its adapters",
    caught_by=("trainable_moved", "lora_gradient_schedule", "state_in_training", "adapter_algebra", "loss_oracle"),
    must_say="Some adapters get no gradient, do not move, or are not applied.",
)
def last_layer_without_adapters(session: Session) -> None:
    """Call the base alone in the last layer's adapted linears, in train mode."""
    for target in session.run.lora.target_modules:  # type: ignore[union-attr]
        module = _adapted(session, target)[-1]
        whole = module.forward
        module.forward = lambda x, module=module, whole=whole: module.base_layer(x) if module.training else whole(x)


@unseen(
    "Z20",
    "Norms add a hundred times their epsilon",
    caught_by="forward_matches_architecture",
    must_say="Norms do not follow the architecture's formula.",
)
def large_norm_epsilon(session: Session) -> None:
    """Compute every RMS norm with an epsilon of 1e-3 instead of the configuration's 1e-5."""
    for module in session.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3


@unseen(
    "Z22",
    "DoRA divides by the norm of the base alone",
    caught_by="adapter_algebra",
    settings=("lora.use_dora=true",),
    must_say="The adapted linear does not follow DoRA's formula.",
)
def dora_norm_of_base(session: Session) -> None:
    """Leave the adapter's product out of the norm that DoRA divides by: right as long as B is zero."""
    import torch

    for module in session.model.modules():
        for magnitude in getattr(module, "lora_magnitude_vector", {}).values():
            magnitude.get_weight_norm = lambda weight, *_, **__: torch.linalg.norm(weight.float(), dim=1)


@unseen(
    "Z24",
    "Half of an adapter's outputs lack the scaling",
    caught_by="adapter_algebra",
    must_say="An adapted linear does not follow its formula.",
)
def half_unscaled(session: Session) -> None:
    """Scale the first half of q_proj's outputs alone in the first layer, as a fused kernel with a wrong bound."""
    module = _adapted(session, "q_proj")[0]
    (up,), (scaling,) = module.lora_B.values(), module.scaling.values()
    product = up.forward

    def first_half(x: Any) -> Any:
        import torch

        left, right = product(x).chunk(2, dim=-1)
        return torch.cat((left, right / scaling), dim=-1)

    up.forward = first_half


@unseen(
    "Z25",
    "No gradient passes through adapters to what is below",
    caught_by=("gradient_matches_loss", "accumulation_oracle", "weight_gradients", "adapter_algebra"),
    must_say="The gradient is not the loss's: lower layers get too little.",
)
def adapters_detach(session: Session) -> None:
    """Detach the adapters' input, which saves memory and cuts the path through them to lower layers."""
    for target in session.run.lora.target_modules:  # type: ignore[union-attr]
        for module in _adapted(session, target):
            for down in module.lora_A.values():
                product = down.forward
                down.forward = lambda x, product=product: product(x.detach())


@unseen(
    "Z26",
    "A 4-bit linear's backward pass loses 3 %",
    caught_by=("kernel_agrees", "gradient_matches_loss", "accumulation_oracle"),
    must_say="A quantised linear's input gradient is not the product with its weight.",
)
def weak_backward(session: Session) -> None:
    """Multiply the gradient that passes the last layer's o_proj by 0.97; its output stays right."""
    linear = session.model.get_decoder().layers[-1].self_attn.o_proj
    product = linear.forward
    linear.forward = lambda x: product(x.detach() + 0.97 * (x - x.detach()) if x.requires_grad else x)


@unseen(
    "Z49",
    "Adapters are drawn under a seed of their own",
    caught_by="adapters_start_random",
    must_say="The adapters' A is not drawn under the run's seed: every seed begins alike.",
)
def fixed_adapter_seed(session: Session) -> None:
    """Draw every A again, as peft does, from a generator that is always seeded with 42."""
    import math

    import torch

    generator = torch.Generator().manual_seed(42)
    with torch.no_grad():
        for name, parameter in session.model.named_parameters():
            if "lora_A" in name:
                torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)


@unseen(
    "Z21",
    "Checkpointing drops other activations the second time",
    caught_by="recomputation_equals",
    settings=("training.gradient_checkpointing=true", "lora.dropout=0.1"),
    must_say="A gradient is another with checkpointing than without it under the same random state.",
)
def recomputed_under_another_state(session: Session) -> None:
    """Let torch's checkpoint keep no random state: the second pass draws other dropout masks."""
    from torch.utils.checkpoint import checkpoint

    for module in session.model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@unseen(
    "Z28",
    "A common token's embedding does not learn",
    caught_by=("accumulation_oracle", "weight_gradients", "gradient_matches_loss", "trainable_moved"),
    settings=("strategy=full", "lora=null", "quantization=null"),
    must_say="The embedding's gradient is not the loss's.",
)
def embedding_ignores_a_token(session: Session) -> None:
    """Name the commonest token as the embedding's padding_idx, as code does that pads with a newline."""
    from collections import Counter

    tokens = Counter(token for row in session.batches.train for token in row.input_ids)
    session.model.get_input_embeddings().padding_idx = tokens.most_common(1)[0][0]
