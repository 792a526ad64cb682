"""Runs the corpora live: ``python -m tests.differential record|check|docs|list|properties [VARIANT...]``."""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.differential import properties
from tests.differential.accepted import PAGE, page, unexplained
from tests.differential.capture import capture
from tests.differential.comparison import differences, report
from tests.differential.corpus import Variant, variants, write_made_with
from tests.differential.engines import CaptureFailed
from tests.differential.normalise import Record, canonical, payload
from tests.harness.servers.postgres import Cluster, Server, server_at


def main() -> int:
    """Run the command; 0: all well, 1: something differs or failed."""
    options = _options()
    if options.command == "docs":
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if options.command == "properties":
        properties.GOLDEN.write_text(properties.asked(), encoding="utf-8")
        return 0
    try:
        chosen = variants(options.variants)
    except ValueError as error:
        print(f"tests.differential: {error}", file=sys.stderr)
        return 2
    if options.command == "list":
        print("\n".join(variant.id for variant in chosen))
        return 0
    with _server(options.server) as server, tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        versions: set[str] = set()

        def one(variant: Variant) -> tuple[bool, str]:
            started = time.monotonic()
            try:
                raw = capture(
                    variant, server, folder / variant.id.replace(":", "."), options.engine
                )
            except (CaptureFailed, AssertionError) as error:
                return False, f"FAILED {variant.id}: {error}"
            versions.update(_versions(raw))
            found = canonical(raw, variant.collapse)
            seconds = time.monotonic() - started
            if options.command == "record":
                variant.record(found)
                return True, f"recorded {variant.id}: {len(found)} records, {seconds:.1f} s"
            return _checked(variant, found, seconds, strict=options.engine == "debezium")

        good = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for ok, text in pool.map(one, chosen):
                print(text.encode("utf-8", "backslashreplace").decode(), flush=True)
                good += ok
        if options.command == "record" and good == len(chosen):
            number = server.version
            write_made_with(
                debezium=", ".join(sorted(versions)), postgres=f"{number // 10000}.{number % 10000}"
            )
    print(f"{good} of {len(chosen)} variants are as they should be")
    return 0 if good == len(chosen) else 1


def _checked(
    variant: Variant, found: list[Record], seconds: float, *, strict: bool
) -> tuple[bool, str]:
    """Compare with the recording; ``strict``: Debezium itself, which differs in nothing on purpose."""
    seen = differences(variant.expected(), found)
    open_, stale = (seen, []) if strict else unexplained(variant.id, seen)
    if not open_ and not stale:
        return True, f"equal {variant.id}: {len(found)} records, {seconds:.1f} s"
    said = [f"DIFFERS {variant.id}, {seconds:.1f} s"]
    said += [report(open_)] if open_ else []
    said += [f"  no longer differs, strike it from the list: {entry.summary}" for entry in stale]
    return False, "\n".join(said)


def _versions(records: list[Record]) -> Iterator[str]:
    for record in records:
        value = payload(record["value"])
        if isinstance(value, dict) and isinstance(value.get("source"), dict):
            yield value["source"]["version"]


@contextlib.contextmanager
def _server(address: str | None) -> Iterator[Server]:
    if address is not None:
        yield server_at(address)
        return
    cluster = Cluster.create()
    try:
        yield cluster
    finally:
        cluster.remove()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument(
        "command",
        choices=["record", "check", "docs", "list", "properties"],
        help="record: Debezium's events become the expected ones; check: run and compare; docs: write"
        " docs/reference/differences.md; list: name the variants; properties: record what the connector declares",
    )
    parser.add_argument("variants", nargs="*", help="corpus or corpus:variant; without any: all")
    parser.add_argument("--engine", choices=["waltap", "debezium"], help="with check (waltap)")
    parser.add_argument(
        "--server", help="address of a PostgreSQL superuser; default: a server of its own"
    )
    parser.add_argument("--jobs", type=int, default=2, help="variants at the same time (2)")
    parser.add_argument("--keep", type=Path, help="folder to keep dumps and logs in")
    options = parser.parse_intermixed_args()
    if options.engine is None:
        options.engine = "debezium" if options.command == "record" else "waltap"
    if options.command == "record" and options.engine != "debezium":
        parser.error("only Debezium's events are recorded")
    return options


if __name__ == "__main__":
    sys.exit(main())
