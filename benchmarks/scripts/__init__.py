"""Trainings as users write them, healthy and with a mistake, under `tunecheck watch`: what is named, what is flagged.

python -m benchmarks.scripts list
python -m benchmarks.scripts bugs [NAME ...]
python -m benchmarks.scripts healthy [NAME ...]
"""
