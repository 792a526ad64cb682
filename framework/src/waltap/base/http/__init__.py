"""Send HTTP requests: one client for sinks, notifications and registries."""
