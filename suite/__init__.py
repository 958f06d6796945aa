"""tunecheck: check that LLM fine-tuning works on this machine, with this stack, today."""

__version__ = "0.2.0"
