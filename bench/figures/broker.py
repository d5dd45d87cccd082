"""The broker beside its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chart import Bars, Lines, Series, byte_size

from .parts import ONE_IN, Drawing, Figure, Section, Table, bars, labels_of, who


def start(found: dict[str, Any]) -> Drawing:
    """Draw how long a start takes, and what memory is used then."""
    seconds = {name: min(each["seconds"]) for name, each in found.items()}
    idle = {
        name: min(memory["private"] for memory in each["idle"]) / 1e6
        for name, each in found.items()
    }
    return Drawing(
        [
            Bars("start, to the first answer", "seconds", bars(seconds)),
            Bars("memory when idle", "MB, private", bars(idle)),
        ],
        [],
    )


def throughput(found: list[dict[str, Any]]) -> Drawing:
    """Draw records in a second."""
    smallest = min(row["size"] for row in found)
    return Drawing(
        [
            Bars(
                f"{row['verb']}, records of {byte_size(row['size'])}",
                "records/s",
                bars(
                    {label: best["records_per_second"] for label, best in row["best"].items()},
                ),
            )
            for row in found
            if row["size"] == smallest
        ],
        [
            Table(
                [
                    f"{row['verb']}, {byte_size(row['size'])}",
                    *("records/s", "MB/s", "broker's memory, MB"),
                    *("broker's cores", "client's cores"),
                ],
                [
                    [
                        label,
                        f"{best['records_per_second']:,.0f}",
                        f"{best['records_per_second'] * row['size'] / 1e6:,.0f}",
                        f"{best['anonymous'] / 1e6:,.0f}" if "anonymous" in best else "",
                        f"{best['server_cores']:.2f}" if "anonymous" in best else "",
                        f"{best['client_cores']:.2f}",
                    ]
                    for label, best in row["best"].items()
                ],
            )
            for row in found
        ],
    )


def cpu(found: list[dict[str, Any]]) -> Drawing:
    """Draw the broker's CPU for a million records."""
    rows = [row | {"best": _with_server(row["best"])} for row in found]
    smallest = min(row["size"] for row in rows)
    columns = [f"{row['verb']}, {byte_size(row['size'])}" for row in rows]
    return Drawing(
        [
            Bars(
                f"{row['verb']}, records of {byte_size(row['size'])}",
                "broker's CPU seconds for a million records",
                bars({label: best["server_cpu"] * 1e6 for label, best in row["best"].items()}),
            )
            for row in rows
            if row["size"] == smallest
        ],
        [
            Table(
                ["CPU s for a million records", *columns],
                [
                    [
                        label,
                        *(
                            f"{row['best'][label]['server_cpu'] * 1e6:.2f}"
                            if label in row["best"]
                            else ""
                            for row in rows
                        ),
                    ]
                    for label in labels_of(rows)
                ],
            )
        ],
    )


def _with_server(best: dict[str, Any]) -> dict[str, Any]:
    """Leave out the mock, whose CPU is the client's."""
    return {label: each for label, each in best.items() if "anonymous" in each}


def _over(
    found: list[dict[str, Any]], verb: str, key: str, value: Callable[[Any, Any], float]
) -> list[Series]:
    """Give a line for each contender, over the size of records or the number of partitions."""
    rows = [row for row in found if row["verb"] == verb]
    return [
        Series(
            label,
            who(label),
            [(row[key], value(row, row["best"][label])) for row in rows if label in row["best"]],
        )
        for label in labels_of(rows)
    ]


def sizes(found: list[dict[str, Any]]) -> Drawing:
    """Draw throughput over the size of records."""

    def rate(row: Any, best: Any) -> float:
        return float(best["records_per_second"] * row["size"] / 1e6)

    return Drawing(
        [
            Lines(verb, "MB/s", "size of a record", _over(found, verb, "size", rate), byte_size)
            for verb in ("produce", "consume")
        ],
        [
            Table(
                [f"{verb}, records/s", *(byte_size(row["size"]) for row in rows)],
                [
                    [
                        label,
                        *(
                            f"{row['best'][label]['records_per_second']:,.0f}"
                            if label in row["best"]
                            else ""
                            for row in rows
                        ),
                    ]
                    for label in labels_of(rows)
                ],
            )
            for verb in ("produce", "consume")
            if (rows := [row for row in found if row["verb"] == verb])
        ],
    )


def partitions(found: list[dict[str, Any]]) -> Drawing:
    """Draw the cost of a record over the number of partitions."""

    def cost(_row: Any, best: Any) -> float:
        return float(best["server_cpu"] * 1e6)

    return Drawing(
        [
            Lines(
                verb,
                "broker's CPU seconds for a million records",
                "partitions",
                _over(found, verb, "partitions", cost),
            )
            for verb in ("produce", "consume")
        ],
        [
            Table(
                ["", "partitions", "records/s", "broker's CPU s for a million", "memory, MB"],
                [
                    [
                        f"{label}, {row['verb']}",
                        f"{row['partitions']:,}",
                        f"{best['records_per_second']:,.0f}",
                        f"{best['server_cpu'] * 1e6:.2f}",
                        f"{best['anonymous'] / 1e6:,.0f}",
                    ]
                    for row in found
                    for label, best in row["best"].items()
                ],
            )
        ],
    )


def single(found: list[dict[str, Any]]) -> Drawing:
    """Draw what a request with one record costs."""

    def cost(runs: list[Any]) -> float:
        return min(run["server_cpu"] / run["requests"] for run in runs) * 1e6

    return Drawing(
        [
            Bars(
                f"{row['on_their_way']:,} on their way",
                "broker's CPU, µs for a request",
                bars({label: cost(runs) for label, runs in row["runs"].items()}),
            )
            for row in found
        ],
        [
            Table(
                [f"{row['on_their_way']:,} on their way", "requests/s", "broker's µs", "client's"],
                [
                    [
                        label,
                        f"{max(run['requests'] / run['seconds'] for run in runs):,.0f}",
                        f"{cost(runs):.1f}",
                        f"{min(run['client_cpu'] / run['requests'] for run in runs) * 1e6:.1f}",
                    ]
                    for label, runs in row["runs"].items()
                ],
            )
            for row in found
        ],
    )


def warm_latency(found: list[dict[str, Any]]) -> Drawing:
    """Draw percentiles while nothing else happens."""
    return latency([row for row in found if not row["cold"]])


def cold_latency(found: list[dict[str, Any]]) -> Drawing:
    """Draw percentiles while cold data is read."""
    return latency([row for row in found if row["cold"]])


def latency(rows: list[dict[str, Any]]) -> Drawing:
    """Draw percentiles."""
    names = {places: name for name, places in ONE_IN.items()}
    verbs = {"delivered": "to the delivery report", "consumed": "to the consumer"}
    return Drawing(
        [
            Lines(
                title,
                "milliseconds",
                "percentile",
                [
                    Series(
                        row["label"],
                        who(row["label"]),
                        [(at, row["best"][verb][name] * 1e3) for name, at in ONE_IN.items()],
                    )
                    for row in rows
                ],
                lambda place: names[int(place)],
            )
            for verb, title in verbs.items()
        ],
        [
            Table(
                [f"ms {title}", *ONE_IN, "most", "records"],
                [
                    [
                        row["label"],
                        *(f"{row['best'][verb][name] * 1e3:.2f}" for name in (*ONE_IN, "most")),
                        f"{row['best'][verb]['count']:,}",
                    ]
                    for row in rows
                ],
            )
            for verb, title in verbs.items()
        ],
    )


SECTION = Section(
    "The broker, beside Apache Kafka, Redis Streams and librdkafka's mock",
    "The client is librdkafka (confluent-kafka) for ottla and Kafka, a socket for Redis. It "
    "runs on the same cores, and is often the limit. With acks=all, ottla by default (fsync) "
    "answers when the device has the records. Kafka never waits for the device: its like is "
    "page-cache. The mock lives in the client, and shows what that could do.",
    [
        Figure(
            "Throughput",
            "broker",
            "throughput",
            throughput,
            "Twelve partitions; librdkafka's own batching.",
        ),
        Figure(
            "CPU for a million records",
            "broker",
            "throughput",
            cpu,
            "Of the same runs: all threads of the broker's process.",
        ),
        Figure(
            "Throughput against the size of records",
            "broker",
            "sizes",
            sizes,
            "The broker looks at requests and never at records: small ones cost the clients.",
        ),
        Figure(
            "Cost against the number of partitions",
            "broker",
            "partitions",
            partitions,
            "Records of 100 bytes. More partitions make for smaller batches and longer requests.",
        ),
        Figure(
            "One record in each request",
            "broker",
            "single",
            single,
            "The worst a client can do: nothing is shared by many records. The aim of ottla "
            "is 50 µs; [what was tried](decisions/0001-small-requests.md).",
        ),
        Figure(
            "Latency",
            "broker",
            "latency",
            warm_latency,
            "500 single records a second, acks=all.",
        ),
        Figure(
            "Latency while cold data is read",
            "broker",
            "latency",
            cold_latency,
            "The same, while another consumer replays data that the page cache has not.",
        ),
        Figure(
            "Start and memory",
            "broker",
            "start",
            start,
            "From the spawn to the first answer, with an empty folder.",
        ),
    ],
)
