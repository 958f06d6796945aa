"""Fleets that are broken on purpose, and fleets of ten thousand made-up nodes."""
