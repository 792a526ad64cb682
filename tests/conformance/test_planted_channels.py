"""Channels of signals and of notifications, and offset stores, with one planted fault each: their suites find
every one. All are small files that are right without the fault.
"""

import contextlib
import json
import os
import sqlite3
import time  # noqa: F401 - what is planted waits
from pathlib import Path

import msgspec
from tests.conformance.test_channels_conform import rig_of_a_file
from tests.harness.http_receiver import notification_of
from tests.harness.json_lines import records
from tests.harness.planted_faults import Faults, FindsFaults

from waltap.errors import OffsetError
from waltap.ports.offsets.offset import Offset, OffsetStore, PartitionOffset, decoded, encoded
from waltap.ports.signals.signal import Signal, SignalUnusable
from waltap.ports.specs import (
    NotificationChannelSpec,
    OffsetStoreSpec,
    SignalActionSpec,
    SignalChannelSpec,
)
from waltap_testing.suites.notification_channel import (
    NotificationChannelRig,
    NotificationChannelSuite,
)
from waltap_testing.suites.offset_store import OffsetStoreRig, OffsetStoreSuite
from waltap_testing.suites.signal import SignalActionRig, SignalActionSuite, SignalChannelSuite

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


LINES = 'lines = self.path.read_text().splitlines()\n        self.path.write_text("")'
SIGNALS.edit(
    FileSignals,
    ("HandsOldSignalsToTheNextRun", "test_a_signal_arrives_once", LINES, "every = self.path.read_text().splitlines()\n        lines, self.read = every[getattr(self, 'read', 0) :], len(every)"),
    ("StopsAtNonsense", "test_what_is_no_signal_is_left_out", "return None", "raise", ValueError),
    ("ForgetsWhatWaited", "test_a_signal_sent_before_the_start_is_not_lost", "self.path = Path(path)", "self.path = Path(path)\n        self.path.write_text('')"),
    ("WaitsForASignal", "test_no_signal_is_an_empty_list_at_once", "if not self.path.exists():", "if not self.path.exists() or not self.path.read_text():\n            time.sleep(1.2)"),
    ("WaitsForMore", "test_no_signal_is_an_empty_list_at_once", LINES, f"{LINES}\n        self.found = lines or self.__dict__.get('found')\n        time.sleep(0 if lines or not self.found else 1.2)"),
    ("TurnsTheOrderAround", "test_signals_arrive_whole_and_in_order", "map(self.parse, lines)", "map(self.parse, lines[::-1])"),
    ("TakesAnIdForTheSignal", "test_signals_with_one_id_all_arrive", "[signal for signal in map(self.parse, lines) if signal is not None]", "list({signal.identifier: signal for signal in map(self.parse, lines) if signal}.values())"),
    ("KeepsTheRestInMemory", "test_the_rest_comes_in_the_next_run", LINES, "self.rest = [*getattr(self, 'rest', ()), *self.path.read_text().splitlines()]\n        self.path.write_text('')\n        lines, self.rest = self.rest[:1], self.rest[1:]"),
)  # fmt: skip


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


ODD = "test_odd_data_is_acted_on_or_left_out_with_a_reason"
LABEL = 'label = call.arguments.get("label")'
ACTIONS.edit(
    marks,
    ("passes_on_what_came", ODD, "if not isinstance(label, str):", "if False:"),
    ("gives_no_reason", ODD, 'SignalUnusable("label must be a text")', "SignalUnusable"),
    ("waits_for_what_is_large", ODD, LABEL, f"{LABEL}\n    if len(str(call.arguments)) > 1000:\n        time.sleep(1.1)"),
)  # fmt: skip


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

    def __init__(self, path):
        self.file = Path(path).open("a")

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


ARRIVE = "test_notifications_arrive_whole_and_in_order"
SENT = 'self.file.write(json.dumps(item) + "\\n")'
NOTIFICATIONS.edit(
    FileNotifications,
    ("OverwritesTheLastRun", "test_a_later_channel_adds", 'open("a")', 'open("w")'),
    ("DropsAdditionalData", ARRIVE, "notification.additional_data,", "None,"),
    ("SaysHello", "test_nothing_arrives_unsent", 'open("a")', 'open("a")\n        self.file.write(\'{"id":"0","aggregate_type":"Channel","type":"OPENED","additional_data":null,"timestamp":0}\\n\')'),
    ("LosesWhatIsMuch", "test_many_notifications_arrive", SENT, f"_ = self.file.tell() > 30_000 or {SENT}"),
    ("ClosesOnlyOnce", "test_close_may_be_called_twice", "self.file.close()", "self.file.flush()\n        self.file.close()", ValueError),
    ("ChangesWhatItWasGiven", ARRIVE, SENT, f"{SENT}\n        (notification.additional_data or {{}}).pop('connector_name', None)"),
)  # fmt: skip


class TestPlantedNotificationChannels(FindsFaults):
    suite = NotificationChannelSuite
    faults = NOTIFICATIONS

    def rig(self, plugin, folder):
        path = folder / "notifications"

        def read():
            return [notification_of(each) for each in records(path)]

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


KILLED = "test_a_kill_at_any_step_leaves_the_old_or_the_new"
STORED = "test_what_is_stored_is_loaded"
TRY = "def store(self, offset):"
READ = "self.parse(self.path.read_bytes())"
IN_PLACE = ('self.path.with_suffix(".new")', "self.path")
DAMAGE = ('raise Unreadable("damaged") from cause', "return None")
STORES.edit(
    OneFile,
    ("WritesInPlace", KILLED, *IN_PLACE, OffsetError),
    ("WritesInPlace", "test_a_reader_beside_the_writer_sees_whole_offsets", *IN_PLACE, OffsetError),
    ("WritesInPlace", "test_a_full_disk_is_an_error_and_keeps_the_old", *IN_PLACE, OffsetError),
    ("RemovesFirst", KILLED, TRY, f"{TRY}\n        self.path.unlink(missing_ok=True)"),
    ("ReadsDamageAsNothing", "test_a_torn_file_is_refused", *DAMAGE),
    ("ReadsDamageAsNothing", "test_a_newer_version_is_refused", *DAMAGE),
    ("LeaksDecodingErrors", "test_a_damaged_file_is_refused_or_read", "decoded(data)\n        except ValueError", "msgspec.json.decode(data, type=Offset)\n        except ZeroDivisionError", ValueError),
    ("LosesTheIndexInTheTransaction", STORED, "encoded(offset)", "encoded(offset.with_sole(position=msgspec.structs.replace(offset.sole.position, commit_lsn=0, index=0)))"),
    ("KeepsTheFirstPartitionOnly", STORED, "encoded(offset)", "encoded(msgspec.structs.replace(offset, partitions=dict(list(offset.partitions.items())[:1])))"),
    ("StoresOnlyWhatIsNew", "test_what_another_process_stored_is_loaded", TRY, f"{TRY}\n        if offset == getattr(self, 'known', None):\n            return\n        self.known = offset"),
    ("ReadsOnlyOnce", "test_what_another_process_stored_is_loaded", f"return {READ}", f"self.known = self.__dict__.get('known') or {READ}\n            return self.known"),
    ("StoresWithTheNextOne", "test_the_next_run_finds_it", TRY, f"{TRY}\n        offset, self.waiting = self.__dict__.get('waiting'), offset\n        if offset is None:\n            return"),
    ("MergesWithTheOldOne", "test_an_offset_replaces_all_of_the_one_before", "encoded(offset)", "encoded(offset if offset.snapshot else msgspec.structs.replace(offset, snapshot=getattr(self.load(), 'snapshot', None)))"),
    ("ClearsOnlyWhatIsThere", "test_clear_forgets", "missing_ok=True", "", OSError),
    ("SharesOneFile", "test_pipelines_keep_apart", "Path(home) /", "(Path(home).parents[0] if 'another' in home else Path(home)) /"),
)  # fmt: skip


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
            STORES.plant(f"Loses_{_field.name}", STORED, store=losing(_kind, _field))


@STORES.found_by(KILLED)
class KeepsWhatItsProcessStored(OneFile):
    known = {}

    def load(self):
        if self.path not in self.known:
            self.known[self.path] = super().load()
        return self.known[self.path]

    def store(self, offset):
        super().store(offset)
        self.known[self.path] = offset


@STORES.right
class OneRow(OneFile):
    """One row of SQLite, replaced in one transaction. Right as it is."""

    @contextlib.contextmanager
    def row(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self.path)) as link:
            link.execute("CREATE TABLE IF NOT EXISTS only (offset)")
            yield link

    def load(self):
        with self.row() as link:
            found = link.execute("SELECT offset FROM only").fetchone()
        return None if found is None else self.parse(found[0])

    def store(self, offset):
        with self.row() as link, link:
            link.execute("DELETE FROM only")
            link.execute("INSERT INTO only VALUES (?)", [encoded(offset)])


STORES.edit(OneRow, ("ForgetsBeforeItStores", KILLED, 'link.execute("DELETE FROM only")', 'link.execute("DELETE FROM only")\n            link.commit()'))  # fmt: skip


class TestPlantedOffsetStores(FindsFaults):
    suite = OffsetStoreSuite
    faults = STORES

    def fixtures(self, plugin, folder):
        spec = OffsetStoreSpec(name="one-file", summary="One file.", factory=plugin)

        def make(folder):
            return OffsetStoreRig(spec, None, folder, path=folder / "offset")

        return {"new_rig": lambda: make, "rig": lambda: make(folder)}
