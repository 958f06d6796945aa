"""Measurements of the suite itself. May import suite; suite never imports this."""
