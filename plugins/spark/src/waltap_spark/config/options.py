"""Options of an applier, its table formats and its follower."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """How often and how much a follower applies."""

    # How often the follower looks at the log.
    trigger_ms: int = 200
    # The most rows of one commit, unless a single manifest has more.
    batch_rows: int = 5_000_000
    # About how long one commit may take.
    batch_s: float = 5.0
    # How long applied changes stay in the log.
    retention_h: float = 2.0
