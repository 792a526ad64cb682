"""Check everything before a start, for `waltap doctor` and `run`.

The checks change nothing. A start connects, runs the checks, and only then opens the sink and makes
publication and slot. A problem that may pass by itself (a slot that is still read, no free walsender) does
not refuse a start, which waits for it later.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from importlib import import_module
from typing import Final, TypeVar

from waltap.base.files.location import refusal
from waltap.base.plugin_errors import LibraryMissing, interrupts, needing, usable
from waltap.base.text import in_brief, size
from waltap.config.name_patterns import CatalogNames, UnmatchedPattern, unmatched
from waltap.config.profile import Profile
from waltap.errors import OffsetError, RetryVerdict, SinkError, SourceError, WaltapError
from waltap.pipeline.delivery.sink_branch import SinkBranch
from waltap.pipeline.engine.build import PipelineStages, chosen_password
from waltap.pipeline.runtime.channels import SINK
from waltap.pipeline.runtime.leadership import leases_of
from waltap.pipeline.runtime.lock import running
from waltap.plugins.check_context import CheckContext
from waltap.plugins.host import Host
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.offsets.offset import Offset, OffsetStore
from waltap.ports.offsets.owned_objects import OwnedObjects
from waltap.ports.offsets.state_folder import OFFSET, OWNED_OBJECTS, unusable
from waltap.ports.sink.roles import checks_of, identity_of
from waltap.ports.source.connector import Connector, PreflightCheck
from waltap.ports.source.lease import LeaseContext
from waltap.ports.source.roles import ColumnListingSource, SlotOwningSource, tables_of
from waltap.ports.source.slot_status import SlotStatus

log = logging.getLogger(__name__)

MAX_MOVES: Final = 20

Answer = TypeVar("Answer")


def asked_of_the_stored_offset(
    store: OffsetStore, ask: Callable[[Offset | None], Answer], refused: Callable[[Answer], bool]
) -> Answer:
    """Return the answer of ``ask`` about the stored offset.

    ``ask`` reads the slot after the offset was loaded. A running pipeline may store and confirm another
    offset in between, so that the slot seems to have lost changes. A ``refused`` answer counts only if the
    stored offset is still the same, or has moved ``MAX_MOVES`` times. Raises: OffsetError; the errors of
    ``ask``.
    """
    offset = store.load()
    for _ in range(MAX_MOVES):
        answer = ask(offset)
        before, offset = offset, store.load() if refused(answer) else offset
        if offset == before:
            return answer
    return ask(offset)


NAMED = 20

NotReady = SourceError.define("NotReady", "WT-2013")
# The values that it should hide would be delivered.
MaskUnmatched = SourceError.define("MaskUnmatched", "WT-2047", retry=RetryVerdict.NEVER)
EventTransformUnfit = WaltapError.define("EventTransformUnfit", "WT-3203", retry=RetryVerdict.NEVER)
RecordTransformUnfit = WaltapError.define(
    "RecordTransformUnfit", "WT-3205", retry=RetryVerdict.NEVER
)
ConverterUnfit = WaltapError.define("ConverterUnfit", "WT-3208", retry=RetryVerdict.NEVER)
FormatUnfit = WaltapError.define("FormatUnfit", "WT-3302", retry=RetryVerdict.NEVER)


def checks(stages: PipelineStages, connector: Connector, *, locked: bool) -> list[PreflightCheck]:
    """Run all checks.

    ``locked``: this process holds the pipeline's lock. Raises: ConnectionLost.
    """
    offset = stages.store.load()
    runs = not locked and running(stages.profile.state_dir) is not None
    found = [_state(stages, locked=locked), *_of_sink(stages)]
    for branch in stages.branches:
        found += _of_branch(stages, branch)
    found += _of_notifications(stages)
    found += _of_libraries(stages.profile)
    found += _delivered_to_another(stages, offset)
    if locked:
        with connector.once(), stages.waits_for("the source"):
            found += usable(connector.check(offset), list, connector, "check")
            found += _of_source(stages, connector, offset, found)
    else:
        found += _of_log_file(stages.profile)  # of the command: a program has its own log
        asked = asked_of_the_stored_offset(
            stages.store,
            connector.check,
            lambda found: any(check.name == "start" and check.error for check in found),
        )
        found += map(_expected, asked) if runs else _of_a_standby(stages, asked)
        found += _of_source(stages, connector, offset, found)
    return found + _of_plugins(stages, connector, offset)


def _of_source(
    stages: PipelineStages,
    connector: Connector,
    offset: Offset | None,
    others: Sequence[PreflightCheck],
) -> list[PreflightCheck]:
    found = list(_of_patterns(stages, connector))
    found += _of_guardrail(stages, connector)
    found += _orphans(stages, connector)
    found += _gaps(stages, [*others, *found])
    if offset is not None and all(check.verdict != "error" for check in (*others, *found)):
        found += _interrupted(stages, connector, offset)
    return found


def refuse(found: Iterable[PreflightCheck]) -> None:
    """Log problems; raise the first that will not pass.

    Raises: the error of the check, NotReady without one.
    """
    errors = []
    for check in found:
        passes = (
            isinstance(check.error, SourceError) and check.error.retry is RetryVerdict.RECONNECT
        )
        if check.verdict == "error" and not passes:
            errors.append(check)
        elif check.verdict != "ok":
            log.warning("%s: %s; %s", check.name, check.found, check.remedy)
    for check in errors[1:]:
        log.error("%s: %s; %s", check.name, check.found, check.remedy)
    if errors:
        first = errors[0]
        problem = f"{first.name}: {first.found}"
        raise first.error or NotReady(problem, remedy=first.remedy.rstrip("."))


def _expected(check: PreflightCheck) -> PreflightCheck:
    """Return the check of a running pipeline, whose slot a process reads."""
    error = check.error if check.name == "replication slot" else None
    if error is None or error.retry is not RetryVerdict.RECONNECT:
        return check
    return PreflightCheck.ok(check.name, f"{check.found}: this pipeline, which runs")


def _of_a_standby(stages: PipelineStages, found: list[PreflightCheck]) -> list[PreflightCheck]:
    """Return the checks of a pipeline that runs under a lease.

    If another process has the lease, that process reads the slot, and a run here waits.
    """
    component, engine = stages.profile.connector, stages.profile.engine
    if not engine.standby:
        return found
    try:
        open_lease = leases_of(component)
        context = LeaseContext(
            seconds=engine.lease_ms / 1000, password=chosen_password(stages.host)
        )
        with closing(open_lease(component.properties, context)) as lease:
            owner = lease.owner()
    except SourceError as error:
        return [*found, PreflightCheck.failed("lease", error)]
    if owner is None:
        return found
    text = f"{owner} has the pipeline's lease: a run here waits as a standby"
    return [*map(_expected, found), PreflightCheck.ok("lease", text)]


def _state(stages: PipelineStages, *, locked: bool) -> PreflightCheck:
    folder = stages.profile.state_dir
    holder = None if locked else running(folder)
    if holder is not None:
        pid = holder.fields["pid"]
        found = (
            f"{folder}: the pipeline runs as pid {pid}; the other checks hold for its next start"
        )
        return PreflightCheck.ok("state folder", found)
    cause = refusal(folder, folder=True)
    if cause is not None:
        return PreflightCheck.failed("state folder", unusable(folder, cause))
    return PreflightCheck.ok("state folder", str(folder))


def _of_log_file(profile: Profile) -> Iterator[PreflightCheck]:
    path = profile.engine.log_file
    cause = None if path is None else refusal(path, folder=False)
    if path is not None and (cause is not None or not path.parent.is_dir()):
        yield PreflightCheck(
            name="log file",
            verdict="error",
            found=f"{path}: {cause.strerror if cause else 'its folder does not exist'}",
            remedy="name a file in waltap.log.file that can be written",
        )


def _interrupted(
    stages: PipelineStages, connector: Connector, offset: Offset
) -> Iterator[PreflightCheck]:
    """Warn of captured tables that the server does not stream wholly."""
    if names := stages.new_tables.interrupted(connector, offset):
        yield PreflightCheck.warning(
            "streamed tables",
            f"the publication does not have all changes of {', '.join(names)}, or had not for a while; "
            "the start completes it, but does not deliver changes from the time in between",
            "waltap.new.tables=snapshot reads their rows again",
        )


def _orphans(stages: PipelineStages, connector: Connector) -> Iterator[PreflightCheck]:
    """Warn of slots without a reader and a known pipeline."""
    if found := orphan_slots(stages.profile, connector, stages.store):
        names = ", ".join(f"{slot.name} ({size(slot.retained_bytes)} of WAL)" for slot in found)
        yield PreflightCheck.warning(
            "orphan slots",
            f"no process reads {names}, and no pipeline of this state folder has them",
            "If nothing else needs them: SELECT pg_drop_replication_slot("
            f"'{found[0].name}'); `waltap slot list FILE --orphans` lists all",
        )


def _gaps(stages: PipelineStages, others: Sequence[PreflightCheck]) -> Iterator[PreflightCheck]:
    """Warn of open gaps.

    A check in ``others`` that refuses the start has the remedy.
    """
    try:
        found = GapCertificates(stages.profile.state_dir).open()
    except OffsetError as error:
        yield PreflightCheck.warning("gaps", error.problem, error.advice())
        return
    if found:
        spans = "; ".join(f"from {gap.begin.lsn} to {gap.end.lsn} ({gap.code})" for gap in found)
        remedies = (each.remedy for each in others if each.name == "start" and each.remedy)
        yield PreflightCheck.warning(
            "gaps",
            f"changes may be missing at the sink: {spans}",
            next(
                remedies, "`waltap repair FILE` reads the tables again and closes the certificates"
            ),
        )


def _of_patterns(stages: PipelineStages, connector: Connector) -> Iterator[PreflightCheck]:
    """Yield the patterns of tables and columns that match nothing."""
    idle = _unmatched(stages, connector)
    if masks := [each for each in idle if each.masks]:
        problem = f"no column fits {_listed(masks)}: values would be delivered unmasked"
        check = PreflightCheck.failed("masks", MaskUnmatched(problem))
        yield check if stages.profile.capture.unmatched_masks == "fail" else check.as_warning()
    if others := [each for each in idle if not each.masks]:
        yield PreflightCheck.warning(
            "name patterns",
            f"nothing that there is fits {_listed(others)}",
            "Correct them, or take them out: a pattern fits schema.table, "
            "schema.table.column, or a topic, as a whole",
        )


def _unmatched(stages: PipelineStages, connector: Connector) -> list[UnmatchedPattern]:
    columns: list[object] = []

    def names() -> CatalogNames:
        known = connector.column_names() if isinstance(connector, ColumnListingSource) else ()
        columns.extend(known)
        capture = stages.capture
        tables = dict.fromkeys((each[0], each[1]) for each in known if capture.captures(*each[:2]))
        topics = [capture.topic(*table) for table in tables]
        if topics:
            own = capture.heartbeat_topic, capture.transaction_topic, capture.message_topic
            topics += [*own, capture.properties.notification_topic or ""]
        raw = dict.fromkeys(name for table in tables for name in capture.unrenamed(*table))
        return CatalogNames(known, topics, raw)

    found = list(unmatched(stages.profile, names))
    return found if columns else []  # nothing is known, or nothing is there yet


def _listed(patterns: list[UnmatchedPattern]) -> str:
    more = f", and {len(patterns) - NAMED} more" if len(patterns) > NAMED else ""
    return ", ".join(map(str, patterns[:NAMED])) + more


def _of_guardrail(stages: PipelineStages, connector: Connector) -> Iterator[PreflightCheck]:
    """Check the number of captured tables against the profile's limit."""
    capture = stages.profile.capture
    most = capture.guardrail_max
    if not most:
        return
    number = len(tables_of(connector).captured_tables())
    if number <= most:
        yield PreflightCheck.ok("guardrail", f"{number} of {most} tables")
        return
    yield PreflightCheck(
        name="guardrail",
        verdict="error" if capture.guardrail_action == "fail" else "warning",
        found=f"{number} tables are captured, and guardrail.collections.max is {most}",
        remedy="name fewer tables in table.include.list, or raise guardrail.collections.max",
    )


def _of_sink(stages: PipelineStages) -> list[PreflightCheck]:
    name = f"sink {stages.profile.sink.spec.name}"
    try:
        return checks_of(stages.sink)
    except BaseException as error:  # noqa: BLE001 - the other checks are worth their answers
        return [_blamed(name, stages.host, error)]


def _of_branch(stages: PipelineStages, branch: SinkBranch) -> Iterator[PreflightCheck]:
    """Check that sink and format support everything that the profile asks for."""
    form, made = branch.format_component.spec, branch.format
    sink = branch.component.spec.name
    if not (branch.sink.capabilities.truncate or "t" in stages.capture.skipped):
        yield PreflightCheck.warning(
            f"sink {sink}",
            "it does not apply truncates: rows that a TRUNCATE removes stay at the destination",
            "skipped.operations=t says that this is meant",
        )
    if made is not None and not made.text and branch.sink.capabilities.json_only:
        problem = f"the sink {sink} holds JSON, and the format is {form.name}"
        yield PreflightCheck.failed("format", FormatUnfit(problem))
    takes_changes = f"the sink {sink} takes the changes themselves"
    if branch.chain.events and not (branch.renders and form.takes_events):
        name = branch.chain.events[0][0]
        why = f"the format {form.name} makes no events" if branch.renders else takes_changes
        unfit = EventTransformUnfit(f"{name} transforms events, and {why}", transform=name)
        yield PreflightCheck.failed("transforms", unfit)
    if branch.chain.records and not (branch.renders and form.takes_record_transforms):
        label, why = branch.chain.records[0].label, takes_changes
        if branch.renders:
            why = f"the format {form.name} makes its records in its own way"
        problem = f"{label} transforms records, and {why}"
        yield PreflightCheck.failed("transforms", RecordTransformUnfit(problem, transform=label))
    if stages.conversions.converters and not branch.renders:
        label = stages.conversions.converters[0][0]
        problem = f"{label} converts columns of records, and {takes_changes}"
        yield PreflightCheck.failed("converters", ConverterUnfit(problem, converter=label))


def _of_notifications(stages: PipelineStages) -> Iterator[PreflightCheck]:
    """Check that the sink takes records, if notifications should be among them."""
    profile = stages.profile
    if stages.formats or not profile.capture.notification_topic:
        return
    if SINK in map(str.casefold, profile.engine.notification_channels):
        yield PreflightCheck(
            name="notifications",
            verdict="error",
            found=f"notification.enabled.channels names sink, and the sink {profile.sink.spec.name} "
            "takes the changes themselves: it has no records for notifications to be among",
            remedy="take sink out of notification.enabled.channels; log is another channel",
        )


def _of_libraries(profile: Profile) -> Iterator[PreflightCheck]:
    """Check the libraries that a run alone imports."""
    wanted = profile.engine
    channels = {each.spec.name for each in profile.notification_channels}
    for extra, is_used, library in (
        ("webhook", "webhook" in channels, "httpx"),
        ("monitor", wanted.http, "prometheus_client"),
        ("otel", wanted.otel_endpoint, "opentelemetry.exporter.otlp.proto.http"),
        ("openlineage", wanted.lineage_to, "openlineage.client"),
    ):
        try:
            if is_used:
                with needing(f"the profile needs {library}", extra=extra):
                    import_module(library)
        except LibraryMissing as error:
            yield PreflightCheck.failed(extra, error)


def _delivered_to_another(
    stages: PipelineStages, offset: Offset | None
) -> Iterator[PreflightCheck]:
    """Warn that changes up to the offset went to another sink."""
    if offset is None or offset.snapshot is not None:
        return
    if offset.sink in {"", stages.destination}:
        return
    with suppress(SinkError):  # another check reports it
        if offset.sink_identity and offset.sink_identity == identity_of(stages.sink):
            return  # it was moved
    yield PreflightCheck.warning(
        f"sink {stages.profile.sink.spec.name}",
        f"changes up to the stored offset went to {offset.sink}; {stages.destination} gets only the "
        "changes after it",
        "to fill it, run once with snapshot.mode=always",
    )


def _of_plugins(
    stages: PipelineStages, connector: Connector, offset: Offset | None
) -> list[PreflightCheck]:
    found: list[PreflightCheck] = []
    context = CheckContext(profile=stages.profile, connector=connector, offset=offset)
    for spec in stages.host.checks.values():
        try:
            given = usable(spec.factory(context), list, spec.factory)
            found += [usable(each, PreflightCheck, spec.factory) for each in given]
        except BaseException as error:  # noqa: BLE001 - the other checks are worth their answers
            found.append(_blamed(spec.name, stages.host, error))
    return found


def _blamed(name: str, host: Host, error: BaseException) -> PreflightCheck:
    if interrupts(error):
        raise error
    blamed = host.blamed(error)
    if isinstance(blamed, WaltapError):
        return PreflightCheck.failed(name, blamed)
    return PreflightCheck(name=name, verdict="error", found=in_brief(error))


def slot_owners(profile: Profile, connector: Connector, own: OffsetStore) -> dict[str, str]:
    """Return slot → pipeline, from the offsets in the profile's state folder.

    A running pipeline without an offset owns the slot that it is making. Unreadable files are ignored.
    Call this after the slots were listed: a pipeline that starts in between has a slot that is not in the
    list.
    """
    folder, system = profile.engine.state_dir, connector.server.system_id
    owners: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{OWNED_OBJECTS}")):
        if not path.with_name(OFFSET).exists() and running(path.parent) is not None:
            with suppress(OffsetError):
                for entry in OwnedObjects(path).all():
                    if (entry.kind, entry.system_id) == ("slot", system):
                        owners[entry.name] = path.parent.name
    stores = {
        path.parent.name: FileOffsetStore(path) for path in sorted(folder.glob(f"*/{OFFSET}"))
    }
    for name, store in {**stores, profile.name: own}.items():
        with suppress(OffsetError):
            offset = store.load()
            for each in () if offset is None else offset.partitions.values():
                if each.system_id == system:
                    owners[each.slot] = name
    return owners


def orphan_slots(profile: Profile, connector: Connector, own: OffsetStore) -> list[SlotStatus]:
    """Return slots without a reader and without a stored offset.

    The checks of a start report one of the profile's own name. Raises: SourceError.
    """
    if not isinstance(connector, SlotOwningSource):
        return []
    slots, mine = connector.slots(), connector.slot()
    owners = slot_owners(profile, connector, own)
    return [
        slot
        for slot in slots
        if not (slot.reader or slot.name in owners or (mine and slot.name == mine.name))
    ]
