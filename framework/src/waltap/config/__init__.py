"""Declare properties and read them from files, environment and arguments."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.base.property import CommaList, Properties, declare, declare_family

__all__ = ["CommaList", "Properties", "declare", "declare_family"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
