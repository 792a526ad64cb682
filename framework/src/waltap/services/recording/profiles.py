"""Make profiles that record a stream, or run a recording."""

from dataclasses import replace
from pathlib import Path

from waltap.config.profile import Component, Profile
from waltap.plugins.host import Host
from waltap.ports.specs import ConnectorSpec, DecoderSpec
from waltap.services.recording.connector import RecordingHead
from waltap.services.recording.file import RecordingWriter
from waltap.services.recording.properties import RecordingProperties
from waltap.services.recording.recorder import recorded


def recording(profile: Profile, writer: RecordingWriter, identifier: str) -> Profile:
    """Return ``profile`` with a decoder that records into ``writer``."""
    decoder = profile.decoder
    spec = recorded(decoder.spec, writer, identifier)
    return replace(profile, decoder=Component(spec, decoder.properties))


def replaying(profile: Profile, made: RecordingHead, host: Host, state_dir: Path) -> Profile:
    """Return ``profile`` with a recording instead of its server.

    Raises: SpecMissing if the recorded decoder is not installed.
    """
    decoder: DecoderSpec = host.find(DecoderSpec, made.header.decoder)
    properties = RecordingProperties.model_validate({"recording.path": str(made.path)})
    return replace(
        profile,
        connector=Component(host.find(ConnectorSpec, "recording"), properties),
        # The recording holds the decoder's options, so the profile's properties are not needed.
        decoder=Component(decoder),
        # A recording has no leader to wait for, and must not touch the pipeline's own state.
        engine=profile.engine.model_copy(update={"state_dir": state_dir, "standby": False}),
    )
