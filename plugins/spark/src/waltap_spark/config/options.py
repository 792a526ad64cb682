"""Options of an applier and its table formats."""

from dataclasses import dataclass, field
from typing import Literal

from waltap_spark.config.column_names import ColumnNames
from waltap_spark.config.shared_targets import TargetMappings
from waltap_spark.state.modes import ModeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """How the applier keeps tables; the sink's properties explain it."""

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
