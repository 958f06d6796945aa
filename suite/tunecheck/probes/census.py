"""Which tensors exist, which are trained, which the optimizer holds, where they live and in which dtype."""

from math import prod

import torch

from tunecheck.core.evidence import Census, LearntBeside
from tunecheck.probes.reference.four_bit import is_packed
from tunecheck.probes.reference.measures import counted, dtype_name
from tunecheck.probes.reference.weight_file import WeightFile
from tunecheck.training.events import Probe
from tunecheck.training.hooks import tensors_of
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning

SWITCHES = ("amsgrad", "maximize", "nesterov")
"""Keys of a parameter group that make another optimizer of it; no run can ask for one."""


class CensusProbe(Probe):
    """Counts at the start, after the first evaluation and at the end: some bugs change the set in between."""

    emits = (Census, LearntBeside)

    def start(self, session: Session) -> None:
        names = WeightFile(session.folder).names
        self._expected = tuple(sorted(session.run.expected_trainable(names)))
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
        trained = dict(learning(session.model))
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
            trainable_parameters=sum(parameter.numel() for parameter in trained.values()),
            total_parameters=sum(sizes),
            expected_parameters=self._parameters,
            weight_decays=counted(group.get("weight_decay", 0) for _, group in held),
            undecayed=tuple(sorted(names.get(id(p), "?") for p, group in held if not group.get("weight_decay"))),
            adam_settings=counted(" ".join(map(str, settings)) for settings in adam),
            optimizer_switches=counted(switch for _, group in held for switch in SWITCHES if group.get(switch)),
        )
