"""The sink suite's rig: rules, kills and lost connections."""
