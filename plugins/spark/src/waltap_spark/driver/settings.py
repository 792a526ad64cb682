"""The sink's properties as ``--set NAME=VALUE``, with a profile's names.

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


def properties_of(pairs: Iterable[str], output: str, **given: object) -> SparkProperties:
    """Return the properties of ``pairs`` (NAME=VALUE) for ``output``.

    ``given``: properties by field name, which win. Raises: ConfigurationError with all problems.
    """
    findings = ValidationResult(debezium=False, folder=Path.cwd())
    settings: dict[str, GivenProperty] = {}
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


def packed_pairs(properties: SparkProperties) -> str:
    """Return the value of the variable `GIVEN`."""
    return json.dumps(pairs_of(properties))


def taken_pairs() -> list[str]:
    """Return the pairs of `GIVEN`, and hide it from children."""
    # Popped, so that the JVM and its children do not inherit credentials.
    found: list[str] = json.loads(os.environ.pop(GIVEN, "[]"))
    return found


def pairs_of(
    properties: StorageProperties, model: type[StorageProperties] = SparkProperties
) -> list[str]:
    """Return the driver's properties of ``model`` as NAME=VALUE."""
    found: list[str] = []
    for each in declarations(model):
        value = getattr(properties, each.field)
        if each.family is not None:
            found += [f"{name}={text}" for name, text in value.items()]
        elif each.name not in ENGINE_ONLY and value != each.default:
            found.append(f"{each.name}={_text(value)}")
    return found


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{each}" for key, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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
