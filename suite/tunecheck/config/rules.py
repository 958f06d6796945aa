"""Rules between several keys of a run."""

import math

from tunecheck.config.schema import Run, order_problem
from tunecheck.config.trainers import TRAINERS, Broken, unlike
from tunecheck.core.spelling import nearest
from tunecheck.strategies import STRATEGIES


def broken_rules(run: "Run") -> Broken:
    """Return every rule between the keys of this run that is broken."""
    rules = (
        _sections,
        _magnitudes,
        _scaled_gradients,
        _steps,
        _warmup,
        _batches,
        _blocks,
        _merge,
        _memory_order,
        _fallback_chain,
        _placement,
        _parallel,
        _rescale,
        _trainer,
    )
    return [problem for rule in rules for problem in rule(run)]


def _sections(run: "Run") -> Broken:
    wanted = STRATEGIES[run.strategy].sections
    broken: Broken = []
    for name in ("lora", "quantization"):
        given = getattr(run, name) is not None
        if name in wanted and not given:
            broken.append(((name,), f"is missing: strategy {run.strategy} needs this section"))
        if given and name not in wanted:
            broken.append(
                ((name,), f"strategy {run.strategy} does not use this section: remove it, or change strategy")
            )
    return broken


def _magnitudes(run: "Run") -> Broken:
    if run.lora is None or not run.lora.use_dora or run.lora.adapter_dtype != "model":
        return []
    rule = "should be fp32 or mixed with lora.use_dora: in 16 bit an update rounds to no change of a magnitude"
    return [(("lora", "adapter_dtype"), f"{rule} (got model)")]


def _scaled_gradients(run: "Run") -> Broken:
    if run.training.precision != "fp16" or run.lora is None or run.lora.adapter_dtype != "model":
        return []
    rule = "should be fp32 or mixed with training.precision fp16: torch's GradScaler unscales no gradients in fp16"
    return [(("lora", "adapter_dtype"), f"{rule} (got model)")]


def _steps(run: "Run") -> Broken:
    last = run.training.max_steps
    before, within = f"should be before training.max_steps, {last}", f"should be at most training.max_steps, {last}"
    named = run.probes.oracle_steps != type(run.probes)().oracle_steps  # the default fits a run of one step too
    steps = [
        (("probes", "oracle_steps"), before, [step for step in run.probes.oracle_steps if named and step >= last]),
        (("evaluation", "at"), before, [step for step in run.evaluation.at if step >= last]),
        (("probes", "resume_from"), before, [step for step in [run.probes.resume_from or 0] if step >= last]),
        (("probes", "repeat_steps"), within, [step for step in [run.probes.repeat_steps] if step > last]),
    ]
    return [(path, f"{rule} (got {', '.join(map(str, late))})") for path, rule, late in steps if late]


def _warmup(run: "Run") -> Broken:
    last = run.training.max_steps
    if math.ceil(run.training.warmup_ratio * last) < last:
        return []
    given = f"got {run.training.warmup_ratio} of {last} steps, rounded up"
    return [(("training", "warmup_ratio"), f"should leave at least one step at the full learning rate ({given})")]


def _batches(run: "Run") -> Broken:
    if run.data.canary is None or run.training.micro_batch_size > 1:
        return []
    rule = "should be at least 2: data.canary takes the first place of every micro-batch and leaves no other row"
    return [(("training", "micro_batch_size"), f"{rule} (got 1)")]


def _blocks(run: "Run") -> Broken:
    given = [name for name in ("canary", "hub") if getattr(run.data, name) is not None]
    if run.data.template != "blocks" or not given:
        return []
    rule = "cannot be combined with template blocks: it holds instructions and answers, and blocks are plain text"
    return [(("data", name), rule) for name in given]


def _merge(run: "Run") -> Broken:
    if not run.probes.merge or run.lora is not None:
        return []
    return [(("probes", "merge"), f"needs adapters: strategy {run.strategy} has none to merge (got true)")]


def _memory_order(run: "Run") -> Broken:
    if not run.probes.memory_order or (run.strategy == "qlora" and run.training.micro_batch_size < 4):
        return []
    rule = "needs strategy qlora and fewer than 4 rows, which its variants take more memory than"
    given = f"got {run.strategy} and training.micro_batch_size {run.training.micro_batch_size}"
    return [(("probes", "memory_order"), f"{rule} ({given})")]


def _fallback_chain(run: "Run") -> Broken:
    rule = order_problem(run.fallback)
    return [(("fallback",), rule)] if rule else []


def _placement(run: "Run") -> Broken:
    """Return what the libraries cannot place: FSDP2 offloads no statistics of 4-bit tensors and no scaled gradient."""
    broken: Broken = []
    training, offload, place = run.training, ("training", "offload"), ("evaluation", "device")
    if training.offload == "parameters" and not run.trains_base:
        rule = "should be activations with adapters: parameters is for training base weights"
        broken.append((offload, f"{rule} (got parameters with strategy {run.strategy})"))
    if training.offload == "parameters" and training.precision == "fp16":
        broken.append((offload, "fp16's gradient scaler cannot follow gradients to the CPU: use bf16 or fp32"))
    if run.evaluation.device == "cuda" and run.quantization is not None:
        broken.append((place, "4-bit weights are packed for one device: use training, or no quantization"))
    if run.evaluation.device == "cuda" and run.device != "cpu":
        broken.append((place, f"is for training on the CPU: it needs device cpu (got device {run.device})"))
    return broken


def _parallel(run: "Run") -> Broken:
    """Return what cannot be done in several processes, or is not: each with the way out."""
    if run.parallel is None and max(run.probes.rescale_to, default=1) == 1:
        return []
    wanted: dict[str, tuple[object, str]] = {
        "training.offload": ("none", "parameters stay where they are computed with"),
        "training.loss_chunk_tokens": (None, "chunks never call the whole model"),
        "evaluation.device": ("training", "a rank has the device that it trains on alone"),
        "probes.memory_order": (False, "its variants train in one process"),
        "probes.rungs": (False, "fallback steps train in one process"),
        "probes.reference": (False, "there is no fallback that it could be compared with"),
        "fallback": ((), "the other steps are those of one process"),
    }
    return unlike(run, "with section parallel" if run.parallel else "with probes.rescale_to", wanted)


def _rescale(run: "Run") -> Broken:
    """Return the numbers of processes by which no checkpoint is resumed, or not with the same steps."""
    wanted, micro_batches = run.probes.rescale_to, run.micro_batches_per_step
    shared = f"should divide the {micro_batches} micro-batches of a step, which all processes share"
    rules = (
        ("needs probes.resume_from: the checkpoint that they go on from", run.probes.resume_from is None and wanted),
        ("should not hold the run's own number, by which probes.resume_from is resumed", {run.processes} & {*wanted}),
        (shared, [processes for processes in wanted if micro_batches % processes]),
    )
    return [
        (("probes", "rescale_to"), f"{rule} (got {', '.join(map(str, numbers))})") for rule, numbers in rules if numbers
    ]


def _trainer(run: "Run") -> Broken:
    if run.trainer not in TRAINERS:
        hint = nearest(run.trainer, TRAINERS)
        return [(("trainer",), f"should be {' or '.join(map(repr, TRAINERS))}{hint} (got {run.trainer!r})")]
    return TRAINERS[run.trainer].refuses(run)
