"""Validate a run against its model and data before it begins; what holds the weights raises `config_error` later."""

from math import prod

from tunecheck.config.schema import Run
from tunecheck.config.source import Document
from tunecheck.core.errors import BadRow, BrokenRules, ConfigError, Unsupported
from tunecheck.core.records import INSTRUCTION, TEXT, count_rows
from tunecheck.models.shapes import KNOWN_TYPES, tensor_shapes
from tunecheck.strategies import trained_shapes

ENOUGH_LAYERS = 8
"""More layers than any strategy needs to tell those it trains from the others."""


def config_error(run: Run, *problems: tuple[str, str]) -> ConfigError:
    """Return the error for keys ("data.max_length") of this run that break a rule: place, key and rule of each."""
    written = Document(places={(): "", **run._places})  # nowhere for a run that was not loaded from a file
    places = {key: written.place(tuple(key.split("."))) for key, _ in problems}
    return ConfigError([": ".join(filter(None, (places[key], key, rule))) for key, rule in problems])


def report_incompatibilities(document: Document, run: Run) -> None:
    """Add to the problems what the model's tensors and the data's rows rule out."""
    architecture = run.model.architecture
    if architecture.model_type in KNOWN_TYPES:
        # all layers are alike, and a typo must not fill the memory
        layers = min(architecture.num_hidden_layers, ENOUGH_LAYERS)
        fewer = architecture.model_copy(update={"num_hidden_layers": layers})
        shortened = run.model_copy(update={"model": run.model.model_copy(update={"architecture": fewer})})
        try:
            trained_shapes(shortened, tensor_shapes(fewer))
        except BrokenRules as error:
            for key, rule in error.rules:
                document.report(tuple(key.split(".")), rule)
        except Unsupported as error:
            document.report(("strategy",), str(error))
    _report_rows(document, run)


def require_count(run: Run) -> None:
    """Require that the model's parameter count is its architecture's, where that is known. Raises ConfigError."""
    if run.model.architecture.model_type not in KNOWN_TYPES:
        return
    count = sum(map(prod, tensor_shapes(run.model.architecture).values()))
    if count != run.model.parameters:
        rule = f"should be {count:d}, as model.architecture has it (got {run.model.parameters}): correct one of them"
        raise config_error(run, ("model.parameters", rule))


def _report_rows(document: Document, run: Run) -> None:
    hub, wanted, blocks = run.data.hub, run.evaluation.rows, run.data.template == "blocks"
    for split, key in (("train", "probe"), ("heldout", "heldout")):
        path = run.data.file(split)
        asked = max(wanted if key in run.evaluation.splits else 0, (split == "train" and run.data.train_rows) or 0)
        try:
            held = count_rows(path, TEXT if blocks else INSTRUCTION, asked)
        except BadRow as error:
            document.report(("data", split), str(error))
            continue
        given = (hub.rows if split == "train" else hub.heldout_rows) if hub else held
        if not given or blocks:  # unreadable: reported when the run begins; a row is a block of tokens, not a line
            continue
        source = "of data.hub" if hub else f"in {path.name}"
        if split == "train" and (run.data.train_rows or 0) > given:
            rule = f"should be at most {given}, all rows {source} (got {run.data.train_rows})"
            document.report(("data", "train_rows"), rule)
        available = min(given, run.data.train_rows or given) if split == "train" else given
        if key in run.evaluation.splits and wanted > available:
            rule = f"should be at most {available}, the rows of split {key} {source} (got {wanted})"
            document.report(("evaluation", "rows"), rule)
