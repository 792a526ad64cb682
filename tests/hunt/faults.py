"""What may happen to a pipeline: cut and silent links, disks that fail or are full, a server that goes
away, publications that are made anew, and settings that change from one life to the next."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt import catalogue
from tests.hunt.engine import Engine, patience, until
from tests.hunt.scenario import Pipeline
from tests.hunt.source import Source

DISK_BYTES = 256 << 20
APPLY = [
    *("apply", "--changelog", "log", "--output", "lake"),
    *("--once", "--master", "local[1]"),
]


class Faults:
    """The steps, as `tests.hunt.machine.Machine` has them."""

    database: Database
    engine: Engine
    folder: Path
    pipeline: Pipeline
    source: Source
    buries: bool
    disk: bool
    java: bool

    def begin(self, random: Random, **faults: int) -> bool:
        """Begin a life; False when there is one."""
        raise NotImplementedError

    def ended(self, how: str) -> None:
        """End a life, and judge how it ended."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        raise NotImplementedError

    def close_beginning(self, *, keeps_slot: bool) -> None:
        """The next life begins anew."""
        raise NotImplementedError

    def step_start(self, random: Random) -> None:
        raise NotImplementedError

    def step_window(self, random: Random) -> None:
        """Stop the first start between the making of its slot and its reading; change tables there."""
        if self.engine.slot_state() is not None or not self.begin(random):
            return self.step_start(random)

        def made() -> bool:
            state = self.engine.slot_state()
            return state is not None and state[0] is not None

        if until(lambda: made() or not self.engine.running, patience(10)):
            with self.engine.paused():
                for _ in range(random.randrange(1, 3)):
                    self.source.rewrite(random)
                if random.random() < 0.5:
                    self.source.do_work(random)
                if random.random() < 0.3:
                    self.source.do_ddl(random)
        if random.random() < 0.7:
            self.wait_ready()

    def step_pause(self, random: Random) -> None:
        with self.engine.paused():
            self.source.do_work(random)
            self.source.do_ddl(random)

    def step_cut(self, random: Random) -> None:
        if self.engine.running:
            self.engine.lives[-1].reconnects = True
            self.source.do_work(random)
            self.engine.proxy.cut()

    def step_hold(self, random: Random) -> None:
        """Nothing passes for a moment, or never again, while TCP stays alive."""
        if self.engine.running:
            if self.buries and random.random() < 0.6:
                self.engine.proxy.swallow(endless=True)
                return self.source.do_work(random)
            self.engine.proxy.hold()
            self.source.do_work(random)
            until(lambda: not self.engine.running, 0.5)
            self.engine.proxy.release()

    def step_fsync(self, random: Random) -> None:
        """A life in which one fsync of the sink fails."""
        if self.engine.process is not None:
            self.ended(random.choice(("TERM", "KILL")))
        self.source.do_work(random)
        self.begin(random, fsync_fails=random.randrange(1, 6))
        self.engine.lives[-1].reconnects = True
        for _ in range(3):
            self.source.do_work(random)
            until(lambda: not self.engine.running, 0.3)

    def step_full(self, random: Random) -> None:
        """A life whose files may not grow: a full disk."""
        if self.engine.process is not None:
            self.ended(random.choice(("TERM", "KILL")))
        self.begin(random, file_limit=random.choice((100, 5000, 60_000)))
        self.engine.lives[-1].reconnects = True
        self.source.do_work(random)
        self.source.do_bulk(random)
        until(lambda: not self.engine.running, 0.7)

    def step_rotate(self, random: Random) -> None:
        if self.pipeline.sink == "jsonl":
            self.engine.rotate()
            self.source.do_work(random)

    def step_server(self, random: Random) -> None:
        """The server is restarted, or dies and recovers; only where it is ours."""
        server = self.database.server
        if not isinstance(server, Cluster):
            return
        self.source.end_open()
        if self.engine.running:
            self.engine.lives[-1].reconnects = True
            self.engine.harmed |= not self.engine.ready  # a start without a server gives up
        self.source.away()
        if random.random() < 0.5:
            server.restart()
        else:
            server.kill()
            server.start()
        self.source.back()

    def step_cut_later(self, random: Random) -> None:
        """The link is cut after so many bytes from the server: in a start, a COPY, or the stream."""
        began = self.begin(random)
        self.engine.lives[-1].reconnects = True
        sizes = (3_000, 20_000, 60_000, 200_000) if began else (100, 5_000, 30_000)
        self.engine.proxy.cut_after(random.choice(sizes) + random.randrange(3_000))
        for _ in range(random.randrange(3)):
            self.source.do_work(random)
        self.source.do_bulk(random)
        until(lambda: not self.engine.running, 0.3)

    def step_close_fails(self, random: Random) -> None:
        """The sink's files fail when the engine makes its last flush."""
        if self.engine.running:
            self.source.do_work(random)
            self.engine.fail_from_now_on()
            self.ended("TERM")

    def step_disk(self, random: Random) -> None:
        """Sink and state are on a disk that is full for a life."""
        if not self.disk:
            return
        if self.engine.process is not None:
            self.ended(random.choice(("TERM", "KILL")))
        self.engine.write_profile()
        free = shutil.disk_usage(self.folder).free
        leave = random.choice((0, 4096, 40_960, 400_000))
        ballast = self.folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            for _ in range(max(0, free - leave) // 4096):
                file.write(bytes(4096))
        self.begin(random)
        self.engine.harmed = True
        self.engine.lives[-1].reconnects = True
        self.source.do_work(random)
        self.source.do_bulk(random)
        until(lambda: not self.engine.running, 1)
        if random.random() < 0.5:
            self.ended(random.choice(("TERM", "KILL")))
        ballast.unlink()

    def step_spark(self, random: Random) -> None:
        """The applier of the change log is killed while it starts, or works."""
        if not (self.pipeline.spark and self.java and self.engine.place.exists()):
            return
        command = [self.engine.python, "-m", "waltap", "spark", *APPLY]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            command, cwd=self.engine.folder, stdout=quiet, stderr=quiet, start_new_session=True
        ) as process:
            wait = random.uniform(3, 25)
            until(lambda: process.poll() is not None, wait)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def step_publication(self, random: Random) -> None:
        """The publication is dropped and made again as it was, in one transaction. Not beside another that
        is open: the server looks for the new one in the catalogue of before, and sends nothing."""
        name = self.engine.slot
        self.source.end_open()
        if self.source.prepared:
            return
        try:
            with self.database.connect(autocommit=False) as connection:
                connection.execute("SET lock_timeout = '400ms'")
                query = "SELECT puballtables FROM pg_publication WHERE pubname = %s"
                for (every,) in connection.execute(query, [name]).fetchall():
                    tables = connection.execute(
                        "SELECT n.nspname, c.relname FROM pg_publication_rel r JOIN pg_publication p"
                        " ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid"
                        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
                        [name],
                    ).fetchall()
                    listed = ", ".join(catalogue.name_of(*place) for place in tables)
                    covered = (
                        " FOR ALL TABLES" if every else f" FOR TABLE {listed}" if listed else ""
                    )
                    quoted = catalogue.name_of(name)
                    statement = f"DROP PUBLICATION {quoted}; CREATE PUBLICATION {quoted}{covered}"
                    connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            return
        self.source.do_work(random)

    def step_anew(self, random: Random) -> None:
        """The pipeline is removed, its offset forgotten, or its slot lost; then it begins anew."""
        mode = self.engine.settings["snapshot.mode"]
        prepares = "prepare" in str(self.engine.settings.get("two.phase.policy"))
        if self.pipeline.sink != "jsonl" or prepares or mode == "always":
            return
        if self.engine.process is not None:
            self.ended("TERM")
        if not self.engine.lives or self.engine.slot_state() is None:
            return self.step_start(random)
        self.source.decide_all()
        way = random.choice(
            ("clear", "drop", "lose" if mode == "when_needed" else "drop", "take-over")
        )
        if way == "take-over" and self.pipeline.filtered:
            way = "drop"  # the publication is somebody else's then, and gets no tables any more
        self.close_beginning(keeps_slot=way in ("clear", "take-over"))
        if way == "lose":
            self.database.execute("SELECT pg_drop_replication_slot(%s)", self.engine.slot)
        elif way == "take-over":
            self._take_over(random)
        else:
            self.engine.command(*(("offsets", "clear") if way == "clear" else ("drop",)), "--yes")
        self.source.do_work(random)
        self.step_start(random)

    def _take_over(self, random: Random) -> None:
        """Lose the state: the slot is somebody else's then, and is taken over by consent alone."""
        shutil.rmtree(self.engine.folder / ".waltap")
        self.engine.settings.pop("slot.takeover", None)
        self.begin(random)
        self.engine.harmed = True  # it ends by itself
        until(lambda: not self.engine.running, patience(15))
        refused = "WT-2112" in self.engine.log(len(self.engine.lives) - 1)
        if not refused:
            self.engine.refusals.append("a slot was taken over without consent")
        self.ended("none" if refused else "KILL")
        self.engine.settings["slot.takeover"] = True

    def step_move(self, random: Random) -> None:
        """The folder of profile, state and sink is moved between two lives."""
        if self.disk:
            return
        if self.engine.process is not None:
            self.ended(random.choice(("TERM", "KILL")))
        self.source.do_work(random)
        self.engine.move(self.folder / f"moved {len(self.engine.lives)}")
        self.step_start(random)

    def step_settings(self, random: Random) -> None:
        """Other settings for the lives from now on."""
        if self.engine.process is not None:
            self.ended(random.choice(("TERM", "KILL")))
        self.source.do_work(random)
        decoder = self.pipeline.decoder
        changed: dict[str, Any] = {
            "max.batch.size": random.choice((1, 7, 8192)),
            "snapshot.fetch.size": random.choice((1, 1000)),
            "waltap.spill.memory.bytes": random.choice((1, 67_108_864)),
            "offset.flush.interval.ms": random.choice((0, 1000)),
        }
        if self.pipeline.signals:
            changed |= {
                "incremental.snapshot.chunk.size": random.choice((1, 1024)),
                "incremental.snapshot.watermarking.strategy": random.choice(
                    ("insert_insert", "insert_delete")
                ),
            }
        if decoder.startswith("pgoutput"):
            changed["pgoutput.streaming"] = random.choice(("on", "off"))
        for name in random.sample(sorted(changed), random.randrange(1, 4)):
            self.engine.settings[name] = changed[name]
        self.step_start(random)


def mount(folder: Path) -> bool:
    """Give ``folder`` a small disk of its own; False where that is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
