"""The rig of the sink suite, its rules, kills and lost connections."""
