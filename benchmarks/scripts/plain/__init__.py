"""Trainings of models that are none of transformers': healthy ones, and mistakes in them."""
