"""Recorded conversations: a JSON lines file becomes scripts and answers for a `Walsender`.

One object per line, in the order in which things happened:

    {"sql", "status", "columns", "types", "rows"}   a query and its result (status TUPLES_OK,
                                                    COMMAND_OK or COPY_BOTH), or
    {"sql", "status": "FATAL_ERROR", "sqlstate", "message", "detail"}
    {"recv": hex}      a CopyData payload from the server
    {"send": hex}      one from the client
    {"note": text}     ignored

Each query that was answered COPY_BOTH starts a script: what was received is sent again, byte for
byte, and where the client spoke the script waits for it to speak.
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
    """What a file holds. ``frames`` are the (WAL start, payload) of its XLogData messages."""

    scripts: tuple[StreamScript, ...]
    answers: dict[str, Answering]
    frames: tuple[tuple[int, bytes], ...]


def load_capture(path: Path) -> WireCapture:
    """Read a recorded conversation. Raises: ValueError naming the line that is not one."""
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
                answers.setdefault(f"^{re.escape(event['sql'])}$", []).append(answer)
            elif "recv" in event and scripts:
                payload = bytes.fromhex(event["recv"])
                scripts[-1].append(SendRaw(payload))
                if payload[:1] == b"w":
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
