"""What is known of a model from its configuration alone: tensor names, shapes, layers. No torch."""
