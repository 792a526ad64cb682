"""Recordings: a stream of a server in a file, with all that its decoder asked, to be run again."""
