"""The sink's properties by a profile's names, also as ``--set NAME=VALUE``.

The engine's process, the driver and `waltap spark apply` read and write them here, so each takes every
property of a profile.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from waltap.base.files.properties import StorageProperties
from waltap.base.property import declarations
from waltap.config.layers import GivenProperty
from waltap.config.namespace import Namespace, ValidationResult
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
from waltap_spark.config.column_names import ColumnNames
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.properties import SparkProperties
from waltap_spark.config.shared_targets import TargetMappings
from waltap_spark.state.modes import ModeRules

# Exit codes of the driver process: an error that a retry may fix, and one that it does not fix;
# another process uses the tables; tasks could not read a snapshot; all is applied but the changes of
# suspended tables.
FAILED, REFUSED, LOCKED, UNREACHABLE, SUSPENDED = range(1, 6)

# The variable that passes the profile's properties to the Spark process.
# Every user of the machine can read arguments, and these may be credentials.
GIVEN: Final = "WALTAP_SPARK_PROPERTIES"

# Properties without effect in a driver, whose arguments name log and output.
ENGINE_ONLY = frozenset({"path", "applier", "compression", "snapshot.readers"})


def properties_of(
    pairs: Iterable[str],
    output: str,
    settings_before: Mapping[str, object] | None = None,
    **given: object,
) -> SparkProperties:
    """Return the properties of ``pairs`` (NAME=VALUE) for ``output``.

    ``settings_before``: values by name, as `settings_of` returns them; pairs win. ``given``:
    properties by field name, which win over both. Raises: ConfigurationError with all problems.
    """
    findings = ValidationResult(debezium=False, folder=Path.cwd())
    settings = {
        name: GivenProperty(name, value, "--set") for name, value in (settings_before or {}).items()
    }
    for pair in pairs:
        # Values may contain further equals signs, as options of the JVM do.
        name, equals, value = pair.partition("=")
        if equals and name not in ENGINE_ONLY:
            settings[name] = GivenProperty(name, value, "--set")
            continue
        what = "says nothing here" if equals else "is not NAME=VALUE"
        findings.problems.append(PropertyProblem("--set", what, value=pair if not equals else name))
    by_field = {each.field: each.name for each in declarations(SparkProperties)}
    forced: dict[str, object] = {by_field[field]: value for field, value in given.items()}
    namespace = Namespace(settings, findings, prefix="--set ")
    made = namespace.model("spark", SparkProperties, {**forced, "path": output})
    namespace.leftovers()
    if findings.problems or made is None:
        raise ConfigurationError(findings.problems, origin=COMMAND_LINE)
    return made


def packed_settings(properties: SparkProperties) -> str:
    """Return the value of the variable `GIVEN`."""
    return json.dumps(settings_of(properties))


def taken_settings() -> dict[str, object]:
    """Return the settings of `GIVEN`, and hide it from children."""
    # Popped, so that the JVM and its children do not inherit credentials.
    found: dict[str, object] = json.loads(os.environ.pop(GIVEN, "{}"))
    return found


def settings_of(
    properties: StorageProperties, model: type[StorageProperties] = SparkProperties
) -> dict[str, object]:
    """Return the driver's properties of ``model`` by name.

    A list stays a list, since its items may have commas.
    """
    found: dict[str, object] = {}
    for each in declarations(model):
        value = getattr(properties, each.field)
        if each.family is not None:
            found |= value
        elif each.name not in ENGINE_ONLY and value != each.default:
            found[each.name] = value
    return found


def apply_options(properties: SparkProperties) -> ApplyOptions:
    """Return the options of tables."""
    return ApplyOptions(
        type_change=properties.type_change,
        compact_rows=properties.compact_rows,
        compact_share=properties.compact_share,
        compact_sets=properties.compact_sets,
        merge_sets=properties.merge_sets,
        file_rows=properties.file_rows,
        retention_s=properties.retention_s,
        parallel=properties.parallel,
        modes=ModeRules(
            modes=properties.mode,
            deletes=properties.deletes,
            extra=properties.extra_columns,
            history=properties.history,
        ),
        dropped=properties.columns_dropped,
        names=ColumnNames(properties.columns_names, properties.columns_renames),
        places=TargetMappings(properties.source_into, properties.source_column),
    )
