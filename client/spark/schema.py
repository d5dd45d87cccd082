"""The columns of the source and of the sink."""

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
    """Give the schema of Spark's Kafka source."""
    names = [name for name in _COLUMNS if has_headers or name != "headers"]
    return StructType([StructField(name, _COLUMNS[name]) for name in names])


def chosen_columns(schema: StructType, *, has_headers: bool) -> list[str]:
    """Give the columns that a job wants: `.schema(…)` may leave some out. Raises OptionError.

    Spark does not tell a Python source which columns a query uses, and turning those that nobody
    uses into rows takes most of the time.
    """
    whole = source_schema(has_headers=has_headers)
    for wanted in schema.fields:
        if wanted.name not in whole.names:
            hint = ": it needs includeHeaders=true" if wanted.name == "headers" else ""
            raise OptionError(f"there is no column {wanted.name!r}{hint or _all_of(whole.names)}")
        has = whole[wanted.name].dataType
        if wanted.dataType != has:
            raise OptionError(
                f"column {wanted.name} is {has.simpleString()},"
                f" and not {wanted.dataType.simpleString()}: cast it in the query"
            )
    return list(schema.names)


def check_sink(schema: StructType, topic: str | None, *, has_timestamps: bool) -> None:
    """Check that rows can be written. Raises OptionError."""
    if "value" not in schema.names:
        raise OptionError("there is no column 'value' to be written" + _all_of(schema.names))
    if topic is None and "topic" not in schema.names:
        raise OptionError("there is neither an option nor a column 'topic': where to?")
    if has_timestamps and "timestamp" not in schema.names:
        raise OptionError("includeTimestamp is true, and there is no column 'timestamp'")
    for column in schema.fields:
        kinds = _SINK.get(column.name)
        if kinds is None or (column.name == "timestamp" and not has_timestamps):
            continue  # as with Spark's own sink, it is not written
        fits = isinstance(column.dataType, kinds)
        if column.name == "headers":
            fits = column.dataType.simpleString() == _HEADERS.simpleString()
        if not fits:
            wanted = " or ".join(kind().simpleString() for kind in kinds if kind is not ArrayType)
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}:"
                f" it must be {wanted or _HEADERS.simpleString()}"
            )


def _all_of(names: Sequence[str]) -> str:
    return f"; there are {', '.join(names)}"
