"""Several processes that transformers' Trainer trains with accelerate: its own switches, and what users put in its way.

Every bug is injected on each rank; in a training of one process none of them changes anything.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parallel import DROPOUT, TWO
from benchmarks.detection.bugs.parts import on_rank

if TYPE_CHECKING:
    from tunecheck.training.session import Session

TRAINER = ("trainer=transformers",)

trainer_bug = partial(bug, cohort="parallel", settings=(*TWO, *TRAINER))


@trainer_bug(
    "D48",
    "average_tokens_across_devices is off",
    caught_by=("loss_oracle", "accumulation_oracle"),
    source="huggingface/transformers#34242",
)
def means_of_ranks(session: Session) -> None:
    """Divide each rank's losses by its own tokens."""
    session.trainer.args.average_tokens_across_devices = False


@trainer_bug("D49", "no_sync in every micro-batch", caught_by="replicas_equal")
def always_no_sync(session: Session) -> None:
    """Train every micro-batch in DDP's no_sync, as a training_step that accumulates by itself does."""
    trainer = session.trainer
    healthy = trainer.training_step

    def step(model: Any, *args: Any, **kwargs: Any) -> Any:
        with trainer.accelerator.no_sync(model):
            return healthy(model, *args, **kwargs)

    trainer.training_step = step


@trainer_bug("D50", "The module inside of DDP is called", caught_by="replicas_equal")
def unwrapped(session: Session) -> None:
    """Compute the loss of the unwrapped model, as a compute_loss that keeps self.model does."""
    trainer = session.trainer
    healthy = trainer.compute_loss
    trainer.compute_loss = lambda model, *args, **kwargs: healthy(trainer.model, *args, **kwargs)


@trainer_bug(
    "D51",
    "A data loader that accelerate has not prepared",
    caught_by=("rows_trained_once", "row_order"),
)
def loader_not_prepared(session: Session) -> None:
    """Give every rank the same loader, as an overridden get_train_dataloader does."""
    from torch.utils.data import DataLoader

    trainer = session.trainer
    trainer.get_train_dataloader = lambda: DataLoader(
        trainer.train_dataset, batch_size=trainer.args.per_device_train_batch_size, collate_fn=trainer.data_collator
    )


@bug(
    "D52",
    "The Trainer's seed on every rank",
    caught_by="dropout_differs_by_rank",
    cohort="parallel",
    settings=(*DROPOUT, *TRAINER),
    source="huggingface/accelerate#2016",
)
def seeded_by_the_trainer(session: Session) -> None:
    """Leave the random state as the Trainer's set_seed does."""
    from transformers import set_seed

    set_seed(session.run.training.seed)


@trainer_bug("D53", "The evaluation is each rank's own", caught_by=("ranks_report_alike", "evaluation_oracle"))
def own_evaluation(session: Session) -> None:
    """Gather no losses: report that of this rank's rows."""
    session.trainer.gather_function = lambda tensor: tensor


@trainer_bug("D54", "Every rank writes what is saved", caught_by="saved_by_one_rank")
def all_ranks_save(session: Session) -> None:
    """Save on every rank, as a callback that calls save_pretrained does."""
    session.save_adapter = lambda session, folder: session.model.save_pretrained(folder)


@trainer_bug(
    "D55", "The schedule advances once a rank", caught_by="learning_rate_trace", source="huggingface/accelerate#963"
)
def schedule_once_a_rank(session: Session) -> None:
    """Step the scheduler as often as there are ranks, as accelerate's own does where the loop does not know."""
    trainer = session.trainer
    create = trainer.create_scheduler

    def created(*args: Any, **kwargs: Any) -> Any:
        scheduler = create(*args, **kwargs)
        step = scheduler.step

        def steps() -> None:
            for _ in range(session.ranks.count):
                step()

        scheduler.step = steps
        return scheduler

    trainer.create_scheduler = created


@trainer_bug("D56", "One rank leaves a step out", caught_by=("replicas_equal", "steps_applied"))
@on_rank(1)
def rank_leaves_a_step_out(session: Session) -> None:
    """Do nothing in rank 1's third optimizer step."""
    step, calls = session.optimizer.step, [0]

    def changed(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return None if calls[0] == 3 else step(*args, **kwargs)

    session.optimizer.step = changed


@trainer_bug("D57", "The reported loss is one rank's own", caught_by=("ranks_report_alike", "loss_oracle"))
def own_loss_reported(session: Session) -> None:
    """Report the loss of this rank's rows, times the ranks as the Trainer scales it."""
    from transformers import trainer as module

    library: Any = module
    library.nested_gather = lambda tensor, *args: tensor


@trainer_bug("D58", "Evaluated before it is trained", caught_by="replicas_equal")
def evaluated_before_training(session: Session) -> None:
    """Leave accelerate's mark on a model that it has prepared for an evaluation: it is not wrapped in DDP any more."""
    trainer = session.trainer
    train = trainer.train

    def changed(*args: Any, **kwargs: Any) -> Any:
        session.model._is_accelerate_prepared = True
        return train(*args, **kwargs)

    if session.ranks.count > 1:
        trainer.train = changed
