"""The xla engine: elimination in pure JAX, on any device."""
