"""A client of Spark Connect, run as a process by `test_spark_source`: the examples of declarative
pipelines, over a log.

Commands come by standard input, one line each: run NAME.
"""

import json
import runpy
import sys
from pathlib import Path

from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import (
    create_dataflow_graph,
    handle_pipeline_events,
    start_run,
)
from pyspark.sql import SparkSession

address, log, storage, catalogue = sys.argv[1:]
answers, sys.stdout = sys.stdout, sys.stderr  # pipelines print what happens to them
spark = SparkSession.builder.remote(address).getOrCreate()
spark.conf.set("spark.sql.catalog.mem", catalogue)
spark.conf.set("spark.sql.sources.default", "delta")
spark.conf.set("spark.sql.shuffle.partitions", "1")
spark.conf.set(
    "spark.sql.codegen.wholeStage", "false"
)  # a few rows: compiling costs more than it gives
spark.conf.set("spark.orders.changelog", log)
spark.conf.set("spark.orders.table", "public.orders")

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark" / "pipeline"
PLACES = {"auto_cdc": ("mem", "shop", "orders"), "delta": ("spark_catalog", "shop", "orders")}
SOURCES = {"auto_cdc": "auto_cdc.py", "delta": "transformations/orders.py"}
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
            runpy.run_path(str(EXAMPLES / SOURCES[name]))
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
