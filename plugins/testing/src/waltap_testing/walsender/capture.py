"""Recorded conversations: JSON lines become scripts and answers.

One object per line, in the order of the recorded events:

    {"sql", "status", "columns", "types", "rows"}   a query and its result (status TUPLES_OK,
                                                    COMMAND_OK or COPY_BOTH), or
    {"sql", "status": "FATAL_ERROR", "sqlstate", "message", "detail"}
    {"recv": hex}      a CopyData payload from the server
    {"send": hex}      one from the client
    {"note": text}     ignored

Each query with the status COPY_BOTH starts a script. The script sends the recorded payloads byte
for byte, and waits for feedback where the recorded client sent some.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltap_testing.walsender.answers import Answer, Answering, CommandAnswer, RowsAnswer
from waltap_testing.walsender.script import AwaitFeedback, SendRaw, ServerError, Step, StreamScript

__all__ = ["WireCapture", "load_capture"]


@dataclass(frozen=True, slots=True)
class WireCapture:
    """The contents of a recorded conversation."""

    scripts: tuple[StreamScript, ...]
    answers: dict[str, Answering]
    # (WAL start, payload) of the XLogData messages.
    frames: tuple[tuple[int, bytes], ...]


def load_capture(path: Path) -> WireCapture:
    """Read a recorded conversation.

    Raises: ValueError with the number of the invalid line.
    """
    scripts: list[list[Step]] = []
    answers: dict[str, list[Answer | None]] = {}
    frames: list[tuple[int, bytes]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            event = json.loads(line)
            if "sql" in event:
                answer = _answer(event)
                if answer is None:
                    scripts.append([])
                # A query may occur several times with different results: they are answered in
                # turn.
                answers.setdefault(f"^{re.escape(event['sql'])}$", []).append(answer)
            elif "recv" in event and scripts:
                payload = bytes.fromhex(event["recv"])
                scripts[-1].append(SendRaw(payload))
                if payload[:1] == b"w":
                    # XLogData: one type byte, WAL start, WAL end and send time (8 bytes each),
                    # then the payload.
                    frames.append((int.from_bytes(payload[1:9]), payload[25:]))
            elif "send" in event and scripts:
                scripts[-1].append(AwaitFeedback())
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            text = f"{path.name}, line {number}: not an event of a recorded conversation: {cause}"
            raise ValueError(text) from cause
    played = tuple(StreamScript(tuple(steps)) for steps in scripts)
    return WireCapture(played, dict(answers), tuple(frames))


def _answer(event: dict[str, Any]) -> Answer | None:
    match event["status"]:
        case "TUPLES_OK":
            return RowsAnswer(
                list(zip(event["columns"], event["types"], strict=True)), event["rows"]
            )
        case "COMMAND_OK":
            return CommandAnswer(event["sql"].split()[0])
        case "FATAL_ERROR":
            detail = event.get("detail") or ""
            return ServerError(event["sqlstate"], event["message"], detail=detail)
        case "COPY_BOTH":
            return None
    text = f"unknown status {event['status']}"
    raise ValueError(text)
