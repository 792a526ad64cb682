"""Send records as HTTP requests, one or many in each."""
