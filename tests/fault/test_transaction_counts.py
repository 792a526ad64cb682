"""Transaction metadata over stops and kills in the middle of a transaction: every record has the numbers
that it has in a run that nobody disturbed, BEGIN and END come once, and END counts each event once."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fault.lives import JSONL, Lives
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text);
CREATE TABLE hidden (id int PRIMARY KEY);
"""
TRANSACTION = """
DO $$ BEGIN
  FOR n IN 1..900 LOOP
    INSERT INTO a VALUES (n, repeat('x', n % 40));
    INSERT INTO hidden VALUES (n);
    IF n % 3 = 0 THEN INSERT INTO b VALUES (n, 'b'); INSERT INTO hidden VALUES (-n); END IF;
    IF n % 5 = 0 THEN UPDATE a SET id = id + 10000 WHERE id = n; END IF;
    IF n % 7 = 0 THEN UPDATE b SET v = 'left out' WHERE id = n; END IF;
    IF n % 11 = 0 THEN DELETE FROM a WHERE id = n; END IF;
    IF n % 50 = 0 THEN PERFORM pg_logical_emit_message(true, 'm', n::text); END IF;
  END LOOP;
END $$
"""


SETTINGS = {
    **JSONL,
    "snapshot.mode": "no_data",
    "provide.transaction.metadata": "true",
    "extended.headers.enabled": "false",
    "table.exclude.list": r"public\.hidden",
    "skipped.operations": "d",
    "retriable.restart.connector.wait.ms": 100,
}


class Counted(Lives):
    """A folder with a slot of its own."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        slot = f"{database.name[:50]}_{folder.name}"
        names = {"slot.name": slot, "publication.name": slot}
        super().__init__(database, folder, **SETTINGS, **names, **settings)

    def killed_behind(self, count: int) -> None:
        """Run, and kill the process once it has written ``count`` more records, or all there are."""
        wanted = self.lines() + count
        process = self.start()
        try:
            until(
                lambda: self.lines() >= wanted or self.ended() or process.poll() is not None,
                f"{count} more records",
            )
            assert process.poll() is None, process.communicate()[1]
        finally:
            process.kill()
            process.communicate()

    def lines(self) -> int:
        return self._output().count(b"\n")

    def ended(self) -> bool:
        return b'"END"' in self._output()[-2000:]

    def _output(self) -> bytes:
        path = self.folder / "out.jsonl"
        return path.read_bytes() if path.exists() else b""

    def numbered(self) -> list[tuple[Any, ...]]:
        """Return topic, key and value of each whole line, without the time of processing."""
        return [_record(line) for line in self.records()]


def _record(line: dict[str, Any]) -> tuple[Any, ...]:
    value = line["value"]
    if isinstance(value, dict) and "op" in value:
        value = {
            name: each for name, each in value.items() if name not in {"ts_ms", "ts_us", "ts_ns"}
        }
    return line["topic"], json.dumps(line["key"]), json.dumps(value)


def life_in(whole: list[tuple[Any, ...]], life: list[tuple[Any, ...]], most: int) -> int:
    """Return where in ``whole`` a life began, not behind ``most``."""
    for begin in range(most, -1, -1):
        if whole[begin : begin + len(life)] == life:
            return begin
    pytest.fail(f"not records of an undisturbed run: {life[:3]} …")


def test_numbers_are_those_of_an_undisturbed_run(database, tmp_path):
    database.execute(SCHEMA)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    more = {"pgoutput.streaming": "on"}
    reference = Counted(database, tmp_path / "whole", **more)
    small = {"max.batch.size": 8, "offset.flush.interval.ms": 0}
    subject = Counted(database, tmp_path / "cut", **more, **small)
    reference.to_the_end()
    subject.to_the_end()
    database.execute(TRANSACTION)
    reference.to_the_end()
    whole = reference.numbered()
    end = json.loads(whole[-1][2])
    assert (json.loads(whole[0][2])["status"], end["status"]) == ("BEGIN", "END")
    data = [json.loads(value) for _, _, value in whole[1:-1]]
    events = [value for value in data if value is not None]
    assert end["event_count"] == len(events)
    assert [value["transaction"]["total_order"] for value in events] == [*range(1, len(events) + 1)]

    subject.to_the_end("--max-records", 150)
    subject.to_the_end("--max-records", 250)
    stopped = subject.numbered()
    assert 300 < len(stopped) < len(whole)
    assert stopped == whole[: len(stopped)]  # a clean stop: nothing twice
    borders = [len(stopped)]
    for count in (50, 200):
        subject.killed_behind(count)
        borders.append(len(subject.numbered()))
    subject.to_the_end()
    found = subject.numbered()
    reached = 0
    for begin, until_ in zip([0, *borders], [*borders, len(found)], strict=True):
        life = found[begin:until_]
        reached = max(reached, life_in(whole, life, reached) + len(life))
    assert reached == len(whole)
    assert found[-1] == whole[-1]
