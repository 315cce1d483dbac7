"""The reference engine: Algorithm 2 in NumPy, the oracle of the others."""
