"""Record the frames of a decoder, its questions and their answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from waltap.changes.decode.decoder import Decoder, DecoderContext, Frame
from waltap.changes.decode.message import (
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    StreamCommit,
    TransactionBlock,
)
from waltap.changes.decode.relation import Relation
from waltap.config.profile import Component, Profile
from waltap.plugins.host import Host
from waltap.ports.specs import ConnectorSpec, DecoderSpec
from waltap.services.recording.connector import RecordingHead
from waltap.services.recording.file import (
    OPTIONAL,
    AnsweredCatalogue,
    AnsweredNames,
    Entry,
    RecordedAnswer,
    RecordedFrames,
    RecordingHeader,
    RecordingMark,
    RecordingProperties,
    RecordingWriter,
    key_of,
    plain,
)
from waltap.version import VERSION


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


# Messages that end a transaction.
_ENDS = (Commit, CommitPrepared, StreamCommit, TransactionBlock)


def recorded(spec: DecoderSpec, writer: RecordingWriter, identifier: str) -> DecoderSpec:
    """Return ``spec`` with decoders that record into ``writer``.

    ``identifier`` identifies the recording.
    """

    def factory(context: DecoderContext) -> Decoder:
        header = RecordingHeader(
            identifier=identifier,
            version=VERSION,
            decoder=spec.name,
            options=dict(context.options),
            publications=tuple(context.publications),
            server=context.server,
            asks=tuple(n for n, field in OPTIONAL.items() if getattr(context, field) is not None),
        )
        section = _Section(writer, header, context.valid_until)
        return _RecordingDecoder(spec.factory(section.around(context)), section)

    return replace(spec, factory=factory)


class _Section:
    """Write the entries of one decoder, and the answers to its questions.

    A decoder that only a check makes writes nothing.
    """

    def __init__(
        self, writer: RecordingWriter, header: RecordingHeader, valid_until: dict[int, int]
    ) -> None:
        self._writer, self._header, self._begun = writer, header, False
        self._valid_until, self._known = valid_until, dict(valid_until)

    def begin(self) -> None:
        """Write the header, once."""
        if not self._begun:
            self._begun = True
            self._writer.put(self._header)

    def put(self, entry: Entry) -> None:
        self.begin()
        self._writer.put(entry)

    def around(self, context: DecoderContext) -> DecoderContext:
        noted: dict[str, Any] = {
            name: self.noting(name, getattr(context, name))
            for name in ("describe", "relation_at", "gone", "captures")
            if getattr(context, name) is not None
        }
        catalogue, names = context.catalogue, context.name_resolution
        if names is not None:
            noted["name_resolution"] = AnsweredNames(lambda q: self.noting(q, getattr(names, q)))
        noted["catalogue"] = AnsweredCatalogue(lambda q: self.noting(q, getattr(catalogue, q)))
        return replace(context, **noted)

    def noting(self, question: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            answer = ask(*arguments, **named)
            key = key_of([plain(each) for each in (*arguments, *named.values())])
            # An answer to ``of`` is an opaque object, so it is encoded to bytes first.
            value = key_of(key_of(answer) if question == "of" else answer)
            # The engine's answer may change this shared dictionary as a side effect.
            valid_until = None
            if self._valid_until != self._known:
                valid_until = self._known = dict(self._valid_until)
            self.put(RecordedAnswer(question, key, value, valid_until))
            return answer

        return asked


class _RecordingDecoder(Decoder):
    """Record frames before the decoder reads them."""

    def __init__(self, decoder: Decoder, section: _Section) -> None:
        self._decoder, self._section = decoder, section
        self.name, self.capabilities = decoder.name, decoder.capabilities

    def start_options(self) -> dict[str, str]:
        self._section.begin()
        return self._decoder.start_options()

    def prepare(self, relation: Relation) -> None:
        self._decoder.prepare(relation)

    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        self._section.put(RecordedFrames([(lsn, bytes(data)) for lsn, data in frames]))
        messages = self._decoder.feed(frames)
        # The mark has the last position that is complete. A message outside a transaction is
        # complete by itself.
        for message in reversed(messages):
            if isinstance(message, _ENDS):
                self._section.put(RecordingMark(message.end_lsn))
                break
            if isinstance(message, LogicalMessage) and not message.transactional:
                self._section.put(RecordingMark(message.lsn))
                break
        return messages
