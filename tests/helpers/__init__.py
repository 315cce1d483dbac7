"""Generators and oracles that several tests share."""
