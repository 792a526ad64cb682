"""Apply a change log by Structured Streaming, inside an application.

Manifests are a stream of small text files: Spark finds new ones, cuts them into micro-batches, shows them
in its user interface, and keeps the delivered ones in its checkpoint. The output's own commits alone say
which changes are applied, so the checkpoint may be lost. Files arrive in any order, so each batch is
sorted by position, and missing manifests are read from the log.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_sinks.changelog.manifest import parse_manifest
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import FollowOptions
from waltap_spark.driver.follower import LogFollower
from waltap_spark.session.addresses import address

# Manifests of one micro-batch; the applier divides it further by `AdaptiveBatchSize`.
BATCH_FILES = 500


def start_query(
    spark: SparkSession,
    changelog: ChangeLog,
    applier: OutputApplier,
    checkpoint: str,
    options: FollowOptions | None = None,
    *,
    available_now: bool = False,
) -> StreamingQuery:
    """Start a streaming query that applies ``changelog``; ``applier`` is open.

    With ``available_now`` it applies the present manifests, then ends. A failure ends the query. So do
    suspended tables with ``available_now``, once all other tables are up to date: Spark then repeats
    the batch. Otherwise suspended tables are only logged.
    Raises: TablesSuspended, with ``available_now``, if nothing is new and tables are suspended.
    """
    chosen = options or FollowOptions()
    changelog.store.make_folder("manifests")
    manifests = (
        spark.readStream.format("text")
        .option("wholetext", "true")
        .option("recursiveFileLookup", "true")
        .option("ignoreMissingFiles", "true")
        .option("maxFilesPerTrigger", str(BATCH_FILES))
        .load(address(changelog.store, "manifests"))
    )

    follower = LogFollower(changelog, applier, chosen)
    last = changelog.last() if available_now else None

    def end_batch() -> None:
        ends = last is not None and applier.state.log_position >= last.log_position
        applier.maintain()
        follower.tidy(at_once=ends)
        if ends:
            follower.complain()

    def batch(frame: DataFrame, _number: int) -> None:
        found = [parse_manifest(row[0], "a manifest") for row in frame.collect()]
        follower.apply(_chain(changelog, applier, found))
        end_batch()

    # Without new files Spark runs no batch, and suspended tables would not be tried.
    if last is not None and applier.state.log_position >= last.log_position:
        follower.apply([])
        end_batch()
    writer = manifests.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{chosen.trigger_ms} milliseconds")
    return writer.start()


def _chain(changelog: ChangeLog, applier: OutputApplier, found: list[Manifest]) -> list[Manifest]:
    """Return the manifests after the applied position without a gap."""
    applied = applier.state.log_position
    fresh = sorted(
        (step for step in found if step.log_position > applied), key=lambda step: step.log_position
    )
    previous = applied
    for step in fresh:
        # A manifest is missing in the batch: Spark may deliver it later, or has delivered it
        # before.
        if step.previous != previous:
            return list(changelog.manifests(applied, fresh[-1].log_position))
        previous = step.log_position
    return fresh
