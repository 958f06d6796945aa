"""Rules of a run: between its keys, with its model's tensors, with its data's rows."""

import math

from tunecheck.config.schema import FALLBACK_STEPS, Run
from tunecheck.config.source import Document
from tunecheck.config.trainers import TRAINERS, Broken, unlike
from tunecheck.core.errors import BadRow, BrokenRules, ConfigError, Unsupported
from tunecheck.core.records import INSTRUCTION, TEXT, count_rows
from tunecheck.core.spelling import nearest
from tunecheck.models.shapes import KNOWN_TYPES, tensor_shapes
from tunecheck.strategies import STRATEGIES, trained_shapes


def config_error(run: Run, *problems: tuple[str, str]) -> ConfigError:
    """Return the error for keys ("data.max_length") of this run that break a rule: place, key and rule of each."""
    written = Document(places={(): "", **run._places})  # nowhere for a run that was not loaded from a file
    places = {key: written.place(tuple(key.split("."))) for key, _ in problems}
    return ConfigError([": ".join(filter(None, (places[key], key, rule))) for key, rule in problems])


def require_count(run: Run) -> None:
    """Require that the model's parameter count is its architecture's, where that is known. Raises ConfigError."""
    if run.model.architecture.model_type not in KNOWN_TYPES:
        return
    if (count := sum(map(math.prod, tensor_shapes(run.model.architecture).values()))) != run.model.parameters:
        rule = f"should be {count:d}, as model.architecture has it (got {run.model.parameters}): correct one of them"
        raise config_error(run, ("model.parameters", rule))


def broken_rules(run: Run) -> Broken:
    for rules in (_sections, _model, _adapters, _steps, _data, _probes, _placement, _parallel, _rescale, _trainer):
        yield from rules(run)


def _sections(run: Run) -> Broken:
    wanted = STRATEGIES[run.strategy].sections
    for name in ("lora", "quantization"):
        given = getattr(run, name) is not None
        if name in wanted and not given:
            yield name, f"is missing: strategy {run.strategy} needs this section"
        if given and name not in wanted:
            yield name, f"strategy {run.strategy} does not use this section: remove it, or change strategy"


def _model(run: Run) -> Broken:
    architecture, length = run.model.architecture, run.data.max_length
    heads, groups = architecture.num_attention_heads, architecture.num_key_value_heads
    if architecture.hidden_size % heads and not (architecture.model_extra or {}).get("head_dim"):
        rule = f"should divide hidden_size, {architecture.hidden_size}, where head_dim is not given"
        yield "model.architecture.num_attention_heads", f"{rule} (got {heads})"
    elif heads % groups:
        yield "model.architecture.num_key_value_heads", f"should divide num_attention_heads, {heads} (got {groups})"
    if length > (positions := architecture.max_position_embeddings):
        yield "data.max_length", f"should be at most {positions}, the model's max_position_embeddings (got {length})"


def _adapters(run: Run) -> Broken:
    if run.lora is None or run.lora.adapter_dtype != "model":
        return
    if run.lora.use_dora:
        rule = "should be fp32 or mixed with lora.use_dora: in 16 bit an update rounds to no change of a magnitude"
        yield "lora.adapter_dtype", f"{rule} (got model)"
    if run.training.precision == "fp16":
        rule = "should be fp32 or mixed with training.precision fp16: torch's GradScaler unscales no gradients in fp16"
        yield "lora.adapter_dtype", f"{rule} (got model)"


def _steps(run: Run) -> Broken:
    last, warmup, probes = run.training.max_steps, run.training.warmup_ratio, run.probes
    before, within = f"should be before training.max_steps, {last}", f"should be at most training.max_steps, {last}"
    named = probes.oracle_steps != type(probes)().oracle_steps  # the default fits a run of one step too
    for key, rule, late in (
        ("probes.oracle_steps", before, [step for step in probes.oracle_steps if named and step >= last]),
        ("evaluation.at", before, [step for step in run.evaluation.at if step >= last]),
        ("probes.resume_from", before, [step for step in [probes.resume_from or 0] if step >= last]),
        ("probes.repeat_steps", within, [step for step in [probes.repeat_steps] if step > last]),
    ):
        if late:
            yield key, f"{rule} (got {', '.join(map(str, late))})"
    if math.ceil(warmup * last) >= last:
        rule = f"should leave at least one step at the full learning rate (got {warmup} of {last} steps, rounded up)"
        yield "training.warmup_ratio", rule


def _data(run: Run) -> Broken:
    if run.data.canary is not None and run.training.micro_batch_size == 1:
        rule = "should be at least 2: data.canary takes the first place of every micro-batch and leaves no other row"
        yield "training.micro_batch_size", f"{rule} (got 1)"
    for name in ("canary", "hub") if run.data.template == "blocks" else ():
        if getattr(run.data, name) is not None:
            why = "it holds instructions and answers, and blocks are plain text"
            yield f"data.{name}", f"cannot be combined with template blocks: {why}"


def _probes(run: Run) -> Broken:
    if run.probes.merge and run.lora is None:
        yield "probes.merge", f"needs adapters: strategy {run.strategy} has none to merge (got true)"
    if run.probes.memory_order and (run.strategy != "qlora" or run.training.micro_batch_size >= 4):
        rule = "needs strategy qlora and fewer than 4 rows, which its variants take more memory than"
        given = f"got {run.strategy} and training.micro_batch_size {run.training.micro_batch_size}"
        yield "probes.memory_order", f"{rule} ({given})"
    if run.fallback != [step for step in FALLBACK_STEPS if step in run.fallback]:
        rule = f"should name each fallback step once, in the order {', '.join(FALLBACK_STEPS)}"
        yield "fallback", f"{rule} (got {', '.join(run.fallback)})"


def _placement(run: Run) -> Broken:
    """Yield what the libraries cannot place: FSDP2 offloads no statistics of 4-bit tensors and no scaled gradient."""
    if run.training.offload == "parameters" and not run.trains_base:
        rule = "should be activations with adapters: parameters is for training base weights"
        yield "training.offload", f"{rule} (got parameters with strategy {run.strategy})"
    if run.training.offload == "parameters" and run.training.precision == "fp16":
        yield "training.offload", "fp16's gradient scaler cannot follow gradients to the CPU: use bf16 or fp32"
    if run.evaluation.device == "cuda" and run.quantization is not None:
        yield "evaluation.device", "4-bit weights are packed for one device: use training, or no quantization"
    if run.evaluation.device == "cuda" and run.device != "cpu":
        yield "evaluation.device", f"is for training on the CPU: it needs device cpu (got device {run.device})"


def _parallel(run: Run) -> Broken:
    if run.parallel is None and max(run.probes.rescale_to, default=1) == 1:
        return
    wanted: dict[str, tuple[object, str]] = {
        "training.offload": ("none", "parameters stay on the device that computes"),
        "training.loss_chunk_tokens": (None, "chunks never call the whole model"),
        "evaluation.device": ("training", "a rank sees only the device that it trains on"),
        "probes.memory_order": (False, "its variants train in one process"),
        "probes.rungs": (False, "fallback steps train in one process"),
        "probes.reference": (False, "there is no fallback that it could be compared with"),
        "fallback": ((), "the other steps are those of one process"),
    }
    yield from unlike(run, "with section parallel" if run.parallel else "with probes.rescale_to", wanted)


def _rescale(run: Run) -> Broken:
    wanted, micro_batches = run.probes.rescale_to, run.micro_batches_per_step
    shared = f"should divide the {micro_batches} micro-batches of a step, which all processes share"
    for rule, numbers in (
        ("needs probes.resume_from: the checkpoint that they go on from", run.probes.resume_from is None and wanted),
        ("should not hold the run's own number, by which probes.resume_from is resumed", {run.processes} & {*wanted}),
        (shared, [processes for processes in wanted if micro_batches % processes]),
    ):
        if numbers:
            yield "probes.rescale_to", f"{rule} (got {', '.join(map(str, numbers))})"


def _trainer(run: Run) -> Broken:
    if run.trainer in TRAINERS:
        yield from TRAINERS[run.trainer].refuses(run)
    else:
        hint = nearest(run.trainer, TRAINERS)
        yield "trainer", f"should be {' or '.join(map(repr, TRAINERS))}{hint} (got {run.trainer!r})"


def incompatibilities(run: Run) -> Broken:
    """Yield what the model's tensors and the data's rows rule out of a run that breaks no rule between its keys."""
    if (architecture := run.model.architecture).model_type in KNOWN_TYPES:
        # all layers are alike: 8 are more than any strategy has to tell apart, and a typo must not fill the memory
        fewer = architecture.model_copy(update={"num_hidden_layers": min(architecture.num_hidden_layers, 8)})
        shortened = run.model_copy(update={"model": run.model.model_copy(update={"architecture": fewer})})
        try:
            trained_shapes(shortened, tensor_shapes(fewer))
        except BrokenRules as error:
            yield from error.rules
        except Unsupported as error:
            yield "strategy", str(error)
    yield from _rows(run)


def _rows(run: Run) -> Broken:
    hub, wanted, blocks = run.data.hub, run.evaluation.rows, run.data.template == "blocks"
    for split, key in (("train", "probe"), ("heldout", "heldout")):
        path = run.data.file(split)
        asked = max(wanted if key in run.evaluation.splits else 0, (split == "train" and run.data.train_rows) or 0)
        try:
            held = count_rows(path, TEXT if blocks else INSTRUCTION, asked)
        except BadRow as error:
            yield f"data.{split}", str(error)
            continue
        given = (hub.rows if split == "train" else hub.heldout_rows) if hub else held
        if not given or blocks:  # unreadable: reported when the run begins; a row is a block of tokens, not a line
            continue
        source = "of data.hub" if hub else f"in {path.name}"
        if split == "train" and (run.data.train_rows or 0) > given:
            yield "data.train_rows", f"should be at most {given}, all rows {source} (got {run.data.train_rows})"
        available = min(given, run.data.train_rows or given) if split == "train" else given
        if key in run.evaluation.splits and wanted > available:
            yield "evaluation.rows", f"should be at most {available}, the rows of split {key} {source} (got {wanted})"
