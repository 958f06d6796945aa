"""Previous sessions: a store of their figures, comparisons with them, accepted baselines."""
