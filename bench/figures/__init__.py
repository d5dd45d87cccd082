"""The figures of docs/benchmarks.md: what each shows, and which part of which script it is from.

A figure is made of the results of one part alone, which were measured in one run: what is drawn
side by side can be compared.
"""

from . import broker, clients, cluster, groups, log, spark, wire
from .parts import Figure, Section, Table

__all__ = ["SECTIONS", "Figure", "Section", "Table"]

SECTIONS: tuple[Section, ...] = (
    broker.SECTION,
    log.SECTION,
    clients.SECTION,
    spark.SECTION,
    groups.SECTION,
    cluster.SECTION,
    wire.SECTION,
)
