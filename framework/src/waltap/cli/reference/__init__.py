"""Generate reference pages from declarations in the code."""
