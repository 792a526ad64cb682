"""Tables with history, soft deletes or appends."""
