"""Profiles whose stream is recorded, and profiles that run a recording."""

from dataclasses import replace
from pathlib import Path

from waltap.config.profile import Component, Profile
from waltap.host import Host
from waltap.recording.connector import RecordingHead
from waltap.recording.file import RecordingWriter
from waltap.recording.properties import RecordingProperties
from waltap.recording.recorder import recorded
from waltap.specs import ConnectorSpec, DecoderSpec

__all__ = ["recording", "replaying"]


def recording(profile: Profile, writer: RecordingWriter, identifier: str) -> Profile:
    """Return ``profile`` with a decoder that records into ``writer``."""
    decoder = profile.decoder
    spec = recorded(decoder.spec, writer, identifier)
    return replace(profile, decoder=Component(spec, decoder.properties))


def replaying(profile: Profile, made: RecordingHead, host: Host, state_dir: Path) -> Profile:
    """Return ``profile`` with a recording for its server. Raises: SpecMissing of the decoder."""
    decoder: DecoderSpec = host.find(DecoderSpec, made.header.decoder)
    properties = RecordingProperties.model_validate({"recording.path": str(made.path)})
    return replace(
        profile,
        connector=Component(host.find(ConnectorSpec, "recording"), properties),
        decoder=Component(decoder),
        engine=profile.engine.model_copy(update={"state_dir": state_dir, "standby": False}),
    )
