"""What a running pipeline tells: logs, progress. Observers of the ``on_*`` hooks, nothing else."""
