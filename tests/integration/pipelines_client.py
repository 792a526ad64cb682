"""A client of Spark Connect, run as a process by `test_spark_pipelines`: declarative pipelines over a log.

Commands come by standard input, one line each: run NAME.
"""

import json
import sys
from typing import Any

from pyspark import pipelines as dp
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import (
    create_dataflow_graph,
    handle_pipeline_events,
    start_run,
)
from pyspark.sql import SparkSession

from waltap_spark import pipelines

address, log, storage, catalogue = sys.argv[1:]
answers, sys.stdout = sys.stdout, sys.stderr  # pipelines print what happens to them
spark = SparkSession.builder.remote(address).getOrCreate()
spark.conf.set("spark.sql.catalog.mem", catalogue)
spark.conf.set("spark.sql.sources.default", "delta")
spark.conf.set("spark.sql.shuffle.partitions", "1")
spark.conf.set(
    "spark.sql.codegen.wholeStage", "false"
)  # a few rows: compiling costs more than it gives
TABLE = "public.orders"


def auto_cdc() -> None:
    @dp.temporary_view
    def orders_changes() -> Any:
        return pipelines.changes(log, TABLE)

    dp.create_streaming_table("orders")
    dp.create_auto_cdc_flow(
        target="orders", source="orders_changes", **pipelines.auto_cdc(log, TABLE)
    )


def delta() -> None:
    @dp.table
    def orders_history() -> Any:
        return pipelines.history(log, TABLE)

    @dp.materialized_view
    def orders_now() -> Any:
        return pipelines.current(spark.read.table("orders_history"), log, TABLE)


PLACES = {"auto_cdc": ("mem", "shop", "orders"), "delta": ("spark_catalog", "shop", "orders_now")}
for catalog, database, _table in PLACES.values():
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{database}")
for line in sys.stdin:
    name = line.split()[1]
    catalog, database, table = PLACES[name]
    graph = create_dataflow_graph(
        spark, default_catalog=catalog, default_database=database, sql_conf={}
    )
    try:
        with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
            {"auto_cdc": auto_cdc, "delta": delta}[name]()
        handle_pipeline_events(
            start_run(
                spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False,
                storage=f"file://{storage}/{name}",
            )
        )  # fmt: skip
    except Exception as error:
        print(json.dumps({"error": str(error)[:4000]}), file=answers, flush=True)
        continue
    rows = spark.sql(
        f"SELECT id, state, note FROM {catalog}.{database}.{table} ORDER BY id"
    ).collect()
    print(json.dumps({"rows": [list(row) for row in rows]}), file=answers, flush=True)
spark.stop()
