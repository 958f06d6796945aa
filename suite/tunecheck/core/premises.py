"""Premises: the facts about a training that a check's formula relies on, each with its source. Standard library only.

In the suite's own runs every premise is expected: the run's file declares it. The listener to another training writes
each premise into the trace, with who declares it and where, or why nobody does. A check is not judged with an open
premise, and suspects with a presumed one.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum, auto
from typing import TypeVar

from tunecheck.core.frozen import Frozen

P = TypeVar("P", bound=str)


class Source(StrEnum):
    """How a premise is known."""

    EXPECTED = auto()  # The user says so, in a run's file or by --expect.
    DECLARED = auto()  # An object of the training says so.
    OBSERVED = auto()  # It was seen in the training's own passes.
    PRESUMED = auto()  # Nothing proves it, and nothing refutes it.
    OPEN = auto()  # Nobody says so, or something speaks against it.


class Fact(Frozen):
    """What is known about a premise."""

    source: Source
    where: str
    """Who declares it, or why it is presumed or open."""


OF_THE_RUN = Fact(source=Source.EXPECTED, where="the run's configuration")
"""Every premise of a run of the suite."""


class Premise(StrEnum):
    """A premise, in the order in which open ones are reported."""

    CAUSAL_LM = auto()  # Rows and loss are those of a causal language model on its own tokens.
    PRETRAINED = auto()  # The weights are pretrained. With random weights nothing is judged.
    ROWS_FOLLOWED = auto()  # The attention mask only separates documents and hides padding.
    POSITIONS_FOLLOWED = auto()  # Four-dimensional masks define which positions attend to each other.
    LABELS_KNOWN = auto()  # The labels are an input of the model, or part of the loss's graph.
    END_KNOWN = auto()  # The tokenizer or the model's configuration names the end token.
    EVERY_ROW_SEEN = auto()  # One process sees all rows of a step.
    ROWS_DRAWN_ONCE = auto()  # The sampler yields each row once per epoch.
    LOSS_DECLARED = auto()  # The library computes the loss, or --expect declares its equal.
    TOKEN_MEAN_LOSS = auto()  # The loss is the mean over supervised tokens, without further terms.
    LOSS_UNSMOOTHED = auto()  # Labels are not smoothed.
    LOSS_UNSCALED = auto()  # Loss and gradients contain no GradScaler factor, or its unscaling is recorded.
    LOSS_REPEATABLE = auto()  # A second pass over the same rows returns the same loss.
    FORWARD_REPEATABLE = auto()  # The forward pass computes the model's function, without noise from the script.
    GRADIENT_BY_FORWARD = auto()  # Every gradient comes from the model's forward pass.
    GRADIENT_SUMMED = auto()  # The gradient is the sum over the step's micro-batches.
    GRADIENT_WHOLE = auto()  # The full gradient exists between the backward pass and the optimizer step.
    GRADIENTS_CLEARED_BEFORE = auto()  # Gradients are cleared before a forward pass.
    CLIPPED_WHOLE = auto()  # Clipping uses the norm of all gradients together.
    NORM_REPORTED = auto()  # The trainer reports the gradient's norm.
    LOSS_REPORTED = auto()  # The trainer reports the loss.
    TOKENS_REPORTED = auto()  # The trainer reports the number of supervised tokens.
    TRAINED_SET_DECLARED = auto()  # The objects or --expect declare which tensors are trained.
    COUNT_DECLARED = auto()  # The declaration determines the number of trained parameters.
    ADAPTERS_ENUMERATED = auto()  # The configuration determines every adapter's name and shape.
    ADAPTERS_FRESH = auto()  # peft created the adapters with its default initialisation, and they are untrained.
    BASE_FROM_FILE = auto()  # The base's weights come from a known safetensors file.
    BASE_PLAIN = auto()  # The base's weights are plain tensors, or bitsandbytes' 4-bit ones.
    BASE_UNWRITTEN = auto()  # The script's own code does not write to frozen tensors.
    TRAINED_UNWRITTEN = auto()  # Only the optimizer writes to trained tensors.
    UPDATE_RULE_KNOWN = auto()  # The optimizer is AdamW, and its settings and state are known.
    GROUPS_DECLARED = auto()  # The configured weight decay of each tensor is known.
    SCHEDULE_KNOWN = auto()  # The learning rate of each step has a closed form.
    ARCHITECTURE_KNOWN = auto()  # The model computes its class's function of the configuration.
    ATTENTION_DECLARED = auto()  # The configuration selects the attention kernels.
    CHECKPOINTING_DECLARED = auto()  # The arguments declare gradient checkpointing, and the layers are known.
    DTYPES_DECLARED = auto()  # The dtype of each part is declared.
    DEVICE_DECLARED = auto()  # The device of the model is declared.
    FILES_WRITTEN_HERE = auto()  # This process saves the files.
    REPEATED = auto()  # The training ran a second time.
    RESUMED = auto()  # The training was resumed from a checkpoint of itself.
    STEP_DECLARED = auto()  # A trainer defines the step: modes, micro-batches, what writes to gradients and weights.
    GRADIENTS_UNEDITED = auto()  # Between backward and optimizer only clipping and unscaling write to the gradients.
    WEIGHTS_STILL = auto()  # The weights are the same in all passes of a step.
    MEAN_DECLARED = auto()  # A step's loss is declared as the mean over its tokens, not of its micro-batches' means.
    SETTINGS_DECLARED = auto()  # Rates, decays and betas are declared beside the optimizer's own groups.
    OPTIMIZER_OF_TRAINED = auto()  # The optimizer is made of the trained tensors alone, and has no steps behind it.
    STEPS_DECLARED = auto()  # The number of steps is declared, and nothing ends the training before.
    EVERY_STEP_LEARNS = auto()  # Every step's loss has a gradient, and all together change what the model computes.
    GRADIENT_DUE = auto()  # Some step that was looked at has a gradient, or the objective must give it one.
    ONE_CALL_PER_BATCH = auto()  # The loss calls the model once for each micro-batch.
    AVERAGED_EACH_STEP = auto()  # The ranks train one model, and average its gradients in every step.
    SEED_DECLARED = auto()  # One seed is declared for all that is drawn.
    SAVING_DECLARED = auto()  # How adapters are saved: by all ranks, with the base's folder, in their own dtype.
    STATE_DECLARED = auto()  # What may keep tensors is known: no module counts in buffers, no weights are copied.
    PRODUCTS_KNOWN = auto()  # Every trained weight belongs to a module with a known product.
    MERGED = auto()  # The adapters are merged after the training.
    INTENT_DECLARED = auto()  # Whoever wrote the training says what it means: a broken convention is a mistake.


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
