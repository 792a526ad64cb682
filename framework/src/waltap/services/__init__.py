"""Serve a running pipeline.

Dead letters, control, status pages, telemetry, slot monitor and recordings.
"""
