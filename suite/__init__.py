"""tunecheck: check that LLM fine-tuning works on this machine, with this stack, today.

PYTEST_DONT_REWRITE: the command has imported this package before it calls pytest, which would warn that it is too late
to rewrite the assertions of a package that brings a plugin.
"""

__version__ = "0.2.0"
