"""Reference pages, made from what the code declares: properties, errors, hooks, commands."""

from waltap.reference.pages import Page, pages

__all__ = ["Page", "pages"]
