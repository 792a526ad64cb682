"""Prints results as a table and writes them as JSON: rates, ratios within a round, peak memory."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.contender import Result

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: medians over the rounds.

    Ratios are taken within a round, since the machine's speed drifts from round to round.
    """

    contender: str
    rows_per_second: int
    of_limit: float
    times_peer: float | None
    peak_mib: int
    cpu_us_per_row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What ``contender`` is to reach: ``times`` the rate of ``of``, or at most ``mib`` of memory."""

    contender: str
    of: str = ""
    times: float = 0.0
    mib: int = 0


def held(results: Sequence[Result], bars: Sequence[Bar]) -> list[tuple[Bar, float]]:
    """Return the bars whose contenders ran, with what was reached: the median of the ratios within a
    round, or the largest memory."""
    names = {result.contender for result in results}
    found = []
    for bar in bars:
        mine = [result for result in results if result.contender == bar.contender]
        if not mine or (bar.of and bar.of not in names):
            continue
        if bar.of:
            reached = median(r.rate / _rate(results, bar.of, r.round) for r in mine)
        else:
            reached = max(r.peak_mib for r in mine)
        found.append((bar, reached))
    return found


def show_bars(bars: Sequence[tuple[Bar, float]]) -> None:
    """Print what was reached beside what is asked for."""
    table = Table(title="bars", title_justify="left")
    for name in ("contender", "bar", "reached", ""):
        table.add_column(name)
    for bar, reached in bars:
        if bar.of:
            wanted, found = f"≥ {bar.times:g} of {bar.of}", f"{reached:.2f}"
            met = reached >= bar.times
        else:
            wanted, found, met = f"≤ {bar.mib} MiB", f"{reached:.0f}", reached <= bar.mib
        table.add_row(bar.contender, wanted, found, "met" if met else "missed")
    Console().print(table)


def rows_of(results: Sequence[Result], limit: str, peers: Sequence[str]) -> list[Row]:
    """Sum up ``results``; ``limit`` and ``peers`` are names of contenders, the fastest peer counts."""
    found = []
    for name in dict.fromkeys(result.contender for result in results):
        mine = [result for result in results if result.contender == name]
        of_limit = [r.rate / _rate(results, limit, r.round) for r in mine]
        best = [[_rate(results, peer, r.round) for peer in peers] for r in mine]
        found.append(
            Row(
                contender=name,
                rows_per_second=round(median(r.rate for r in mine)),
                of_limit=round(median(of_limit), 3),
                times_peer=_times(mine, best) if peers else None,
                peak_mib=round(max(r.peak_mib for r in mine)),
                cpu_us_per_row=round(median(r.cpu_seconds / r.rows * 1e6 for r in mine), 2),
            )
        )
    return found


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    for name in ("rows/s", "of the limit", "times Debezium's best", "peak MiB", "CPU µs/row"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.contender,
            f"{row.rows_per_second:,}",
            f"{row.of_limit:.2f}",
            "" if row.times_peer is None else f"{row.times_peer:.2f}",
            f"{row.peak_mib:,}",
            f"{row.cpu_us_per_row:.1f}",
        )
    console = Console()
    console = console if console.is_terminal else Console(width=100)
    console.print(table)


def write(
    benchmark: str, machine: dict[str, object], rows: Sequence[Row], results: Sequence[Result]
) -> Path:
    """Write one JSON file in place of the benchmark's last one; return its path."""
    runs = [{**asdict(result), "rows_per_second": round(result.rate)} for result in results]
    return _written(benchmark, machine, summary=[asdict(row) for row in rows], runs=runs)


def write_cases(benchmark: str, machine: dict[str, object], figures: Sequence[object]) -> Path:
    """Write figures without rates, in place of the benchmark's last ones; return the path."""
    return _written(benchmark, machine, cases={benchmark: figures})


def _written(benchmark: str, machine: dict[str, object], **found: object) -> Path:
    now = datetime.now(UTC)
    document = {
        "benchmark": benchmark,
        "at": now.isoformat(timespec="seconds"),
        "machine": machine,
        **found,
    }
    RESULTS.mkdir(exist_ok=True)
    for old in RESULTS.glob(f"{benchmark}-????????T??????.json"):
        old.unlink()
    path = RESULTS / f"{benchmark}-{now:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def _rate(results: Sequence[Result], name: str, round_: int) -> float:
    return next(r.rate for r in results if (r.contender, r.round) == (name, round_))


def _times(mine: Sequence[Result], best: Sequence[Sequence[float]]) -> float:
    return round(median(r.rate / max(rates) for r, rates in zip(mine, best, strict=True)), 2)
