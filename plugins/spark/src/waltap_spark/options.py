"""How tables are kept: what an applier and the table formats are told."""

from dataclasses import dataclass, field
from typing import Literal

from waltap_spark.column_names import ColumnNames
from waltap_spark.modes import ModeRules
from waltap_spark.shared_targets import TargetMappings

__all__ = ["ApplyOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """How tables are kept.

    ``type_change``: what a column does that got a type which does not fit: fail, or become text.
    ``fold_rows`` and ``fold_share``: pending changes become part of the base when they are more
    than both that many and that share of the base's rows; ``fold_sets``: or come in so many sets, 0:
    however many there are.
    ``merge_sets``: so many change sets of one size become one. ``file_rows``: rows of one file.
    ``grace_s``: how long folders of earlier commits stay for those who are reading them.
    ``parallel``: tables that are applied at a time. ``modes``: what each table keeps.
    ``dropped``: what becomes of columns that the source drops, keep or drop, as rules by table.
    ``names``: what columns are called. ``places``: which tables are part of a target of several.
    """

    type_change: Literal["fail", "string"] = "fail"
    fold_rows: int = 100_000
    fold_share: float = 0.25
    fold_sets: int = 0
    merge_sets: int = 16
    file_rows: int = 1_000_000
    grace_s: float = 600.0
    parallel: int = 4
    modes: ModeRules = field(default_factory=ModeRules)
    dropped: tuple[str, ...] = ()
    names: ColumnNames = field(default_factory=ColumnNames)
    places: TargetMappings = field(default_factory=TargetMappings)
