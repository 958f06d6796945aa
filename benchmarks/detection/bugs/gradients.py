"""Backward passes, accumulation and clipping that change the gradient."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import after_step, before_step, counted_steps, layers, lora_parameters
from tunecheck.training.data import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tunecheck.training.session import Session


def _clip(session: Session, change: Any) -> None:
    """Replace clipping with `change(clip, parameters, limit)`, where no limit is 1."""
    from tunecheck.training import native

    loop: Any = native
    clip = loop.clip_gradients
    loop.clip_gradients = lambda parameters, limit: change(clip, parameters, 1.0 if limit is None else limit)


@bug(
    "B67",
    "Clipping before unscaling",
    caught_by="updates_match_adamw",
    source="pytorch/examples#1196, rwth-i6/returnn#1590, milesial/Pytorch-UNet#468",
)
def clipped_before_unscaling(session: Session) -> None:
    """Clip gradients while they are still scaled by 65536, and report the right norm."""
    _clip(session, lambda clip, parameters, limit: clip(parameters, limit / 65536))


@bug(
    "B69",
    "Gradients never cleared",
    caught_by=("gradients_cleared", "accumulation_oracle"),
    source="pytorch/pytorch#47175",
)
def gradients_never_cleared(session: Session) -> None:
    """Turn zero_grad into a no-op."""
    session.optimizer.zero_grad = lambda *args, **kwargs: None


@bug(
    "B101",
    "Overflow in the backward pass",
    caught_by="finite",
    source="QwenLM/Qwen3#670, #868, unslothai/unsloth-zoo#866, google/gemma_pytorch#24",
)
def overflow_in_backward(session: Session) -> None:
    """Pass the gradient of the last hidden states through fp16 with a scale of 2^30, which overflows."""

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return (gradient * 2.0**30).half().to(gradient.dtype) / 2.0**30

    def watch(_module: Any, _args: Any, out: Any) -> None:
        if out.requires_grad:
            out.register_hook(overflow)

    session.model.get_decoder().norm.register_forward_hook(watch)


@bug(
    "B114",
    "No gradient after an evaluation",
    caught_by="lora_gradient_schedule",
    source="bitsandbytes 0.50.2, Linear4bit.forward on CPUs with AVX512-BF16",
)
def gradients_end_with_an_evaluation(session: Session) -> None:
    """Cut the gradient at quantized linear layers after the first forward pass in eval mode, without an error."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    state = {"evaluated": False}

    def notice(module: torch.nn.Module, *_: Any) -> None:
        state["evaluated"] = state["evaluated"] or not module.training

    session.model.register_forward_pre_hook(notice)
    for module in session.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.register_forward_hook(lambda _m, _a, out: out.detach() + 0 * out if state["evaluated"] else out)


@bug(
    "X07",
    "One gradient doubled in every backward pass",
    caught_by=("gradient_matches_loss", "weight_gradients"),
    settings=("probes.directional_gradient=true",),
    tier="convergence",
)
def one_gradient_doubled(session: Session) -> None:
    """Double the gradient of one adapter tensor with a hook, in every backward pass."""
    parameter: Any = lora_parameters(session, "lora_B")[0][1]
    parameter.register_hook(lambda gradient: 2 * gradient)


@bug("X08", "One layer's attention detached", caught_by="lora_gradient_schedule")
def gradient_detached_in_one_layer(session: Session) -> None:
    """Detach the last layer's attention output: only the residual carries a gradient."""
    layers(session)[-1].self_attn.register_forward_hook(lambda _m, _a, out: (out[0].detach(), *out[1:]))


@bug(
    "X45",
    "A backward pass that is not its forward's",
    caught_by="gradient_matches_loss",
    settings=("probes.directional_gradient=true",),
    tier="convergence",
)
def backward_of_a_norm_wrong(session: Session) -> None:
    """Halve the gradient of one layer's norm, as a fused kernel with a wrong backward pass would."""
    import torch

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 0.5

    kernel: Any = Kernel
    layers(session)[-1].post_attention_layernorm.register_forward_hook(lambda _m, _a, out: kernel.apply(out))


@bug("X50", "Stale gradients", caught_by="updates_match_adamw")
def stale_gradient(session: Session) -> None:
    """Take each step with the previous step's gradient."""
    held: dict[int, torch.Tensor] = {}

    def exchange() -> None:
        for group in session.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    now = parameter.grad.clone()
                    parameter.grad.copy_(held.get(id(parameter), now))
                    held[id(parameter)] = now

    before_step(session, exchange)


@bug("X51", "Nothing is clipped", caught_by="updates_match_adamw", settings=("training.max_grad_norm=0.05",))
def not_clipped(session: Session) -> None:
    """Measure the gradient norm without clipping."""
    _clip(session, lambda clip, parameters, limit: clip(parameters, None))


@bug("X52", "Tensors clipped one by one", caught_by="updates_match_adamw", settings=("training.max_grad_norm=0.05",))
def clipped_one_by_one(session: Session) -> None:
    """Clip every tensor by its own norm and report the norm of all."""

    def each(clip: Any, parameters: Any, limit: float) -> Any:
        norm = clip(parameters, None)
        for parameter in parameters:
            clip([parameter], limit)
        return norm

    _clip(session, each)


@bug("X53", "Clipping after the step", caught_by="updates_match_adamw", settings=("training.max_grad_norm=0.05",))
def clipped_after_the_step(session: Session) -> None:
    """Clip after the step was taken."""
    from tunecheck.training import native

    loop: Any = native
    clip, parameters = loop.clip_gradients, session.optimizer.param_groups[0]["params"]
    limit = session.run.training.max_grad_norm
    loop.clip_gradients = lambda given, _limit: clip(given, None)

    def late() -> None:
        clip(parameters, limit)

    after_step(session, late)


@bug(
    "X54", "The clipped norm is reported", caught_by="gradient_norm_reported", settings=("training.max_grad_norm=0.05",)
)
def norm_after_clipping_reported(session: Session) -> None:
    """Report the norm of the clipped gradients."""

    def clipped(clip: Any, parameters: Any, limit: float) -> Any:
        clip(parameters, limit)
        return clip(parameters, None)

    _clip(session, clipped)


@bug("X65", "One tensor's gradient doubled after the norm", caught_by="updates_match_adamw")
def one_adapter_updated_twice(session: Session) -> None:
    """Double one tensor's gradient after the norm was taken."""
    _, parameter = lora_parameters(session, "lora_B")[0]

    def double() -> None:
        if parameter.grad is not None:
            parameter.grad.mul_(2)

    before_step(session, double)


@bug(
    "U03",
    "Gradients are summed in bf16",
    caught_by=("weight_gradients", "accumulation_oracle"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def gradients_summed_in_bf16(session: Session) -> None:
    """Keep the gradients in bf16 between micro-batches."""
    for _, parameter in lora_parameters(session):
        held: Any = parameter
        held.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.detach().bfloat16().to(p.dtype)))


@bug(
    "U15",
    "Gradients clipped by value",
    caught_by="updates_match_adamw",
    source="thought up, not from a thread",
    cohort="unseen",
)
def clipped_by_value(session: Session) -> None:
    """Clip every element by the limit that is configured for the norm."""
    from tunecheck.training import native

    loop: Any = native
    clip = loop.clip_gradients

    def by_value(parameters: Any, limit: float | None) -> Any:
        norm = clip(parameters, None)
        for parameter in parameters:
            if parameter.grad is not None and limit is not None:
                parameter.grad.clamp_(-limit, limit)
        return norm

    loop.clip_gradients = by_value


@bug(
    "V21",
    "The last layer is updated with the last step's gradient",
    caught_by="updates_match_adamw",
    cohort="blind",
    must_say="The last layer's updates are not AdamW's of the gradients of that step.",
)
def last_layer_a_step_late(session: Session) -> None:
    """Update the last layer with the previous step's gradient, as when an overlapped copy is not awaited."""
    import torch

    late = [parameter for parameter in layers(session)[-1].parameters() if parameter.requires_grad]
    kept: dict[int, torch.Tensor] = {}

    def swap() -> None:
        for number, parameter in enumerate(late):
            if parameter.grad is not None:
                now = parameter.grad.clone()
                parameter.grad.copy_(kept.get(number, torch.zeros_like(now)))
                kept[number] = now

    before_step(session, swap)


@bug(
    "V23",
    "Gradients are clipped tensor by tensor",
    caught_by=("updates_match_adamw", "gradient_norm_reported"),
    cohort="blind",
    must_say="After clipping the total norm is above the limit, or updates are not AdamW's of gradients so clipped.",
)
def clipped_tensor_by_tensor(session: Session) -> None:
    """Clip each tensor's gradient by itself: together they may be far above the limit."""
    import torch

    from tunecheck.training import native

    def clip(parameters: list[torch.nn.Parameter], max_norm: float | None) -> torch.Tensor:
        limit = math.inf if max_norm is None else max_norm
        norms = [torch.nn.utils.clip_grad_norm_([parameter], limit) for parameter in parameters]
        total: torch.Tensor = torch.stack(norms).square().sum().sqrt()
        return total

    native.clip_gradients = clip


@bug(
    "V52",
    "Gradients are divided by the accumulation steps once more",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    source="deepspeedai/Megatron-DeepSpeed#42, huggingface/transformers#35438",
    cohort="blind-second",
    must_say="The gradient is not that of the loss: it is smaller by the number of micro-batches.",
)
def gradients_divided_once_more(session: Session) -> None:
    """Divide the gradient by the accumulation steps once more; the logged loss is right."""
    scale, steps = session.scaler.scale, session.run.training.gradient_accumulation_steps
    session.scaler.scale = lambda loss: scale(loss / steps)


@bug(
    "V53",
    "A fused loss ignores the gradient that it is handed",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    source="linkedin/Liger-Kernel#1298, #968",
    cohort="blind-second",
    must_say="The gradient is not that of the loss: it is larger by the number of tokens, or a scale is ignored.",
)
def fused_loss_ignores_what_comes_back(session: Session) -> None:
    """Ignore the incoming gradient in a fused loss: the value is the mean, the gradient the sum's."""
    import torch

    class OwnGradient(torch.autograd.Function):
        """Return total / tokens, with the total's gradient."""

        @staticmethod
        def forward(ctx: Any, total: torch.Tensor, tokens: int) -> torch.Tensor:
            return total / tokens

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return torch.ones_like(gradient), None

    own: Any = OwnGradient
    plain = session.loss
    session.loss = lambda logits, labels, tokens: own.apply(plain(logits, labels, 1), tokens)


@bug(
    "V54",
    "A fused loss gives short answers no gradient",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    source="unslothai/unsloth#5230",
    cohort="blind-second",
    must_say="The gradient is not that of the loss: some rows' part is missing.",
)
def short_answers_without_gradient(session: Session) -> None:
    """Give rows with few supervised tokens no gradient in a fused loss; their value is in the loss."""
    import torch

    plain = session.loss
    counts = sorted(sum(label != IGNORED for label in row.labels) for row in session.batches.train)
    fewest = counts[len(counts) // 3]

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        few = (labels != IGNORED).sum(1) < fewest
        return plain(torch.where(few[:, None, None], logits.detach(), logits), labels, supervised_tokens)

    session.loss = changed


def _before_backward(session: Session, change: Callable[[], Any]) -> None:
    """Call this just before every micro-batch's backward pass."""
    scale = session.scaler.scale

    def changed(loss: torch.Tensor) -> torch.Tensor:
        change()
        scaled: torch.Tensor = scale(loss)
        return scaled

    session.scaler.scale = changed


@bug(
    "V55",
    "Gradients are cleared before every micro-batch",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    source="huggingface/accelerate#641, QwenLM/Qwen3-TTS#326",
    cohort="blind-second",
    must_say="The window's gradient is not the sum of its micro-batches': it is the last one's.",
)
def cleared_before_each_micro_batch(session: Session) -> None:
    """Clear the gradients before every micro-batch's backward pass: only the last one trains."""
    _before_backward(session, lambda: session.optimizer.zero_grad(set_to_none=True))


@bug(
    "V56",
    "What is accumulated is clipped at every micro-batch",
    caught_by=("accumulation_oracle", "gradient_matches_loss"),
    source="huggingface/transformers#986, tenstorrent/tt-metal#17568",
    cohort="blind-second",
    must_say="The window's gradient is not the sum of its micro-batches', each unclipped.",
)
def clipped_at_each_micro_batch(session: Session) -> None:
    """Clip the accumulated gradient after every micro-batch: the first ones count for less."""
    from tunecheck.training import native

    parameters = [parameter for group in session.optimizer.param_groups for parameter in group["params"]]
    _before_backward(session, lambda: native.clip_gradients(parameters, session.run.training.max_grad_norm))


LIMIT = 1.0


@bug(
    "V58",
    "Gradients are clipped at the default, not at the run's limit",
    caught_by="updates_match_adamw",
    source="axolotl-ai-cloud/axolotl#1381, deepspeedai/DeepSpeed#6743",
    cohort="blind-second",
    must_say=(
        "The gradients stepped with are above the run's limit, or updates are not AdamW's of gradients so clipped."
    ),
)
def clipped_at_the_default(session: Session) -> None:
    """Clip at 1, the framework's default, instead of the run's limit."""
    from tunecheck.training import native

    clip = native.clip_gradients
    native.clip_gradients = lambda parameters, max_norm: clip(parameters, LIMIT)


@bug(
    "V59",
    "The norm that clips is that of half of the tensors",
    caught_by=("gradient_norm_reported", "updates_match_adamw"),
    source="pytorch/pytorch#170862, areal-project/AReaL#312",
    cohort="blind-second",
    must_say="The norm reported is not that of all gradients, or the clipped ones are not at the limit.",
)
def norm_of_a_shard(session: Session) -> None:
    """Take the norm over the first half of the tensors and scale all by it, as one shard's for the whole."""
    import torch

    from tunecheck.training import native

    def clip(parameters: list[torch.nn.Parameter], max_norm: float | None) -> torch.Tensor:
        shard = [parameter.grad for parameter in parameters[: len(parameters) // 2] if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(shard)
        torch.nn.utils.clip_grads_with_norm_(parameters, math.inf if max_norm is None else max_norm, norm)
        return norm

    native.clip_gradients = clip


def _on_every_gradient(session: Session, change: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    """Replace every trained tensor's gradient, micro-batch by micro-batch, with `change(parameter, gradient)`."""
    for _, parameter in session.model.named_parameters():
        if parameter.requires_grad:
            hooked: Any = parameter
            hooked.register_hook(lambda gradient, parameter=parameter: change(parameter, gradient))


@bug(
    "W01",
    "All gradients three percent too large",
    caught_by=("weight_gradients", "accumulation_oracle"),
    cohort="unseen-second",
)
def gradients_three_percent_larger(session: Session) -> None:
    """Multiply every gradient by 1.03."""
    _on_every_gradient(session, lambda _parameter, gradient: 1.03 * gradient)


@bug(
    "W02",
    "Gradients carry noise of one percent",
    caught_by=("weight_gradients", "accumulation_oracle"),
    cohort="unseen-second",
)
def noisy_gradients(session: Session) -> None:
    """Multiply every element of every gradient by 1 plus noise of one percent."""
    import torch

    _on_every_gradient(session, lambda _parameter, gradient: gradient * (1 + 0.01 * torch.randn_like(gradient)))


@bug(
    "W03",
    "A penalty on the adapters' size in the gradient alone",
    caught_by=("weight_gradients", "accumulation_oracle"),
    cohort="unseen-second",
)
def penalty_in_the_gradient(session: Session) -> None:
    """Add 0.005 times the weights to their gradients, as an L2 penalty that the reported loss leaves out."""
    _on_every_gradient(session, lambda parameter, gradient: gradient + 0.005 * parameter.detach())


@bug(
    "W04", "Every fourth step forgets a micro-batch's gradient", caught_by="accumulation_oracle", cohort="unseen-second"
)
def micro_batch_forgotten_at_times(session: Session) -> None:
    """In every fourth step, from the third on, give the second micro-batch's loss no gradient."""
    loss, at, calls = session.loss, counted_steps(session), [0, 0]

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = loss(logits, labels, supervised_tokens)
        if not logits.requires_grad:
            return value
        calls[:] = [at[0], calls[1] + 1 if calls[0] == at[0] else 0]
        return value.detach() + 0 * value if at[0] % 4 == 2 and calls[1] == 1 else value

    session.loss = changed


@bug(
    "W05",
    "Gradients halved in every fourth step",
    caught_by=("weight_gradients", "accumulation_oracle"),
    cohort="unseen-second",
)
def halved_in_every_fourth_step(session: Session) -> None:
    """Halve every gradient in steps 2, 6, 10, ..."""
    at = counted_steps(session)
    _on_every_gradient(session, lambda _parameter, gradient: gradient * (0.5 if at[0] % 4 == 2 else 1.0))


@bug(
    "W06",
    "The prompt is learned a little, in the gradient alone",
    caught_by="accumulation_oracle",
    cohort="unseen-second",
)
def prompt_in_the_gradient(session: Session) -> None:
    """Add a hundredth of a z-loss over the unsupervised positions, whose value is not reported."""
    loss = session.loss

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = loss(logits, labels, supervised_tokens)
        given = logits[:, :-1][labels[:, 1:] == IGNORED].float().logsumexp(dim=-1)
        extra = 0.01 * given.square().sum() / supervised_tokens
        return value + (extra - extra.detach())

    session.loss = changed


@bug(
    "W07",
    "Gradients compressed to eight bits",
    caught_by=("weight_gradients", "accumulation_oracle"),
    cohort="unseen-second",
)
def gradients_in_eight_bits(session: Session) -> None:
    """Round every gradient to 255 levels of its largest element."""

    def rounded(_parameter: Any, gradient: torch.Tensor) -> torch.Tensor:
        scale = gradient.abs().max().clamp(min=1e-30) / 127
        return (gradient / scale).round() * scale

    _on_every_gradient(session, rounded)


@bug("X140", "Gradients halved in every second step", caught_by="weight_gradients")
def halved_in_every_second_step(session: Session) -> None:
    """Halve every gradient in the steps of even number."""
    at = counted_steps(session)
    _on_every_gradient(session, lambda _parameter, gradient: gradient * (0.5 if at[0] % 2 == 0 else 1.0))
