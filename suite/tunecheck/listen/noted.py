"""What a script declares in a call and no object keeps: noted as it happens, before anything is listened to.

Standard library only.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

Declared = dict[str, tuple[float, str]]
"""Tensor to its rate and the argument that declares it."""
_LOADED: WeakSet[Any] = WeakSet()
_TRAINED: WeakSet[Any] = WeakSet()
"""Modules whose own tensors were to learn in a training of this process."""
_DECLARED: WeakKeyDictionary[Any, Declared] = WeakKeyDictionary()


def declared_for(optimizer: Any) -> Declared | None:
    """Return the rates that were declared when this optimizer was made; None where none were."""
    return _DECLARED.get(optimizer)


def lora_plus(
    model: Any,
    optimizer_cls: Any = None,
    *,
    lr: float,
    loraplus_lr_ratio: float,
    loraplus_lr_embedding: float = 1e-6,
    **_: Any,
) -> Callable[[Any], None]:
    """peft's create_loraplus_optimizer is called with these arguments. Return what notes the optimizer that it makes.

    LoRA+ (arXiv 2402.12354) trains B at a multiple of A's rate; an adapter of an embedding has a rate of its own.
    """

    def made(optimizer: Any) -> None:
        declared: Declared = {}
        for name, parameter in model.named_parameters():
            if ".lora_embedding_" in name:
                declared[name] = loraplus_lr_embedding, "loraplus_lr_embedding"
            elif ".lora_B." in name and parameter.ndim > 1:
                declared[name] = lr * loraplus_lr_ratio, "lr x loraplus_lr_ratio"
            elif ".lora_A." in name:
                declared[name] = lr, "lr"
        _DECLARED[optimizer] = declared

    return made


def loading(model: Any, *_: Any, **__: Any) -> Callable[[Any], None]:
    """peft's load_adapter is called. Return what notes that this model's adapters are no fresh ones."""
    return lambda _: _LOADED.add(model)


def adapters_loaded(model: Any) -> bool:
    """Return whether this model's adapters were loaded, so that they are trained already."""
    return model in _LOADED


def training(model: Any) -> None:
    """A training of this model begins."""
    for module in model.modules():
        if any(tensor.requires_grad for tensor in module.parameters(recurse=False)):
            _TRAINED.add(module)


def trained_before(model: Any, *, adapters: bool) -> bool:
    """Return whether adapters of this model, or any other of its tensors, learned in a training before."""
    names = (name for name, module in model.named_modules() if module in _TRAINED)
    return any((".lora_" in name or ".modules_to_save" in name) is adapters for name in names)
