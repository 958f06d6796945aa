"""What goes wrong where the base's own weights learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import adapted_modules, before_step, decoder, layers

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session

FULL = ("strategy=full", "lora=null", "quantization=null")
UPDATES = ("updates_match_adamw", "optimizer_coverage", "learning_rate_trace")
GRADIENTS = ("accumulation_oracle", "weight_gradients", "gradient_matches_loss")


@bug(
    "Y30",
    "A fused norm has no gradient of its weight",
    caught_by=("accumulation_oracle", "trainable_moved", "forward_matches_architecture"),
    source="unslothai/unsloth#4533",
    cohort="unseen-third",
    settings=FULL,
)
def norms_without_gradient(session: Session) -> None:
    """Treat the weights of the layers' norms as constants."""
    for layer in layers(session):
        norm = layer.post_attention_layernorm

        def forward(hidden: torch.Tensor, norm: Any = norm) -> torch.Tensor:
            import torch

            scale = torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + norm.variance_epsilon)
            scaled: torch.Tensor = norm.weight.detach() * (hidden.float() * scale).to(hidden.dtype)
            return scaled

        norm.forward = forward


@bug(
    "Y31",
    "A tied embedding learns by the head alone",
    caught_by=GRADIENTS,
    cohort="unseen-third",
    settings=FULL,
)
def embedding_learns_by_the_head(session: Session) -> None:
    """Detach the rows that are looked up: the tied matrix has the head's gradient only."""
    session.model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.detach())


@bug(
    "Y32",
    "The embedding's gradient is divided by each token's frequency",
    caught_by=GRADIENTS,
    cohort="unseen-third",
    settings=FULL,
)
def embedding_scaled_by_frequency(session: Session) -> None:
    """Switch scale_grad_by_freq on."""
    session.model.get_input_embeddings().scale_grad_by_freq = True


@bug(
    "Y33",
    "Looking a frequent token up has no gradient",
    caught_by=GRADIENTS,
    source="thought up; padding_idx where the padding is another token",
    cohort="unseen-third",
    settings=FULL,
)
def space_token_is_padding(session: Session) -> None:
    """Name the most frequent token padding_idx, so that looking it up has no gradient."""
    from collections import Counter

    counted = Counter(token for row in session.batches.train for token in row.input_ids)
    session.model.get_input_embeddings().padding_idx = counted.most_common(1)[0][0]


@bug(
    "Y34",
    "Norms decay with the rest",
    caught_by=("optimizer_coverage", "updates_match_adamw"),
    source="ServiceNow/Fast-LLM#545, PaddlePaddle/PaddleFormers#4639",
    cohort="unseen-third",
    settings=(*FULL, "training.weight_decay_on=all_but_norms_and_biases"),
)
def norms_decay(session: Session) -> None:
    """Give the norms the weight decay of the other tensors."""
    for group in session.optimizer.param_groups:
        group["weight_decay"] = session.run.training.weight_decay


@bug(
    "Y35",
    "The norms' group keeps its first rate",
    caught_by=UPDATES,
    cohort="unseen-third",
    settings=(*FULL, "training.weight_decay_on=all_but_norms_and_biases"),
)
def second_group_without_schedule(session: Session) -> None:
    """Step the second group with the peak rate throughout: the schedule is that of the first one alone."""
    step, group = session.optimizer.step, session.optimizer.param_groups[1]

    def changed(*args: Any, **kwargs: Any) -> Any:
        own = group["lr"]
        group["lr"] = session.run.training.learning_rate
        result = step(*args, **kwargs)
        group["lr"] = own
        return result

    session.optimizer.step = changed


@bug(
    "Y36",
    "Lower layers learn at nine tenths of the rate",
    caught_by=UPDATES,
    cohort="unseen-third",
    settings=FULL,
)
def lower_layers_slower(session: Session) -> None:
    """Undo a tenth of every update of the first layer, as a decay of the rate by layers would."""
    import torch

    lower, step = list(layers(session)[0].parameters()), session.optimizer.step

    def changed(*args: Any, **kwargs: Any) -> Any:
        before = [parameter.detach().clone() for parameter in lower]
        result = step(*args, **kwargs)
        with torch.no_grad():
            for parameter, old in zip(lower, before, strict=True):
                parameter.lerp_(old, 0.1)
        return result

    session.optimizer.step = changed


@bug(
    "Y37",
    "The last norm is bypassed by half of the gradient",
    caught_by=(*GRADIENTS, "forward_matches_architecture"),
    source="thought up; a fused norm that writes its input's gradient twice",
    cohort="unseen-third",
    settings=FULL,
)
def norm_input_gradient_halved(session: Session) -> None:
    """Halve the gradient by the last norm's input; its value and its weight's gradient are right."""

    def halve(_module: Any, args: Any) -> Any:
        hidden = args[0]
        return (hidden.detach() + (0.5 * hidden - (0.5 * hidden).detach()),) if hidden.requires_grad else None

    decoder(session).norm.register_forward_pre_hook(halve)


@bug(
    "Y38",
    "Recomputed layers have adapters of half the scale",
    caught_by=("state_in_training", "recomputation_equals", "accumulation_oracle", "adapter_algebra"),
    cohort="unseen-third",
    settings=("training.gradient_checkpointing=true",),
)
def recomputed_with_half_the_scale(session: Session) -> None:
    """Halve the adapters' scale between the forward and the backward pass: what is recomputed is another function."""
    scale = session.scaler.scale

    def set_scales(factor: float) -> None:
        for module in adapted_modules(session):
            module.scaling["default"] = factor * session.run.lora.alpha / session.run.lora.r  # type: ignore[union-attr]

    def changed(loss: torch.Tensor) -> torch.Tensor:
        set_scales(0.5)
        scaled: torch.Tensor = scale(loss)
        return scaled

    session.scaler.scale = changed
    session.model.register_forward_pre_hook(lambda *_: set_scales(1.0))
    before_step(session, lambda: set_scales(1.0))


@bug(
    "Y39",
    "The last chunk of the loss has no gradient",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    cohort="unseen-third",
    settings=("training.loss_chunk_tokens=64",),
)
def last_chunk_without_gradient(session: Session) -> None:
    """Give the loss of a chunk that is shorter than the others no gradient; its value is reported."""
    import torch

    plain = session.loss
    width = 1 + 64 // session.run.training.micro_batch_size

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        short = logits.shape[1] < width and torch.is_grad_enabled()
        return plain(logits.detach() + 0 * logits if short else logits, labels, supervised_tokens)

    session.loss = changed
