"""Writes the SHA-256 of every file that may be installed into constraints.txt and its like.

    .venv/bin/python -m scripts.pin_hashes

Files come from the package index that pip is configured for: sdists, and wheels for the interpreters
that waltap runs on, whatever the platform. pip compares what it fetches with them. To renew a pin, change
its version and run this.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).parents[1]
FILES = ("constraints.txt", "tests/harness/servers/pyspark41.txt")
PIN = re.compile(r"^([\w.-]+)==([\w.!+]+)", re.MULTILINE)
INTERPRETERS = {"py3", "py2.py3", "cp311", "cp312", "cp313", "py311", "py312", "py313"}


def is_wanted(filename: str, name: str, version: Version) -> bool:
    """Tell whether a file of the index is of this version and may be installed by somebody."""
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename) == (canonicalize_name(name), version)
        found, number, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    runs = any(tag.interpreter in INTERPRETERS or tag.abi == "abi3" for tag in tags)
    return (found, number) == (canonicalize_name(name), version) and runs


def hashes(collector: LinkCollector, name: str, version: str) -> Iterator[str]:
    """Give the hash of each file of one version."""
    for address in collector.search_scope.get_index_urls_locations(canonicalize_name(name)):
        page = collector.fetch_response(Link(address))
        for link in parse_links(page) if page is not None else ():
            if is_wanted(link.filename, name, Version(version)) and (found := link.as_hashes()):
                yield found._allowed["sha256"][0]  # noqa: SLF001 - pip has no other way to say it


def pinned(collector: LinkCollector, text: str) -> Iterator[str]:
    """Give the file's new lines."""
    for line in text.splitlines():
        if line.startswith("#"):
            yield line
        elif match := PIN.match(line):
            found = sorted(set(hashes(collector, *match.groups())))
            if not found:
                sys.exit(f"the package index has no file of {match[0]}")
            yield " \\\n".join([match[0], *(f"    --hash=sha256:{each}" for each in found)])


def main() -> int:
    """Return 0 when the files are written."""
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        collector = LinkCollector.create(session, options=options)
        for path in map(ROOT.joinpath, FILES):
            lines = list(pinned(collector, path.read_text(encoding="utf-8")))
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
