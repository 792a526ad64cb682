"""Read, assemble, snapshot and confirm: the stages before the sinks."""
