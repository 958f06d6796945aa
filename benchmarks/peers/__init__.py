"""Side by side with other tools that judge trainings: the same scripts, healthy and with a mistake, through each of
them in an environment of its own."""
