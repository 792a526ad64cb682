"""Channels of signals and of notifications, and offset stores, with one planted fault each: their suites find
every one. All are small files that are right without the fault.
"""

import json
import os
import time
from pathlib import Path

import msgspec
from tests.conformance.test_channels_conform import rig_of_a_file
from tests.harness.http_receiver import notification_of
from tests.harness.planted_faults import Faults, FindsFaults

from waltap.changes.transactions.transaction import Notification
from waltap.errors import OffsetError
from waltap.ports.offsets.offset import Offset, OffsetStore, PartitionOffset, decoded, encoded
from waltap.ports.signals.signal import Signal, SignalUnusable
from waltap.ports.specs import (
    NotificationChannelSpec,
    OffsetStoreSpec,
    SignalActionSpec,
    SignalChannelSpec,
)
from waltap_testing.notification_channel_suite import (
    NotificationChannelRig,
    NotificationChannelSuite,
)
from waltap_testing.offset_store_suite import OffsetStoreRig, OffsetStoreSuite
from waltap_testing.signal_action_suite import SignalActionRig, SignalActionSuite
from waltap_testing.signal_channel_suite import SignalChannelSuite

# --- signals ---

SIGNALS = Faults()


@SIGNALS.right
class FileSignals:
    """One JSON object per line; the file is emptied when it was read. Right as it is."""

    def __init__(self, path):
        self.path = Path(path)

    def poll(self):
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        self.path.write_text("")
        return [signal for signal in map(self.parse, lines) if signal is not None]

    def parse(self, line):
        try:
            item = json.loads(line)
            return Signal(item["id"], item["type"], json.dumps(item["data"]))
        except (ValueError, KeyError, TypeError):
            return None

    def close(self):
        pass


@SIGNALS.found_by("test_a_signal_arrives_once")
class HandsOldSignalsToTheNextRun(FileSignals):
    def __init__(self, path):
        super().__init__(path)
        self.read = 0

    def poll(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        new, self.read = lines[self.read :], len(lines)
        return [signal for signal in map(self.parse, new) if signal is not None]


@SIGNALS.found_by("test_what_is_no_signal_is_left_out", ValueError)
class StopsAtNonsense(FileSignals):
    def parse(self, line):
        item = json.loads(line)
        return Signal(item["id"], item["type"], json.dumps(item["data"]))


@SIGNALS.found_by("test_a_signal_sent_before_the_start_is_not_lost")
class ForgetsWhatWaited(FileSignals):
    def __init__(self, path):
        super().__init__(path)
        self.path.write_text("")


@SIGNALS.found_by("test_no_signal_is_an_empty_list_at_once")
class WaitsForASignal(FileSignals):
    def poll(self):
        found = super().poll()
        if not found:
            time.sleep(1.2)
        return found


@SIGNALS.found_by("test_signals_arrive_whole_and_in_order")
class TurnsTheOrderAround(FileSignals):
    def poll(self):
        return list(reversed(super().poll()))


@SIGNALS.found_by("test_signals_with_one_id_all_arrive")
class TakesAnIdForTheSignal(FileSignals):
    def __init__(self, path):
        super().__init__(path)
        self.seen = set()

    def poll(self):
        new = [signal for signal in super().poll() if signal.identifier not in self.seen]
        self.seen |= {signal.identifier for signal in new}
        return new


@SIGNALS.found_by("test_the_rest_comes_in_the_next_run")
class KeepsTheRestInMemory(FileSignals):
    rest = ()

    def poll(self):
        self.rest = [*self.rest, *super().poll()]
        first, self.rest = self.rest[:1], self.rest[1:]
        return first


@SIGNALS.found_by("test_no_signal_is_an_empty_list_at_once")
class WaitsForMore(FileSignals):
    found = False

    def poll(self):
        signals = super().poll()
        if self.found and not signals:
            time.sleep(1.2)
        self.found = self.found or bool(signals)
        return signals


class TestPlantedSignalChannels(FindsFaults):
    suite = SignalChannelSuite
    faults = SIGNALS

    def rig(self, plugin, folder):
        path = folder / "signals"
        spec = SignalChannelSpec(name="file", summary="A file.", factory=plugin)
        return rig_of_a_file(spec, path, path)


# --- actions ---

ACTIONS = Faults()


@ACTIONS.right
def marks(call):
    """Notify with the label. Right as it is."""
    label = call.arguments.get("label")
    if not isinstance(label, str):
        raise SignalUnusable("label must be a text")
    call.notify("MARKED", label=label)


@ACTIONS.found_by("test_odd_data_is_acted_on_or_left_out_with_a_reason")
def passes_on_what_came(call):
    for member in call.arguments.values():
        call.notify("MARKED", label=member)


@ACTIONS.found_by("test_odd_data_is_acted_on_or_left_out_with_a_reason")
def gives_no_reason(call):
    if not isinstance(call.arguments.get("label"), str):
        raise SignalUnusable


@ACTIONS.found_by("test_odd_data_is_acted_on_or_left_out_with_a_reason")
def waits_for_what_is_large(call):
    if len(str(call.arguments)) > 1000:
        time.sleep(1.1)


class TestPlantedActions(FindsFaults):
    suite = SignalActionSuite
    faults = ACTIONS

    def rig(self, plugin, _folder):
        spec = SignalActionSpec(name="mark", summary="Marks.", factory=plugin)
        return SignalActionRig(spec, arguments={"label": "x"})


# --- notifications ---

NOTIFICATIONS = Faults()


@NOTIFICATIONS.right
class FileNotifications:
    """One JSON object per line. Right as it is."""

    mode = "a"

    def __init__(self, path):
        self.file = Path(path).open(self.mode)

    def send(self, notification):
        item = {
            "id": notification.identifier,
            "aggregate_type": notification.aggregate_type,
            "type": notification.kind,
            "additional_data": notification.additional_data,
            "timestamp": notification.timestamp,
        }
        self.file.write(json.dumps(item) + "\n")

    def close(self):
        self.file.close()


@NOTIFICATIONS.found_by("test_a_later_channel_adds")
class OverwritesTheLastRun(FileNotifications):
    mode = "w"


@NOTIFICATIONS.found_by("test_notifications_arrive_whole_and_in_order")
class DropsAdditionalData(FileNotifications):
    def send(self, notification):
        super().send(
            Notification(
                identifier=notification.identifier,
                aggregate_type=notification.aggregate_type,
                kind=notification.kind,
                timestamp=notification.timestamp,
            )
        )


@NOTIFICATIONS.found_by("test_nothing_arrives_unsent")
class SaysHello(FileNotifications):
    def __init__(self, path):
        super().__init__(path)
        self.send(Notification(identifier="0", aggregate_type="Channel", kind="OPENED"))


@NOTIFICATIONS.found_by("test_many_notifications_arrive")
class LosesWhatIsMuch(FileNotifications):
    def __init__(self, path):
        super().__init__(path)
        self.left = 500

    def send(self, notification):
        self.left -= 1
        if self.left >= 0:
            super().send(notification)


@NOTIFICATIONS.found_by("test_close_may_be_called_twice", ValueError)
class ClosesOnlyOnce(FileNotifications):
    def close(self):
        if self.file.closed:
            raise ValueError("closed already")
        super().close()


@NOTIFICATIONS.found_by("test_notifications_arrive_whole_and_in_order")
class ChangesWhatItWasGiven(FileNotifications):
    def send(self, notification):
        super().send(notification)
        (notification.additional_data or {}).pop("connector_name", None)


class TestPlantedNotificationChannels(FindsFaults):
    suite = NotificationChannelSuite
    faults = NOTIFICATIONS

    def rig(self, plugin, folder):
        path = folder / "notifications"

        def read():
            lines = path.read_text().splitlines() if path.exists() else ()
            return [notification_of(json.loads(line)) for line in lines]

        spec = NotificationChannelSpec(name="file", summary="A file.", factory=plugin)
        return NotificationChannelRig(spec, path, read)


# --- offset stores ---

STORES = Faults()


class Unreadable(OffsetError):
    """It is no offset."""

    code = "WT-6900"


@STORES.right
class OneFile(OffsetStore):
    """One file, replaced atomically. Right as it is."""

    def __init__(self, _properties, home):
        self.path = Path(home) / "offset"

    def load(self):
        try:
            return self.parse(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def parse(self, data):
        try:
            return decoded(data)
        except ValueError as cause:
            raise Unreadable("damaged") from cause

    def store(self, offset):
        new = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.put(new, encoded(offset))
            new.replace(self.path)
        except OSError as cause:
            raise Unreadable("not stored") from cause

    def put(self, path, data):
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def clear(self):
        self.path.unlink(missing_ok=True)


@STORES.found_by("test_a_kill_at_any_step_leaves_the_old_or_the_new", OffsetError)
@STORES.found_by("test_a_reader_beside_the_writer_sees_whole_offsets", OffsetError)
@STORES.found_by("test_a_full_disk_is_an_error_and_keeps_the_old", OffsetError)
class WritesInPlace(OneFile):
    def store(self, offset):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.put(self.path, encoded(offset))
        except OSError as cause:
            raise Unreadable("not stored") from cause


@STORES.found_by("test_a_kill_at_any_step_leaves_the_old_or_the_new")
class RemovesFirst(OneFile):
    def store(self, offset):
        self.path.unlink(missing_ok=True)
        super().store(offset)


@STORES.found_by("test_a_torn_file_is_refused")
@STORES.found_by("test_a_newer_version_is_refused")
class ReadsDamageAsNothing(OneFile):
    def parse(self, data):
        try:
            return super().parse(data)
        except Unreadable:
            return None


@STORES.found_by("test_a_damaged_file_is_refused_or_read", msgspec.DecodeError)
class LeaksDecodingErrors(OneFile):
    def parse(self, data):
        return msgspec.json.decode(data, type=Offset)


@STORES.found_by("test_the_next_run_finds_it")
class ReturnsBeforeItIsStored(OneFile):
    """Keeps the offset in memory and writes it with the next one."""

    waiting = None

    def store(self, offset):
        if self.waiting is not None:
            super().store(self.waiting)
        self.waiting = offset

    def load(self):
        return self.waiting or super().load()


@STORES.found_by("test_what_is_stored_is_loaded")
class LosesTheIndexInTheTransaction(OneFile):
    def store(self, offset):
        position = msgspec.structs.replace(offset.sole.position, commit_lsn=0, index=0)
        super().store(offset.with_sole(position=position))


@STORES.found_by("test_what_is_stored_is_loaded")
class KeepsTheFirstPartitionOnly(OneFile):
    def store(self, offset):
        first = dict(list(offset.partitions.items())[:1])
        super().store(msgspec.structs.replace(offset, partitions=first))


def losing(kind, field):
    """Return a store that stores a field of the offset, or of its partitions, as its default."""

    def without(struct):
        return msgspec.structs.replace(struct, **{field.name: field.default})

    def store(self, offset):
        if kind is PartitionOffset:
            parts = {name: without(part) for name, part in offset.partitions.items()}
            offset = msgspec.structs.replace(offset, partitions=parts)
        OneFile.store(self, without(offset) if kind is Offset else offset)

    return store


for _kind in (Offset, PartitionOffset):
    for _field in msgspec.structs.fields(_kind):
        if _field.default is not msgspec.NODEFAULT and _field.name != "version":
            STORES.plant(
                f"Loses_{_field.name}",
                "test_what_is_stored_is_loaded",
                store=losing(_kind, _field),
            )


@STORES.found_by("test_what_another_process_stored_is_loaded")
class ReadsOnlyOnce(OneFile):
    known = None

    def load(self):
        self.known = self.known or super().load()
        return self.known

    def store(self, offset):
        super().store(offset)
        self.known = offset

    def clear(self):
        super().clear()
        self.known = None


@STORES.found_by("test_what_another_process_stored_is_loaded")
class StoresOnlyWhatIsNew(OneFile):
    known = None

    def store(self, offset):
        if offset != self.known:
            super().store(offset)
        self.known = offset


@STORES.found_by("test_a_kill_at_any_step_leaves_the_old_or_the_new")
class KeepsWhatItsProcessStored(OneFile):
    known = {}

    def load(self):
        if self.path not in self.known:
            self.known[self.path] = super().load()
        return self.known[self.path]

    def store(self, offset):
        super().store(offset)
        self.known[self.path] = offset


@STORES.found_by("test_clear_forgets", OSError)
class ClearsOnlyWhatIsThere(OneFile):
    def clear(self):
        self.path.unlink()


@STORES.found_by("test_pipelines_keep_apart")
class SharesOneFile(OneFile):
    def __init__(self, _properties, home):
        super().__init__(None, Path(home).parents[0] if "another" in home else home)


@STORES.found_by("test_an_offset_replaces_all_of_the_one_before")
class MergesWithTheOldOne(OneFile):
    """Keeps what the new offset leaves at its default."""

    def store(self, offset):
        try:
            old = self.load()
        except OffsetError:
            old = None
        if old is not None and offset.snapshot is None:
            offset = msgspec.structs.replace(offset, snapshot=old.snapshot)
        super().store(offset)


class TestPlantedOffsetStores(FindsFaults):
    suite = OffsetStoreSuite
    faults = STORES

    def fixtures(self, plugin, folder):
        spec = OffsetStoreSpec(name="one-file", summary="One file.", factory=plugin)

        def make(folder):
            return OffsetStoreRig(spec, None, folder, path=folder / "offset")

        return {"new_rig": lambda: make, "rig": lambda: make(folder)}
