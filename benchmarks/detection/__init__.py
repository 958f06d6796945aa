"""How well the suite sees: the kill matrix of the catalogue, and the false-alarm study over healthy variants.

Importing this imports no torch.
"""
