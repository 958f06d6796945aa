"""What the nights before were like: a store of figures, the rule that compares with them, accepted baselines."""
