"""What a pipeline captures: selection, names of topics, transforms of columns."""
