"""How much the suite detects: the injected bugs it names, and the healthy runs it flags. Imports no torch."""
