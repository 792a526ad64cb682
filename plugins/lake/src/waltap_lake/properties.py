"""Properties of the sinks ``delta`` and ``iceberg``."""

from waltap.base.property import Properties, Whole, declare, declare_family


class LakeProperties(Properties):
    """Properties of both sinks."""

    table_format: str = declare(
        "table.name.format",
        default="{schema}.{table}",
        pattern=r"[^{}]*(\{(schema|table)\}[^{}]*)+",
        summary="Name of a table of changes; the part before the first dot is its folder "
        "(delta) or namespace (iceberg). Source tables with one name share a table.",
        examples=("raw.{schema}_{table}",),
    )
    position_table: str = declare(
        "position.table",
        default="waltap.positions",
        summary="Table whose properties hold the position of each pipeline; it has no rows.",
    )
    memory_bytes: Whole = declare(
        "memory.max.bytes",
        default=64 * 1024 * 1024,
        summary="Columns kept in memory; beyond it they are committed before the next flush.",
    )


class DeltaLakeProperties(LakeProperties):
    """Folder of Delta tables, and options of their store."""

    path: str = declare(
        "path",
        path=True,
        min_length=1,
        summary="Folder of the tables: a path, or a URI such as s3://bucket/folder, gs://…, az://….",
        examples=("./lake", "s3://lake/raw"),
    )
    storage: dict[str, str] = declare_family(
        "storage.NAME",
        pattern=r"storage\.[A-Za-z0-9_.]+",
        summary="An option of the object store, as deltalake names them: storage.aws_region, "
        "storage.aws_access_key_id, storage.max_retries. Without them the environment counts.",
    )


class IcebergLakeProperties(LakeProperties):
    """Catalogue of Iceberg tables."""

    catalog: str = declare(
        "catalog",
        default="waltap",
        pattern=r"[A-Za-z0-9_-]+",
        summary="Name of the catalogue; what ~/.pyiceberg.yaml and PYICEBERG_CATALOG__NAME__… say of it "
        "counts where catalog.* does not.",
    )
    settings: dict[str, str] = declare_family(
        "catalog.NAME",
        pattern=r"catalog\.[A-Za-z0-9_.-]+",
        summary="A setting of the catalogue or its file system by pyiceberg's name: "
        "catalog.type (sql, rest, glue, hive, …), catalog.uri, catalog.warehouse, "
        "catalog.s3.endpoint.",
    )
