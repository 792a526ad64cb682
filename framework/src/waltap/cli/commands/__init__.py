"""Run the commands of ``waltap``; each imports its dependencies when it runs."""
