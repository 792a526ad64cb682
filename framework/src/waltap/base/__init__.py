"""Provide the ground: declared properties, errors, files, HTTP and text. It knows no change and no
plugin."""
