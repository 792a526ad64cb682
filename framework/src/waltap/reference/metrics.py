"""The page of every metric, with the names that Debezium's MBeans have for them."""

from waltap.monitor.metrics import METRICS, OBSERVED
from waltap.reference.markdown import GENERATED, table

__all__ = ["metrics_page"]

INTRODUCTION = """\
What `/metrics` of `waltap run FILE --http HOST:PORT` gives, in Prometheus' text form. Every metric has the
label `pipeline`. Counters begin at 0 with each run."""


def metrics_page() -> str:
    """Return the page."""
    rows = (
        (f"`{each.shown}`", each.kind, ", ".join(each.labels), each.summary, each.mbean)
        for each in (*METRICS, *OBSERVED)
    )
    lines = ["# Metrics", "", GENERATED, "", INTRODUCTION, ""]
    lines += table(("metric", "kind", "labels", "meaning", "Debezium's MBean"), rows)
    return "\n".join(lines).rstrip() + "\n"
