"""Full fine-tuning with accumulation over rows of unequal length."""

import tempfile

import tiny

tiny.train(tiny.model(), tiny.token_rows(), tempfile.mkdtemp(), gradient_accumulation_steps=4)
