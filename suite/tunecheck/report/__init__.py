"""Renderers of a session's results: terminal, Markdown, JUnit, GitHub annotations, HTML."""
