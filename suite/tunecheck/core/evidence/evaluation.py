"""The rows and their split, evaluation, generation, checkpoint."""

import math
from dataclasses import field

from tunecheck.core.frozen import Record


class Evaluation(Record):
    """Token-weighted evaluation as the trainer reported it."""

    step: int
    """Optimizer steps done before it."""
    split: str
    """probe (rows of the training set, fixed) or heldout."""
    loss: float
    tokens: int
    logits_loss: float | None = None
    """Mean negative log-likelihood from the evaluation's own logits, in float64; None where nobody can place them."""
    model_repeats: bool | None = None
    """Whether the model, given the evaluation's first batch once more right after it, computes the same to the last
    bit. None before the first step, where it was not seen to compute anything, and with offloaded parameters."""
    plain_loss: float | None = None
    """Of a first evaluation with a high loss: the loss of one plain row, by other code. None elsewhere."""

    def unfamiliar(self, limit: float) -> bool:
        """Return whether a loss above this limit is the rows' own: the logits have it, and a plain row stays below.

        What is no text that the model has seen, emoji, say, or codes, may be told worse than by a guess.
        """
        told = self.logits_loss is not None and math.isclose(self.loss, self.logits_loss, rel_tol=0.01)
        return self.loss > limit and told and self.plain_loss is not None and self.plain_loss <= limit


class EvaluationAudit(Record):
    """The evaluation, looked at from outside."""

    split: str
    reported_loss: float
    repeats: bool
    """Its first batch, evaluated again right away, has the same logits to the last bit."""
    oracle_loss: float
    """Sum of negative log-likelihoods over sum of tokens, the rows without masks, by other code."""
    oracle_tokens: int
    reported_tokens: int
    logit_digits: int
    """Significant binary digits of the logits that it took its loss from: 24 in fp32, 11 in fp16, 8 in bf16."""
    training_modules_during: int
    mode_restored: bool
    built_graph: bool
    """True when evaluation ran with gradients enabled: it would hold every activation."""
    kept_tensors: int
    """Tensors alive after one evaluation more than before it: 0."""
    weights_changed: bool
    """Whether a trained tensor has other bytes after an evaluation than before it."""
    batch_tokens: tuple[int, ...]


class Generation(Record):
    """Greedy continuations of fixed prompts."""

    when: str
    """start or end."""
    prompt: str
    expected: str
    """The answer that must come back exactly; empty when there is none."""
    text: str
    ended: bool
    greedy_agreement: float
    """Share of the generated tokens that are the arg max of one plain forward over prompt and answer."""
    logit_difference: float
    """Largest difference of generate's processed scores and that forward's logits, over the largest logit."""
    mean_logprob: float
    """Mean log-probability of the generated tokens under that forward."""
    tokens: int
    """Generated tokens, an end token among them."""
    most_frequent_share: float
    readable_share: float
    """Share of the text's characters that are no replacement, control or unassigned characters; 1 for no text."""
    not_largest: int
    """Generated tokens that are not the arg max of the scores they were chosen by."""
    stops: bool
    """Whether a second generation ended with its first token when that was named as the end token."""
    scores_changed: int
    """Generated tokens chosen by other scores than the model's logits of that moment."""
    prompt_as_trained: bool | None = None
    """Whether the prompt's tokens are those before the answer in this instruction's row; None without such a row."""
    fp32_difference: float | None = None
    """As logit_difference, of the same prompt continued in fp32 arithmetic; taken in a 16-bit run alone."""


class RoundTrip(Record):
    """The saved adapter, read back from disk into a fresh one."""

    file_bytes: int
    tensors: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    differing: tuple[str, ...]
    zero_b: tuple[str, ...]
    logit_difference: float
    """Largest absolute difference over the largest logit, trained against reloaded."""
    reread_differing: tuple[str, ...] = ()
    """Tensors of the reloaded adapter that are not the trained ones bit for bit."""
    settings_differing: tuple[str, ...] = ()
    """Values of the saved configuration that are not the run's, in words."""


class ReadBack(Record):
    """What was trained, read by transformers and peft alone in a fresh process."""

    files: tuple[str, ...]
    logit_difference: float
    """Largest absolute difference over the largest logit, trained against read back."""
    adapter_effect: float | None
    """The same, trained against read back with the adapters off; None where all weights were trained."""
    exact_difference: float | None = None
    """The same as the first, both in fp32 arithmetic; None for a base too large to be widened."""


class Merged(Record):
    """The saved adapter, merged by the trainer in a fresh process into the weights that it was trained beside."""

    logit_difference: float
    """Largest absolute difference over the largest logit, trained against merged."""
    adapter_effect: float
    """The same, trained against the base as it was loaded."""
    adapters_left: tuple[str, ...]
    packed_left: tuple[str, ...]
    share: float | None = None
    """How much of the adapter is in the merged weights, 1 for all of it: their change along that of our own arithmetic,
    rounded to their dtype, over its length; of the module furthest from 1. None where rounding leaves none."""
    share_at: str = ""
    rounding: float | None = None
    """Largest difference over the largest logit, the base as it was loaded in the run's arithmetic against fp32; None
    in fp32, and for a base too large to be widened."""


class TrainerState(Record):
    """What a training goes on from at the beginning of a step, to be compared between two attempts to the last bit."""

    step: int
    tensors: dict[str, str]
    """Digests of the trained tensors, or of all at the start, and of the optimizer's state ("exp_avg of NAME")."""
    settings: dict[str, str]
    """Settings of the optimizer's parameter groups as text ("weight_decay of group 0"), and the scaler's state."""


class DataSplit(Record):
    """The two splits, compared."""

    train_rows: int
    heldout_rows: int
    shared: tuple[str, ...]
    """Instructions of held-out rows that training contains, by text or by tokens."""
    misplaced: tuple[str, ...]
    """Rows of the fixed evaluations that are not of the split that they are evaluated as: "probe row 0"."""
    largest_token_id: int
    embedding_rows: int
    dataset: str
    dataset_sha256: str
    duplicates: dict[str, str] = field(default_factory=dict)
    """Each training row with the tokens of an earlier one, and the first such row: {"train:40": "train:0"}."""


class Window(Record):
    """The micro-batches that the model really received for one optimizer step, audited against the data set."""

    step: int
    digests: tuple[str, ...]
    """One digest a micro-batch, over token ids and labels."""
    rows: tuple[str, ...]
    """Identity of each row in the data set ("train:17", "canary", or "?" when it is none of them).

    Of rows with the same tokens it is the prescribed one, if that is among them, else the first.
    """
    expected_rows: tuple[str, ...]
    supervised_tokens: int
    expected_supervised_tokens: int
    tokens: int
    """Those that are no padding."""
    random_state: str
    """Digest of the random state that the step's dropout will draw from."""
    problems: dict[str, str]
    """Kind of problem to its first example: double BOS, answer lost, padding supervised, end token missing, ..."""
    inputs: dict[str, str] = field(default_factory=dict)
    """What is wrong with attention mask and positions, each with its first row."""


class TokensReplaced(Record):
    """Tokens that the model read in a pass of this step, and that none of its batches has."""

    step: int
    read: str
    """Beginning of the first row that differs, decoded."""
