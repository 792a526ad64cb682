"""Tables that keep history, soft deletes or appends instead of current rows."""
