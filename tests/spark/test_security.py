"""Spark over TLS and SASL: the options of Spark's Kafka connector; no plan shows secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from harness.secure_broker import SecureBroker
from harness.secure_kafka import PASSWORD
from harness.security_matrix import java_properties
from ottla.client.blocking import Admin


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def options(broker: SecureBroker, mechanism: str) -> dict[str, str]:
    """Return what a user of Spark's connector has, with certificates in PEM."""
    properties = java_properties(
        broker.addresses["SASL_SSL"], broker.security("SASL_SSL", mechanism)
    )
    return {f"kafka.{name}": value for name, value in properties.items()}


def test_rows_are_written_and_read(spark: Any, secured: SecureBroker) -> None:
    with Admin(secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topic("rows", partitions=2)
    rows = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
    rows.write.format("ottla").options(**options(secured, "SCRAM-SHA-512")).option(
        "topic", "rows"
    ).mode("append").save()

    read = (
        spark.read.format("ottla")
        .options(**options(secured, "SCRAM-SHA-256"))
        .option("subscribe", "rows")
        .load()
    )

    assert sorted(bytes(row.value) for row in read.collect()) == [b"a", b"b"]
    shown = StringIO()
    with redirect_stdout(shown):
        read.explain("extended")
        read.explain("formatted")
    assert "ottla" in shown.getvalue().lower()
    assert PASSWORD not in shown.getvalue()


def test_a_wrong_password_fails_with_the_reason(spark: Any, secured: SecureBroker) -> None:
    given = options(secured, "SCRAM-SHA-256")
    given["kafka.sasl.jaas.config"] = given["kafka.sasl.jaas.config"].replace(PASSWORD, "guess-77")

    with pytest.raises(Exception, match="Authentication of user 'alice' at localhost") as failed:
        spark.read.format("ottla").options(**given).option("subscribe", "rows").load().collect()
    assert "guess-77" not in str(failed.value)
