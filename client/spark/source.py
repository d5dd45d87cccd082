"""The data source: what Spark asks for when a job says `format("ottla")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .errors import OptionError
from .options import check_names, read_options, wants_headers, wants_pushdown, write_options
from .reader import BatchReader, PushdownReader
from .schema import check_sink, chosen_columns, source_schema
from .stream import StreamReader
from .writer import BatchWriter, StreamWriter


class OttlaSource(DataSource):
    """Topics as a source and a sink, of batches and of streams.

    Filters are pushed down if the option `pushdown` says so, and not otherwise. Spark keeps what a
    Python source has planned for a filter with the table, and plans nothing anew for the next query
    that has none: from a DataFrame that is used twice, rows would be missing.
    """

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "ottla"

    def schema(self) -> StructType:
        """Give the columns."""
        check_names(self.options)
        return source_schema(has_headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """Read a batch."""
        options = read_options(self.options, is_stream=False)
        kind = PushdownReader if wants_pushdown(self.options) else BatchReader
        return kind(options, self._columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Read a stream."""
        return StreamReader(read_options(self.options, is_stream=True), self._columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Write a batch."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: mode('append') adds to it")
        options = write_options(self.options)
        check_sink(schema, options.topic, has_timestamps=options.has_timestamps)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002
        """Write a stream; of a query in complete mode, the whole result with each batch."""
        options = write_options(self.options)
        check_sink(schema, options.topic, has_timestamps=options.has_timestamps)
        return StreamWriter(options)

    def _columns(self, schema: StructType) -> list[str] | None:
        has_headers = wants_headers(self.options)
        chosen = chosen_columns(schema, has_headers=has_headers)
        return None if chosen == source_schema(has_headers=has_headers).names else chosen
