"""The control socket: who may use it, what it answers, and what is reported where nobody listens."""

import json
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.harness.pipeline import until

from waltap.pipeline.delivery.redelivery import redelivery_inbox
from waltap.pipeline.engine.engine import ControlServer
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.ports.offsets.state_folder import CONTROL, own_files
from waltap.ports.signals.inbox import SignalAnswer
from waltap.ports.signals.signal import Signal
from waltap.services.control import (
    ControlSocket,
    ControlSocketUnusable,
    PipelineNotRunning,
    SignalRequest,
    address,
    ask,
)
from waltap.services.monitor.status import PipelineStatus

STATUS = PipelineStatus(
    pipeline="p", at_ms=9, started_ms=1, state="streaming", state_since_ms=2, events=7
)
LOG = SignalRequest(kind="log", identifier="a-1", data={"message": "here"}, wait_ms=60_000)


class Engine:
    """Acts on signals as ``verdict`` says: a reason, "" for none, None for not yet."""

    def __init__(self, verdict: Callable[[Signal], str | None] = lambda _signal: "") -> None:
        self.verdict, self.given = verdict, list[Signal]()
        self.redeliveries = redelivery_inbox()

    def signal(self, kind: str, _data: object, *, identifier: str) -> Future[SignalAnswer]:
        signal = Signal(identifier, kind, "")
        self.given.append(signal)
        future: Future[SignalAnswer] = Future()
        why = self.verdict(signal)
        if why is not None:
            future.set_result(SignalAnswer(signal.identifier, accepted=not why, reason=why))
        return future

    def socket(self, folder: Path, *, longest: int = 10_000) -> ControlSocket:
        control = ControlServer(
            self.signal, self.redeliveries.put, lambda: STATUS, lambda: "made-1"
        )
        return ControlSocket(folder / CONTROL, control.answer, longest=longest)


def talk(folder: Path, *lines: bytes) -> list[dict]:
    """Send lines over one connection; return the answers until its end."""
    with socket.socket(socket.AF_UNIX) as connection, address(folder / CONTROL) as name:
        connection.settimeout(60)
        connection.connect(name)
        connection.sendall(b"".join(lines))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return [json.loads(line) for line in answers]


@pytest.mark.parametrize(
    ("verdict", "taken", "reason"),
    [(lambda s: f"type {s.kind!r} is odd", False, "type 'log' is odd"), (lambda _: None, None, "")],
    ids=["left out, with the reason", "no fate in time, and the state is reported"],
)
def test_the_fate_of_a_signal_comes_back(tmp_path, verdict, taken, reason):
    with PipelineLock(tmp_path), Engine(verdict).socket(tmp_path):
        answer = ask(tmp_path, SignalRequest(kind="log"))
    assert (answer.ok, answer.accepted, answer.reason or "") == (True, taken, reason)
    assert (answer.state, answer.identifier) == ("streaming", "made-1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param(b"not json", "malformed", id="no-json"),
        pytest.param(b'{"do": "status", "of": "p"}', "`of`", id="unknown-member"),
        pytest.param(b'{"do": "dance", "type": "log"}', "'dance'", id="unknown-request"),
        pytest.param(b'{"do": "signal", "type": "log", "data": 3}', "`$.data`", id="data-type"),
        pytest.param(b'{"do": "signal", "type": "log", "wait_ms": -1}', "wait_ms", id="wait"),
        pytest.param(b'{"do": "signal", "type": "\xff"}', "utf-8", id="no-utf-8"),
        pytest.param(
            b'{"do": "signal", "type": "log", "data": ' + b'{"a":' * 4000 + b"1" + b"}" * 4001,
            "nested too deep",
            id="deep",
        ),
    ],
)
def test_what_is_no_request_is_answered_and_the_next_line_counts(tmp_path, line, why):
    engine = Engine()
    with engine.socket(tmp_path, longest=100_000):
        first, second = talk(
            tmp_path, line + b"\n", b'\n{"do": "signal", "type": "log", "id": "b"}\n'
        )
    assert first["ok"] is False
    assert why in first["reason"]
    assert (second["ok"], second["id"]) == (True, "b")
    assert [signal.identifier for signal in engine.given] == ["b"]


def test_a_line_without_end_is_cut_off(tmp_path):
    with Engine().socket(tmp_path, longest=1000):
        (answer,) = talk(tmp_path, b"x" * 1001)
        (later,) = talk(tmp_path, b'{"do": "signal", "type": "log"}\n')
    assert (answer["ok"], later["id"]) == (False, "made-1")


def test_only_the_owner_may_use_it_and_it_goes_with_the_process(tmp_path):
    path = tmp_path / CONTROL
    with Engine().socket(tmp_path):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not path.exists()


def test_a_folder_may_have_a_long_name(tmp_path):
    folder = tmp_path / ("long-" * 20) / ("name-" * 20)
    folder.mkdir(parents=True)
    with PipelineLock(folder), Engine().socket(folder):
        assert ask(folder, LOG).accepted


def test_a_client_that_says_nothing_keeps_no_process_alive(tmp_path):
    with (
        socket.socket(socket.AF_UNIX) as idle,
        Engine().socket(tmp_path),
        address(tmp_path / CONTROL) as name,
    ):
        idle.connect(name)
        talk(tmp_path, b'{"do": "signal", "type": "log"}\n')
    assert [t for t in threading.enumerate() if t.name.startswith("waltap-control")] == []


def test_where_no_socket_can_be_made_the_pipeline_is_reported_and_goes_on(tmp_path, caplog):
    (tmp_path / CONTROL / "in-the-way").mkdir(parents=True)
    with PipelineLock(tmp_path), Engine().socket(tmp_path):
        assert "no control socket" in caplog.text
        with pytest.raises(ControlSocketUnusable, match=f"process {os.getpid()}"):
            ask(tmp_path, LOG)


def test_a_client_is_served_when_the_process_may_open_files_again(tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        socket.socket(socket.AF_UNIX) as client,
        Engine().socket(tmp_path),
        address(tmp_path / CONTROL) as name,
    ):
        client.settimeout(60)
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            client.connect(name)
            until(lambda: "control socket" in caplog.text, "the warning", 60)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caplog.text.count("control socket") == 1
        client.sendall(b'{"do": "signal", "type": "log"}\n')
        with client.makefile("rb") as answers:
            assert json.loads(answers.readline())["ok"]


# --- processes that are gone --------------------------------------------------------------------


def test_a_pipeline_that_does_not_run_is_reported(tmp_path):
    with pytest.raises(PipelineNotRunning, match="no process runs"):
        ask(tmp_path / "never", LOG)


def test_the_socket_of_a_dead_process_is_reported_as_such_and_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / CONTROL))
    assert (tmp_path / CONTROL).is_socket()
    assert tmp_path / CONTROL in own_files(tmp_path)
    with pytest.raises(PipelineNotRunning, match="a dead process's"):
        ask(tmp_path, LOG)
    with PipelineLock(tmp_path), Engine().socket(tmp_path):
        assert ask(tmp_path, LOG).accepted
