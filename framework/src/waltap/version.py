"""The version of the framework, importable without anything else."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
