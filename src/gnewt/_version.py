"""The version: the one place where it is written. The build reads it from here."""

__version__ = "0.1.0"
