"""Which lines of a user's own script take part in what a check is about."""

import re
import sys
from collections.abc import Mapping

from tunecheck.core.evidence import UserCode
from tunecheck.core.finding import Place
from tunecheck.core.trace import Trace

DATA = ("data_collator", "formatting_func", "get_train_dataloader", "_get_train_sampler", "get_batch_samples")
LOSS = ("compute_loss", "compute_loss_func", "training_step", "_prepare_inputs")
OPTIMIZER = ("create_optimizer", "create_optimizer_and_scheduler", "get_decay_parameter_names")
SCHEDULE = ("create_scheduler", "create_optimizer_and_scheduler")
EVALUATION = ("evaluate", "evaluation_loop", "prediction_step", "compute_metrics", "preprocess_logits_for_metrics")
STEP = ("callback", "training_step")
SAVING = ("_save", "save_model", "_save_checkpoint")

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
    "answers_end": (DATA, r"eos"),
    "written_answers_end": (DATA, r"eos"),
    "no_loss_on_padding": ((*DATA, *LOSS), rf"{LABELS_LINE}|ignore_index|pad"),
    "padding_hidden": ((*DATA, *LOSS), r"attention_mask|mask"),
    "no_target_leakage": ((*DATA, *LOSS), rf"{LABELS_LINE}|targets?\s*=[^=]|{LOSS_LINE}"),
    "randomness_varies": ((*LOSS, "callback"), r"\w*seed\w*\("),
    "loss_oracle": (LOSS, LOSS_LINE),
    "loss_normalised_over_accumulation": (LOSS, LOSS_LINE),
    "loss_receives_logits": (LOSS, r"softmax|sigmoid"),
    "accumulation_oracle": ((*LOSS, "callback"), LOSS_LINE),
    "weight_gradients": ((*LOSS, "callback"), r"\.grad\b|backward\("),
    "loss_logged": (("log", *LOSS), r"log\("),
    "loss_moves": (LOSS, LOSS_LINE),
    "finite": (LOSS, LOSS_LINE),
    "calls_in_order": (STEP, r"zero_grad|\.step\(|clip_grad|backward\("),
    "gradients_cleared": (STEP, r"zero_grad|\.step\("),
    "clipping_leaves_gradients": (STEP, r"clip_grad|max_norm"),
    "settings_usual": (OPTIMIZER, r"lora_alpha|dropout|smoothing|betas?\b|weight_decay|eps\b"),
    "rates_as_configured": (OPTIMIZER, r"['\"]lr['\"]|lr\s*="),
    "learning_rate_trace": ((*SCHEDULE, *STEP), r"sched\w*\s*=|get_\w*schedule|['\"]lr['\"]"),
    "schedule_ends": (SCHEDULE, r"sched\w*\s*=|get_\w*schedule|warmup"),
    "steps_applied": (("create_scheduler", *STEP), r"\.step\("),
    "updates_match_adamw": ((*OPTIMIZER, *STEP), r"optim\w*\s*=|\.step\("),
    "trainable_moved": ((*OPTIMIZER, *STEP), r"optim\w*\s*=|\.step\("),
    "state_in_training": ((*STEP, *EVALUATION), r"\.eval\(|\.train\("),
    "base_untouched": (STEP, r"\.data\b|\.copy_\(|merge"),
    "weights_change_only_in_steps": (STEP, r"\.data\b|\.copy_\(|load_state_dict|merge"),
    "evaluation_reported": ((*EVALUATION, "callback"), r"eval"),
    "evaluation_rows_unseen": ((), r"eval\w*\s*=|split"),
    "adapter_round_trip": (SAVING, SAVED_LINE),
    "saved_as_trained": (SAVING, SAVED_LINE),
    "export_reads_back": (SAVING, SAVED_LINE),
    "repeat_equals": (DATA, r"seed|shuffle"),
    "resume_equals": (
        (*DATA, "_load_from_checkpoint", "_load_optimizer_and_scheduler", "callback"),
        r"resume_from_checkpoint",
    ),
}
"""Check to the parts of a script that it is about, the likeliest first, and what the line at fault may hold."""
BRANCH = re.compile(r"\s*(if(?!\s+__name__)|elif|else|except|case)\b")
FALLBACK = ("script",)
"""Every check may point to where the script trains."""


def places_of(trace: Trace, check: str) -> tuple[Place, ...]:
    """Return the code that a failure of this check points to, the likeliest first; nothing for a run of the suite's."""
    written = trace.records(UserCode)
    roles, expression = ABOUT.get(check, ((), ""))
    for among in (roles, FALLBACK):
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
        text = lines.get(at, "")
        if text.strip() and (indent := len(text) - len(text.lstrip())) < depth:
            depth = indent
            if BRANCH.match(text) and (at < number or re.search(r":\s+[^#\s]", text)):
                found.add(at)
    return found
