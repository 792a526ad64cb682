"""Run one profile over its connections, streams and retries."""
