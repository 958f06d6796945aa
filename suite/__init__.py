"""tunecheck: does fine-tuning really work on this machine, with this stack, today?"""

__version__ = "0.1.0"
