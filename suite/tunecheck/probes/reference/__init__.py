"""Independent implementations that the probes compare the training with; nothing here calls the code it is to judge."""
