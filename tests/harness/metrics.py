"""The metrics of a broker, as a scraper reads them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.request import Request, urlopen

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ottla.broker import Broker
from ottla.broker.observability.collector import Collector
from ottla.broker.observability.exposition import render

#: The name of a sample, and its labels in order.
Key = tuple[object, ...]


def sample(name: str, **labels: object) -> Key:
    """Return the key of a sample."""
    return (name, *sorted((label, str(value)) for label, value in labels.items()))


def by_key(families: Iterable[Metric]) -> dict[Key, float]:
    """Return the values of samples."""
    return {
        sample(line.name, **line.labels): line.value
        for family in families
        for line in family.samples
    }


def fetch(port: int, path: str = "/metrics", accept: str = "") -> tuple[str, str]:
    """Return the content type and the text of a page of the endpoint."""
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with urlopen(request, timeout=10) as response:
        return response.headers["Content-Type"], response.read().decode()


def scrape(port: int, accept: str = "") -> dict[Key, float]:
    """Return the samples of an endpoint, and check their format."""
    content_type, text = fetch(port, accept=accept)
    parse = parse_open if content_type.startswith("application/openmetrics-text") else parse_text
    return by_key(parse(text))


def collected(broker: Broker) -> dict[Key, float]:
    """Return the samples of a broker without an endpoint."""
    text = "".join(render(Collector(broker).families(), is_openmetrics=False))
    return by_key(parse_text(text))
