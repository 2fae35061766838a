"""What an operator can watch: plain counters kept where things happen, read at scrape time.

Nothing on the hot path touches a metrics library; the collector asks the objects that know.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Reading(NamedTuple):
    """One metric: its kind (`counter` or `gauge`), what it says, and its values by label (the empty one: no label)."""

    name: str
    kind: str
    text: str
    read: Callable[[], dict[str, float]]
    label: str = ""


class _Readings(Collector):
    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = tuple(readings)

    def collect(self) -> Iterable[Metric]:
        for reading in self._readings:
            kind = CounterMetricFamily if reading.kind == "counter" else GaugeMetricFamily
            family = kind(reading.name, reading.text, labels=[reading.label] if reading.label else [])
            for label, value in reading.read().items():
                family.add_metric([label] if reading.label else [], value)
            yield family


class Metrics:
    """The exposition of a set of readings in the Prometheus text format."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Readings(readings))

    def text(self) -> bytes:
        """Everything, as it is now."""
        return generate_latest(self._registry)
