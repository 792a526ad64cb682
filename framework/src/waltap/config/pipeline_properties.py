"""Properties of the engine itself."""

import re
from pathlib import Path
from typing import Literal

from waltap.base.property import (
    CommaList,
    Maybe,
    MaybeList,
    Positive,
    Properties,
    Shares,
    Switch,
    Whole,
    declare,
)

SIZE = r"^\s*(\d+(\.\d+)?)\s*(B|[kKMGTP]i?B)\s*$"
"""A size with PostgreSQL's units: 1 GB is 1024 MB."""

PATTERN = r"^\s*(\d+(\.\d+)?)\s*(B|[kKMGTP]i?B|%)\s*$"
"""A size, or a share of the disk."""

UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def octets(text: str) -> int:
    """Return the bytes of a size such as ``10GB``. Raises: ValueError."""
    found = re.fullmatch(SIZE, text)
    if found is None:
        raise ValueError(f"{text!r} is no size")
    unit = found[3].removesuffix("B").removesuffix("i").upper()
    return int(float(found[1]) * 1024 ** UNITS[unit])


def budget_bytes(text: str | None, disk_bytes: int | None) -> int | None:
    """Return a budget in bytes, None without a usable one.

    ``disk_bytes`` is the size of the disk that holds the WAL, None if it is unknown. A share of an
    unknown disk is no usable budget. Raises: ValueError.
    """
    if text is None:
        return None
    found = re.fullmatch(PATTERN, text)
    if found is None:
        raise ValueError(f"{text!r} is no budget")
    if found[3] != "%":
        return octets(text)
    return None if disk_bytes is None else int(disk_bytes * float(found[1]) / 100)


class SinkBranchProperties(Properties):
    """A pipeline's properties of each of several sinks."""

    name: Maybe[str] = declare(
        "name",
        pattern="[A-Za-z0-9][A-Za-z0-9_-]{0,62}",
        summary="Name of the sink among the pipeline's, and of its state folder; by default its "
        "type.",
    )
    on_failure: Literal["stop", "pause"] = declare(
        "on.failure",
        default="stop",
        summary="If this sink fails during streaming: stop the pipeline, or pause this sink and "
        "continue with the others. A paused sink is retried and gets everything it "
        "missed, since the server keeps the WAL. During a snapshot a failure always "
        "stops the pipeline.",
    )
    errors_tolerance: Maybe[Literal["none", "all", "dead_letter"]] = declare(
        "errors.tolerance",
        summary="What becomes of records that this sink refuses; by default the pipeline's "
        "errors.tolerance.",
    )
    retry_ms: int = declare(
        "pause.retry.ms",
        default=30_000,
        ge=100,
        summary="How long a paused sink rests before it is tried again.",
    )
    pause_bytes: Whole = declare(
        "pause.max.bytes",
        default=4 * 1024**3,
        summary="Most WAL that the server may keep for this sink while it is paused; beyond it "
        "the pipeline stops.",
    )


class EngineProperties(Properties):
    """How one pipeline runs: batches, waits, retries and state."""

    batch_events: Positive = declare(
        "max.batch.size",
        default=8192,
        summary="Most changes that one batch takes to the sink.",
        unit="events",
    )
    linger_ms: Whole = declare(
        "waltap.linger.ms",
        default=0,
        summary="How long a batch that is not full waits for more changes; for sinks whose writes cost.",
    )
    flush_interval_ms: Whole = declare(
        "offset.flush.interval.ms",
        reloadable=True,
        default=1000,
        summary="How long written batches may wait before the sink is flushed and the offset stored.",
    )
    status_interval_ms: Positive = declare(
        "status.update.interval.ms",
        default=10000,
        summary="Longest silence towards the server: a standby status update is sent at least this often.",
    )
    stall_ms: int = declare(
        "waltap.stall.ms",
        deprecated={"waltap.sink.stall.ms": "waltap.stall.ms"},
        default=15000,
        ge=100,
        reloadable=True,
        summary="How long a hook, or a sink's write, flush or acknowledgement, may take before the log "
        "reports it and /readyz answers 503.",
    )
    stop_timeout_ms: Whole = declare(
        "waltap.stop.timeout.ms",
        default=8000,
        summary="How long a call of sink or plugin may last after SIGTERM or SIGINT. Then the process "
        "ends as if killed; the next start repeats what was not durable. 0: without limit.",
    )
    max_retries: int = declare(
        "errors.max.retries",
        default=-1,
        ge=-1,
        summary="How often a retriable error is answered by a reconnect; -1: without end.",
    )
    retry_delay_ms: Whole = declare(
        "retriable.restart.connector.wait.ms",
        default=10000,
        summary="Longest wait between two reconnects; the first waits are shorter and double.",
    )
    standby: Switch = declare(
        "waltap.standby",
        summary="Whether a second process of this profile waits and takes over when the first "
        "is gone; otherwise it is refused. All need this property, and one state "
        "folder.",
    )
    lease_ms: int = declare(
        "waltap.lease.ms",
        default=5000,
        ge=500,
        le=2**31 - 1,
        summary="With waltap.standby: how long a process may be paused or disconnected before "
        "another takes over, within twice this time. A dead process is replaced within "
        "a second.",
    )
    errors_tolerance: Literal["none", "all", "dead_letter"] = declare(
        "errors.tolerance",
        default="none",
        summary="If a transform or converter fails for an event, or the sink refuses its "
        "record: stop the pipeline, leave the event out with a warning, or write it to "
        "the dead letters (`waltap dead-letters`) and continue. all means dead_letter "
        "if errors.deadletterqueue.topic.name is set.",
    )
    dead_letter_topic: Maybe[str] = declare(
        "errors.deadletterqueue.topic.name",
        summary="Topic of the copies of dead letters in the sink that [dead_letters] names; by default "
        "topic.prefix and .dead-letters.",
    )
    event_processing: Literal["fail", "warn", "skip", "dead_letter", "tolerance"] = declare(
        "event.processing.failure.handling.mode",
        default="fail",
        profile_default="tolerance",
        summary="If no event can be made of a change: stop the pipeline; leave it out with a "
        "warning or silently; write it to the dead letters; or tolerance: as "
        "errors.tolerance says.",
    )
    streaming_delay_ms: Whole = declare(
        "streaming.delay.ms",
        default=0,
        summary="Wait between the end of an initial snapshot and the stream.",
    )
    spill_memory_bytes: Whole = declare(
        "waltap.spill.memory.bytes",
        default=4 * 1024 * 1024,
        summary="Memory for transactions that are streamed in progress; beyond it they go to disk.",
    )
    two_phase_policy: Literal["commit", "prepare"] = declare(
        "two.phase.policy",
        default="commit",
        summary="When changes of prepared transactions are delivered, if the decoder sends "
        "them: at COMMIT PREPARED, or at PREPARE (a later rollback is then a warning in "
        "the log).",
    )
    state_dir: Path = declare(
        "waltap.state.dir",
        common=True,
        default=Path(".waltap"),
        summary="Folder for offsets, spilled transactions and sink state. As every path: a relative one "
        "starts at the profile's folder.",
    )
    new_tables: Literal["warn", "snapshot", "ignore"] = declare(
        "waltap.new.tables",
        default="snapshot",
        summary="If a table joins without a snapshot, or is created during streaming: warn; "
        "snapshot it incrementally (publication.autocreate.mode = filtered also "
        "publishes it immediately); or ignore it. In Debezium files: warn.",
    )
    heartbeat_interval_ms: Whole = declare(
        "heartbeat.interval.ms",
        reloadable=True,
        default=0,
        summary="Period of heartbeat records; 0: none. The slot advances without them.",
    )
    incremental_chunk_size: Positive = declare(
        "incremental.snapshot.chunk.size",
        default=1024,
        summary="Rows that an incremental snapshot reads at a time, at most.",
        unit="rows",
    )
    incremental_chunk_target_ms: Whole = declare(
        "waltap.incremental.chunk.target.ms",
        default=0,
        profile_default=2000,
        summary="How long the server may read one chunk of an incremental snapshot. Slower "
        "chunks make the next ones smaller, up to incremental.snapshot.chunk.size. 0: "
        "all chunks have that size.",
    )
    signal_channels: CommaList = declare(
        "signal.enabled.channels",
        default=("source",),
        summary="Channels of signals: source (rows of the table of signal.data.collection), "
        "file, kafka, plugins' channels. in-process is always on (Engine.signal); jmx "
        "is accepted without effect.",
    )
    signal_poll_interval_ms: Positive = declare(
        "signal.poll.interval.ms",
        reloadable=True,
        default=5000,
        summary="How often the channels but source are asked for signals.",
    )
    notification_channels: MaybeList = declare(
        "notification.enabled.channels",
        summary="Where notifications go: sink (records of notification.sink.topic.name), log, "
        "webhook, plugins' channels. jmx is accepted and shows none.",
    )
    log_level: Maybe[Literal["debug", "info", "warning", "error"]] = declare(
        "waltap.log.level",
        reloadable=True,
        summary="The least level that is logged; by default WALTAP_LOG_LEVEL's level, else info.",
    )
    log_file: Maybe[Path] = declare(
        "waltap.log.file",
        reloadable=True,
        summary="File to append the log to, instead of standard error (`--log-file`). A moved "
        "file is created again, so logrotate needs nothing else.",
    )
    http: Maybe[str] = declare(
        "waltap.http",
        common=True,
        pattern=r"^(.*:[0-9]{1,5})?$",
        summary="HOST:PORT of a status page, with /metrics, /healthz, /readyz, /api/status and "
        "/api/signal; empty: none.",
        examples=("127.0.0.1:8083",),
    )
    metric_tables: Whole = declare(
        "waltap.metrics.tables",
        default=100,
        reloadable=True,
        summary="How many tables have their own metrics: those with the most events in this "
        "run; in a snapshot, those being read or the largest. Suspended tables always "
        "have them.",
    )
    http_token: Maybe[str] = declare(
        "waltap.http.token",
        min_length=8,
        secret=True,
        summary="Token for requests (Authorization: Bearer …, or ?token=…), except /healthz and "
        "/readyz. Required if waltap.http is not a loopback address. Without it this "
        "machine may read the page, and /api/signal needs the token in http-token in "
        "the state folder.",
    )
    otel_endpoint: Maybe[str] = declare(
        "waltap.otel.endpoint",
        pattern=r"^(https?://\S+)?$",
        summary="Address for OpenTelemetry traces and metrics, as OTLP over HTTP; needs the "
        "extra otel. Variables OTEL_… set the rest, such as headers and sampler. Empty: "
        "none.",
        examples=("http://127.0.0.1:4318",),
    )
    otel_interval_ms: int = declare(
        "waltap.otel.interval.ms",
        default=15000,
        ge=100,
        summary="How often metrics go there.",
    )
    lineage_to: Maybe[str] = declare(
        "waltap.openlineage.to",
        path=("",),
        summary="Target of OpenLineage events: a file to append to, or the http address of a "
        "server; needs the extra openlineage. Empty: none.",
        examples=("lineage.jsonl", "http://127.0.0.1:5000"),
    )
    lineage_namespace: str = declare(
        "waltap.openlineage.namespace",
        default="waltap",
        summary="The namespace of the pipeline as a job in OpenLineage.",
    )
    wal_budget: Maybe[str] = declare(
        "waltap.wal.budget",
        reloadable=True,
        pattern=PATTERN,
        summary="How much WAL the slot may keep on the server: a size in PostgreSQL's units, or "
        "a share of the WAL's disk. max_slot_wal_keep_size and the free disk of a "
        "local server count in any case.",
        examples=("10GB", "20%"),
    )
    wal_disk: Maybe[str] = declare(
        "waltap.wal.disk",
        reloadable=True,
        pattern=SIZE,
        summary="Size of that disk, where the server is on another machine.",
        examples=("500GB",),
    )
    wal_warn_at: Shares = declare(
        "waltap.wal.warn.at",
        reloadable=True,
        default=(0.5, 0.8),
        summary="Shares of the limit at which a warning goes to the log and to the notification channels.",
    )
    wal_act_at: float = declare(
        "waltap.wal.act.at",
        reloadable=True,
        default=0.9,
        gt=0,
        le=1,
        summary="Share of the limit at which waltap.wal.action is taken.",
    )
    wal_action: Literal["nothing", "advance", "pause", "drop"] = declare(
        "waltap.wal.action",
        reloadable=True,
        default="nothing",
        summary="The action at that share. advance: flush, confirm and let the server release "
        "WAL, without skipping a change; pause: hold incremental snapshots until the "
        "share is lower; drop: drop the slot, write a gap certificate and end the run.",
    )
    signal_max_bytes: int = declare(
        "waltap.signal.max.bytes",
        default=1 << 20,
        ge=1024,
        summary="Largest data of a signal; a larger one is left out with a warning.",
    )
    signal_match_timeout_ms: Positive = declare(
        "waltap.signal.match.timeout.ms",
        default=1000,
        summary="Processor time to match one signal's patterns with table names; a signal that "
        "needs more is left out with a warning.",
    )
    watermarking: Literal["insert_insert", "insert_delete"] = declare(
        "incremental.snapshot.watermarking.strategy",
        default="insert_insert",
        summary="How the signal table marks the end of a chunk: by a second row, or by deleting "
        "the first, which keeps the table empty.",
    )
