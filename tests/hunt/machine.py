"""Runs one scenario on a real server with the real engine, and has it judged."""

import contextlib
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from tests.harness.command import run_program
from tests.harness.servers.postgres import Database, Server
from tests.hunt import catalogue, oracle
from tests.hunt.delivered import Event, from_change_log, from_lines
from tests.hunt.engine import SPONTANEOUS, Engine, knows, patience, until
from tests.hunt.faults import APPLY, Faults, mount, unmount
from tests.hunt.judge import Case, Finding, judge
from tests.hunt.oracle import Table
from tests.hunt.scenario import Scenario, Step
from tests.hunt.source import Source

RECEIVE = "waltap.receive.timeout.ms"
"""The property by which a link is noticed that is alive and passes nothing."""

ORACLE = "oracle_of_"
MOST_BYTES = 300 << 20
"""What no scenario needs: its transactions are of some MB at most."""

WIRE_KEYS = ("pgoutput", "wal2json")


@dataclass(slots=True)
class Beginning:
    """From where a pipeline knows nothing of before: the life, and `Event.at` of the first event.
    ``created``: where its slot began; 0: it took the slot over, at about ``made``."""

    life: int
    first: int
    created: int = 0
    made: int = 0


@dataclass(slots=True)
class Result:
    """What one run of a scenario found. ``folder`` is kept when there are findings."""

    findings: list[Finding]
    seconds: float
    events: int = 0
    lives: int = 0
    peak_bytes: int = 0
    refused: int = 0
    notes: list[str] = field(default_factory=list)


def run(
    scenario: Scenario,
    server: Server,
    python: str,
    *,
    keep: Path | None = None,
    java: bool = False,
) -> Result:
    """Run ``scenario`` in a database and a folder of its own; ``keep`` gets the folder's files.

    ``java``: whether there is a Java for Spark.
    """
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="waltap-hunt-"))
    disk = any(step.kind == "disk" for step in scenario.steps) and mount(folder)
    database = server.create_database(f"hunt_{scenario.seed}_{folder.name[-8:].lower()}")
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    try:
        machine = Machine(scenario, database, folder, python, java=java)
        machine.disk = disk
        try:
            result = machine.run()
        finally:
            machine.close()
        result.seconds = time.monotonic() - begun
        if keep is not None and result.findings:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(folder, keep, ignore=shutil.ignore_patterns("*.sock"))
        return result
    finally:
        database.drop(10)
        if disk:
            unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


class Machine(Faults):
    """One scenario under way. `step` does a step; `conclude` brings everything to its end."""

    def __init__(
        self,
        scenario: Scenario,
        database: Database,
        folder: Path,
        python: str,
        *,
        java: bool = False,
    ) -> None:
        self.java, self.disk = java, False
        self.early = False
        """Whether transactions may have come at PREPARE."""
        self.scenario, self.database, self.folder = scenario, database, folder
        self.pipeline = scenario.pipeline
        self.source = Source(
            database, truncates=self._shows_truncate, very_wide=not self.pipeline.spark
        )
        self.slot = ORACLE + database.name[-20:]
        database.execute(
            f"SELECT pg_create_logical_replication_slot('{self.slot}', 'test_decoding')"
        )
        if self.pipeline.signals:
            database.execute(
                "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(64), data text)"
            )
        self.engine = Engine(
            database, folder / "p", python, dict(self.pipeline.settings), self.pipeline.sink
        )
        self._note_policy()
        self.buries = any(step.kind == "hold" for step in scenario.steps) and knows(python, RECEIVE)
        if self.buries:
            self.engine.settings |= {RECEIVE: 3000}
            # the server's side of such a link holds the slot until the server gives it up
            database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '5s'")
        elif timeout := self.pipeline.sender_timeout_ms:
            database.execute(f'ALTER DATABASE "{database.name}" SET wal_sender_timeout = {timeout}')
        self.findings: list[Finding] = []
        self.beginnings = [Beginning(0, 0)]
        self.floating: set[int] = set()
        self.signals = 0
        self.log: list[str] = []

    @property
    def _shows_truncate(self) -> bool:
        decoder = self.pipeline.decoder
        return decoder.startswith("pgoutput") or decoder == "wal2json-2"

    def run(self) -> Result:
        for number, step in enumerate(self.scenario.steps):
            self.log.append(f"{number} {step.kind}")
            self.step(step)
        self.conclude()
        events = self.events()
        (self.folder / "steps.txt").write_text("\n".join(self.log + self.source.refused))
        return Result(
            self.findings, 0, len(events), len(self.engine.lives), self.engine.peak_bytes,
            len(self.source.refused),
        )  # fmt: skip

    def close(self) -> None:
        self.engine.close()
        with contextlib.suppress(psycopg.Error):
            self.source.close()

    def step(self, step: Step) -> None:
        random = Random(step.seed)
        if not self.engine.running and self.engine.process is not None:
            self.ended("none")
        method = getattr(self, f"step_{step.kind}", None)
        if method is not None:
            method(random)
        else:
            self.source.act(random, step.kind)
        self.engine.measure()

    # --- the engine ------------------------------------------------------------------------------

    def _first(self) -> int:
        return self.engine.lines() if self.pipeline.sink == "jsonl" else 0

    def begin(self, random: Random, **faults: int) -> bool:
        if self.engine.running:
            return False
        if self.engine.slot_state() is None:
            self.source.decide_all()  # a slot waits for every transaction that is open
        if self.engine.settings["snapshot.mode"] == "always" and self.engine.lives:
            self.close_beginning(keeps_slot=True)
        self.engine.start(first=self._first(), **faults)
        # a busy machine may be silent for long
        impatient = self.buries or self.pipeline.sender_timeout_ms > 0
        self.engine.lives[-1].reconnects = impatient or self.engine.proxy.armed
        return True

    @property
    def _refuses(self) -> bool:
        """Whether a start ends where a table's rows cannot be reported."""
        return self.engine.settings["publication.keyless.tables"] == "refuse"

    def close_beginning(self, *, keeps_slot: bool) -> None:
        """The next life begins anew, with its slot or another."""
        created = int((self.engine.offset() or {}).get("slot_created_lsn") or 0)
        if not self.beginnings[-1].made:
            self.beginnings[-1].created = created
        made = 0
        if keeps_slot:
            query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8"
            ((made,),) = self.database.execute(query)
        self.beginnings.append(Beginning(len(self.engine.lives), self._first(), 0, made))

    def _note_policy(self) -> None:
        """Under policy prepare a rollback is not reported, so there is none."""
        if self.engine.settings.get("two.phase.policy") == "prepare":
            self.source.rolls_back, self.early = False, True

    def step_start(self, random: Random) -> None:
        if self.begin(random) and random.random() < 0.7:
            self.wait_ready()

    def wait_ready(self) -> None:
        until(lambda: self.engine.ready or not self.engine.running, patience(10))

    def step_stop(self, random: Random) -> None:
        if self.engine.process is not None:
            self.ended("TERM")

    def step_kill(self, random: Random) -> None:
        """SIGKILL, at once or after a moment; then what the server was reported is held against the sink."""
        if self.engine.process is not None:
            if random.random() < 0.5:
                until(lambda: not self.engine.running, random.random() * 0.3)
            self.ended("KILL")

    def step_catch_up(self, random: Random) -> None:
        self.begin(random)
        state = self.engine.slot_state()
        if state is None or state[0] is None:
            self.source.decide_all()  # the slot waits for them
        self._caught_up(patience(15))

    def step_two_phase(self, random: Random) -> None:
        """Decode two-phase from the next start on; a transaction is prepared before that."""
        if not self.pipeline.decoder.startswith("pgoutput"):
            return
        if self.engine.slot_state() is None:
            self.begin(random)
            self.wait_ready()
        if self.engine.process is not None:
            self.ended("TERM")
        self.source.do_prepare(random)
        policy = random.choice(("commit", "prepare"))
        if self.engine.settings["snapshot.mode"] == "always":
            policy = "commit"  # the judge does not know which snapshot has what was prepared
        self.engine.settings |= {"pgoutput.two_phase": True, "two.phase.policy": policy}
        self._note_policy()
        self.step_start(random)
        if random.random() < 0.5:
            self.source.do_decide(random)

    def ended(self, how: str) -> None:
        ended = self.engine.end(how)
        where = f"life {ended.number} ({ended.asked})"
        text = self.engine.log(ended.number)
        if found := SPONTANEOUS.search(text):
            at = max(0, found.start() - 300)
            self.findings.append(Finding("bug", f"{where} said {text[at : at + 900]}"))
        if ended.asked == "TERM" and ended.code is None:
            self.findings.append(Finding("hang", f"{where} did not end in {ended.seconds:.0f} s"))
        elif ended.asked == "TERM" and ended.code == -15 and not text:
            pass  # it came before the program had begun
        elif ended.asked == "TERM" and ended.code != 0 and not ended.harmed:
            self.findings.append(Finding("exit", f"{where} ended with {ended.code}: {_last(text)}"))
        elif ended.asked == "none" and "WT-2107" in text and self._refuses:
            self.source.identify_all()
        elif ended.asked == "none" and not ended.harmed and not self._cut_at_first(text):
            self.findings.append(Finding("ended", f"{where} with {ended.code}: {_last(text)}"))

    def _cut_at_first(self, text: str) -> bool:
        """Return whether a life's link broke before it had begun: then it gives up."""
        begun = '"message": "snapshot"' in text or '"message": "streaming"' in text
        return "WT-2002" in text and self.engine.lives[-1].reconnects and not begun

    # --- signals ---------------------------------------------------------------------------------

    def _signal(self, kind: str, data: str) -> None:
        if self.pipeline.signals:
            self.signals += 1
            query = "INSERT INTO signals VALUES (%s, %s, %s)"
            self.database.execute(query, f"signal {self.signals}", kind, data)

    def step_snapshot(self, random: Random) -> None:
        found = list(catalogue.tables(self.source.session).values())
        if not found:
            return
        chosen = random.sample(found, random.randrange(1, min(3, len(found)) + 1))
        names = [_pattern(known.schema, known.table) for known in chosen]
        arguments: dict[str, Any] = {"type": "incremental", "data-collections": names}
        self._signal("execute-snapshot", json.dumps(arguments))
        for _ in range(random.randrange(3)):
            self.source.do_work(random)

    def step_signal(self, random: Random) -> None:
        kind = random.choice(("stop-snapshot", "pause-snapshot", "resume-snapshot", "log"))
        self._signal(kind, '{"message": "hunted"}' if kind == "log" else '{"type": "incremental"}')

    def step_bad_signal(self, random: Random) -> None:
        self._signal(*random.choice(BAD_SIGNALS))

    # --- the end ---------------------------------------------------------------------------------

    def _caught_up(self, within: float) -> bool:
        """Wait until everything that is committed now is delivered, and no snapshot is under way."""
        ((target,),) = self.database.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")

        def done() -> bool:
            if not self.engine.running:
                return True
            offset = self.engine.offset()
            if offset is None or offset.get("snapshot"):
                return False
            signals = offset.get("signals") or {}
            return offset["position"]["end_lsn"] >= target and not signals.get("queue")

        return until(done, within) and self.engine.running

    def conclude(self) -> None:
        """Bring everything to its end, stop, and judge."""
        self.source.decide_all()
        if self.engine.process is not None and not self.engine.running:
            self.ended("none")
        if self.engine.running and self.engine.harmed:
            self.ended("KILL")
        elif self.engine.process is not None and self.pipeline.filtered:
            self.ended("TERM")  # tables that were made meanwhile join at a start
        for _ in range(3):
            self.begin(Random(0))
            self.wait_ready()
            self._signal("resume-snapshot", '{"type": "incremental"}')
            if self._caught_up(patience(25)):
                break
            if self.engine.running:
                self.engine.dump()
                tail = self.engine.log(len(self.engine.lives) - 1)[-2500:]
                text = f"the end is not reached; offset {self.engine.offset()}; {tail}"
                self.findings.append(Finding("stuck", text))
                break
            self.ended("none")
        if self.engine.process is not None:
            self.ended("TERM" if self.engine.running else "KILL")
        self._judge()

    def events(self) -> list[Event]:
        """Return what was delivered, without the signal table."""
        if self.pipeline.sink == "jsonl":
            found = from_lines(self.engine.files())
        else:
            found = from_change_log(self.engine.place)
        return [event for event in found if event.table != "public.signals"]

    def _judge(self) -> None:
        rows = self.database.execute(
            "SELECT lsn::text, xid::text::int8, data FROM pg_logical_slot_get_changes(%s, NULL, NULL,"
            " 'skip-empty-xacts', '0')",
            self.slot,
        )
        transactions = list(oracle.read(rows))
        with self.database.connect() as connection:
            tables = catalogue.tables(connection)
            source = {
                name: _table(connection, known)
                for name, known in tables.items()
                if known.kind == "r"
            }
        said = self.engine.log()
        last = self.beginnings[-1]
        if not last.made:
            last.created = int((self.engine.offset() or {}).get("slot_created_lsn") or 0)
        decoder = self.pipeline.decoder
        every = Case(
            exactly_once=self.pipeline.sink == "changelog",
            relations=decoder.startswith("pgoutput"),
            wire_keys=decoder.startswith(WIRE_KEYS),
            announced=frozenset(name for name, table in source.items() if _announced(name, said)),
            floating=frozenset(self._prepared()),
            snapshot=self.pipeline.snapshot,
            restarts=self.pipeline.sink == "changelog" and "the snapshot resumes" in said,
            logged=self.pipeline.sink == "changelog",
            not_reported=frozenset() if self._shows_truncate else frozenset("t"),
        )
        if self.engine.peak_bytes > MOST_BYTES:
            text = f"{self.engine.peak_bytes >> 20} MiB for a small scenario"
            self.findings.append(Finding("memory", text))
        self.findings += [Finding("command", text) for text in self.engine.refusals]
        events, lives = self.events(), self.engine.lives
        case, late = every, set[int]()
        for one, then in zip(self.beginnings, [*self.beginnings[1:], None], strict=True):
            late = self._late(transactions, one.created or one.made)
            case = replace(every, late=frozenset(late), created=one.created)
            until = then or Beginning(len(lives), sys.maxsize)
            those = [event for event in events if one.first <= event.at < until.first]
            left = None if then else source
            self.findings += judge(case, transactions, those, lives[one.life : until.life], left)
        known = (case, rows, lives, source)
        (self.folder / "case.pickle").write_bytes(pickle.dumps(known))
        if self.pipeline.spark and self.java and not self.findings:
            self._spark(_steady(transactions, source) - late)

    def _spark(self, oids: set[int]) -> None:
        """Let Spark apply the change log, and compare the tables whose definition never changed."""
        with self.database.connect() as connection:
            known = catalogue.tables(connection).values()
        names = [k.name for k in known if k.oid in oids and k.kind == "r" and "." not in k.table]
        apply = APPLY
        verify = ["verify", "lake", "--dsn", self.database.dsn, "--master", "local[1]"]
        verify += [part for name in names for part in ("--table", name)]
        # without initial data Spark has what came since
        for arguments in (apply, verify) if names and self.pipeline.snapshot else (apply,):
            try:
                command = self.engine.python, "-m", "waltap", "spark", *arguments
                wait, folder = patience(120), self.engine.folder
                done = run_program(*command, code=None, wait=wait, cwd=folder)
            except subprocess.TimeoutExpired as error:
                self.findings.append(Finding("spark", f"{arguments[0]} took {error.timeout} s"))
                return
            said = f"{done.stdout[-1500:]}{done.stderr[-1500:]}"
            if "WT-5208" in said and not any(f"{name}: " in said for name in names):
                continue  # a type became another one: that table is suspended, as documented
            if done.returncode:
                self.findings.append(Finding("spark", f"{arguments[0]} {done.returncode}: {said}"))
                return

    def _late(self, transactions: list[oracle.Transaction], made: int) -> set[int]:
        """Tables that were made after ``made`` under a publication of tables."""
        if not self.pipeline.filtered:
            return set()
        before: set[int] = set()
        every: set[int] = set()
        for transaction in transactions:
            for item in transaction.items:
                if isinstance(item, oracle.Ddl):
                    found = {table.oid for table in item.tables.values()}
                    every |= found
                    if transaction.commit_lsn <= made:
                        before |= found
        return every - before

    def _prepared(self) -> set[int]:
        """Transactions that may come at PREPARE: those that were prepared, if that ever was the policy."""
        return set(self.source.prepared_xids) if self.early else set()


def _steady(transactions: list[oracle.Transaction], source: dict[str, Table]) -> set[int]:
    """Return the tables (OIDs) that are as they were made, under the name that they alone ever had."""
    images: dict[int, list[Table]] = {}
    named: dict[str, set[int]] = {}
    moved: set[str] = set()
    for transaction in transactions:
        for item in transaction.items:
            if isinstance(item, oracle.Ddl):
                moved |= {*item.renamed, *item.renamed.values()}
                for name, table in item.tables.items():
                    images.setdefault(table.oid, []).append(table)
                    named.setdefault(name, set()).add(table.oid)
    alone = {next(iter(oids)) for n, oids in named.items() if len(oids) == 1 and n not in moved}
    return alone & {
        oid
        for oid, seen in images.items()
        if all(
            (t.columns, t.key, t.identity) == (seen[0].columns, seen[0].key, seen[0].identity)
            for t in seen
        )
        and not seen[0].generated
        and oid in {table.oid for table in source.values()}
    }


def _table(connection: psycopg.Connection[Any], known: catalogue.Known) -> Table:
    image = catalogue.image(connection, known)
    return next(
        iter(
            oracle.parse_mark(
                json.dumps({"gone": [], "renamed": {}, "tables": {known.name: image}})
            ).tables.values()
        )
    )


def _announced(name: str, said: str) -> bool:
    """Return whether a log line of level warning names the table."""
    for line in said.splitlines():
        if '"warning"' in line:
            with contextlib.suppress(ValueError):
                reported = json.loads(line)
                if name in json.dumps(reported, ensure_ascii=False).replace('\\"', '"'):
                    return True
    return False


def _pattern(schema: str, table: str) -> str:
    import re

    return f"{re.escape(schema)}\\.{re.escape(table)}"


def _last(text: str) -> str:
    for line in reversed(text.splitlines()):
        if "WT-" in line:
            return line[-600:]
    return text[-600:]


BAD_SIGNALS = (
    ("execute-snapshot", "not JSON"),
    ("execute-snapshot", "[" * 5000),
    ("execute-snapshot", '{"data-collections": ["public.nothing"]}'),
    ("execute-snapshot", '{"data-collections": ["public.("]}'),
    ("execute-snapshot", '{"data-collections": [7]}'),
    ("execute-snapshot", '{"data-collections": ["\\ud800.x"]}'),
    ("stop-snapshot", '{"data-collections": ["public.("]}'),
    ("no-such-signal", "{}"),
    ("execute-snapshot", '{"data-collections": "public.a"}'),
)
