"""Reference pages, made from what the code declares: properties, errors, hooks, commands."""

from waltap.reference.pages import ReferencePage, pages

__all__ = ["ReferencePage", "pages"]
