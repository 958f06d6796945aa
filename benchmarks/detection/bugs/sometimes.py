"""Bugs of some rows, lengths, steps, layers or modes alone; everywhere else the training is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import adapted_modules, change_attention, counted_steps, decoder, layers
from tunecheck.training.data import IGNORED

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session

FORWARD = ("forward_matches_architecture", "rows_isolated")
ORACLES = ("loss_oracle", "accumulation_oracle")
GRADIENT = ("accumulation_oracle", "gradient_matches_loss")
IN_TRAINING = ("forward_matches_architecture", "forward_deterministic", "state_in_training", *ORACLES)


@bug(
    "Y01",
    "Positions are interpolated beyond 96 tokens",
    caught_by=("forward_matches_architecture", *ORACLES),
    source="huggingface/transformers#25104 (dynamic scaling), thought up",
    cohort="unseen-third",
)
def long_positions_interpolated(session: Session) -> None:
    """Halve the distance of positions beyond 96, as a scaling that is switched on by a row's length would."""
    import torch

    rotary = decoder(session).rotary_emb
    inner = rotary.forward

    def forward(hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        far = 96 + (position_ids - 96).float() / 2
        return inner(hidden, torch.where(position_ids > 96, far, position_ids.float()))

    rotary.forward = forward


@bug(
    "Y02",
    "Masked scores are lowered by 8",
    caught_by=FORWARD,
    source="thought up; a finite mask, as -1e4 is in fp16",
    cohort="unseen-third",
)
def finite_mask(session: Session) -> None:
    """Mask later tokens by a score that is 8 lower, not infinitely: a three thousandth of their weight leaks."""
    import torch

    def soft(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if tokens > 1 and key.shape[2] == tokens:
            future = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
            mask = torch.zeros(1, 1, tokens, tokens, dtype=query.dtype, device=query.device).masked_fill(future, -8.0)
        return attend(module, query, key, value, mask, **options)

    change_attention(soft)


@bug(
    "Y03",
    "A head is left out while training",
    caught_by=("forward_matches_architecture", "state_in_training", *ORACLES),
    cohort="unseen-third",
)
def head_left_out_in_training(session: Session) -> None:
    """Drop the first head of the last layer in train mode, as a head mask that was left on would."""
    attention = layers(session)[-1].self_attn

    def mask(_module: Any, args: Any) -> Any:
        if not attention.training:
            return None
        heads = args[0].unflatten(-1, (-1, attention.head_dim)).clone()
        heads[..., 0, :] = 0
        return (heads.flatten(-2),)

    attention.o_proj.register_forward_pre_hook(mask)


@bug(
    "Y04",
    "The MLP's activations pass through eight bits while training",
    caught_by=("forward_matches_architecture", "dtypes_as_configured", *ORACLES),
    source="thought up; fp8 training that nobody asked for",
    cohort="unseen-third",
)
def activations_in_eight_bits(session: Session) -> None:
    """Round the input of every down projection to float8 in train mode; its gradient passes unchanged."""
    import torch

    def rounded(module: Any, args: Any) -> Any:
        hidden = args[0]
        if not module.training:
            return None
        scale = hidden.detach().abs().amax().clamp(min=1e-12) / 448
        eight = (hidden.detach() / scale).to(torch.float8_e4m3fn).to(hidden.dtype) * scale
        return (hidden + (eight - hidden).detach(),)

    for layer in layers(session):
        layer.mlp.down_proj.register_forward_pre_hook(rounded)


@bug(
    "Y05",
    "The softmax's backward pass lacks a term in one layer",
    caught_by=("forward_matches_architecture", *GRADIENT),
    source="thought up; an attention kernel whose delta is not subtracted",
    cohort="unseen-third",
)
def softmax_backward_lacks_a_term(session: Session) -> None:
    """Leave out the softmax gradient's second term in the first layer: p g, not p (g - sum p g)."""
    import torch

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
            weights = scores.float().softmax(-1).to(scores.dtype)
            ctx.save_for_backward(weights)
            return weights

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            [weights] = ctx.saved_tensors
            product: torch.Tensor = weights * gradient
            return product

    own: Any = Softmax
    first = layers(session)[0].self_attn

    def changed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if module is not first or key.shape[2] != tokens:
            return attend(module, query, key, value, mask, **options)
        repeats = module.num_key_value_groups
        keys, values = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = query @ keys.transpose(-1, -2) * module.scaling
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        if mask is not None:
            seen = seen & (mask if mask.dtype == torch.bool else mask > -1)
        weights = own.apply(scores.masked_fill(~seen, torch.finfo(scores.dtype).min))
        return (weights @ values).transpose(1, 2).contiguous(), None

    change_attention(changed)


@bug(
    "Y06",
    "A norm takes its scale of the whole row while training",
    caught_by=("forward_matches_architecture", "rows_isolated", *ORACLES),
    cohort="unseen-third",
)
def norm_over_the_row(session: Session) -> None:
    """Divide by the root mean square of all of a row's tokens in the last layer, in train mode: the future leaks."""
    import torch

    norm = layers(session)[-1].post_attention_layernorm
    inner = norm.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not norm.training:
            own: torch.Tensor = inner(hidden)
            return own
        scale = torch.rsqrt(hidden.float().square().mean((-1, -2), keepdim=True) + norm.variance_epsilon)
        scaled: torch.Tensor = norm.weight * (hidden.float() * scale).to(hidden.dtype)
        return scaled

    norm.forward = forward


@bug(
    "Y07",
    "An answer's positions begin at 0 while training",
    caught_by=("forward_matches_architecture", "rows_isolated", *ORACLES),
    source="thought up; prompt and answer taken for two packed documents",
    cohort="unseen-third",
)
def answers_at_position_zero(session: Session) -> None:
    """Begin the positions anew at the answer in train mode, as if it were a document of its own."""
    import torch

    prompts = {row.input_ids: sum(label == IGNORED for label in row.labels) for row in session.batches.train}
    lengths = sorted({len(ids) for ids in prompts}, reverse=True)

    def prompt(ids: tuple[int, ...]) -> int:
        return next((prompts[ids[:n]] for n in lengths if ids[:n] in prompts), len(ids))

    def reset(module: Any, args: Any, kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        if not module.training or ids is None:
            return None
        places = torch.arange(ids.shape[1], device=ids.device)
        rows = [torch.where(places < (n := prompt(tuple(row))), places, places - n) for row in ids.tolist()]
        return args, {**kwargs, "position_ids": torch.stack(rows)}

    decoder(session).register_forward_pre_hook(reset, with_kwargs=True)


@bug("Y08", "Early steps give the second micro-batch no gradient", caught_by=ORACLES, cohort="unseen-third")
def early_steps_forget_a_micro_batch(session: Session) -> None:
    """Give the second micro-batch's loss no gradient in steps 1 to 4, as a warm-up of the accumulation would."""
    plain, at, calls = session.loss, counted_steps(session), dict[int, int]()

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        loss = plain(logits, labels, supervised_tokens)
        if not (session.model.training and loss.requires_grad):
            return loss
        calls[at[0]] = calls.get(at[0], 0) + 1
        return loss.detach() + 0 * loss if 1 <= at[0] <= 4 and calls[at[0]] == 2 else loss

    session.loss = changed


@bug("Y09", "No gradient crosses the border between chunks of a row", caught_by=GRADIENT, cohort="unseen-third")
def gradient_ends_at_a_chunk(session: Session) -> None:
    """Detach the keys and values of a row's first 64 tokens for the later ones, as truncated backpropagation does."""
    import torch

    def changed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if query.shape[2] <= 64 or key.shape[2] != query.shape[2]:
            return attend(module, query, key, value, mask, **options)
        whole, rest = attend(module, query, key, value, mask, **options)
        old = [torch.cat([part[:, :, :64].detach(), part[:, :, 64:]], 2) for part in (key, value)]
        late, _ = attend(module, query, *old, mask, **options)
        return torch.cat([whole[:, :64], late[:, 64:]], 1), rest

    change_attention(changed)


@bug("Y10", "Every layer passes 98 % of its gradient down", caught_by=GRADIENT, cohort="unseen-third")
def gradient_fades_by_layer(session: Session) -> None:
    """Multiply the gradient that leaves each decoder layer downwards by 0.98."""

    def fade(_module: Any, args: Any, kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if hidden.requires_grad:
            passed = hidden * 0.98 + (hidden * 0.02).detach()
            passed = passed + (hidden - passed).detach()  # the same bits forwards
            return ((passed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": passed})
        return None

    for layer in layers(session):
        layer.register_forward_pre_hook(fade, with_kwargs=True)


@bug("Y11", "A token that repeats the one before it is not learned", caught_by=ORACLES, cohort="unseen-third")
def repeated_tokens_not_learned(session: Session) -> None:
    """Give tokens equal to the one before them no gradient; their loss is reported."""
    import torch

    plain = session.loss

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        repeated = torch.zeros_like(labels, dtype=torch.bool)
        repeated[:, :-1] = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != IGNORED)
        return plain(torch.where(repeated[..., None], logits.detach(), logits), labels, supervised_tokens)

    session.loss = changed


@bug("Y12", "The longest row's end token is not learned", caught_by=ORACLES, cohort="unseen-third")
def last_column_without_gradient(session: Session) -> None:
    """Give the last position of a batch no gradient: the end token of its longest row. The reported loss has it."""
    import torch

    plain = session.loss

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        cut = torch.cat([logits[:, :-2], logits[:, -2:].detach()], 1)
        return plain(cut, labels, supervised_tokens)

    session.loss = changed


@bug(
    "Y13",
    "The loss is divided by the count of the window before",
    caught_by=ORACLES,
    source="thought up; num_items_in_batch prefetched a window too early",
    cohort="unseen-third",
)
def divided_by_the_last_windows_count(session: Session) -> None:
    """Divide each window's loss by the number of supervised tokens of the window before it."""
    plain, at, counts = session.loss, counted_steps(session), dict[int, int]()

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        if session.model.training:
            counts[at[0]] = supervised_tokens
            supervised_tokens = counts.get(at[0] - 1, supervised_tokens)
        return plain(logits, labels, supervised_tokens)

    session.loss = changed


@bug(
    "Y14",
    "The first token is masked in padded batches while training",
    caught_by=("forward_matches_architecture", "rows_isolated", *ORACLES),
    source="thought up; a mask that is made by counting from the wrong side",
    cohort="unseen-third",
)
def first_token_masked(session: Session) -> None:
    """Set the attention mask of each row's first token to 0 in train mode."""

    def mask(module: Any, args: Any, kwargs: Any) -> Any:
        held = kwargs.get("attention_mask")
        if not module.training or held is None or held.dim() != 2:
            return None
        held = held.clone()
        held[:, 0] = 0
        return args, {**kwargs, "attention_mask": held}

    decoder(session).register_forward_pre_hook(mask, with_kwargs=True)


@bug(
    "Y15",
    "Attention sees the future in rows of certain lengths",
    caught_by=("forward_matches_architecture", "rows_isolated", *ORACLES),
    source="thought up; a kernel whose last block is not masked",
    cohort="unseen-third",
)
def last_block_not_causal(session: Session) -> None:
    """Let the last eight tokens see each other where a batch's width is a multiple of eight."""
    import torch

    def changed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if tokens % 8 == 0 and tokens > 8 and key.shape[2] == tokens:
            seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
            if mask is not None:
                seen = seen & (mask if mask.dtype == torch.bool else mask > -1)
            seen = seen.expand(query.shape[0], 1, tokens, tokens).clone()
            seen[..., -8:, -8:] = True
            mask = seen
        return attend(module, query, key, value, mask, **options)

    change_attention(changed)


@bug(
    "Y16",
    "A layer is skipped now and then while training",
    caught_by=("forward_deterministic", "forward_matches_architecture", "checkpointing_as_configured", *ORACLES),
    source="thought up; LayerDrop of another model's configuration",
    cohort="unseen-third",
)
def layers_dropped(session: Session) -> None:
    """Leave out each layer's MLP in a twentieth of its training passes, drawn from torch's random state."""
    import torch

    def drop(module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (torch.rand(()) >= 0.05).to(out) if module.training else out

    for layer in layers(session):
        layer.mlp.register_forward_hook(drop)


@bug(
    "Y17",
    "Only a batch's first row has adapters while training",
    caught_by=("adapter_algebra", *ORACLES),
    source="thought up; a batched adapter kernel that indexes rows wrongly",
    cohort="unseen-third",
)
def adapters_for_the_first_row(session: Session) -> None:
    """Apply the last layer's adapters to a batch's first row alone, in train mode."""
    for module in adapted_modules(session):
        if f".{len(layers(session)) - 1}." not in next(n for n, m in session.model.named_modules() if m is module):
            continue

        def first(
            module: Any, _args: Any, out: torch.Tensor, base: dict[int, torch.Tensor] | None = None
        ) -> torch.Tensor:
            if not module.training or out.dim() < 3 or out.shape[0] < 2:
                return out
            import torch

            plain = module.base_layer(_args[0][1:]).to(out.dtype)
            return torch.cat([out[:1], plain])

        module.register_forward_hook(first)


@bug(
    "Y18",
    "Adapters skip the first token of every row",
    caught_by=("adapter_algebra", *ORACLES),
    source="thought up; an activated adapter's offset off by one",
    cohort="unseen-third",
)
def adapters_skip_the_first_token(session: Session) -> None:
    """Give the first token of each row what the base gives, without the adapter."""

    def skip(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        import torch

        if out.dim() < 3 or out.shape[1] < 2 or module.disable_adapters:
            return out
        return torch.cat([module.base_layer(args[0][:, :1]).to(out.dtype), out[:, 1:]], 1)

    for module in adapted_modules(session):
        module.register_forward_hook(skip)


@bug(
    "Y19",
    "The softmax has a term more in the last layer",
    caught_by="forward_matches_architecture",
    source="thought up; attention sinks of another architecture",
    cohort="unseen-third",
)
def attention_sink(session: Session) -> None:
    """Add 1 to the last layer's softmax denominator, in train mode: weights sum to less than one."""
    import torch

    last = layers(session)[-1].self_attn

    def changed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if module is not last or not module.training or key.shape[2] != tokens:
            return attend(module, query, key, value, mask, **options)
        repeats = module.num_key_value_groups
        scores = query @ key.repeat_interleave(repeats, 1).transpose(-1, -2) * module.scaling
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        total = scores.masked_fill(~seen, -torch.inf).float().logsumexp(-1, keepdim=True)
        kept = torch.exp(total - torch.logaddexp(total, torch.zeros_like(total))).transpose(1, 2)
        out, rest = attend(module, query, key, value, mask, **options)
        return out * kept.to(out.dtype), rest

    change_attention(changed)
