"""Options of an applier and its table formats."""

from dataclasses import dataclass, field
from typing import Literal

from waltap_spark.config.column_names import ColumnNames
from waltap_spark.config.shared_targets import TargetMappings
from waltap_spark.state.modes import ModeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """How the applier keeps tables."""

    # A column whose new type does not fit: the table fails, or the column becomes text.
    type_change: Literal["fail", "string"] = "fail"
    # Pending changes are compacted into the base when they exceed both this number and this share
    # of the base's rows,
    compact_rows: int = 100_000
    compact_share: float = 0.25
    # or when they are in so many sets (0: no limit of sets).
    compact_sets: int = 0
    # So many change sets of one size become one.
    merge_sets: int = 16
    # Rows of one file.
    file_rows: int = 1_000_000
    # How long folders of earlier commits stay for readers.
    retention_s: float = 600.0
    # Tables that are applied at the same time.
    parallel: int = 4
    modes: ModeRules = field(default_factory=ModeRules)
    # Rules by table for columns that the source drops: keep or drop.
    dropped: tuple[str, ...] = ()
    names: ColumnNames = field(default_factory=ColumnNames)
    # The tables that share a target with others.
    places: TargetMappings = field(default_factory=TargetMappings)
