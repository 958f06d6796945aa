"""Which module of a process its optimizers train, and whether it is a causal language model."""

import contextlib
import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from traceback import walk_stack
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from tunecheck.core.evidence import EvaluationRows
from tunecheck.listen.adapters import configs_of
from tunecheck.listen.loaders import rows_of
from tunecheck.listen.optimizers import fewest_with, held_by, optimizers_of
from tunecheck.listen.user_code import is_users
from tunecheck.models.layer_names import base_of, text_config
from tunecheck.probes.reference.measures import living
from tunecheck.training.hooks import tensors_of


def is_causal(module: Any) -> bool:
    """Return whether this is a model of transformers, or adapters around one, with a head over a vocabulary."""
    # what passes every attribute on, as Fabric's module, is no model: the one that it holds is called by itself
    heads = ("get_output_embeddings", "get_base_model")
    if not hasattr(module, "config") or not any(hasattr(type(module), name) for name in heads):
        return False
    if hasattr(type(module), "get_base_model") and not type(module).forward.__module__.startswith("peft."):
        return False  # the script's own class around adapters takes and returns what it likes
    with contextlib.suppress(Exception):  # of those that have no head, or name it otherwise, some raise
        parts = ("get_input_embeddings", "get_output_embeddings")
        return all(getattr(module, part, lambda: None)() is not None for part in parts)
    return False


def is_transformers(model: Any) -> bool:
    """Return whether this is a model over a vocabulary whose parts transformers finds, or adapters around one."""
    inner = base_of(model)
    if not any(kind.__module__.startswith("transformers.") for kind in type(inner).__mro__):
        return False
    with contextlib.suppress(NotImplementedError):  # of a class of the script's own
        return hasattr(text_config(inner.config), "vocab_size") and inner.get_input_embeddings() is not None
    return False


def only_tokenizer() -> Any:
    """Return the tokenizer that this process holds; None where it holds none, or several that differ."""
    if (loaded := sys.modules.get("transformers.tokenization_utils_base")) is None:
        return None
    held: list[Any] = living(loaded.PreTrainedTokenizerBase)
    kinds = {(tokenizer.name_or_path, len(tokenizer), tokenizer.pad_token_id) for tokenizer in held}
    return held[0] if len(kinds) == 1 else None


def shared_loaders() -> list[EvaluationRows]:
    """Return how many rows that a loader reads in order are those that another one shuffles; [] where none is.

    Of several loaders that read in order the one that shares the least: others may measure how well rows are learned.
    """
    found: dict[type, list[set[Hashable]]] = {RandomSampler: [], SequentialSampler: []}
    for loader in living(DataLoader):
        kind = type(getattr(loader.batch_sampler, "sampler", None))
        with contextlib.suppress(Exception):  # of a data set without a length, say
            found.get(kind, []).append(set(rows_of(loader.dataset)))
    shuffled, read = found.values()
    if not shuffled or any(rows != shuffled[0] for rows in shuffled) or not all(read):
        return shared_variables()
    shared = [EvaluationRows(rows=len(rows), among=len(rows & shuffled[0]), trained=len(shuffled[0])) for rows in read]
    least = min(shared, key=lambda seen: seen.among / seen.rows, default=None)
    return [least] if least is not None and least.among else []  # other rows may be equal to what is trained


SPLITS = re.compile(r"(?i)(?<![a-z])(val|valid|validation|dev|eval|evaluation|test)(?![a-z])")
"""What a name has in place of `train`, if its rows are not to be trained on."""


def shared_variables() -> list[EvaluationRows]:
    """Return how many numbers of a variable of the script's modules are in that of the same name with `train`.

    Both are parts of one tensor or array of numbers; the first two that share some are told.
    """
    for frame, _ in walk_stack(sys._getframe(1)):
        names = [*frame.f_globals] if is_users(frame.f_code.co_filename) else []
        for name, other in ((SPLITS.sub("train", name), name) for name in names if SPLITS.search(name)):
            trained, evaluated = frame.f_globals.get(name), frame.f_globals.get(other)
            if (seen := _in_common(trained, evaluated)) is not None and seen.among:
                return [seen]
    return []


def _in_common(trained: Any, evaluated: Any) -> EvaluationRows | None:
    """Return what two parts of a row of numbers share; None of anything else."""
    tables = all(type(held).__module__ in ("torch", "numpy") for held in (trained, evaluated))
    if not tables or type(trained) is not type(evaluated) or getattr(trained, "ndim", 0) != 1:
        return None
    (first, end, size), (other_first, other_end, _) = map(_place, (trained, evaluated))
    shared = max(0, min(end, other_end) - max(first, other_first)) // size
    return EvaluationRows(rows=len(evaluated), among=shared, trained=len(trained))


def _place(held: Any) -> tuple[int, int, int]:
    """Return where the numbers of a tensor or an array begin and end in memory, and the size of each."""
    if isinstance(held, torch.Tensor):
        return held.data_ptr(), held.data_ptr() + held.numel() * held.element_size(), held.element_size()
    begin = held.__array_interface__["data"][0]
    return begin, begin + held.nbytes, held.itemsize


def called_by_name(module: Any) -> Any:
    """Return the causal language model around this whose `forward`, past its hooks, the script has called; or None."""
    for frame, _ in walk_stack(None):
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        if owner is not module and isinstance(owner, torch.nn.Module) and is_causal(owner):
            return owner
    return None


def trained_whole(module: Any, *, again: bool = False) -> tuple[Any, str]:
    """Return the module, this or one around it, that holds all that its optimizer trains; or None and why not.

    `again`: it was called before, and found then, unless it calls that one's `forward` or torch.compile hides it.
    """
    if is_causal(module):
        return module, ""
    kind = type(module).__name__
    optimizers = optimizers_of(module)
    held = held_by(*optimizers)
    # a model that is called inside is found there, unless the optimizer trains nothing but what stands around it
    inside = [part for part in module.modules() if is_causal(part)]
    if inside and not again and not (held and all(held.isdisjoint(_parameters(part)) for part in inside)):
        return None, f"the model inside the {kind} was not called"
    if not optimizers:
        return None, f"no optimizer holds parameters of the {kind}"
    if held <= _parameters(module):
        return module, ""
    others = [(thing, _parameters(thing)) for thing in living(torch.nn.Module) if thing is not module]
    others.sort(key=lambda pair: len(pair[1]))
    whole = next((thing for thing, parameters in others if held <= parameters), None)
    return (_parts_that_hold(optimizers, module, others) if whole is None else whole), ""


class Parts(torch.nn.Module):
    """Modules of a script that its optimizers train and none of which holds all others, as one; never called."""


def anchor_of(model: Any) -> Any:
    """Return what lives as long as the script holds the model: of several parts the one that was called first."""
    return next(model.children()) if isinstance(model, Parts) else model


def _parts_that_hold(optimizers: Sequence[Any], first: Any, others: Sequence[tuple[Any, set[int]]]) -> Parts:
    """Return the fewest modules that hold what these optimizers train, this one first, and what no module holds."""
    parts = [first, *fewest_with(held_by(*optimizers) - _parameters(first), others)]
    missing = held_by(*optimizers).difference(*map(_parameters, parts))
    whole: Parts = type(" and ".join(dict.fromkeys(type(part).__name__ for part in parts)), (Parts,), {})()
    whole.training = first.training
    for at, part in enumerate(parts):
        whole.add_module(f"{type(part).__name__}{at or ''}", part)
    for at, tensor in enumerate(p for optimizer in optimizers for p in tensors_of(optimizer) if id(p) in missing):
        if isinstance(tensor, torch.nn.Parameter):  # a temperature, say
            whole.register_parameter(f"parameter{at}", tensor)
    return whole


def _parameters(module: Any) -> set[int]:
    with contextlib.suppress(Exception):  # of a module that is not yet, or no longer, whole
        return {id(parameter) for parameter in module.parameters()}
    return set()


def device_of(model: Any) -> torch.device:
    """Return where the model's first parameter is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def dtype_of(model: Any) -> torch.dtype:
    """Return the dtype of the model's first parameter of floating point."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def objective_of(model: Any, micro_batches: Iterable[Mapping[str, Any]], trainer: type | None = None) -> str:
    """Return why this is not the training of a causal language model on its own tokens; "" where it is."""
    if not (is_causal(model) if trainer is None else is_transformers(model)):
        return f"only its own code defines the rows and the loss of a {type(model).__name__}"
    of_trl = (base.__name__ for base in getattr(trainer, "__mro__", ()) if base.__module__.startswith("trl."))
    if (own := next(of_trl, "SFTTrainer")) != "SFTTrainer" and not own.startswith("_"):
        return f"{own} trains another objective than the mean token loss"
    each = (_other_rows(given, labelled=trainer is not None) for given in micro_batches)
    return _other_model(model) or next(filter(None, each), "")


def _other_rows(given: Mapping[str, Any], *, labelled: bool) -> str:
    """Return why a model is not given rows of tokens alone, as where a row has several candidates, or a picture."""
    ids: Any = given.get("input_ids")
    labels: Any = given.get("labels")
    if labelled and (ids is None or labels is None):
        return f"the model receives {', '.join(sorted(given))}, but not both input_ids and labels"
    if ids is None:
        return "the model is called without input_ids, so its rows are unknown"
    if len(shape := list(getattr(ids, "shape", (1, 1)))) != 2:
        return f"the model receives tokens of shape {shape}, not of [rows, tokens]"
    # pixels, sound, embeddings; a mask may be of numbers, too
    numbers = [n for n, value in given.items() if getattr(value, "is_floating_point", bool)() and value.dim() > 1]
    if other := ", ".join(sorted(name for name in numbers if "mask" not in name)):
        return f"the model receives {other} besides tokens, which tunecheck cannot replay"
    if labelled and (wanted := list(getattr(labels, "shape", ()))) != shape:
        return f"labels of shape {wanted} do not match tokens of shape {shape}"
    return ""


def prepends(model: Any) -> bool:
    """Return whether peft has virtual tokens learn before each row, by prompt or prefix tuning."""
    return any(getattr(config, "is_prompt_learning", False) for config in configs_of(model).values())


def _other_model(model: Any) -> str:
    """Return why this model of transformers is no causal language model; "" where it may be one."""
    kind = type(base_of(model)).__name__
    if prepends(model):
        return f"peft prepends virtual tokens to the rows of the {kind}"
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{kind} is an encoder-decoder, whose labels are not its input tokens"
    task = kind.rpartition("For")[2] if "For" in kind else ""
    return f"{kind} is not a causal language model" if task not in ("", "CausalLM", "ConditionalGeneration") else ""
