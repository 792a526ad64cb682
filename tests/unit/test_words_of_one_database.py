"""What one database is like is known to its plugin, and to the decoder of its output plugin."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = re.compile(r"yugabyte|yboutput|\byb_|\bybdb", re.IGNORECASE)
KNOW = (
    "plugins/yugabyte/",
    "plugins/decoders/",
)


def test_no_word_of_yugabytedb_stands_elsewhere():
    sources = [*ROOT.glob("framework/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    found = [
        f"{place}:{number}: {line.strip()}"
        for path in sources
        if not (place := str(path.relative_to(ROOT))).startswith(KNOW)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(line)
    ]
    assert len(sources) > 300
    assert found == []
