"""Premises: the facts about a training that a check's formula relies on, each with its source. Standard library only.

In the suite's own runs every premise is expected: the run's file declares it. The listener to another training writes
each premise into the trace, with who declares it and where, or why nobody does. A check is not judged with an open
premise, and suspects with a presumed one.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from tunecheck.core.frozen import Frozen

P = TypeVar("P", bound=str)


class Source(StrEnum):
    """How a premise is known."""

    EXPECTED = "expected"
    """The user says so, in a run's file or by --expect."""
    DECLARED = "declared"
    """An object of the training says so."""
    OBSERVED = "observed"
    """It was seen in the training's own passes."""
    PRESUMED = "presumed"
    """Nothing proves it, and nothing refutes it."""
    OPEN = "open"
    """Nobody says so, or something speaks against it."""


class Fact(Frozen):
    """What is known about a premise."""

    source: Source
    where: str
    """Who declares it, or why it is presumed or open."""


OF_THE_RUN = Fact(source=Source.EXPECTED, where="the run's configuration")
"""Every premise of a run of the suite."""


class Premise(StrEnum):
    """A premise, in the order in which open ones are reported."""

    CAUSAL_LM = "causal_lm"
    """Rows and loss are those of a causal language model on its own tokens."""
    PRETRAINED = "pretrained"
    """The weights are pretrained. With random weights nothing is judged."""
    ROWS_FOLLOWED = "rows_followed"
    """The attention mask only separates documents and hides padding."""
    POSITIONS_FOLLOWED = "positions_followed"
    """Four-dimensional masks define which positions attend to each other."""
    LABELS_KNOWN = "labels_known"
    """The labels are an input of the model, or part of the loss's graph."""
    END_KNOWN = "end_known"
    """The tokenizer or the model's configuration names the end token."""
    EVERY_ROW_SEEN = "every_row_seen"
    """One process sees all rows of a step."""
    ROWS_DRAWN_ONCE = "rows_drawn_once"
    """The sampler yields each row once per epoch."""
    LOSS_DECLARED = "loss_declared"
    """The library computes the loss, or --expect declares its equal."""
    TOKEN_MEAN_LOSS = "token_mean_loss"
    """The loss is the mean over supervised tokens, without further terms."""
    LOSS_UNSMOOTHED = "loss_unsmoothed"
    """Labels are not smoothed."""
    LOSS_UNSCALED = "loss_unscaled"
    """Loss and gradients contain no GradScaler factor, or its unscaling is recorded."""
    LOSS_REPEATABLE = "loss_repeatable"
    """A second pass over the same rows returns the same loss."""
    FORWARD_REPEATABLE = "forward_repeatable"
    """The forward pass computes the model's function, without noise from the script."""
    GRADIENT_BY_FORWARD = "gradient_by_forward"
    """Every gradient comes from the model's forward pass."""
    GRADIENT_SUMMED = "gradient_summed"
    """The gradient is the sum over the step's micro-batches."""
    GRADIENT_WHOLE = "gradient_whole"
    """The full gradient exists between the backward pass and the optimizer step."""
    GRADIENTS_CLEARED_BEFORE = "gradients_cleared_before"
    """Gradients are cleared before a forward pass."""
    CLIPPED_WHOLE = "clipped_whole"
    """Clipping uses the norm of all gradients together."""
    NORM_REPORTED = "norm_reported"
    """The trainer reports the gradient's norm."""
    LOSS_REPORTED = "loss_reported"
    """The trainer reports the loss."""
    TOKENS_REPORTED = "tokens_reported"
    """The trainer reports the number of supervised tokens."""
    TRAINED_SET_DECLARED = "trained_set_declared"
    """The objects or --expect declare which tensors are trained."""
    COUNT_DECLARED = "count_declared"
    """The declaration determines the number of trained parameters."""
    ADAPTERS_ENUMERATED = "adapters_enumerated"
    """The configuration determines every adapter's name and shape."""
    ADAPTERS_FRESH = "adapters_fresh"
    """peft created the adapters with its default initialisation, and they are untrained."""
    BASE_FROM_FILE = "base_from_file"
    """The base's weights come from a known safetensors file."""
    BASE_PLAIN = "base_plain"
    """The base's weights are plain tensors, or bitsandbytes' 4-bit ones."""
    BASE_UNWRITTEN = "base_unwritten"
    """The script's own code does not write to frozen tensors."""
    TRAINED_UNWRITTEN = "trained_unwritten"
    """Only the optimizer writes to trained tensors."""
    UPDATE_RULE_KNOWN = "update_rule_known"
    """The optimizer is AdamW, and its settings and state are known."""
    GROUPS_DECLARED = "groups_declared"
    """The configured weight decay of each tensor is known."""
    SCHEDULE_KNOWN = "schedule_known"
    """The learning rate of each step has a closed form."""
    ARCHITECTURE_KNOWN = "architecture_known"
    """The model computes its class's function of the configuration."""
    ATTENTION_DECLARED = "attention_declared"
    """The configuration selects the attention kernels."""
    CHECKPOINTING_DECLARED = "checkpointing_declared"
    """The arguments declare gradient checkpointing, and the layers are known."""
    DTYPES_DECLARED = "dtypes_declared"
    """The dtype of each part is declared."""
    DEVICE_DECLARED = "device_declared"
    """The device of the model is declared."""
    FILES_WRITTEN_HERE = "files_written_here"
    """This process saves the files."""
    REPEATED = "repeated"
    """The training ran a second time."""
    RESUMED = "resumed"
    """The training was resumed from a checkpoint of itself."""
    STEP_DECLARED = "step_declared"
    """A trainer defines the step: its modes, its micro-batches, and what writes to gradients and weights within it."""
    GRADIENTS_UNEDITED = "gradients_unedited"
    """Between backward and optimizer only clipping and unscaling write to the gradients."""
    WEIGHTS_STILL = "weights_still"
    """The weights are the same in all passes of a step."""
    MEAN_DECLARED = "mean_declared"
    """A step's loss is declared as the mean over all its tokens, not as a mean of its micro-batches' means."""
    SETTINGS_DECLARED = "settings_declared"
    """Rates, decays and betas are declared beside the optimizer's own groups."""
    OPTIMIZER_OF_TRAINED = "optimizer_of_trained"
    """The optimizer is made of the trained tensors alone, and has no steps behind it."""
    STEPS_DECLARED = "steps_declared"
    """The number of steps is declared, and nothing ends the training before."""
    EVERY_STEP_LEARNS = "every_step_learns"
    """The loss of every step has a gradient, and the steps together change what the model computes."""
    GRADIENT_DUE = "gradient_due"
    """Some step that was looked at has a gradient other than zero, or the objective must give it one."""
    ONE_CALL_PER_BATCH = "one_call_per_batch"
    """The loss calls the model once for each micro-batch."""
    AVERAGED_EACH_STEP = "averaged_each_step"
    """The ranks train one model, and average its gradients in every step."""
    SEED_DECLARED = "seed_declared"
    """One seed is declared for all that is drawn."""
    SAVING_DECLARED = "saving_declared"
    """It is declared how adapters are saved: by all ranks together, with the base's folder, in their own dtype."""
    STATE_DECLARED = "state_declared"
    """All that may keep tensors is known: no module counts in its buffers, no copy of the weights is kept."""
    PRODUCTS_KNOWN = "products_known"
    """Every trained weight belongs to a module with a known product."""
    MERGED = "merged"
    """The adapters are merged after the training."""
    INTENT_DECLARED = "intent_declared"
    """Whoever wrote the training says what it means: a broken convention is a mistake."""


ROWS_KNOWN = frozenset({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED, Premise.LABELS_KNOWN})
"""What must hold for a row's tokens and labels to be those that the loss is taken over."""
PLAIN_BACKWARD = frozenset({Premise.CAUSAL_LM, Premise.GRADIENT_SUMMED, Premise.GRADIENT_BY_FORWARD})
"""What must hold for a step's gradient to be that of its forward passes."""
UNCHANGED = frozenset({Premise.WEIGHTS_STILL, Premise.GRADIENTS_UNEDITED})
"""What must hold for a gradient that is not its loss's to be wrong: nobody changes either on purpose."""
Reason = tuple[str, *tuple[Premise, ...]]
"""Why premises are open, or "" where none is, and these premises."""


def opened(*reasons: Reason) -> dict[Premise, str]:
    """Return premise to why it is open; of several reasons the last one counts, and an empty one opens none."""
    return {premise: why for why, *premises in reasons if why for premise in premises}


def facts(reasons: Mapping[P, str], source: Source = Source.OPEN) -> dict[P, Fact]:
    """Return premises that are open, or known in another way, by these reasons."""
    return {premise: Fact(source=source, where=where) for premise, where in reasons.items()}


def edits(calls: Mapping[int, Sequence[str]]) -> dict[str, str]:
    """Return the premises that a loop leaves open by what it does on purpose within a step, of each step's calls.

    Sharpness-aware steps move the weights between two passes; noise or a projection is written to the gradients.
    """
    found: dict[str, str] = {}
    for step, made in calls.items():
        if "move" in made:
            found.setdefault(Premise.WEIGHTS_STILL, f"the loop changes the weights between the passes of step {step}")
        stepped = max((at for at, call in enumerate(made) if call == "step"), default=0)
        if "backward" in made and "edit" in made[made.index("backward") : stepped]:
            why = f"the loop writes to the gradients of step {step} between backward and optimizer"
            found.setdefault(Premise.GRADIENTS_UNEDITED, why)
    return found
