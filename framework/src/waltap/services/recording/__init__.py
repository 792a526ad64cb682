"""Record a server's stream and its decoder's questions for later runs."""
