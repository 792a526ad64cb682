"""Two processes of one profile, of which the one that runs it is killed or paused, on a real server.

The other takes over, nothing is lost, and the two never write at the same time: the numbers in the output
only go back where a process begins.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.fault.lives import CHANGELOG, JSONL, Lives, Writer, ids, writing
from tests.harness import command
from tests.harness.changelog import logged_ids
from tests.harness.command import Command
from tests.harness.pipeline import WAIT_S, until
from tests.harness.servers.postgres import Database

LOST = "WT-2017"


class Pair(Lives):
    """Two processes at a time; the lock file names the one that runs the pipeline."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        super().__init__(database, folder, **{"waltap.standby": True, **settings})
        self._processes: list[Command] = []

    def begin(self) -> Command:
        """Start one more process; what it says is in a file with its number."""
        with (self.folder / f"said-{len(self._processes)}").open("wb") as said:
            process = command.start("run", "p.toml", cwd=self.folder, errors=said)
        self._processes.append(process)
        return process

    def said(self, process: Command) -> str:
        return (self.folder / f"said-{self._processes.index(process)}").read_text()

    def owner(self) -> int | None:
        try:
            return int((self.folder / "state" / "p" / "lock").read_text().split("\n")[0])
        except (OSError, ValueError):
            return None

    def until_owned_by(self, process: Command) -> None:
        until(lambda: self.owner() == process.pid, f"process {process.pid} to take over")

    def until_waits(self, process: Command) -> None:
        """Wait until it is a standby, or, on a machine that was suspended for long, has taken over already."""
        until(
            lambda: "waits as a standby" in self.said(process) or self.owner() == process.pid,
            "the standby",
        )

    def owning(self) -> Command:
        """Return the process that runs the pipeline, once there is one."""
        found: list[Command] = []

        def seen() -> bool:
            owner = self.owner()
            found[:] = [process for process in self._processes if process.pid == owner]
            return bool(found)

        until(seen, "an owner")
        return found[0]

    def until_more(self) -> None:
        """Wait until more is written than now."""
        before = self.written()
        until(lambda: self.written() > before, "output")

    def begun(self) -> int:
        """Return how often a process began to stream, the last run included."""
        said = [self.said(process) for process in self._processes]
        return sum(text.count("streaming") for text in said) + 1

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(WAIT_S)


SINKS = pytest.mark.parametrize("sink", [JSONL, CHANGELOG], ids=["jsonl", "changelog"])


@SINKS
def test_a_killed_process_is_followed_and_nothing_is_lost(database, tmp_path, sink):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair = Pair(database, tmp_path, **sink)
    pair.to_the_end()
    try:
        owner = pair.begin()
        pair.until_owned_by(owner)
        with writing(database) as writer:
            follower = pair.begin()
            pair.until_waits(follower)
            pair.until_more()
            owner.kill()
            pair.until_owned_by(follower)
            pair.until_more()
    finally:
        pair.end()
    pair.to_the_end()
    check(pair, sink, writer)


@SINKS
def test_a_paused_process_is_followed_and_writes_nothing_when_it_wakes_up(database, tmp_path, sink):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair = Pair(database, tmp_path, **sink, **{"waltap.lease.ms": 3000})
    pair.to_the_end()
    try:
        first, second = pair.begin(), pair.begin()
        with writing(database) as writer:
            pair.until_more()
            paused = pair.owning()
            follower = second if paused is first else first
            paused.send_signal(signal.SIGSTOP)
            pair.until_owned_by(follower)
            pair.until_more()
            paused.send_signal(signal.SIGCONT)
            until(lambda: LOST in pair.said(paused), "what it says of its lease")
            pair.until_more()
            assert paused.poll() is None  # it waits in its turn
    finally:
        pair.end()
    pair.to_the_end()
    check(pair, sink, writer)


def check(pair: Pair, sink: dict[str, str], writer: Writer) -> None:
    """Every row has come; once, or, without exactly-once, again only where a process began."""
    every = list(range(1, writer.commits[-1][0] + 1))
    if sink is CHANGELOG:
        assert logged_ids(pair.folder / "log") == every
        return
    seen = ids(pair.records(), "c")
    assert sorted(set(seen)) == every
    back = sum(after <= before for before, after in zip(seen, seen[1:], strict=False))
    assert back <= pair.begun()
