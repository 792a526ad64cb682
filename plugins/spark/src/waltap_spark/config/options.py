"""Options of an applier, its table formats and its follower."""

from dataclasses import dataclass, field
from typing import Literal

from waltap_spark.config.column_names import ColumnNames
from waltap_spark.config.shared_targets import TargetMappings
from waltap_spark.state.modes import ModeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """How the applier keeps tables; the properties of the sink explain it."""

    type_change: Literal["fail", "string"] = "fail"
    compact_rows: int = 100_000
    compact_share: float = 0.25
    compact_sets: int = 0
    merge_sets: int = 16
    file_rows: int = 1_000_000
    retention_s: float = 600.0
    parallel: int = 4
    modes: ModeRules = field(default_factory=ModeRules)
    dropped: tuple[str, ...] = ()
    names: ColumnNames = field(default_factory=ColumnNames)
    places: TargetMappings = field(default_factory=TargetMappings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """How often and how much a follower applies; see the sink's properties."""

    trigger_ms: int = 200
    batch_rows: int = 5_000_000
    batch_s: float = 5.0
    retention_h: float = 2.0
