"""Run pipelines from Python programs, and repair their gaps."""
