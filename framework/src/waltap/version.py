"""The version of the framework, for whoever needs nothing else of it."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
