"""The columns of source and sink."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_SINK: dict[str, tuple[type[DataType], ...]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
    "headers": (ArrayType,),
}


def source_schema(*, has_headers: bool) -> StructType:
    """Return the schema of Spark's Kafka source."""
    names = [name for name in _COLUMNS if has_headers or name != "headers"]
    return StructType([StructField(name, _COLUMNS[name]) for name in names])


def chosen_columns(schema: StructType, *, has_headers: bool) -> list[str]:
    """Return the columns of a job: `.schema(…)` may leave some out. Raises OptionError.

    Spark does not tell a Python source which columns a query uses, and converting unused ones into
    rows takes most of the time.
    """
    whole = source_schema(has_headers=has_headers)
    for column in schema.fields:
        if column.name not in whole.names:
            hint = ": set includeHeaders=true" if column.name == "headers" else ""
            raise OptionError(f"Unknown column {column.name!r}{hint or _all_of(whole.names)}")
        actual = whole[column.name].dataType
        if column.dataType != actual:
            raise OptionError(
                f"Column {column.name} is {actual.simpleString()},"
                f" not {column.dataType.simpleString()}: cast it in the query"
            )
    return list(schema.names)


def check_sink(schema: StructType, topic: str | None, *, include_timestamps: bool) -> None:
    """Check the columns of a sink. Raises OptionError."""
    if "value" not in schema.names:
        raise OptionError("Missing column 'value'" + _all_of(schema.names))
    if topic is None and "topic" not in schema.names:
        raise OptionError("Missing topic: set the option 'topic', or add a column 'topic'")
    if include_timestamps and "timestamp" not in schema.names:
        raise OptionError("includeTimestamp=true requires a column 'timestamp'")
    for column in schema.fields:
        kinds = _SINK.get(column.name)
        if kinds is None or (column.name == "timestamp" and not include_timestamps):
            continue  # not written, as with Spark's own sink
        fits = isinstance(column.dataType, kinds)
        if column.name == "headers":
            fits = column.dataType.simpleString() == _HEADERS.simpleString()
        if not fits:
            allowed = " or ".join(kind().simpleString() for kind in kinds if kind is not ArrayType)
            raise OptionError(
                f"Column {column.name} is {column.dataType.simpleString()}:"
                f" must be {allowed or _HEADERS.simpleString()}"
            )


def _all_of(names: Sequence[str]) -> str:
    return f"; columns are {', '.join(names)}"
