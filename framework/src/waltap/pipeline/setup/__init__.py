"""Build the stages of a profile, and check them before a start."""
