"""The test kit for plugin authors: conformance suites and their tools.

pytest loads `waltap_testing.pytest_plugin` in every run where waltap is installed, so this module
imports nothing heavy. Import names from their modules:

- ``suites``: a class of tests for each kind of plugin, and the rig that an author provides.
- ``sinks``: the rig of the sink suite, its kills and losses.
- ``recording``: frames of output plugins with the messages they mean, as JSON lines.
- ``walsender``: a scripted server that speaks the replication protocol.
- ``simulation``: the real engine on a simulated clock, between a source and a sink in memory.
- ``workload``: hand-made transactions, and the batches an engine makes of them.
- ``crash``: processes that are killed at a chosen step.
- ``damage``: damaged bytes, the same in every run.
- ``limits``: the time and memory of a call.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap_testing.recording import StaticCatalogue, load_recordings
    from waltap_testing.sinks.rig import DeliveredChange, SinkRig
    from waltap_testing.suites.decoder import DecoderRig, DecoderSuite
    from waltap_testing.suites.format import FormatRig, FormatSuite
    from waltap_testing.suites.identity import IdentityRig, IdentitySuite
    from waltap_testing.suites.notification_channel import (
        NotificationChannelRig,
        NotificationChannelSuite,
    )
    from waltap_testing.suites.offset_store import OffsetStoreRig, OffsetStoreSuite
    from waltap_testing.suites.record_transform import (
        RecordTransformRig,
        RecordTransformSuite,
        every_record,
    )
    from waltap_testing.suites.signal import (
        SignalActionRig,
        SignalActionSuite,
        SignalChannelRig,
        SignalChannelSuite,
    )
    from waltap_testing.suites.sink import SinkSuite
    from waltap_testing.suites.snapshotter import SnapshotterRig, SnapshotterSuite
    from waltap_testing.suites.table_format import TableFormatRig, TableFormatSuite
    from waltap_testing.suites.transform import (
        EventTransformRig,
        EventTransformSuite,
        TransformRig,
        TransformSuite,
    )
    from waltap_testing.suites.type import TypeRig, TypeSuite
    from waltap_testing.workload import ScriptedWorkload

__all__ = [
    "DecoderRig",
    "DecoderSuite",
    "DeliveredChange",
    "EventTransformRig",
    "EventTransformSuite",
    "FormatRig",
    "FormatSuite",
    "IdentityRig",
    "IdentitySuite",
    "NotificationChannelRig",
    "NotificationChannelSuite",
    "OffsetStoreRig",
    "OffsetStoreSuite",
    "RecordTransformRig",
    "RecordTransformSuite",
    "ScriptedWorkload",
    "SignalActionRig",
    "SignalActionSuite",
    "SignalChannelRig",
    "SignalChannelSuite",
    "SinkRig",
    "SinkSuite",
    "SnapshotterRig",
    "SnapshotterSuite",
    "StaticCatalogue",
    "TableFormatRig",
    "TableFormatSuite",
    "TransformRig",
    "TransformSuite",
    "TypeRig",
    "TypeSuite",
    "every_record",
    "load_recordings",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
