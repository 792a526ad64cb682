"""Writes into the documentation what a real run printed: the demo's output, the benchmarks' figures.

make demo | tee demo.log
scripts/printed_output.py --demo demo.log --results benchmarks/results/*.json
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "docs/howto/demo.md"
SPEED = ROOT / "docs/reference/speed.md"
MACHINE_PATH = re.compile(r"(?<![\w.])/[\w./-]*/(demo-output\b)")
TIMED = re.compile(r"setup:|(real|user|sys)\t")  # lines of the shell, not of the demo
TABLE_ROWS = 3
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def demo_output(text: str) -> str:
    """Return the demo's output without colours and without the paths of one machine."""
    lines = [_without_paths(line).rstrip() for line in COLOURS.sub("", text).splitlines()]
    lines = [line for line in lines if not TIMED.match(line)]
    return "```\n" + "\n".join(_first_rows(lines)).strip("\n") + "\n```"


def _first_rows(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines with the first rows of each table of results, which has a thick head."""
    left = len(lines)
    for line in lines:
        if line.startswith("\u2521"):
            left = TABLE_ROWS
        elif line.startswith("\u2502") and left < len(lines):
            left -= 1
        else:
            left = len(lines)
        if left >= 0:
            yield line
        elif left == -1:
            yield "\u2502 …"


def _without_paths(line: str) -> str:
    """Make paths relative to the project; the frame around them stays where it is."""
    short = MACHINE_PATH.sub(r"\1", line)
    if short == line or not short.rstrip().endswith("│"):
        return short
    return short.rstrip()[:-1] + " " * (len(line) - len(short)) + "│"


def benchmark_tables(documents: Sequence[dict[str, Any]]) -> str:
    """Return one table for all benchmarks, and the machine they ran on."""
    lines = [
        "| benchmark | contender | rows/s | of the server's tool | times Debezium's best | peak MiB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for document in documents:
        for row in document.get("summary", ()):
            times = "" if row["times_peer"] is None else f"{row['times_peer']:.1f}"
            lines.append(
                f"| {document['benchmark']} | {row['contender']} | {row['rows_per_second']:,} |"
                f" {row['of_limit']:.2f} | {times} | {row['peak_mib']:,} |"
            )
    for name, cases in _cases(documents):
        lines += ["", f"| {name}: {' | '.join(cases[0])} |", "|---" * len(cases[0]) + "|"]
        lines += [f"| {' | '.join(map(str, each.values()))} |" for each in cases]
    machine = documents[0]["machine"]
    lines += [
        "",
        f"{machine['cores']} cores shared by server and client ({machine['cpu']}),",
        f"{machine['postgres']},",
        f"Python {machine['python']}; the tool is `pg_recvlogical` for streams, `COPY` for snapshots.",
        "Files: `benchmarks/results`.",
    ]
    return "\n".join(lines)


def _cases(documents: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield names and figures of benchmarks that have no rates."""
    for document in documents:
        yield from document.get("cases", {}).items()


def print_speed(files: Sequence[Path]) -> None:
    """Write the figures of the result ``files`` into their page.

    Results of Spark and of changes to schemas have pages of their own.
    """
    documents = [
        json.loads(path.read_text())
        for path in files
        if not path.name.startswith(("spark-", "scale-2", "decoders-"))
    ]
    replace(SPEED, "benchmark", benchmark_tables(documents))


def replace(page: Path, section: str, content: str) -> None:
    """Replace the part between the markers of ``section``."""
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {section}\b[^>]*-->\n).*?(<!-- /{section} -->)", re.DOTALL)
    new, count = pattern.subn(lambda match: f"{match[1]}{content}\n{match[2]}", text)
    if count != 1:
        raise SystemExit(f"{page} has no section {section}")
    page.write_text(new, encoding="utf-8")


def main() -> None:
    """Fill the sections that are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="what `make demo` printed")
    parser.add_argument("--results", type=Path, nargs="*", default=[], help="files of benchmarks")
    options = parser.parse_args()
    if options.demo is not None:
        replace(DEMO, "demo-output", demo_output(options.demo.read_text(encoding="utf-8")))
    if options.results:
        print_speed(options.results)


if __name__ == "__main__":
    main()
