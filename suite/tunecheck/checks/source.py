"""What the text of the script tells by itself: names, orders and comparisons that contradict each other.

A text proves little: each of these is a question to whoever wrote it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from tunecheck.core import evidence
from tunecheck.core.check import Check
from tunecheck.core.evidence import SlipKind
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


class InSource(Check):
    """Base of the checks that read the script's own modules."""

    needs = frozenset({"user_code"})
    without = (evidence.SourceRead, "the script's source cannot be read")
    told: ClassVar[Mapping[SlipKind, str]]
    """Kind of a slip to its sentence, behind file and line."""

    @property
    @abstractmethod
    def fine(self) -> str:
        """What the files do where nothing is found."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.SourceRead)
        slips = [slip for slip in seen.slips if slip.kind in self.told]
        problems = [f"{slip.file}:{slip.line} {self.told[slip.kind].format(slip.name)}" for slip in slips]
        return self.unless(problems, f"{seen.files} files {self.fine}", most=3, compared=seen.files)


class ValuesUsed(InSource):
    """Every mask, label, length, loss and rate that the script's code computes or is given is used.

    The check reads the source of the script's own modules: variables, parameters, options of the command, and results
    of methods that change nothing in place.
    """

    convention = "a value may be left over from an older version, or be kept for a reader"
    meaning = """A line was lost: the prompt's length is computed, and nothing masks the prompt. Or a copied line uses
    one of two values twice. Or a method such as masked_fill returns a new tensor, and the script drops it. Or an option
    is parsed and passed to nothing."""
    remedy = "Use the value, or delete the line."
    told: ClassVar[Mapping[SlipKind, str]] = {
        "variable": "computes {}, which is never read",
        "parameter": "is given {}, which is never read",
        "result": "makes {}, which changes nothing in place, and is dropped",
        "option": "is given {}, which is never read",
        "idle": "calls {}, which does nothing",
    }
    fine = "use what they compute"


class NamesAgree(InSource):
    """Each value goes to a name of its own role: chosen to chosen, validation to validation, targets to targets.

    The check reads the source of the script's own modules. It compares lines that differ in the roles of their names
    alone, plain copies, differences that are compared, and the arguments of the script's own functions.
    """

    convention = "two roles may share a value, and a validation may read the training's rows"
    meaning = """A copied line keeps one name of the line above: the rejected answers get the mask of the chosen ones.
    Or two arguments are exchanged. Or the validation set is made of training rows. Or the targets are encoded by the
    source's tokenizer."""
    remedy = "Give the value of the role that the name tells, or rename it."
    told: ClassVar[Mapping[SlipKind, str]] = {"exchanged": "takes {}"}
    fine = "keep roles apart"


class ListsStayPaired(InSource):
    """Lists whose items belong together are shuffled and sorted together.

    The check reads the source of the script's own modules. It looks for lists and columns that are made together and
    used together. A line between them reorders one alone.
    """

    convention = "a random pairing may be a baseline"
    meaning = """The texts are shuffled, and the labels are not: each text is trained with the label of another. Or
    source and target lines are sorted by their own lengths."""
    remedy = "Zip the lists before you reorder them, or use one permutation for all."
    told: ClassVar[Mapping[SlipKind, str]] = {"reordered": "reorders {}"}
    fine = "keep lists in one order"


class BestWeightsKept(InSource):
    """A loop keeps the best weights: its comparison has the right direction and start, and it keeps a copy.

    The check reads the source of the script's own modules. A state_dict holds the tensors that train on.
    """

    convention = "a study may keep the worst weights"
    meaning = """The comparison was written for an accuracy, and the number is a loss. Or the best number starts where
    none is better, so that nothing is saved. Or the best state is no copy, and further training overwrites it."""
    remedy = """Compare a loss with < from infinity, an accuracy with > from 0. Keep
    copy.deepcopy(model.state_dict()), or save it at once."""
    told: ClassVar[Mapping[SlipKind, str]] = {"best": "keeps its best wrongly: {}"}
    fine = "keep the best weights"


class ModesSwitched(InSource):
    """The model evaluates in eval mode, and goes back to train mode before it trains on.

    The check reads the source of the script's own modules. It judges models that drop out, or normalise batches.
    """

    convention = "dropout may stay on to sample, or off after a first epoch"
    meaning = """model.eval() is missing, so that the evaluation drops out at random. Or model.train() stands before the
    loop, so that the training goes on in eval mode after the first evaluation."""
    remedy = "Call model.eval() before each evaluation, and model.train() before each epoch."
    told: ClassVar[Mapping[SlipKind, str]] = {"mode": "leaves a mode wrong: {}"}
    fine = "switch modes"


class LossTermsWhole(InSource):
    """Each term of the loss keeps its gradient, and a student and its teacher are softened alike.

    The check reads the source of the script's own modules: sums that are differentiated, and both softmaxes of a
    distillation.
    """

    convention = "a term may be logged within the loss, or one side may be sharpened"
    meaning = """A term is added as a number, by item() or detach(), so that nothing learns from it. Or the temperature
    divides the scores of the student alone."""
    remedy = "Add the tensor itself. Divide the scores of both models by the temperature."
    told: ClassVar[Mapping[SlipKind, str]] = {"term": "{}"}
    fine = "keep their losses whole"


class MeansWhole(InSource):
    """Each mean that the script reports divides a sum by the number of what it sums.

    The check reads the source of the script's own modules: divisions by a length, and meters as those of torchmetrics.
    """

    convention = "a number may be meant to run on, or to be compared with itself alone"
    meaning = """The sum is not set to zero for the next epoch. Or the mean of each batch is added, and the sum is
    divided by the number of rows. Or a validation's sum is divided by the number of training batches."""
    remedy = "Begin the sum in the loop that divides it, and divide by the number of what was added."
    told: ClassVar[Mapping[SlipKind, str]] = {"mean": "takes {}"}
    fine = "divide sums by their own counts"
