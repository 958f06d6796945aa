"""Two epochs, stopped in the second one and resumed from its checkpoint."""

import tempfile
from pathlib import Path

import tiny
import transformers

ROWS, EPOCH, STOP = 16, 8, 12


class Stop(transformers.TrainerCallback):
    """Ends the training in the middle of its second epoch."""

    def on_step_end(self, args, state, control, **kwargs):
        """Save and stop after STOP steps."""
        if state.global_step == STOP:
            control.should_save = control.should_training_stop = True


def trainer(folder: str) -> transformers.Trainer:
    """Return a Trainer of two epochs."""
    arguments = tiny.arguments(folder, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=1)
    rows = tiny.token_rows(ROWS)
    return transformers.Trainer(model=tiny.model(), args=arguments, train_dataset=rows, data_collator=tiny.collate)


folder = tempfile.mkdtemp()
first = trainer(folder)
first.add_callback(Stop())
first.train()
trainer(folder).train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{STOP}"))
