"""Facts about a model from its configuration alone: tensor names, shapes, layers. No torch."""
