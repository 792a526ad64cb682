"""State of an output: commit files, versions, modes."""
