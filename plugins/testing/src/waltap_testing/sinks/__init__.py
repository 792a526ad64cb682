"""The rig of the sink suite, its rules, and the kills and lost connections that it imitates."""
