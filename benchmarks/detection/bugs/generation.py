"""Generation that is not greedy decoding of the trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import change_attention, decoder
from tunecheck.training import data as prompts

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B97",
    "Positions drift in cached generation",
    caught_by="generation_is_greedy",
    source="huggingface/transformers#26569, unslothai/unsloth#3699",
    settings=("probes.generate=true",),
    tier="convergence",
)
def cached_positions_drift(session: Session) -> None:
    """Give every second token generated with a cache the position of the token before it."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward

    def drifting(hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return inner(hidden, position_ids // 2 * 2 if position_ids.shape[-1] == 1 else position_ids)

    rotary.forward = drifting


@bug(
    "U25",
    "Generation with a repetition penalty",
    caught_by="generation_is_greedy",
    source="thought up, not from a thread",
    cohort="unseen",
    settings=("probes.generate=true",),
    tier="convergence",
)
def repetition_penalty_left_on(session: Session) -> None:
    """Leave a repetition penalty in the model's generation settings."""
    session.model.generation_config.repetition_penalty = 1.5


@bug(
    "V32",
    "Greedy decoding has a repetition penalty",
    caught_by="generation_is_greedy",
    cohort="blind",
    tier="convergence",
    must_say="Generated text is not the greedy one: the most likely token was not taken.",
)
def repetition_penalty(session: Session) -> None:
    """Set a repetition penalty of 1.1 in the generation configuration, which greedy decoding obeys too."""
    session.model.generation_config.repetition_penalty = 1.1


@bug(
    "V33",
    "The served prompt lacks the template's last newline",
    caught_by=("tokens_match_template", "generation_is_greedy"),
    cohort="blind",
    tier="convergence",
    must_say="Generation starts from other prompt tokens than training, or the rows are not their template's tokens.",
)
def served_prompt_lacks_newline(session: Session) -> None:
    """Strip prompts before generation: the newline before the answer is missing."""
    text = prompts.prompt_text
    prompts.prompt_text = lambda instruction, tokenizer, template: text(instruction, tokenizer, template).rstrip()


@bug(
    "V34",
    "Tokens decoded with the cache are one position off",
    caught_by="generation_is_greedy",
    source="unslothai/unsloth#3699",
    cohort="blind",
    tier="convergence",
    must_say="Decoding with the cache does not agree with a forward pass over the whole text, or is not greedy by it.",
)
def decoded_one_position_late(session: Session) -> None:
    """Place each token decoded with the cache one position too far; whole rows are right."""
    rotary = decoder(session).rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids + int(position_ids.shape[-1] == 1))


@bug(
    "V49",
    "The causal mask of cached decoding is aligned to the first key",
    caught_by="generation_is_greedy",
    source="Dao-AILab/flash-attention#282, pytorch/pytorch#108108",
    cohort="blind-second",
    tier="convergence",
    must_say="Decoding with the cache does not agree with a forward pass over the whole text, or is not greedy by it.",
)
def causal_from_the_top_left(session: Session) -> None:
    """Align the causal mask to the first key when decoding with a cache: a new token sees the prompt's first token
    only."""
    import torch

    def aligned(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        asked, known = query.shape[2], key.shape[2]
        if asked < known:
            mask = torch.ones(asked, known, dtype=torch.bool, device=query.device).tril()[None, None]
        return attend(module, query, key, value, mask, **options)

    change_attention(aligned)


@bug(
    "V50",
    "Prompts end with the end token when they are served",
    caught_by="generation_is_greedy",
    source="ml-explore/mlx-examples#818, h2oai/h2ogpt#30",
    cohort="blind-second",
    tier="convergence",
    must_say="What was generated is not the greedy text after the prompt, or the prompt's tokens are not training's.",
)
def prompts_end_with_the_end_token(session: Session) -> None:
    """Append the end token to prompts before generation, as training rows have it."""
    import torch
    import torch.nn.functional as F

    generate, end = session.model.generate, session.tokenizer.eos_token_id

    def ended(inputs: Any = None, **options: Any) -> Any:
        ids = options.pop("input_ids", inputs)
        longer = F.pad(ids, (0, 1), value=end)
        out = generate(**{**options, "input_ids": longer, "attention_mask": torch.ones_like(longer)})
        whole = getattr(out, "sequences", out)
        said = torch.cat([ids, whole[:, longer.shape[1] :]], dim=1)
        if whole is out:
            return said
        out.sequences = said
        return out

    session.model.generate = ended
