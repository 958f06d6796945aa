"""Wrap training libraries as they are imported. Standard library only, and loaded by file.

TRL, LLaMA-Factory, axolotl, ms-swift and unsloth use transformers' Trainer. An error here leaves the training alone.
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunecheck.training.hooks import Hooks

LOWEST = 3, 11
"""Python that watch needs."""
Wraps = dict[str, Callable[[ModuleType], object]]


def install() -> None:
    """Wrap these modules, now or when they are imported; where we cannot run, say so once torch is."""
    reason = unusable(sys.version_info[:2])
    wrapped: Wraps = {"torch": lambda module: say(reason)} if reason else WRAPPED
    for name, wrap in wrapped.items():
        if name in sys.modules:
            wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder(wrapped))


def unusable(version: tuple[int, ...]) -> str:
    """Return why a Python of this version cannot be listened to; "" where it can."""
    found = ".".join(map(str, version))
    if version < LOWEST:
        return f"the training runs in Python {found}, but watch needs {'.'.join(map(str, LOWEST))} or newer"
    if importlib.util.find_spec("tunecheck") is None:
        return f"tunecheck is not installed for {sys.executable}: install it into the environment of the training"
    return ""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module as everybody else does, and has it wrapped after it was executed."""

    def __init__(self, wrapped: Wraps) -> None:
        self._wrapped = wrapped

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, whose loader will wrap it; None for all others."""
        if fullname not in self._wrapped:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _wrap_once_executed(spec, self._wrapped[fullname])
        return spec


def _wrap_once_executed(spec: Any, wrap: Callable[[ModuleType], object]) -> None:
    """Have the module of this spec wrapped once its own loader, which may be that of others, too, has executed it."""
    execute = spec.loader.exec_module

    def executed(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == spec.name:
            try:
                wrap(module)
            except Exception as error:
                say(f"cannot watch {module.__name__} ({type(error).__name__}: {error})")

    spec.loader.exec_module = executed


def say(problem: str) -> None:
    """Tell what went wrong in listening, by the file beside this one: there may be no package to import it from."""
    import runpy

    runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "problems.py"))["say"](problem)


def _wrap_trainer(module: ModuleType) -> None:
    train = module.Trainer.train

    @functools.wraps(train)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            checkpoint = ""
            try:
                from tunecheck.listen.hf_trainer import TrainerListener
                from tunecheck.listen.options import from_environment

                stand_aside()
                if (options := from_environment()) is not None:
                    checkpoint = stack.enter_context(TrainerListener(self, options)).options.checkpoint
            except Exception as error:
                say(f"cannot watch this training ({type(error).__name__}: {error})")
            # in a run of --twice
            return train(self, resume_from_checkpoint=checkpoint) if checkpoint else train(self, *args, **kwargs)

    module.Trainer.train = watched


_loops: list[Any] = []
"""What listens to this process's loops: to the first one from the beginning, to each other behind the one before."""


def stand_aside() -> None:
    """Leave the training to whoever announces it."""
    while _loops:
        _loops.pop().detach()


def _wrap_torch(module: ModuleType) -> None:
    """A loop that is no Trainer's is looked for once torch is there; a Trainer says so itself."""
    from tunecheck.listen.options import from_environment

    if (options := from_environment()) is None:
        return
    from tunecheck.listen import unheard
    from tunecheck.listen.loop import LoopHooks

    def listen() -> None:
        loop = LoopHooks(options, follows=bool(_loops))
        loop.attach()
        atexit.register(loop.at_exit)
        _loops.append(loop)

    def follows(*_: Any, **__: Any) -> None:
        """A new optimizer begins another training, once the one before was heard: three in a process."""
        if _loops and _loops[-1].over and len(_loops) < 3:
            listen()

    sys.excepthook = functools.partial(_end, sys.excepthook)
    unheard.begin()
    listen()
    _tell(module.optim.Optimizer, "__init__", follows)
    hear(module)


def _end(before: Callable[..., object], kind: type[BaseException], *error: Any) -> None:
    """Print what ended the process, unless the watching command interrupts it, which removes this file before."""
    if kind is not KeyboardInterrupt or os.path.exists(os.environ.get("TUNECHECK_HEARD", os.sep)):
        before(kind, *error)


_heard: set[tuple[Any, str, Any]] = set()
"""Functions by owner and name, and who is told of them now: a context in a watched script comes second."""


def _tell(owner: Any, name: str, before: Callable[..., Callable[[Any], None] | None]) -> contextlib.ExitStack:
    """Tell each call of this function to `before`, and the result to what that returns, until what is returned ends."""
    hooks = _hooks(name)
    if (told := (owner, name, before)) not in _heard:
        hooks.callback(_heard.discard, told)
        hooks.function(owner, name, before=before)
        _heard.add(told)
    return hooks


def _hooks(name: str) -> "Hooks":
    from tunecheck.training.events import probing
    from tunecheck.training.hooks import Hooks

    return Hooks(lambda reason: say(f"cannot watch {name}: {reason}"), unless=probing)


@functools.cache
def _listener(part: str, function: str) -> Callable[..., Any]:
    """Return what hands a call on to this function of ours; to saves.py only once that is loaded."""

    def before(*args: Any, **kwargs: Any) -> Any:
        # what is written before a training may be all that is kept of it
        if part != "saves" or (_loops and function == "writing"):
            importlib.import_module(f"tunecheck.listen.{part}")
        call = getattr(sys.modules.get(f"tunecheck.listen.{part}"), function, None)
        return call(*args, **kwargs) if call else None

    return before


def hear(module: ModuleType) -> contextlib.ExitStack:
    """Have the calls of this library's functions told that HEARD names, until what is returned ends."""
    heard = contextlib.ExitStack()
    for _, path, told in (each for each in HEARD if each[0] == module.__name__):
        owner, _, name = path.rpartition(".")
        with contextlib.suppress(*[AttributeError] * (path in OF_SOME_VERSIONS)):
            held = operator.attrgetter(owner)(module) if owner else module
            heard.push(_tell(held, name, _listener(*told.split("."))))
    return heard


def hear_script() -> contextlib.ExitStack:
    """Hear what the libraries that are imported by now load, merge and save, until what is returned ends."""
    heard = contextlib.ExitStack()
    for name in dict.fromkeys(library for library, _, _ in HEARD if library in sys.modules and library != DATA_SETS):
        heard.push(hear(sys.modules[name]))
    heard.callback(_hooks("saves").guarded(_listener("saves", "script_ends")))
    return heard


OF_SOME_VERSIONS = {f"Pre{of}Config.{name}_pretrained" for of in ("trained", "Trained") for name in ("save", "from")}
"""Names that a library may lack: others of them are the same functions."""
DATA_SETS = "datasets.arrow_dataset"
HEARD = (
    ("torch", "save", "saves.writing"),
    ("torch", "nn.Module.load_state_dict", "provenance.loading"),
    ("torch", "nn.Module.load_state_dict", "saves.reloading"),
    ("torch", "utils.data.dataloader._MultiProcessingDataLoaderIter.__next__", "loaders.delivering"),
    ("torch", "utils.data.dataloader._BaseDataLoaderIter._next_index", "loaders.drawing"),
    ("safetensors.torch", "save_file", "saves.writing"),
    ("transformers.modeling_utils", "PreTrainedModel.save_pretrained", "saves.saving"),
    ("transformers.configuration_utils", "PretrainedConfig.save_pretrained", "saves.describing"),
    ("transformers.configuration_utils", "PreTrainedConfig.save_pretrained", "saves.describing"),
    ("transformers.configuration_utils", "PretrainedConfig.from_pretrained", "provenance.configuring"),
    ("transformers.configuration_utils", "PreTrainedConfig.from_pretrained", "provenance.configuring"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase.__call__", "truncation.encoding"),
    ("peft.peft_model", "PeftModel.load_adapter", "provenance.adapter_loading"),
    ("peft.tuners.lora.model", "LoraModel.merge_and_unload", "provenance.merging"),
    ("peft.tuners.lora.model", "LoraModel.merge_and_unload", "saves.merging"),
    ("peft.tuners.lora.model", "LoraModel.unload", "provenance.unloading"),
    ("peft.optimizers.loraplus", "create_loraplus_optimizer", "provenance.lora_plus"),
    ("torch", "utils.data.dataloader._BaseDataLoaderIter.__next__", "named_answers.batch_yielded"),
    (DATA_SETS, "Dataset.__init__", "named_answers.data_set_made"),
)
"""Functions of libraries, by module and place in it, and the functions of ours that are told of their calls."""
WRAPPED: Wraps = {library: hear for library, _, _ in HEARD}
WRAPPED |= {"transformers.trainer": _wrap_trainer, "torch": _wrap_torch}
"""Module to what is done with it once it is imported."""
