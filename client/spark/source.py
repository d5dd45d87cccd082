"""The data source that Spark calls for `format("ottla")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .errors import OptionError, options_reported
from .exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from .options import check_names, read_options, wants_headers, wants_pushdown, write_options
from .reader import BatchReader, PushdownReader
from .schema import check_sink, chosen_columns, source_schema
from .stream import InvalidStreamReader, StreamReader
from .writer import BatchWriter, StreamWriter


class OttlaSource(DataSource):
    """Topics as a source and a sink, for batches and streams.

    Filters are pushed down only if the option `pushdown` is true. Spark caches what a Python source
    planned for a filter with the table, and does not plan again for the next query without that
    filter: a DataFrame that is used twice would lack rows.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla"

    @options_reported()
    def schema(self) -> StructType:
        """Return the columns."""
        check_names(self.options)
        return source_schema(has_headers=wants_headers(self.options))

    @options_reported()
    def reader(self, schema: StructType) -> BatchReader:
        """Return a batch reader."""
        options = read_options(self.options, is_stream=False)
        kind = PushdownReader if wants_pushdown(self.options) else BatchReader
        return kind(options, self._columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return a streaming reader."""
        try:
            return StreamReader(read_options(self.options, is_stream=True), self._columns(schema))
        except OptionError as error:
            return InvalidStreamReader(error)

    @options_reported()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter | ExactlyOnceBatchWriter:
        """Return a batch writer."""
        if overwrite:
            raise OptionError("A topic cannot be overwritten: use mode('append')")
        options = write_options(self.options)
        check_sink(schema, options.topic, include_timestamps=options.include_timestamps)
        return ExactlyOnceBatchWriter(options) if options.exactly_once else BatchWriter(options)

    @options_reported()
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> StreamWriter | ExactlyOnceStreamWriter:
        """Return a streaming writer; complete mode writes the whole result with each batch."""
        options = write_options(self.options, is_stream=True)
        check_sink(schema, options.topic, include_timestamps=options.include_timestamps)
        return ExactlyOnceStreamWriter(options) if options.exactly_once else StreamWriter(options)

    def _columns(self, schema: StructType) -> list[str] | None:
        has_headers = wants_headers(self.options)
        chosen = chosen_columns(schema, has_headers=has_headers)
        return None if chosen == source_schema(has_headers=has_headers).names else chosen
