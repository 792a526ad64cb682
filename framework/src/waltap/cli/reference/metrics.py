"""Generate the page of metrics and of Debezium's MBeans."""

from waltap.base.text import GENERATED, table
from waltap.services.monitor.mbeans import SNAPSHOT, STREAMING
from waltap.services.monitor.metrics import METRICS, OBSERVED

__all__ = ["metrics_page"]

INTRODUCTION = """\
What `/metrics` of `waltap run FILE --http HOST:PORT` gives, in Prometheus' text form. Every metric has the
label `pipeline`. Counters begin at 0 with each run. [Dashboard and alert rules](../howto/monitoring.md)
use them."""

OF_DEBEZIUM = """\
Each attribute of the MBeans of Debezium 3.6's connector for PostgreSQL, as its JMX exporter gives them,
and what tells the same here. Labels `pipeline` and others narrow the expressions."""


def metrics_page() -> str:
    """Return the page."""
    rows = (
        (f"`{each.shown}`", each.kind, ", ".join(each.labels), each.summary)
        for each in (*METRICS, *OBSERVED)
    )
    lines = ["# Metrics", "", GENERATED, "", INTRODUCTION, ""]
    lines += table(("metric", "kind", "labels", "meaning"), rows)
    lines += ["", "## Coming from Debezium", "", OF_DEBEZIUM]
    for name, mapping in (("streaming", STREAMING), ("snapshot", SNAPSHOT)):
        lines += ["", f"### `context={name}`", ""]
        lines += table(("attribute", "here"), mapping.items())
    return "\n".join(lines).rstrip() + "\n"
