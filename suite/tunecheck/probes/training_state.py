"""What learns, how it is held, and the switches at every forward pass: mode, adapters, requires_grad, torch's own.

Switches are judged against what they must be, not against what they were before: an evaluation in the middle of a run
that leaves the model in eval mode changes nothing that a later look could compare with.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

from tunecheck.core.evidence import Census, CutOff, LearntBeside, OtherModelDrops, TrainingState
from tunecheck.core.premises import Premise, Source
from tunecheck.models.layer_names import attention_kernel, attention_of, base_of, is_pretrained, stacked_layers
from tunecheck.probes.reference.forwards import numbers_of
from tunecheck.probes.reference.four_bit import is_packed
from tunecheck.probes.reference.measures import counted, digest, dtype_name, living, random_digest
from tunecheck.probes.reference.weight_file import WeightFile, is_drawn
from tunecheck.training.events import Probe
from tunecheck.training.hooks import tensors_of
from tunecheck.training.restore import adapted_layers, dropouts, products
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning, own_parameters

Named = Sequence[tuple[str, Any]]
"""Modules or parameters by name."""
Seen = dict[tuple[str, str], None]
"""Field of TrainingState and name of what was seen to be wrong, each once, in the order in which it was seen."""
TRAINED_ADAPTER = "default"
"""peft's name for the adapter that get_peft_model adds."""

SWITCHES = ("amsgrad", "maximize", "nesterov")
"""Keys of a parameter group that make another optimizer of it; no run can ask for one."""


class TrainingStateProbe(Probe[TrainingState]):
    """Looks at every forward pass, not at a step's beginning: transformers sets train mode after the callbacks."""

    def start(self, session: Session) -> None:
        self._expected = session.run.expected_trainable(WeightFile(session.folder).names)
        causal, declares_mode = session.run.holds(Premise.CAUSAL_LM), session.run.holds(Premise.STEP_DECLARED)
        self._unknown = not declares_mode and not causal
        """Whether the model is one that its script may freeze, thaw, switch and evaluate in part as it likes."""
        # where no object declares what learns, a callback may thaw a classifier's layers one after the other
        source = session.run.fact(Premise.TRAINED_SET_DECLARED).source
        if source is Source.PRESUMED:  # what learns beside it from the start is another check's
            self._expected |= {name for name, _ in learning(session.model)}
        declared = source in (Source.DECLARED, Source.EXPECTED)
        self._free = not causal and not (declares_mode and declared)
        # where nothing promises train mode, a module that drops nothing may stay in the mode that it was in
        self._resting = frozenset[str]()
        if not declares_mode:
            dropping = set() if self._unknown else {id(module) for module, _, _ in dropouts(session.model)}
            modules = session.model.named_modules()
            self._resting = frozenset(name for name, m in modules if not m.training and id(m) not in dropping)
        self._dropping = _dropping(session.model, self._resting) if self._unknown else ()
        # of several adapters, and of one by another name, the script's own choice is all that declares which learns
        layers = {} if session.run.lora is not None else adapted_layers(session.model)
        self._active = {name: list(layer.active_adapters) for name, layer in layers.items()}
        self._products = products()
        declared, recomputed = session.run.training.gradient_checkpointing, dict(_recomputed(session.model))
        # some of the layers may be, and of a model that is not known those of a part
        as_found = not causal or any(recomputed.values()) == declared
        self._recomputed = recomputed if as_found else dict.fromkeys(recomputed, declared)
        self._seeded = ""
        """Digest of the random state that the script's last seed made, set in this step or right before it."""
        self._hear_seeds(session)

    def _hear_seeds(self, session: Session) -> None:
        def seeded(*_: object, **__: object) -> None:
            self._seeded, self._seed = random_digest(session.device), torch.initial_seed()

        for module in (torch, torch.random):  # whose functions are two where torch has loaded its compiler
            self.hooks.function(module, "manual_seed", after=seeded)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Watch the decoder (a loss in chunks calls it and the head by themselves) and layers that are recomputed."""
        self._forwards, self._reference = 0, False
        self._state = random_digest(session.device)
        self._seen: Seen = {}
        self._without_gradient: list[Seen] = []
        """What was seen in passes of whose results nothing learns, as of a reference without its adapters."""
        modules = list(session.model.named_modules())
        adapted = list(adapted_layers(session.model).items())
        parameters = list(session.model.named_parameters())

        def look() -> None:
            healthy = not self._seen
            self._seen |= dict.fromkeys(self._wrong(session, modules, adapted, parameters))
            # now: a step whose adapters are off or frozen may end in an error of torch
            if healthy and self._seen and not self._unknown:
                self._record(step, random_state="")

        before: Seen = {}

        def begin(*_: object) -> None:
            nonlocal before
            self._reference = not torch.is_grad_enabled()  # a look at what the model says without its adapters
            if self._reference:
                return
            if not self._forwards and not begun:  # a seed may be set since the step began
                self._state = random_digest(session.device)
            self._forwards += 1
            if self._unknown:  # an evaluation with gradients is followed by a pass that is differentiated
                self._seen.clear()
            before = dict(self._seen)
            look()

        def ended(*given: object) -> None:
            if not self._reference and not any(r.requires_grad for r in numbers_of(given[-1])):
                self._forwards -= 1
                self._without_gradient.append(self._seen)
                self._seen = before

        def look_again(*_: object) -> None:
            # recomputed in a backward pass, which begins at the last layer
            if not self._reference and torch._C._current_graph_task_id() != -1:
                look()

        # a call of a loop's model itself has begun already when its step does
        begun = session.called is session.entry
        (self.hooks.after if begun else self.hooks.before)(session.called, begin)
        self.hooks.after(session.called, ended)
        # a layer's own hooks may lie outside of what is recomputed (transformers 5)
        for layer in stacked_layers(session.model)[-1:]:
            self.hooks.before(attention_of(layer) or layer, look_again)

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        self._hear_seeds(session)
        # a script may draw its noise between its seed and the forward pass, which draws nothing
        drawn_before = self._seeded not in ("", self._state) and torch.initial_seed() == self._seed
        if random_digest(session.device) == self._state and not drawn_before:
            self._state = ""
        self._seeded = ""
        if not self._forwards and self._without_gradient:  # what learns lies behind what is called here
            self._forwards, self._seen = len(self._without_gradient), self._without_gradient[-1]
        if torch.is_autocast_enabled(session.device.type):  # left on, it casts in backward passes written in Python
            self._seen["settings", "autocast is on behind the backward pass"] = None
        self._record(step, self._state)

    def _record(self, step: int, random_state: str) -> None:
        switches = {switch for switch, _ in self._seen}
        seen = {switch: tuple(name for other, name in self._seen if other == switch) for switch in switches}
        self.emit(TrainingState(step=step, forwards=self._forwards, random_state=random_state, **seen))

    def _wrong(self, session: Session, modules: Named, adapted: Named, parameters: Named) -> Iterator[tuple[str, str]]:
        """Yield the field of TrainingState and the name for everything that is not as training needs it."""
        in_eval = [(name, module) for name, module in modules if not module.training]
        yield from (("modules_in_eval", name or "the model") for name, _ in in_eval if name not in self._resting)
        yield from (("uncalibrated", name) for name, module in in_eval if _is_uncalibrated(module))
        if self._dropping and not _without_wrappers(session.model).training:
            yield from (("dropping_nothing", name) for name in self._dropping)
        for name, layer in adapted:
            if layer.disable_adapters:
                yield "adapters_disabled", name
            if layer.merged:
                yield "adapters_merged", name
            if list(layer.active_adapters) != self._active.get(name, [TRAINED_ADAPTER]):
                yield "adapters_inactive", name
        if not self._free:
            trainable = {name for name, parameter in parameters if parameter.requires_grad}
            yield from (("frozen", name) for name in sorted(self._expected - trainable))
            yield from (("unfrozen", name) for name in sorted(trainable - self._expected))
        yield from (("settings", words) for words in _wrong_settings(session, adapted, self._products))
        now = ((name, on) for name, on in _recomputed(session.model) if on != self._recomputed.get(name, on))
        yield from (("settings", f"gradient checkpointing is {'on' if on else 'off'} in {name}") for name, on in now)


def _without_wrappers(model: Any) -> Any:
    """Return the model inside of wrappers, such as DataParallel's, whose mode says nothing."""
    while len(inside := list(model.children())) == 1 and not own_parameters(model):
        model = inside[0]
    return model


def _is_uncalibrated(module: Any) -> bool:
    """Return whether a normalisation has its first statistics: files of old versions of torch count no batches."""
    if (counted := getattr(module, "num_batches_tracked", None)) is None or counted:
        return False
    return not module.running_mean.any() and bool((module.running_var == 1).all())


def _dropping(model: Any, resting: Collection[str]) -> tuple[str, ...]:
    """Return the modules in eval mode that drop in training, and hold, or lie in a module that holds, what learns."""
    modules, dropping = dict(model.named_modules()), {id(module) for module, _, _ in dropouts(model)}
    found = [name for name, module in modules.items() if name in resting and id(module) in dropping]
    places = ((name, (modules[name], modules[name.rpartition(".")[0]])) for name in found)
    return tuple(name for name, parts in places if any(p.requires_grad for part in parts for p in part.parameters()))


def _recomputed(model: Any) -> Iterator[tuple[str, bool]]:
    """Yield the name of each layer that may be recomputed for the backward pass, and whether it is."""
    kind = "GradientCheckpointingLayer"  # transformers' class from 4.52 on
    layers = ((name, m) for name, m in model.named_modules() if any(k.__name__ == kind for k in type(m).__mro__))
    yield from ((name, bool(layer.gradient_checkpointing)) for name, layer in layers)


def _wrong_settings(session: Session, adapted: Named, rounded: tuple[str, ...]) -> Iterator[str]:
    """Yield in words what of torch and of the model is switched otherwise than the run says."""
    run, kind = session.run, session.device.type
    if (autocast := run.uses_autocast(session.precision)) is not None and torch.is_autocast_enabled(kind) != autocast:
        yield f"autocast is {'off' if autocast else 'on'}"
    declared = run.training.attention  # of a model that is not known, nothing
    if declared and (attention := attention_kernel(session.model)) != declared:
        yield f"the layers call {attention} attention"
    if (now := products()) != rounded:
        yield f"products of fp32 matrices are rounded to {now}, at the start {rounded} (on a card, on the CPU)"
    if run.lora is not None:
        for name, scaling in ((name, layer.scaling) for name, layer in adapted if hasattr(layer, "scaling")):
            if (own := scaling.get(TRAINED_ADAPTER)) != run.lora.scale_of(name.removeprefix("base_model.model.")):
                yield f"the adapter of {name} is scaled by {own}"


class CensusProbe(Probe[Census | LearntBeside]):
    """Counts at the start, after the first evaluation and at the end: some bugs change the set in between."""

    def start(self, session: Session) -> None:
        self._expected = tuple(sorted(session.run.expected_trainable(WeightFile(session.folder).names)))
        self._parameters = session.run.trained_parameters()
        self._evaluated = False
        self.emit(self._census(session, "start"))

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Count again before the first step that follows an evaluation."""
        if not self._evaluated:
            self._evaluated = True
            self.emit(self._census(session, "after_evaluation"))

    def backward_end(self, session: Session, step: int) -> None:
        if step == 0:
            own = {id(parameter) for parameter in session.model.parameters()}
            if beside := sum(id(p) not in own and p.grad is not None for p in tensors_of(session.optimizer)):
                self.emit(LearntBeside(tensors=beside))

    def end(self, session: Session) -> None:
        self.emit(self._census(session, "end"))

    def _census(self, session: Session, when: str) -> Census:
        parameters = dict(session.model.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        held = [(p, group) for group in session.optimizer.param_groups for p in group["params"]]
        state = [value for kept in session.optimizer.state.values() for value in kept.values()]
        # optimizers keep their step count as a scalar on the CPU by design
        matrices = [value for value in state if isinstance(value, torch.Tensor) and value.dim() > 0]
        everything = [*parameters.values(), *session.model.buffers(), *matrices]
        trained, optimized = dict(learning(session.model)), {id(p) for p, _ in held}
        frozen = [parameter for name, parameter in parameters.items() if name not in trained]
        sizes = [int(prod(p.quant_state.shape)) if is_packed(p) else p.numel() for p in parameters.values()]
        adam = [(*group["betas"], group["eps"]) if {"betas", "eps"} <= group.keys() else ("none",) for _, group in held]
        return Census(
            when=when,
            expected_trainable=self._expected,
            trainable=tuple(sorted(trained)),
            optimized=tuple(sorted(names.get(id(p), "?") for p, _ in held)),
            devices=counted(str(tensor.device) for tensor in everything),
            trainable_dtypes=counted(dtype_name(parameter.dtype) for parameter in trained.values()),
            frozen_dtypes=counted(dtype_name(parameter.dtype) for parameter in frozen),
            trainable_parameters=sum(p.numel() for p in trained.values()),
            held_parameters=sum(p.numel() for p in trained.values() if id(p) in optimized),
            total_parameters=sum(sizes),
            expected_parameters=self._parameters,
            weight_decays=counted(group.get("weight_decay", 0) for _, group in held),
            undecayed=tuple(sorted(names.get(id(p), "?") for p, group in held if not group.get("weight_decay"))),
            adam_settings=counted(" ".join(map(str, settings)) for settings in adam),
            optimizer_switches=counted(switch for _, group in held for switch in SWITCHES if group.get(switch)),
        )


SAMPLED = 64
"""Numbers of each parameter by which a model that learns elsewhere, or is an average, is told from one that rests."""


class OtherModelsProbe(Probe[OtherModelDrops | CutOff]):
    """Sees whether models that are called while another one learns, as teachers, drop or were never loaded.

    And whether one is never called while the student reads its rows in its place. Looks from the first step's backward
    pass to the second one's: a teacher may be called before the student is.
    """

    def start(self, session: Session) -> None:
        self._called: Any = lambda: None
        """The model that was called last, weakly."""
        self._inside = set[int]()
        self._noisy: WeakKeyDictionary[Any, list[torch.Tensor]] = WeakKeyDictionary()
        """Models that drop, normalise by their batch, or are as they were built, to a sample of their parameters."""
        self._drawn: WeakSet[Any] = WeakSet()
        self._normalising: WeakSet[Any] = WeakSet()
        self._others: WeakSet[Any] = WeakSet()
        self._rows: dict[bool, set[str]] = {True: set(), False: set()}
        """Digests of what the student's passes with gradients are given, and those without."""

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        if step == 1 and self._rows[True] & self._rows[False]:
            self._emit_idle(session.model)
        if step:
            return
        own, loaded = {id(module) for module in session.model.modules()}, not is_drawn(session.model)

        def see(module: Any, args: Any, given: Any) -> None:
            if module is session.called:
                read = (held for held in tree_leaves((args, given)) if isinstance(held, torch.Tensor) and held.ndim > 1)
                self._rows[torch.is_grad_enabled()] |= {str(digest(held)) for held in islice(read, 1)}
            if id(module) in own:
                return
            self._others.add(module)
            if id(module) not in self._inside:
                self._called, self._inside = ref(module), {id(part) for part in module.modules()}
            whole = self._called()
            normalises = isinstance(module, _BatchNorm) and module.training and module.track_running_stats
            drops = isinstance(module, _DropoutNd) and module.training and module.p > 0
            drawn = loaded and whole is module and is_drawn(module)
            if not drawn and (not (drops or normalises) or whole is None or whole is module):
                return
            if torch.is_grad_enabled() and any(p.requires_grad for p in whole.parameters()):
                return
            self._normalising |= {whole} if normalises else set()
            self._drawn |= {whole} if drawn else set()
            if whole not in self._noisy:
                self._noisy[whole] = _sample(whole)

        self.hooks.before(None, see, with_kwargs=True)

    def _emit_idle(self, model: Any) -> None:
        """Tell of models that rest, are like this one, and were not called."""
        own = {p.data_ptr() for p in model.parameters()}
        alike = [each for each in living(torch.nn.Module) if _answers_like(each, model) and each not in self._others]
        rest = [each for each in alike if not any(p.requires_grad and each.training for p in each.parameters())]
        if apart := [each for each in rest if own.isdisjoint(p.data_ptr() for p in each.parameters() if not p.is_meta)]:
            self.emit(CutOff(tensors=(), replaced=tuple(sorted(f"another {type(each).__name__}" for each in apart))))

    def end(self, session: Session) -> None:
        for model, before in self._noisy.items():
            if all(torch.equal(one, other) for one, other in zip(before, _sample(model), strict=True)):
                name, drawn = type(model).__name__, model in self._drawn
                self.emit(OtherModelDrops(model=name, normalises=model in self._normalising, drawn=drawn))


def _answers_like(model: Any, other: Any) -> bool:
    """Return whether this is a model of the same class, or of transformers with scores of the same vocabulary."""
    other = base_of(other)
    if not is_pretrained(model) or not is_pretrained(other):
        return type(model) is type(other)
    heads = model.get_output_embeddings(), other.get_output_embeddings()
    return None not in heads and len(heads[0].weight) == len(heads[1].weight)


def _sample(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().flatten()[:SAMPLED].clone() for parameter in model.parameters()]
