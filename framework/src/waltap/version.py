"""The version of the framework, importable without anything else."""

VERSION = "0.1.0"
