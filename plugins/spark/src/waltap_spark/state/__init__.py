"""State of an output: commit files, consistent table versions, positions, modes."""
