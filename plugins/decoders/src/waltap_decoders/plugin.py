"""Hook implementations of this distribution, and nothing else."""
