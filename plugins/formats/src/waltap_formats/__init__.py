"""Formats other than JSON: registry formats, CloudEvents, plain values."""
