"""Provide declared properties, errors, files, HTTP and text.

This package knows no change and no plugin.
"""
