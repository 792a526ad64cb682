"""Generate reference pages from declarations in the code."""

from waltap.cli.reference.pages import ReferencePage, pages

__all__ = ["ReferencePage", "pages"]
