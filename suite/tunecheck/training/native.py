"""The plain PyTorch loop: the reference that other backends are compared with. Read it from top to bottom."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tunecheck.config.schema import Run, Training
from tunecheck.core.evidence import Step
from tunecheck.training.checkpoint import load_checkpoint as load_checkpoint
from tunecheck.training.checkpoint import save_checkpoint as save_checkpoint
from tunecheck.training.data import IGNORED, Batch, Tokens
from tunecheck.training.events import Probes
from tunecheck.training.hooks import tensors_of
from tunecheck.training.load import apply_strategy, parts_of
from tunecheck.training.placement import activations_on_cpu, as_forward, home, offload_parameters
from tunecheck.training.restore import model_mode
from tunecheck.training.session import Session
from tunecheck.training.tensors import moment, seconds_between, whole


def build(run: Run, folder: Path, device: torch.device) -> Session:
    parts = parts_of(run, folder, device, weights_on=home(run, device), adapt=adapt)
    model, ranks = parts["model"], parts["ranks"]
    if run.training.offload == "parameters":
        offload_parameters(model, device)
    ranks.distribute(model, run)
    optimizer = make_optimizer(decay_groups(model, run.training), run.training, home(run, device))
    ranks.seed(run.training.seed)
    return Session(
        **parts,
        optimizer=optimizer,
        scheduler=make_scheduler(optimizer, run.training),
        scaler=torch.amp.GradScaler(device.type, enabled=parts["precision"] == "fp16"),
        loss=token_weighted_loss,
        evaluate=evaluate,
        save_adapter=save_adapter,
    )


def adapt(base: Any, run: Run) -> Any:
    """The model to train: checkpointing switched as the run says, the strategy's tensors added and trainable."""
    if run.training.gradient_checkpointing:  # reentrant checkpointing would cut the gradient at the frozen embedding
        base.gradient_checkpointing_enable({"use_reentrant": False})
    return apply_strategy(base, run)


def train(session: Session, probes: Probes, steps: range, log: Callable[[Step], None]) -> None:
    model, optimizer, scaler, ranks = session.model, session.optimizer, session.scaler, session.ranks
    pending = PendingSteps(session, log)
    model.train()
    for step in steps:
        if step in session.run.evaluation.at:
            probes.evaluate(session, step)
        window = ranks.share(session.batches.window(step))
        supervised_tokens = ranks.total(sum(batch.supervised_tokens for batch in window))
        probes.step_begin(session, step, window)

        pending.start()
        window_loss = torch.zeros((), device=session.device)
        for number, batch in enumerate(window, start=1):
            with ranks.summing(last=number == len(window)):
                loss = forward(session, batch, supervised_tokens)
                scaler.scale(loss * ranks.count).backward()  # the sum over ranks is divided by their number
            window_loss += loss.detach()
        scaler.unscale_(optimizer)
        pending.pause()

        probes.backward_end(session, step)

        pending.resume()
        gradient_norm = clip_gradients(tensors_of(optimizer), session.run.training.max_grad_norm)
        learning_rate = float(optimizer.param_groups[0]["lr"])
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        applied = scaler.get_scale() >= scale  # the scaler lowers its scale exactly when it skips a step
        if applied:
            session.scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        pending.finish(
            step=step,
            loss=ranks.total(window_loss),
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            supervised_tokens=supervised_tokens,
            tokens=ranks.total(sum(batch.tokens for batch in window)),
            applied=applied,
        )
        probes.step_end(session, step, applied)
    pending.flush()


def forward(session: Session, batch: Batch, supervised_tokens: int) -> torch.Tensor:
    """One micro-batch's share of the window's loss. The logits, the largest tensor of all, do not outlive the call."""
    padded = batch.tokens < batch.input_ids.numel()
    mask = batch.attention_mask if padded else None  # without a mask attention may take its fastest causal kernel
    elsewhere = session.run.training.offload == "activations"
    with session.casting(), activations_on_cpu(session.model) if elsewhere else nullcontext():
        if (at_once := session.run.training.loss_chunk_tokens) is not None:
            return as_forward(session.model, lambda: chunked_loss(session, batch, mask, supervised_tokens, at_once))
        model = session.ranks.in_training(session.model)
        logits = model(input_ids=batch.input_ids, attention_mask=mask, use_cache=False).logits
        return session.loss(logits, batch.labels, supervised_tokens)


def chunked_loss(
    session: Session, batch: Batch, mask: torch.Tensor | None, supervised_tokens: int, chunk_tokens: int
) -> torch.Tensor:
    """The same loss by parts of the logits: whole they exist three times in fp32, 12 bytes x tokens x vocabulary."""
    decoder, head = session.model.get_decoder(), session.model.get_output_embeddings()
    hidden = decoder(input_ids=batch.input_ids, attention_mask=mask, use_cache=False).last_hidden_state

    def part(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return session.loss(head(hidden), labels, supervised_tokens)

    rows, positions = batch.input_ids.shape
    width = max(1, chunk_tokens // rows)
    total = torch.zeros((), device=session.device)
    for first in range(0, positions - 1, width):  # one position more than the width: the loss shifts the labels by one
        window = slice(first, first + width + 1)
        total = total + checkpoint(part, hidden[:, window], batch.labels[:, window], use_reentrant=False)
    return total


def token_weighted_loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
    """Negative log-likelihood of the supervised tokens over the whole window's number of them.

    The average of per-micro-batch means would give short rows too much weight (transformers issue 34191).
    """
    shifted = logits[:, :-1].flatten(0, 1).float()
    return F.cross_entropy(shifted, labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum") / supervised_tokens


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Scale the gradients in place so that their total norm is at most max_norm; returns the norm before that."""
    return whole(torch.nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm))


def evaluate(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
    """Mean negative log-likelihood per supervised token in eval mode, and their number. The mode is put back.

    Each rank calls the model as often as the one with the most rows: others need its part of a sharded model.
    """
    total, tokens = torch.zeros((), dtype=torch.float64, device=session.device), 0
    mine, most = session.ranks.share(rows), math.ceil(len(rows) / session.ranks.count)
    with model_mode(session.model, False), torch.no_grad():
        for first in range(0, most, batch_size):
            own = mine[first : first + batch_size]
            batch = session.batches.batch(own or rows[:1])
            loss = forward(session, batch, 1)
            if own:
                total += loss
                tokens += batch.supervised_tokens
    tokens = session.ranks.total(tokens)
    return float(session.ranks.total(total)) / tokens, tokens


def save_adapter(session: Session, folder: Path) -> None:
    """One rank writes what was trained as safetensors, as peft or transformers read it; the others wait for it."""
    state = {}
    if session.run.shards_parameters:  # every tensor whole: every rank must ask, and the first one gets them
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state["state_dict"] = get_model_state_dict(session.model, options=options)
    if session.ranks.rank == 0:
        session.model.save_pretrained(folder, safe_serialization=True, **state)
    session.ranks.wait()


def decay_groups(model: Any, training: Training) -> list[dict[str, Any]]:
    """The trainable tensors in one group, or norms and biases apart in one without decay, as the run says."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if training.weight_decay_on == "all":
        return [{"params": trainable}]
    held = ((module, name, p) for module in model.modules() for name, p in module.named_parameters(recurse=False))
    apart = {id(p) for module, name, p in held if name == "bias" or type(module).__name__.endswith("Norm")}
    decaying = {"params": [parameter for parameter in trainable if id(parameter) not in apart]}
    others = {"params": [parameter for parameter in trainable if id(parameter) in apart], "weight_decay": 0.0}
    return [group for group in (decaying, others) if group["params"]]


def make_optimizer(parameters: Iterable[Any], training: Training, device: torch.device) -> Any:
    """AdamW over exactly these tensors or groups of them; fused where torch has it for the device."""
    return torch.optim.AdamW(
        parameters,
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
        fused=device.type == "cuda",
    )


def make_scheduler(optimizer: Any, training: Training) -> Any:
    """transformers' schedule of this name; with warm-up the first step's rate is 0, as there."""
    from transformers import get_scheduler

    warmup_steps = math.ceil(training.warmup_ratio * training.max_steps)
    name = "constant_with_warmup" if training.lr_scheduler == "constant" else training.lr_scheduler
    return get_scheduler(name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=training.max_steps)


class PendingSteps:
    """Steps whose numbers are still on the device. Reading them waits for it, so on a GPU they are read in groups.

    They wait in one buffer: a tensor for each would look like a leak in a healthy run of five to nine steps.
    Time is that of the training alone: what the probes do in the middle of a step lies between `pause` and `resume`.
    """

    def __init__(self, session: Session, log: Callable[[Step], None]) -> None:
        self._cuda = session.device.type == "cuda"
        self._device, self._log = session.device, log
        self._every = 10 if self._cuda else 1
        self._marks: list[Any] = []
        self._waiting: list[tuple[dict[str, Any], list[Any]]] = []
        self._values = torch.zeros(self._every, 2, device=self._device)
        """Loss and gradient norm of each waiting step."""

    def start(self) -> None:
        self._marks = [moment(self._device)]

    def pause(self) -> None:
        """Probes are about to look at the gradients."""
        self._marks.append(moment(self._device))

    resume = pause

    def finish(self, *, loss: Any, gradient_norm: Any, **numbers: Any) -> None:
        """The step is done; it is logged now or with the next group."""
        self._marks.append(moment(self._device))
        for place, value in zip(self._values[len(self._waiting)], (loss, gradient_norm), strict=True):
            place.copy_(torch.as_tensor(value))
        numbers["allocated_bytes"] = torch.cuda.memory_allocated(self._device) if self._cuda else None
        self._waiting.append((numbers, self._marks))
        if len(self._waiting) >= self._every:
            self.flush()

    def flush(self) -> None:
        """Log every waiting step; waits for the device."""
        values = self._values[: len(self._waiting)].tolist()
        for (numbers, marks), (loss, gradient_norm) in zip(self._waiting, values, strict=True):
            seconds = seconds_between(*marks[:2]) + seconds_between(*marks[2:])
            self._log(Step(seconds=seconds, loss=loss, gradient_norm=gradient_norm, **numbers))
        self._waiting.clear()
