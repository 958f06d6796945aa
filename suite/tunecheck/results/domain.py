"""Attribute a failure to workload, hardware or environment.

The order of the rules matters. A hardware fault explains everything, and no result counts beside it. Other GPU
processes, a busy CPU and throttling explain a slow run, no wrong loss, and no memory, which is judged by the process's
own allocator. What remains is the workload's, if the machine was watched and a fresh process agrees, where the run has
one; in a script of the user's own it comes with the lines that take part in what the check is about.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence

from tunecheck.checks import CHECKS, telemetry
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import AttemptCause, AttemptOutcome, AttemptPurpose, Setup, Step, UserCode
from tunecheck.core.finding import Domain, Finding, Place, Status
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

Attribution = tuple[Domain, str]


def attributed(trace: Trace, finding: Finding) -> Finding:
    """Return a failed finding with its domain and the evidence for it, a suspected one too with its code."""
    if finding.status is Status.SUSPECTED:
        return dataclasses.replace(finding, places=places_of(trace, finding.check))
    if finding.status is not Status.FAILED:
        return finding
    domain, evidence = domain_of(trace, finding)
    return dataclasses.replace(finding, domain=domain, evidence=evidence, places=places_of(trace, finding.check))


def domain_of(trace: Trace, finding: Finding) -> Attribution:
    """Return the domain of a failed finding, from the run's telemetry and its repeat."""
    speed = finding.check in CHECKS and CHECKS[finding.check].speed
    if faults := telemetry.hardware_faults(trace):
        return Domain.HARDWARE, "; ".join(faults)
    try:
        others = telemetry.other_gpu_processes(trace) if speed else ""
        others = f"other GPU processes: {others}" if others else ""
        if speed and (slowed := others or telemetry.busy_host(trace) or telemetry.throttled(trace)):
            return Domain.ENVIRONMENT, slowed
        return _by_repeat(trace, finding) or _by_watch(trace)
    except MissingEvidence as missing:
        return Domain.UNKNOWN, str(missing)


def machine_fault(trace: Trace, failed: Sequence[Finding]) -> Attribution | None:
    """Return the fault of the machine by which every one of these attributed findings failed; None for any other."""
    if failed and (faults := telemetry.hardware_faults(trace)):
        return Domain.HARDWARE, "; ".join(faults)
    if failed and all(finding.domain is Domain.ENVIRONMENT for finding in failed):
        return Domain.ENVIRONMENT, failed[0].evidence
    return None


def domain_of_end(trace: Trace) -> Attribution | None:
    """Return what kept the attempt that counts from finishing; None when it finished or was interrupted."""
    no_fault = (AttemptOutcome.FINISHED, AttemptOutcome.INTERRUPTED, AttemptOutcome.CUT_OFF)
    if not trace.trainings or (main := trace.main).outcome in no_fault:
        return None
    if faults := telemetry.hardware_faults(trace):
        return Domain.HARDWARE, "; ".join(faults)
    if main.outcome == AttemptOutcome.MISCONFIGURED:
        return Domain.WORKLOAD, "its configuration was refused"
    if main.outcome == AttemptOutcome.UNAVAILABLE:
        return Domain.ENVIRONMENT, "weights or data are missing on this machine"
    cause = main.end.cause if main.end is not None else None
    if cause == AttemptCause.GPU_MEMORY and (others := telemetry.other_gpu_processes(trace)):
        return Domain.ENVIRONMENT, f"other GPU processes: {others}"
    if cause in (AttemptCause.ERROR, AttemptCause.GPU_ERROR, AttemptCause.GPU_MEMORY):
        if signs := telemetry.unclear_signs(trace):
            return Domain.UNKNOWN, f"{'; '.join(signs)}: run again in a fresh process"
        if cause == AttemptCause.GPU_MEMORY and (why := telemetry.unwatched(main)):
            return Domain.UNKNOWN, f"whose memory it was is not known: {why}"
    return _BY_CAUSE.get(cause, (Domain.UNKNOWN, "what ended it was not seen"))


_BY_CAUSE: dict[AttemptCause | None, Attribution] = {
    AttemptCause.ERROR: (Domain.WORKLOAD, "the training code or a library raised an error"),
    AttemptCause.GPU_ERROR: (Domain.UNKNOWN, "the program's kernels or the GPU can cause it: run again"),
    AttemptCause.NO_GPU: (Domain.ENVIRONMENT, "the driver lists a GPU that torch cannot use"),
    AttemptCause.GPU_MEMORY: (Domain.WORKLOAD, "no other process was seen on the GPU"),
    AttemptCause.KILLED: (Domain.ENVIRONMENT, "another process or the kernel killed the training"),
    AttemptCause.SIGNAL: (Domain.UNKNOWN, "a library, a driver or the memory can cause this signal: run again"),
    AttemptCause.EXIT: (Domain.UNKNOWN, "the process ended by itself without an error: look at its log"),
    AttemptCause.DEADLINE: (Domain.UNKNOWN, "it was stopped or hung: look at the stacks in its log"),
    AttemptCause.START: (Domain.ENVIRONMENT, "the system refused or ended the process that starts the training"),
    AttemptCause.LIBRARIES: (Domain.ENVIRONMENT, "an installed library, or Python itself, is not as it must be"),
    AttemptCause.DISK_FULL: (Domain.ENVIRONMENT, "no space is left on a disk of this machine"),
    AttemptCause.HOST_MEMORY: (Domain.ENVIRONMENT, "this machine's memory, or the process's limit of it, is used up"),
}
"""Where nothing that was watched explains the end."""


def _by_repeat(trace: Trace, finding: Finding) -> Attribution | None:
    """Attribute by a repeat in a fresh process; None without one that finished."""
    repeats = [one for one in trace.attempts if one.start.purpose == AttemptPurpose.REPEAT and one.finished]
    first = {step.step: step.loss for step in trace.records(Step)}
    if not (pairs := [(first.get(step.step), step.loss) for repeat in repeats for step in repeat.all(Step)]):
        return None
    if all(repr(before) == repr(after) for before, after in pairs):  # by their spelling, so that NaN equals NaN
        if finding.check == "repeat_equals":
            return Domain.UNKNOWN, "the losses agree, and yet the check failed"
        return Domain.WORKLOAD, f"a fresh process gave the same losses to the last bit in {len(pairs)} steps"
    if trace.one(Setup).numerics.get("deterministic"):
        return Domain.HARDWARE, "suspected: a fresh process gave other losses although the arithmetic is deterministic"
    return Domain.UNKNOWN, "a fresh process gave other losses, and the run does not set training.deterministic"


def _by_watch(trace: Trace) -> Attribution:
    """Attribute where nothing else was seen, by how completely the GPU was watched."""
    if not telemetry.on_gpu(trace):
        return Domain.WORKLOAD, "trained on the CPU: no GPU was involved"
    if not trace.holds(Premise.INTENT_DECLARED):
        return Domain.UNKNOWN, ""  # nobody watches the GPU of a script
    if why := telemetry.unwatched(trace.main):
        return Domain.UNKNOWN, f"the GPU was not watched to the end: {why}"
    if signs := telemetry.unclear_signs(trace):
        return Domain.UNKNOWN, f"{'; '.join(signs)}: run again in a fresh process"
    return Domain.WORKLOAD, "the GPU was watched to the end and reported no fault"


DATA = ("data_collator", "formatting_func", "get_train_dataloader", "_get_train_sampler", "get_batch_samples")
LOSS = ("compute_loss", "compute_loss_func", "training_step", "_prepare_inputs")
OPTIMIZER = ("create_optimizer", "create_optimizer_and_scheduler", "get_decay_parameter_names")
SCHEDULE = ("create_scheduler", "create_optimizer_and_scheduler")
EVALUATION = ("evaluate", "evaluation_loop", "prediction_step", "compute_metrics", "preprocess_logits_for_metrics")
STEP = ("callback", "training_step")
SAVING = ("_save", "save_model", "_save_checkpoint")
RESUMING = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "callback")

LOSS_LINE = r"\bloss\w*\s*[+*/]?=\s*[a-zA-Z_(]|cross_entropy|criterion\("
LABELS_LINE = r"labels['\"]?\]?(\[[^=]*\])?\s+=[^=]|['\"]labels['\"]\s*:"
SAVED_LINE = r"save_pretrained|save_model|torch\.save|save_file"
ABOUT: dict[str, tuple[tuple[str, ...], str]] = {
    "trainable_set": ((), r"requires_grad|get_peft_model|LoraConfig"),
    "optimizer_coverage": (OPTIMIZER, r"optim\w*\s*=|AdamW?\(|SGD\("),
    "state_dict_keys_match": ((), r"load_state_dict"),
    "forward_matches_architecture": ((), r"from_pretrained|from_config"),
    "mask_and_positions": (DATA, r"attention_mask|position_ids"),
    "labels_as_configured": (DATA, LABELS_LINE),
    "batch_as_configured": (DATA, r"batch_size"),
    "supervised_tokens": (DATA, rf"{LABELS_LINE}|num_items"),
    "as_expected": (DATA, ""),
    "rows_come_once": (DATA, r"next\(iter|DataLoader\(|[Ss]ampler"),
    "batches_change": (DATA, r"next\(iter|DataLoader\(|get_batch"),
    "rows_whole": (DATA, r"max_(seq_)?len\w*|truncation|\[:\w*(len|max|block)"),
    **dict.fromkeys(("answers_end", "written_answers_end"), (DATA, r"eos")),
    "no_loss_on_padding": ((*DATA, *LOSS), rf"{LABELS_LINE}|ignore_index|pad"),
    "padding_hidden": ((*DATA, *LOSS), r"attention_mask|mask"),
    "no_target_leakage": ((*DATA, *LOSS), rf"{LABELS_LINE}|targets?\s*=[^=]|{LOSS_LINE}"),
    "randomness_varies": ((*LOSS, "callback"), r"\w*seed\w*\("),
    **dict.fromkeys(("loss_oracle", "loss_normalised_over_accumulation", "loss_moves", "finite"), (LOSS, LOSS_LINE)),
    "loss_receives_logits": (LOSS, r"softmax|sigmoid"),
    "accumulation_oracle": ((*LOSS, "callback"), LOSS_LINE),
    "weight_gradients": ((*LOSS, "callback"), r"\.grad\b|backward\("),
    "loss_logged": (("log", *LOSS), r"log\("),
    "calls_in_order": (STEP, r"zero_grad|\.step\(|clip_grad|backward\("),
    "gradients_cleared": (STEP, r"zero_grad|\.step\("),
    "clipping_leaves_gradients": (STEP, r"clip_grad|max_norm"),
    "settings_usual": (OPTIMIZER, r"lora_alpha|dropout|smoothing|betas?\b|weight_decay|eps\b"),
    "rates_as_configured": (OPTIMIZER, r"['\"]lr['\"]|lr\s*="),
    "learning_rate_trace": ((*SCHEDULE, *STEP), r"sched\w*\s*=|get_\w*schedule|['\"]lr['\"]"),
    "schedule_ends": (SCHEDULE, r"sched\w*\s*=|get_\w*schedule|warmup"),
    "steps_applied": (("create_scheduler", *STEP), r"\.step\("),
    **dict.fromkeys(("updates_match_adamw", "trainable_moved"), ((*OPTIMIZER, *STEP), r"optim\w*\s*=|\.step\(")),
    "state_in_training": ((*STEP, *EVALUATION), r"\.eval\(|\.train\("),
    "base_untouched": (STEP, r"\.data\b|\.copy_\(|merge"),
    "weights_change_only_in_steps": (STEP, r"\.data\b|\.copy_\(|load_state_dict|merge"),
    "evaluation_reported": ((*EVALUATION, "callback"), r"eval"),
    "evaluation_rows_unseen": ((), r"eval\w*\s*=|split"),
    **dict.fromkeys(("adapter_round_trip", "saved_as_trained", "export_reads_back"), (SAVING, SAVED_LINE)),
    "repeat_equals": (DATA, r"seed|shuffle"),
    "resume_equals": ((*DATA, *RESUMING), r"resume_from_checkpoint"),
}
"""Check to the parts of a script that it is about, the likeliest first, and what the line at fault may hold."""
BRANCH = re.compile(r"\s*(if(?!\s+__name__)|elif|else|except|case)\b")


def places_of(trace: Trace, check: str) -> tuple[Place, ...]:
    """Return the code that a failure of this check points to, the likeliest first; nothing for a run of the suite's."""
    written = trace.records(UserCode)
    roles, expression = ABOUT.get(check, ((), ""))
    for among in (roles, ("script",)):  # every check may point to where the script trains
        if found := [_place(code, expression) for role in among for code in written if code.role == role]:
            return tuple(found)
    return ()


def _place(code: UserCode, expression: str) -> Place:
    """Return the line of this code that the expression matches, else the one where it begins or trains.

    Of a script the last one before it trains counts, else the first. One in a branch that the line seen to run is not
    in may never have run.
    """
    lines = dict(enumerate(code.source, start=code.first_line))
    matching = [n for n, text in lines.items() if expression and re.search(expression, text.partition("#")[0])]
    seen = _branches(lines, code.line)
    matching = [number for number in matching if _branches(lines, number) <= seen]
    before = [number for number in matching if number <= code.line]
    line = next(iter([*before[-1:], *matching]), code.line)
    what = code.name if code.role == "callback" else code.role  # callbacks are told apart by their names
    return Place(what=what, file=code.file, line=line, quoted=lines.get(line, "").strip())


def _branches(lines: Mapping[int, str], number: int) -> set[int]:
    """Return the lines of the conditions that this line is under."""
    found, depth = set(), sys.maxsize
    for at in range(number, min(lines, default=number) - 1, -1):
        if (text := lines.get(at, "")).strip() and (indent := len(text) - len(text.lstrip())) < depth:
            depth = indent
            if BRANCH.match(text) and (at < number or re.search(r":\s+[^#\s]", text)):
                found.add(at)
    return found
