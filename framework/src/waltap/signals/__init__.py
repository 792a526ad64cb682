"""Signals: what users ask of a running pipeline."""
