"""Habits of nearly every training, and the ranges that recipes place its numbers in.

Breaking one is a question to whoever wrote the script, no proven mistake.
"""

from collections import Counter
from itertools import pairwise

from tunecheck.core import evidence
from tunecheck.core.check import Check, enough, holding, required, some
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace

OPAQUE = "the model is called with an object that tunecheck cannot look into, beside nothing that differs"
NOT_LOADED = "A reference or teacher is built from a configuration, and its weights are never loaded."
GOES_ON = "adapters may go on from a file, or the base may be made to fit them"
BOTH_DRAWN = "LoRA's B is random like A, so adapters change the model before the first step."
UPSIDE_DOWN = "The layer-wise decay of the learning rate runs the wrong way: the first layers should change least."
RANDOM_TARGET = "a random network may be a target on purpose, as of a bonus for what is new"
USUAL = {
    "lora_scale": (1 / 512, 64, "peft's default is 1, LoRA Without Regret has 32 at rank 1"),
    "dropout": (0, 0.8, "its paper drops half, AWD-LSTM 0.65 of a layer"),
    "label_smoothing": (0, 0.5, "Inception and the Transformer take 0.1"),
    "adam_rate": (0, 0.05, "T5 takes 1e-3, peft's IA3 8e-3, its prompt tuning 3e-2"),
    "adam_beta1": (0, 0.99, "torch takes 0.9, GANs 0 to 0.5"),
    "adam_beta2": (0.5, 1, "torch takes 0.999, GPT-3 0.95"),
    "adam_epsilon": (0, 0.01, "torch takes 1e-8, Rainbow 1.5e-4"),
    "weight_decay": (0, 2, "torch's AdamW takes 0.01, GPT-3 0.1, ViT 0.3, Grokking 1"),
    "norm_decay": (0, 0, "BERT, GPT-3 and ViT leave out both, or neither"),
    "momentum": (0, 0.999, "SGD with 0.9 and nnU-Net with 0.99"),
    "rates_by_depth": (0, 1, "ULMFiT, BEiT and MAE take lower rates for lower layers"),
    "neftune_noise_alpha": (0, 100, "its paper takes 5 to 15"),
    "preference_beta": (0, 2, "DPO, KTO and ORPO take 0.01 to 0.5, TRL 0.1"),
    "simpo_beta": (0.05, 50, "SimPO takes 2 to 10"),
}
"""Kind of a setting to the range in which it lies, wider than that of any recipe that we know, and to some of these."""


class UsualTensorsLearn(Check):
    """Freshly initialised matrices and added tokens are trained, and so is some part of the layers.

    Freezing sets requires_grad of each parameter, not of a module. A matrix with its own low-rank factors is frozen,
    and one of its two factors starts at 0. A second model that does not learn has loaded weights. Rates by layer do not
    fall toward the output.
    """

    needs = frozenset({"user_code"})
    convention = "random features may be fixed, and a head, norms or new tokens alone may be trained, on purpose"
    meaning = f"""A name filter froze the new head along with the base. Or all layers are frozen, and no adapters were
    added. Or the script sets a module's requires_grad instead of calling requires_grad_(False). Or tokens were added,
    but with adapters their embeddings stay random. Or a position table is zeros with requires_grad=False. Or the slice
    of frozen layers is reversed, and freezes the last ones. {BOTH_DRAWN} {NOT_LOADED} {UPSIDE_DOWN}"""
    remedy = """Print each parameter's name and requires_grad before you create the optimizer. Unfreeze the named
    tensors. List added tokens in LoraConfig's trainable_token_indices, or the embeddings in modules_to_save."""

    def judge(self, trace: Trace) -> Finding:
        if others := [other.model for other in trace.records(evidence.OtherModelDrops) if other.drawn]:
            detail = f"{some(others)} is called and learns nothing, and the weights of its norms are all 1, or all 0"
            return self.at_most(len(others), 0, detail, meant=RANDOM_TARGET, causes=[NOT_LOADED])
        seen = trace.one(evidence.Movement)
        if seen.both_drawn:
            detail = f"{len(seen.both_drawn)} modules have low-rank factors none of which is 0 at the start"
            detail += f": {some(seen.both_drawn)}"
            return self.at_most(len(seen.both_drawn), 0, detail, meant=GOES_ON, causes=[BOTH_DRAWN])
        if seen.rates_fall:
            meant = "the first layers may have most to learn"
            return self.found(False, seen.rates_fall, meant=meant, causes=[UPSIDE_DOWN])
        rests = () if "frozen" in trace.run.expected else trace.run.rests
        wrong = {
            f"every A of the adapters is frozen, as in LoRA-FA, {len(rests)} in all: {some(rests)}": rests,
            f"{len(seen.drawn)} matrices are frozen at their random initial values: {some(seen.drawn)}": seen.drawn,
            f"{len(seen.at_0)} matrices are frozen at 0, so they add nothing: {some(seen.at_0)}": seen.at_0,
            "no matrix and no bias of the layers is trained, and no adapter lies before the head": seen.layers_rest,
            f"{seen.upper_rest} are frozen, the last ones, and the first ones learn": seen.upper_rest,
            f"new embeddings of {len(seen.added)} tokens are frozen: {some([*map(str, seen.added)])}": seen.added,
            f"an attribute that torch does not read is to freeze {some(seen.misfrozen)}, which learns": seen.misfrozen,
            f"{len(seen.adapted)} matrices learn along with their low-rank factors: {some(seen.adapted)}": seen.adapted,
        }
        required(seen.frozen_tensors or seen.misfrozen or seen.adapted, "nothing is frozen")
        return self.unless(holding(wrong), f"none of {seen.frozen_tensors} frozen tensors looks random")


RARE = "classes may be so unequal that the first steps hold one alone, or be taken in turn"
REREAD = "Each step creates a new iterator, or the batch is read before the loop."
ONCE_A_STEP = "The loop fetches one batch per step, not one per micro-batch."
NO_TEXT = "Another column, such as token_type_ids, is passed as the tokens."
ONE_TEXT = "The first text of a batch is tokenised for each of its rows, as by a missing index or a batched map."
COPIED = "The collator builds both inputs of a pair from one text."
ONE_VIEW = "Both views of a row are identical: the augmentation runs once, or is not random."
CONSTANT = "A constant, such as zeros_like, replaces the random numbers of rows, such as timesteps."
READ_TWICE = "Both passes of a pair receive the same tokens, by copy and paste."
SHUFFLED = "Only the inputs, or only the targets, are reordered, by a permutation or a sort."
CONTROL = "targets may be exchanged on purpose, as for a control or a penalty"
WITH_ITSELF = "a control may compare each row with itself"
ONE_KIND = "all rows may have one speaker, one task or one noise level"
VIEWS = "several views of one batch may be averaged"
ONE_SLICE = "The targets are sliced without the batch index, or read once before the loop."
NOISED = "one batch may be trained on with other noise, or another view, in each step"
LACKING = "Inputs lack a part, such as the answer, or targets belong to other rows."
SEVERAL = "one input may have several right answers, drawn at random"
ONE_TARGET = "A filter keeps rows of one rating, or the column of the targets is constant."
SORTED = "Rows are sorted by class and not shuffled, or all labels become one class."


class BatchesChange(Check):
    """Each step trains on a different batch, whose rows are neither all of one class nor sorted by class.

    Micro-batches whose losses are averaged differ, too. Different inputs have different targets, in the order of their
    rows, and equal texts have one target. The targets of a regression differ. So do the texts of rows, and the two
    inputs of a pair or of two views. No row repeats a single token. A number for each row varies. For language models
    rows_come_once compares the rows.
    """

    needs = frozenset({"unknown_rows"})
    convention = "one batch is overfitted on purpose, or the whole data set is one batch"
    meaning = f"""{REREAD} {ONCE_A_STEP} {SORTED} {ONE_SLICE} {SHUFFLED} {COPIED} {ONE_VIEW} {READ_TWICE} {NO_TEXT}
    {ONE_TEXT} {CONSTANT} {LACKING} {ONE_TARGET}"""
    remedy = """Create the iterator once per epoch, and take the next batch in each step. Shuffle the rows. Count the
    labels. Pass both texts of a pair to the model."""

    min_steps: int = 3
    """Two steps may have equal batches by chance, in a data set of a few batches."""
    min_rows: int = 32
    """Rows of one class needed for a suspicion. A class with a tenth of all rows is absent once in 30 trainings."""
    max_contrary_share: float = 0.5
    """Share of the rows whose text came before. It is 0 from the second epoch on, if labels are not random."""
    min_contrary: int = 8
    """Rows with another target needed for a share, and half of the targets of a regression."""
    min_block: int = 12
    """Mean length of a block, if each class is one block. A sampler may take four rows of each class in turn."""

    def judge(self, trace: Trace) -> Finding:
        given = trace.all(evidence.StepInputs)
        batches = [digest for step in given for digest in step.digests]
        steps = enough(len(given), self.min_steps, "steps")
        different = len(set(batches))
        required(batches, "no micro-batch of a step is known")
        required(different > 1 or not any(step.opaque for step in given), OPAQUE)
        if len(told := [step.paired for step in given if step.paired is not None]) > 1 and not any(told):
            detail = f"in {len(told)} steps, targets of the loader come in another order than the rows that are read"
            return self.at_most(len(told), 0, detail, meant=CONTROL, causes=[SHUFFLED])
        rows = [row for step in given for row in step.read if row.tokens > 1]
        if rows and all(row.different == 1 for row in rows):
            return self.at_most(len(rows), 0, f"each of {len(rows)} rows repeats one token", causes=[NO_TEXT])
        reading = [step for step in given if step.read]
        if len(reading) >= self.min_steps and len({row.digest for row in rows}) == 1 < different:
            detail = f"batches differ, but all rows that the model reads in {len(reading)} steps are one text"
            return self.at_most(len(reading), 1, detail, causes=[ONE_TEXT])
        if all(step.equal for step in given):
            detail = f"the inputs {' and '.join(given[0].equal)} are equal in each of {steps} steps"
            return self.found(False, detail, measured=steps, limit=0, meant=VIEWS, causes=[COPIED])
        if len(twins := [step.twins for step in given if step.twins is not None]) >= self.min_steps and all(twins):
            detail = f"one input occurs twice, and the same weights read both copies, in each of {len(twins)} steps"
            return self.at_most(len(twins), 0, detail, meant=WITH_ITSELF, causes=[ONE_VIEW])
        constant = [step.constant for step in given if step.constant is not None]
        if different > 1 and len(constant) >= self.min_steps and constant[0] and len({*constant}) == 1:
            detail = f"{constant[0]} for all rows of {len(constant)} steps, whose other inputs differ"
            return self.at_most(len(constant), 0, detail, meant=ONE_KIND, causes=[CONSTANT])
        if unread := [name for step in given for name in step.unread]:
            detail = f"no pass reads {some(unread, 1)} of the loader, and two passes of a step read the same rows"
            return self.at_most(len(unread), 0, detail, meant=VIEWS, causes=[READ_TWICE])
        known, contrary = sum(step.known for step in given), sum(step.contrary for step in given)
        if contrary >= self.min_contrary and contrary > (most := self.max_contrary_share) * known:
            detail = f"{contrary} of {known} rows whose text came before have another target now"
            return self.at_most(contrary / known, most, detail, meant=SEVERAL, causes=[LACKING])
        answers = [step for step in given if step.answers]
        alike = len({number for step in answers for number in (step.answers_from, step.answers_to)}) == 1
        if different > 1 and alike and sum(step.answers for step in answers) >= 2 * self.min_contrary:
            detail = f"the targets of all rows are {answers[0].answers_from:g}, in {len(answers)} steps"
            return self.at_most(len(answers), 0, detail, meant=ONE_KIND, causes=[ONE_TARGET])
        detail = f"{different} different of {len(batches)} micro-batches in {steps} steps"
        for outputs in sorted({head for step in given for head in step.targets}) if different > 1 else ():
            learned = [target for step in given for target in step.targets.get(outputs, ())]
            classes, changes = len({*learned}), sum(one != other for one, other in pairwise(learned))
            if len(learned) >= max(self.min_rows, self.min_block * classes) and changes < classes:
                blocks = "are of one class" if classes == 1 else f"come in {classes} blocks of a class each"
                detail = f"all targets, {len(learned)} or more, over {outputs} classes {blocks}"
                return self.found(False, detail, measured=changes, limit=classes, meant=RARE, causes=[SORTED])
        aims = [step.aims for step in given if step.aims]
        if different == len(batches) and len(aims) > self.min_steps and len({*aims}) == 1:
            detail = f"the inputs differ, and the targets are the same in each of {len(aims)} steps"
            return self.found(False, detail, measured=1, limit="above 1", meant=NOISED, causes=[ONE_SLICE])
        again = [len(step.digests) > len({*step.digests}) == 1 for step in given if not step.opaque]
        # one that sums the losses of its passes, as adversarial training does, has each of them count in full
        if different > 1 and again and all(again) and any(seen.by for seen in trace.records(evidence.LossDivided)):
            detail += ": those of each step are one batch, and its loss is divided by their number"
            return self.found(False, detail, measured=different, limit=len(batches), meant=VIEWS, causes=[ONCE_A_STEP])
        limit, compared = "above 1", len(batches)
        return self.found(different > 1, detail, measured=different, limit=limit, compared=compared, causes=[REREAD])


class InputsScaled(Check):
    """The numeric inputs of a model's first layer have a size near 1.

    Initial weights assume such inputs. A model that scales its own input is exempt.
    """

    needs = frozenset({"user_code"})
    without = (evidence.StepInputs, "no batch of a step was seen")
    convention = "a normalisation may follow the layer, or its weights may be made for these numbers"
    meaning = """Pixels from 0 to 255 are not divided by 255, or are normalised as if they were. Or other inputs are not
    standardised to mean 0 and deviation 1."""
    remedy = "Scale the inputs to numbers near 1, in training and in evaluation alike."

    max_size: float = 50.0
    """Root mean square. Normalised inputs have 1, and digits of MNIST that are not divided by 255 have 85."""
    min_steps: int = 3
    """Steps with such inputs."""

    def judge(self, trace: Trace) -> Finding:
        sizes = [step.size for step in trace.all(evidence.StepInputs) if step.size is not None]
        required(sizes, "no layer multiplies numbers of the model's input as they are")
        steps = enough(len(sizes), self.min_steps, "steps")
        return self.at_most(min(sizes), self.max_size, f"root mean square in {steps} steps, the smallest")


class RandomnessVaries(Check):
    """Steps that draw random numbers start from different random states."""

    needs = frozenset({"user_code"})
    convention = "a comparison of steps, or of models, under the same noise sets the seed again"
    meaning = "The loop, the model or a callback sets a seed. Dropout, noise and samples are the same in every step."
    remedy = "Set the seed once, before building the model. Search the code for manual_seed and set_seed."

    max_alike: int = 2
    """Steps that start from the same state."""

    def judge(self, trace: Trace) -> Finding:
        required("dropout" not in trace.run.features, "dropout_varies judges the random states of adapters that drop")
        drawing = {seen.step: seen.random_state for seen in trace.all(evidence.TrainingState) if seen.random_state}
        states = Counter(drawing.values())
        drawn = enough(states.total(), self.max_alike + 1, "steps with random numbers")
        alike = max(states.values())
        detail = f"{alike} of {drawn} steps that draw random numbers begin with the same random state"
        return self.at_most(alike, self.max_alike, detail)


TOO_LONG = "The schedule is made for micro-batches or all processes, but advances per step: the rate hardly falls."
WARMUP_COPIED = "A warm-up in steps was copied from a longer training. The rate then hardly rises."
NO_LENGTH = "num_training_steps is -1, or not more than the warm-up."
DECAY_PER_BATCH = "A per-epoch decay is stepped after each batch."
TOO_SHORT = "The schedule is made for epochs, but advances with each batch. The rate stays 0, or rises again."
COMES_AGAIN = "a rate may rest at its end, or a cosine come again, on purpose"
NEVER_STEPPED = "Nothing calls the schedule's step(), so the rate never changes."


class ScheduleEnds(Check):
    """The learning rate schedule advances, and its length and warm-up fit the training.

    A per-epoch decay is not applied in each step.
    """

    needs = frozenset({"user_code"})
    convention = "a trial of a few steps, or the first part of a longer training, leaves a schedule early"
    meaning = f"{TOO_LONG} {WARMUP_COPIED} {NO_LENGTH} {DECAY_PER_BATCH} {TOO_SHORT} {NEVER_STEPPED}"
    remedy = """Divide the loader's length by the accumulation steps. Set the warm-up as a ratio. Step a per-epoch
    schedule after the loop over batches."""

    max_ratio: float = 2.5
    """Length of the schedule over the steps that the training takes. It is 2 if the schedule counts two micro-batches
    per step."""
    min_steps: int = 4
    """Optimizer steps. A shorter training counts as a trial."""
    max_after_end: float = 0.1
    """Share of the steps after the schedule's end. A last partial window adds a step or two."""
    min_halving: float = 15.0
    """Optimizer steps in which an endless decay halves the rate. A factor of 0.95 takes 13.5."""

    def judge(self, trace: Trace) -> Finding:
        still = [seen for seen in trace.records(evidence.ScheduleTaken) if seen.never]
        if still and (steps := still[0].optimizer_steps) >= 2 * self.min_steps:
            detail = f"a schedule is created, but never stepped in {steps} optimizer steps"
            return self.found(False, detail, measured=0, limit=1, causes=[NEVER_STEPPED])
        seen = [s for s in trace.records(evidence.ScheduleTaken) if s.taken and s.optimizer_steps >= self.min_steps]
        seen = required(seen, "no schedule declares its length, or none was stepped")
        worst = max(seen, key=lambda seen: seen.made_for / seen.taken)
        ratio = worst.made_for / worst.taken
        halving = min((one.halves for one in seen if one.taken >= one.optimizer_steps - 1 and one.halves), default=0.0)
        if 0 < halving < self.min_halving:
            detail = f"the schedule is stepped in each optimizer step, and halves the rate in {halving:.1f} of them"
            return self.found(False, detail, measured=halving, limit=self.min_halving, causes=[DECAY_PER_BATCH])
        after = max(seen, key=lambda one: (one.taken - one.made_for) / one.taken if one.made_for else 0)
        steps_after = after.taken - after.made_for if after.made_for > after.warmup else 0
        if steps_after >= self.min_steps and steps_after > (most := self.max_after_end) * after.taken:
            detail = f"the schedule ends after {after.made_for} of the {after.taken} steps that are taken from it"
            return self.at_most(steps_after / after.taken, most, detail, meant=COMES_AGAIN, causes=[TOO_SHORT])
        rising = [f"the warm-up has {one.warmup} of {one.taken} steps" for one in seen if one.warmup >= one.taken]
        over = [one for one in seen if 0 < one.made_for <= one.warmup < one.taken]
        ended = [f"after the warm-up the rate is 0 in {one.taken - one.warmup} of {one.taken} steps" for one in over]
        detail = f"the schedule has {worst.made_for} steps, the training takes {worst.taken}: a ratio of {ratio:.1f}"
        detail = "; ".join([detail] * bool(worst.made_for) + rising + ended)
        detail = detail or (f"a warm-up of {worst.warmup} steps" if worst.warmup else "a schedule without an end")
        causes = [TOO_LONG] * (ratio > self.max_ratio) + [WARMUP_COPIED] * bool(rising) + [NO_LENGTH] * bool(ended)
        return self.at_most(ratio, self.max_ratio, detail, problems=rising + ended, causes=causes)


class ClippingLeavesGradients(Check):
    """Clipping leaves gradients of a usable size in at least one step."""

    needs = frozenset({"user_code"})
    convention = "an optimizer that normalises gradients takes the same step with smaller ones"
    meaning = """max_grad_norm is far below every gradient norm. Plain SGD then stands still, and Adam's epsilon
    outweighs its averages. Or the loss is a sum instead of a mean."""
    remedy = "Print the norm that clip_grad_norm_ returns, and clip near the usual norm."

    min_scale: float = 1e-3
    """Norm after the mildest clip over the norm before it."""
    min_steps: int = 3
    """Clipped steps needed for a verdict."""

    def judge(self, trace: Trace) -> Finding:
        scales = [seen.clip_scale for seen in trace.all(evidence.CallOrder) if seen.clip_scale is not None]
        steps, largest = enough(len(scales), self.min_steps, "steps with clipped gradients"), max(scales)
        detail = f"clipping leaves at most {largest:.2g} of the gradients' norm in {steps} steps"
        return self.found(largest >= self.min_scale, detail, measured=largest, limit=self.min_scale)


class EvaluationRowsUnseen(Check):
    """Evaluation rows are not training rows."""

    needs = frozenset({"user_code"})
    without = (evidence.EvaluationRows, "no evaluation data set with token rows is known")
    convention = "an evaluation may measure how well the training rows are learned"
    meaning = """Both data sets are the same. The evaluation set is a part of the training set that was never removed
    from it. The evaluation loss then falls while the model memorises."""
    remedy = "Split once with train_test_split, before repeating or mixing rows. Drop duplicate rows."

    max_share: float = 0.1
    """Share of the evaluation rows that were compared. Short texts may recur within a data set."""
    min_rows: int = 4
    """Shared rows needed for a failure. Fewer may be chance."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.EvaluationRows)
        share = seen.among / seen.rows
        detail = f"{seen.among} of {seen.rows} evaluation rows are among the {seen.trained} training rows"
        fits = share <= self.max_share or seen.among < self.min_rows
        return self.found(fits, detail, measured=share, limit=self.max_share, compared=seen.rows)


class SettingsUsual(Check):
    """Each setting lies within the range of published recipes."""

    needs = frozenset({"user_code"})
    without = (evidence.SettingsGiven, "nobody read the settings")
    convention = "a study may take a setting to its extremes, or let norms decay"
    meaning = """A number means something else here: the share that is kept, a percentage, a temperature instead of a
    scale. Or two arguments are swapped, or a digit is missing. Or the names excluded from weight decay are another
    model's: these norms are not called LayerNorm."""
    remedy = "Look up what the library means by the argument. Print the value that the training uses."

    def judge(self, trace: Trace) -> Finding:
        settings = trace.one(evidence.SettingsGiven).settings
        required(settings, "no object declares a setting that has a usual range")
        problems = []
        warmed_up = max((step.learning_rate for step in trace.steps), default=0.0)
        one_rate = [setting.kind for setting in settings].count("adam_rate") == 1
        for setting in settings:
            least, most, source = USUAL[setting.kind]
            value = max(setting.value, warmed_up) if one_rate and setting.kind == "adam_rate" else setting.value
            if not least <= value <= most:
                usual = f"{least:g} to {most:g}" if least < most else f"{least:g}"
                problems.append(f"{setting.where} is {value:g}, usually {usual}: {source}")
        return self.unless(problems, f"{len(settings)} settings are as usual", most=2)
