"""Serve a running pipeline: dead letters, control, status pages, telemetry, slot monitor, recordings."""
