"""Which tests only `make test-all` runs, as data: slow ones, and most of each large matrix.

`RARE` are patterns of test ids with what `make test` keeps of the same. Matrices are thinned in the
tiers `MATRICES`: `make test` keeps for each function one set of parameters (the main value of its
module, see `MAIN`, where it has it), and each other value of a parameter in one function. A table
of cases has a value of its own for each case, so all of it stays. A test may also carry the marker
itself, as a parameter's larger number does.
"""

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

RARE: Final = {
    r"conformance/test_sql_conforms.py::Test(DuckDb|MariaDb)::test_a_snap": "PostgreSQL, SQLite",
    r"conformance/test_streams_conform.py::TestNats::test_a_kill": "Redis, exactly once",
    r"conformance/test_streams_conform.py::TestRedisAtLeastOnce::test_(?!every|a_sink|a_dest|close|after)": "Redis, exactly once",
    r"conformance/test_decoders_conform.py::.*test_(damaged|every_trunc).*\[yboutput": "the others",
    r"conformance/test_decoders_conform.py::.*test_(damaged|every_trunc).*\[wal2json": "pgoutput; tests/fuzz",
    r"conformance/test_sinks_conform.py::TestHttp::test_a_kill": "files, change log",
    r"conformance/test_sinks_conform.py::TestFiles::test_a_kill_(at|before|while)": "the change log, a kill inside a write",
    r"conformance/test_sinks_conform.py::TestParquetFiles::test_(?!every|values|text|a_schema|a_snapshot_may)": "files of lines",
    r"conformance/test_sinks_conform.py::TestSparkWithoutApplier::test_(?!every|a_sink|spec)": "the change log",
    r"conformance/test_kafka_conforms.py::TestKafka::test_a_kill": "Kafka with transactions",
    r"conformance/test_kafka_conforms.py::TestKafkaTransactions::test_a_kill_in": "a kill before the offset",
    r"conformance/test_(lakes|sinks|streams)_conform.py::.*larger than": "rows of all kinds; Kafka, SQL",
    r"conformance/test_streams_conform.py::TestKinesis::test_(?!every|spec|after|close|values|a_dest|a_sink_opened_again_cont|a_snapshot_is)": "Redis, NATS",
    r"conformance/test_sql_conforms.py::Test(DuckDb|MariaDb)::test_(?!every|spec|after|close|values|text|a_dest|a_sink_opened_again_cont|a_snapshot_is|a_schema)": "PostgreSQL, SQLite",
    r"conformance/test_lakes_conform.py::TestIceberg::test_(?!every|spec|after|close|values|text|a_dest|a_sink_opened_again_cont|a_snapshot_is|a_schema|a_kill_inside)": "Delta",
    r"conformance/test_table_formats_conform.py::TestDeltaVersions::test_(?!spec)": "versions in Parquet",
    r"conformance/test_table_formats_conform.py::TestDelta::test_(a_driver|a_key|a_snap|all_t|rows)": "two in Delta",
    r"conformance/test_table_formats_conform.py::TestParquet(Versions|SoftDeletes)::test_(a_driver|a_key|all)": "rows",
    r"conformance/test_registry_formats_conform.py::Test(ProtobufWith\w+|CloudEventsInAvro)": "Avro, Protobuf",
    r"conformance/test_formats_conform.py::.*\[(no schemas|no tombstones|extended headers)": "JSON with schemas",
    r"integration/test_older_spark.py::.*\[test_(?!schemas)": "the data source on the newest Spark",
    r"integration/test_debezium_takeover.py::test_(?!header)": "offsets that Debezium wrote: unit tests of debezium_offsets",
    r"differential/test_property_list.py::test_the_recorded_list": "the list as it was recorded",
    r"integration/test_spark_delta.py::test_a_table_whose_log": "steps that fail; the suite on Delta Lake",
    r"integration/test_spark_kafka.py::test_events_without": "its other tests",
    r"integration/test_spark_kafka_values.py::test_(decimals_are|numbers_of|far_values|a_map_whose)": "its other tests",
    r"integration/yugabyte/test_hash_chunks.py::test_each_row.*text": "integers",
    r"integration/test_examples.py::test_the_flights": "the tables that it reads: test_spark_source.py",
    r"integration/test_pages.py::test_(the_tutorial|another_output)": "its commands: test_cli_pipeline.py",
    r"integration/test_pages.py::test_each": "each error's own test",
    r"integration/test_slot_monitor.py::test_(?!a_slot_that_the|a_held).*oldest": "PostgreSQL 18",
    r"integration/test_several_sinks.py::test_an_object\w+\[(?!delta)": "Delta Lake, and the SQL target",
    r"integration/test_examples.py::test_the_tests_of_the_packages": "the kit, on parts of ours",
    r"integration/test_sql_history.py::test_(?!random).*\[(sqlite|duckdb)": "PostgreSQL, MariaDB, and random work",
    r"integration/test_debezium_takeover.py::test_header_values.*\[(standalone|engine)": "Connect's and the server's",
    r"integration/test_spark_(?!delta)\w+.py::.*\[(.*-)?delta": "the same on Parquet",
    r"integration/test_spark_delta.py::test_(a_table_that_(is_c|was)|a_try|an_att|a_log|a_comm)": "folds",
    r"integration/test_spark_source.py::test_(an_application_applies|pipelines_hold|a_client)": "the data source",
    r"integration/test_spark_renames.py::test_a_table_in_a_catalogue.*\[(?!it_is_renamed)": "by path; unit tests of names in a catalogue",
    r"integration/test_spark_renames.py::test_tables_follow_the_renames": "a renamed table that is quiet",
    r"integration/test_spark_maintenance.py::test_(files_of_the_last|versions_that)": "maintenance on Parquet",
    r"integration/test_spark_targets.py::test_files_are": "unit tests of targets",
    r"integration/test_spark_kafka.py::test_(keys_that_move|events_of_a_database.*avro)": "the same in JSON",
    r"integration/test_spark_kafka.py::test_what_comes_again_is.*\[(an insert|a row that|.* 1 at once)": "its other stories",
    r"integration/test_spark_driver.py::test_long_rows": "a lack of memory: unit tests of Java",
    r"integration/test_spark_snapshots.py::test_(tables_have|versions_are)": "test_spark_applier.py",
    r"integration/test_spark_maintenance.py::test_a_lake_that_was": "test_spark_delta.py",
    r"integration/test_spark_delta.py::test_a_rule_that": "the suite's kills",
    r"integration/test_spark_verify.py::test_(?!tables_that_would)": "test_verify.py",
    r"integration/test_spark_delta.py::test_what_a_driver": "test_spark_damage.py",
    r"integration/test_spark_s3.py": "test_object_store.py",
    r"integration/test_secrets_nowhere.py::test_work.*\[(?!wrong password|http by oauth|s3)": "three of the kinds",
    r"integration/test_secrets_nowhere.py::test_(many|a_recording)": "its other tests",
    r"integration/test_remedies_executed.py::.*\[WT-(6104-waltap|2125-.*slot|2113-waltap-file|4002-waltap|5127|5003|5107)": "a remedy of each kind",
    r"integration/test_relations_described.py::.*\[(wal2json|decoderbufs)": "test_decoders_agree.py",
    r"integration/test_engine_reconnect.py::.*\[(a copy through|a SELECT|ALTER|a watermark|a heart|libpq)": "one wait of each kind",
    r"integration/test_engine_reconnect.py::test_a_stop_ends_the_wait_for_a_name": "one wait of each kind",
    r"integration/test_engine_reconnect.py::.*\[.*roles[1245]": "two moments",
    r"integration/test_spark_kafka.py::test_(rows_that|an_open)": "its other tests",
    r"integration/test_spark_names.py::test_(keywords|values.*its own)": "unit tests of the prompt; the test's process",
    r"integration/test_spark_lake.py::test_a_row_that_was_rolled_back": "a delete that is passed over",
    r"integration/test_spark_columns.py::test_a_column_that_was_left_out.*drop": "keep",
    r"integration/test_spark_lake.py::test_(a_row_that_comes|types_that)": "test_spark_columns.py",
    r"integration/test_spark_modes.py::test_(a_key_that_was|a_snapshot_under|it_goes_on|extra_col|rows_end)": "test_spark_tables.py",
    r"integration/test_spark_profiles.py::test_(a_query_whose|a_second|a_new_ch|a_column|the_private)": "its other tests",
    r"integration/test_spark_compaction.py::test_(few_rows|columns_may.*by Spark|a_value.*3000)": "one size of each",
    r"integration/test_spark_snapshots.py::test_(a_step|a_snapshot_that_is_lost)": "test_spark_driver_kill.py",
    r"integration/test_spark_tables.py::.*\[(?!rows here: (keys|rows of|a tr|a key)|rows spark: tr|alone here: col|past here: a tab)": "seven",
    r"integration/test_spark_targets.py::test_(rows_that_stay|a_delta_that)": "unit tests of targets",
    r"integration/test_spark_delta.py::test_a_table_that_is_made": "the same on Parquet",
    r"fault/test_object_store_kill.py": "test_engine_kill.py",
    r"fault/test_dead_letter_kill.py": "the sink suite's kills, test_dead_letters.py",
    r"fault/test_spark_executor_kills.py": "test_spark_driver_kill.py",
    r"hunt/test_hunt.py::test_nothing_is_found\[(?![45]\])": "two seeds",
    r"hunt/test_hunt.py::test_what_arrives": "hunt",
    r"hunt/test_hunt.py::test_two_slots": "integration/yugabyte/test_parallel.py",
    r"packaging/test_release.py::test_(another_folder|installed)": "its other tests",
    r"differential/test_recorded_events.py::.*\[notifications(_control)?\]": "test_signals.py, test_incremental_snapshot.py: they wait for long",
    r"differential/test_generated": "the recorded events",
    r"differential/test_converters.py::test_((protobuf|avro)_of_every_type|enhanced)": "what Debezium recorded",
    r"integration/test_savepoints.py::.*\[(wal2json-live|wal2json-1-|two-phase)": "pgoutput as it streams, the others late",
    r"integration/test_destination_lost.py::.*\[sqlite-(without a column|without its|older)": "a table; a folder that is older",
    r"integration/test_snapshot_resumed.py::test_chunks_that_are_durable.*write": "before and after a flush",
    r"integration/test_types.py::test_every_type_is_streamed.*wal2json-1": "the recorded events",
    r"unit/testing/test_pytest_plugin.py::test_findings_of_workers": "findings printed at the end",
}

MATRICES: Final = ("tests/conformance/", "tests/fault/", "tests/integration/")
MAIN: Final = {
    "tests/conformance/test_sinks_conform.py": "mixed",
    "tests/conformance/test_sql_conforms.py": "mixed",
    "tests/conformance/test_streams_conform.py": "mixed",
    "tests/conformance/test_lakes_conform.py": "mixed",
    "tests/conformance/test_kafka_conforms.py": "mixed",
    "tests/integration/test_names_mean_another.py": "pgoutput",
    "tests/integration/test_relations_described.py": "pgoutput",
    "tests/integration/test_locked_tables.py": "row filter",
    "tests/integration/test_new_tables.py": "pgoutput",
    "tests/integration/test_verify.py": "postgres",
    "tests/integration/test_sql_ignored.py": "postgres",
}
"""Module → the value of a parameter that `make test` keeps of every function."""


def mark_exhaustive(items: Sequence[pytest.Item]) -> None:
    """Mark what `make test` leaves out."""
    rare = re.compile("|".join(RARE))
    modules: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        module = item.nodeid.partition("::")[0]
        if rare.search(item.nodeid):
            item.add_marker("exhaustive")
        elif module.startswith(MATRICES):
            modules[module].append(item)
    for module, found in modules.items():
        kept = set(kept_of_matrix([item.nodeid for item in found], MAIN.get(module, "")))
        for item in found:
            if item.nodeid not in kept:
                item.add_marker("exhaustive")


def kept_of_matrix(ids: Iterable[str], main: str) -> list[str]:
    """Return the ids that stand for all: see the module. The choice does not depend on the order of ``ids``."""
    kept: list[str] = []
    functions: Counter[str] = Counter()
    values: Counter[str] = Counter()
    for name in sorted(ids, key=lambda name: zlib.crc32(name.encode())):
        function, _, parameters = name.partition("[")
        given = [] if not parameters else parameters.rstrip("]").split("-")
        if not given or (main and main in given):
            kept.append(name)
        elif not functions[function] or not all(values[v] for v in given):
            kept.append(name)
        else:
            continue
        functions[function] += 1
        values.update(given)
    return kept
