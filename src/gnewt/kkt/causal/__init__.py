"""Causal elimination, unit by unit along a causal order: policies and value functions."""
