"""Profiles whose stream is recorded, and profiles that run a recording."""

from dataclasses import replace
from pathlib import Path

from waltap.config.profile import Component, Profile
from waltap.host import Host
from waltap.recording.connector import Recording, RecordingConnector, RecordingProperties
from waltap.recording.file import RecordingWriter
from waltap.recording.recorder import recorded
from waltap.specs import ConnectorSpec, DecoderSpec

__all__ = ["RECORDING", "recording", "replaying"]

RECORDING = ConnectorSpec(
    name="recording",
    summary="A stream that `waltap record` kept, in the place of a server.",
    properties=RecordingProperties,
    factory=RecordingConnector,
)


def recording(profile: Profile, writer: RecordingWriter, identifier: str) -> Profile:
    """Return ``profile`` with a decoder that records into ``writer``."""
    decoder = profile.decoder
    spec = recorded(decoder.spec, writer, identifier)
    return replace(profile, decoder=Component(spec, decoder.properties))


def replaying(profile: Profile, made: Recording, host: Host, state_dir: Path) -> Profile:
    """Return ``profile`` with a recording for its server. Raises: SpecMissing of the decoder."""
    decoder: DecoderSpec = host.find(DecoderSpec, made.header.decoder)
    properties = RecordingProperties.model_validate({"recording.path": str(made.path)})
    return replace(
        profile,
        connector=Component(RECORDING, properties),
        decoder=Component(decoder),
        engine=profile.engine.model_copy(update={"state_dir": state_dir, "standby": False}),
    )
