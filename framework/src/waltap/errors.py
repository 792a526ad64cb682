"""Define the families of waltap's errors: stable code, retry verdict and remedy.

    WaltapError                        WT-9000:  a bug of waltap
    ├── ConfigurationError             WT-1001:  a profile has problems, all of them listed
    ├── SystemRefused                  WT-1201:  the operating system refuses
    ├── PluginError                    WT-11xx:  a plugin cannot be used
    ├── SourceError                    WT-2xxx:  the database refuses, or is not set up
    │   └── ConnectionLost             WT-2001:  the link broke; reconnecting may help
    ├── RecordError                    WT-3002:  one event cannot be delivered; others can
    │   └── DecodeError                WT-3001:  bytes that the decoder does not expect
    ├── SnapshotError                  WT-4xxx:  the initial or a requested snapshot failed
    ├── SinkError                      WT-5xxx:  the destination refuses
    └── OffsetError                    WT-6xxx:  stored positions and the server do not agree

The first two digits of a code say more:

    1   configuration: 10 profiles, 11 plugins, 12 the operating system
    2   source: 20 server and connection, 21 slots, publications and tables
    3   events: 30 decoding, 31 transactions, 32 transforms, 33 formats
    4   snapshots: 40 reading, 41 signals, 42 notifications
    5   sinks: 50 all, 51 files and change log, 52 Spark, 53 Arrow values, 54 Kafka, 55 lakes and
        streams, 56 HTTP, 57 SQL, 58 pauses and refused records
    6   offsets: 60 stored state, 61 the server's position, 62 control and several sinks,
        63 Debezium's offsets, 64 gaps
    9   bugs of waltap

Codes with a 9 as second digit (WT-29xx) are for plugins outside of waltap, and for the demo.
"""

import enum
import errno
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

# Remedies by error number, for refusals of the operating system.
#
# The class of an error says which operation failed, but the remedy depends on the system's reason
# more often: a process without free file descriptors needs no other folder.

ADVICE = {
    errno.EMFILE: "Let the process open more files: `ulimit -n 4096` in the shell that starts it, "
    "LimitNOFILE=4096 in its systemd unit.",
    errno.ENFILE: "The machine has no file descriptor left: raise fs.file-max (sysctl), or end what "
    "holds so many (`lsof | wc -l`).",
    errno.ENOMEM: "The machine has no memory left for this: give the process more, or end others.",
    errno.EROFS: "This filesystem is mounted read-only: mount it for writing, or choose another path.",
    errno.EDQUOT: "The disk quota of this user is used up: make room, or have it raised.",
    errno.ENAMETOOLONG: "Choose a shorter name: a file system takes 255 bytes for each part of a path.",
    errno.ENOSPC: "Make room on the disk.",
    errno.EACCES: "Give this user the right to read and write there, or choose another path.",
}
STRONGER = frozenset(ADVICE) - {errno.ENOSPC, errno.EACCES}
"""Reasons that the remedies of error classes omit; they do mention room and rights."""


def system_advice(error: BaseException | None, *, all_known: bool = False) -> str | None:
    """Return the remedy for the operating system's refusal, None for other errors.

    The refusal is ``error`` or one of its causes. ``all_known`` includes the errors whose class already
    gives such a remedy.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # some libraries raise an error from itself
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and number in (ADVICE if all_known else STRONGER):
            return ADVICE[number]
        error = error.__cause__
    return None


COMMAND_LINE = "the command line"
"""Origin of a `ConfigurationError` about arguments and options instead of a profile."""

NOT_UTF8 = (
    "The database holds text that is not UTF-8, as one with the encoding SQL_ASCII may. If it "
    "is LATIN1, for example, convert it: UPDATE … SET c = convert_from(convert(convert_to(c, "
    "'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII'). The WAL still has the bytes; to continue "
    "after them with a new snapshot: `waltap offsets clear FILE`, `waltap slot drop FILE`, and "
    "start again."
)
"""Remedy for text that cannot be decoded."""


class RetryVerdict(enum.Enum):
    """The engine's options after an error."""

    NEVER = "never"
    RECONNECT = "reconnect"
    SAME_BATCH = "same batch"


class _ErrorText(NamedTuple):
    """A text in ``errors.toml`` that is read at first use."""

    package: str
    code: str
    column: str

    def __get__(self, error: object, kind: type) -> str:
        try:
            return error_texts(self.package)[self.code][self.column]
        except (OSError, LookupError, TypeError, ValueError, ImportError):
            # The table cannot be read, lacks the row, or the plugin is one module without tables.
            return f"The documentation of {self.package} has the remedy of {self.code}."


@cache
def error_texts(package: str) -> dict[str, dict[str, str]]:
    """Return the rows of a distribution's ``errors.toml`` by code."""
    from importlib.resources import files
    from tomllib import loads

    return loads(files(package).joinpath("errors.toml").read_text(encoding="utf-8"))


class WaltapError(Exception):
    """Base of all waltap errors; subclasses set ``code``, ``retry``, ``remedy``.

    ``fields`` fill the remedy and are logged; they never contain a row value or a secret.
    """

    code: ClassVar[str] = "WT-9000"
    # Without a verdict of its own an error ends the run.
    # A pause of a sink gives an error its own verdict.
    retry: RetryVerdict = RetryVerdict.NEVER
    remedy: ClassVar[str] = "This is a bug in waltap: please report it with the lines above."
    loses: ClassVar[bool] = False
    """Whether the source no longer has the changes: a gap (`waltap.ports.offsets.gaps`)."""

    def __init__(self, problem: str, **fields: object) -> None:
        super().__init__(problem)
        self.problem, self.fields = problem, fields

    @classmethod
    def define(
        cls,
        name: str,
        code: str,
        *,
        retry: RetryVerdict | None = None,
        loses: bool | None = None,
        of_conversion: bool | None = None,
        of_transform: bool | None = None,
    ) -> type[Self]:
        """Return the error ``name`` of this kind, a row of ``errors.toml``.

        The table is in the top-level package of the caller.

        An attribute that is not given is the kind's. Write a class instead for an error with a
        constructor or methods of its own.
        """
        given = {
            "retry": retry,
            "loses": loses,
            "of_conversion": of_conversion,
            "of_transform": of_transform,
        }
        # The page of errors and pickle look for an error in the module that defines it.
        module = sys._getframe(1).f_globals["__name__"]  # noqa: SLF001 - as in namedtuple
        row = module.partition(".")[0], code
        about = {
            "__module__": module,
            "__doc__": _ErrorText(*row, "summary"),
            "code": code,
            "remedy": _ErrorText(*row, "remedy"),
        }
        return type(name, (cls,), about | {k: v for k, v in given.items() if v is not None})

    @classmethod
    def family(cls) -> Iterator[type["WaltapError"]]:
        """Yield this class and the imported ones below it."""
        yield cls
        for child in cls.__subclasses__():
            yield from child.family()

    def advice(self) -> str:
        """Return the remedy with its fields filled in.

        The remedy for a refusal of the operating system comes first.
        """
        try:
            return system_advice(self.__cause__) or self.remedy.format_map(self.fields)
        except (LookupError, ValueError, AttributeError):
            # A remedy of a plugin, which did not give its fields. The problem must be seen.
            return self.remedy

    def __str__(self) -> str:
        return f"{self.code} {self.problem}. {self.advice()}"


class SystemRefused(WaltapError):
    """The operating system refuses a resource that waltap or a plugin needs."""

    code = "WT-1201"
    remedy = "{advice} `waltap doctor FILE` checks whether a start would succeed."

    @classmethod
    def of(cls, error: OSError) -> "SystemRefused | None":
        """Return the error for a refusal of the operating system.

        None: the reason may be a fault of the code.
        """
        advice = system_advice(error, all_known=True)
        if isinstance(error, FileNotFoundError):
            try:
                Path.cwd()
            except FileNotFoundError:
                advice = "The current folder was deleted: change to one that exists."
        if advice is None:
            return None
        file = f"{error.filename}: " if error.filename else ""
        return cls(f"{file}{error.strerror}", advice=advice)

    @classmethod
    def of_text(cls, text: str) -> "SystemRefused | None":
        """Return the error for a library's text in the C library's words.

        None: the text names no known refusal.
        """
        # Libraries in C report these as text without a number.
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            if os.strerror(number) in text:
                return cls(text, advice=ADVICE[number])
        return None


class PropertyProblem(NamedTuple):
    """One problem of a profile's property.

    It has the given value, the allowed values and the nearest known name.
    """

    property: str
    what: str
    value: str | None = None
    allowed: str | None = None
    nearest: str | None = None
    native: str | None = None

    def __str__(self) -> str:
        text = f"{self.property} ({self.native})" if self.native else self.property
        text += f": {self.what}"
        if self.value is not None:
            text += f" (given: {self.value})"
        if self.allowed is not None:
            text += f"; allowed: {self.allowed}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest}?"
        return text


class ConfigurationError(WaltapError):
    """A profile cannot be used; ``problems`` lists all of its problems."""

    code = "WT-1001"
    remedy = (
        "Correct the properties above; `waltap explain FILE` shows every property with its meaning."
    )

    def __init__(self, problems: list[PropertyProblem], *, origin: str = "profile") -> None:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        noun = "problem" if len(problems) == 1 else "problems"
        super().__init__(f"{origin} has {len(problems)} {noun}:{lines}\n", origin=origin)
        self.problems = problems

    @classmethod
    def of(
        cls,
        property: str,  # noqa: A002 - the user's own word
        what: str,
        *,
        value: str | None = None,
        allowed: str | None = None,
        origin: str = "profile",
    ) -> Self:
        return cls([PropertyProblem(property, what, value=value, allowed=allowed)], origin=origin)

    def advice(self) -> str:
        """Return where to read more: the properties, or the command's help."""
        if self.fields["origin"] == COMMAND_LINE and system_advice(self.__cause__) is None:
            return "Correct the command line; --help after the command lists its arguments and options."
        return super().advice()


def usage_error(
    option: str, what: str, *, value: str | None = None, allowed: str | None = None
) -> ConfigurationError:
    """Return the error of one option of a command."""
    return ConfigurationError.of(option, what, value=value, allowed=allowed, origin=COMMAND_LINE)


class PluginError(WaltapError):
    """A plugin cannot be registered or used."""

    code = "WT-1100"
    remedy = "`waltap plugins` shows every plugin with its distribution and health."


class SourceError(WaltapError):
    """The database refuses an operation of capture, or lacks its setup."""

    code = "WT-2000"
    remedy = "`waltap doctor FILE` checks the database and prints remedies."


class ConnectionLost(SourceError):
    """The connection to the database broke or failed; the position is kept."""

    code = "WT-2001"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "A run that was connected reconnects by itself; otherwise check that the server is up "
        "and reachable."
    )


class RecordError(WaltapError):
    """One event or record can never be delivered; others can.

    Formats and transforms raise it, or a subclass, for any input; the engine finds the event by giving
    them less (`waltap.services.dead_letters`). Depending on the pipeline's policy it then stops,
    or skips the
    event and continues. A sink raises `waltap.ports.sink.RecordsRefused`. Never raise it for a temporary
    problem: a broken connection, a lock, a full disk.
    """

    code = "WT-3002"
    remedy = (
        "errors.tolerance and event.processing.failure.handling.mode decide about an event that "
        "cannot be delivered: stop, leave it out, or write it to the dead letters."
    )
    # A value cannot be converted; a property of its own sets the policy.
    of_conversion: ClassVar[bool] = False
    # A transform or converter of records failed; also with a property of its own.
    of_transform: ClassVar[bool] = True


class DecodeError(RecordError):
    """The server sent bytes that the decoder does not expect."""

    code = "WT-3001"
    remedy = (
        "The position was not moved: nothing is lost. Check that plugin and server versions match "
        "the decoder ({decoder}); if they do, report the excerpt."
    )
    of_conversion = True
    of_transform = False

    def __init__(
        self,
        decoder: str,
        *,
        expected: str,
        found: str,
        lsn: int = 0,
        offset: int = 0,
        payload: bytes = b"",
    ) -> None:
        # The excerpt is at most 64 bytes around ``offset`` of the payload.
        start = max(0, offset - 32)
        self.decoder, self.lsn, self.offset = decoder, lsn, offset
        self.expected, self.found = expected, found
        self.excerpt = payload[start : start + 64].hex()
        where = f"LSN {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}, byte {offset}"
        text = f"{decoder}: {where}: expected {expected}, found {found}"
        if self.excerpt:
            text += f"; bytes from {start}: {self.excerpt}"
        super().__init__(text, decoder=decoder, lsn=lsn, offset=offset)

    def advice(self) -> str:
        """Return the remedy; invalid UTF-8 is the data's fault."""
        return NOT_UTF8 if "UTF-8" in self.expected else super().advice()


class SnapshotError(WaltapError):
    """A snapshot could not be taken or completed."""

    code = "WT-4000"
    remedy = "Correct the problem above and start again; the snapshot starts over."


class SinkError(WaltapError):
    """The destination refused the written data; the position was not moved."""

    code = "WT-5000"
    remedy = "Fix the destination and start again: delivery resumes from the last durable position."


class OffsetError(WaltapError):
    """Stored positions cannot be read, or do not fit the server."""

    code = "WT-6000"
    remedy = "`waltap offsets show FILE` prints the stored offset."


class StopRequested(Exception):
    """End a wait since the caller asked to stop; no failure."""
