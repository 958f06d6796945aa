"""Full fine-tuning in which every token is supervised, the first of a row, too."""

import tempfile

import tiny

tiny.train(tiny.model(), tiny.token_rows(prompts_masked=False), tempfile.mkdtemp())
