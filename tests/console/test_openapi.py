"""Requests that schemathesis derives from the OpenAPI document."""

import hypothesis
import pytest

from harness.console import Console
from ottla.console.app import openapi
from ottla.testing import RunningBroker

schemathesis = pytest.importorskip("schemathesis")

# Streams without an end are in test_records.py.
SCHEMA = schemathesis.openapi.from_dict(openapi()).exclude(path_regex="/tail$")
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.fixture(scope="module")
def console():
    """A console of its own: these requests change anything."""
    with (
        RunningBroker(authorizer_class_name="acl", super_users="User:ANONYMOUS") as broker,
        Console(broker.bootstrap) as started,
    ):
        yield started


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_no_request_is_an_internal_error(operation, console):
    @hypothesis.settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy())
    def check(case):
        response = case.call(base_url=console.address)

        assert response.status_code != 500, response.text
        if response.status_code >= 400:
            assert response.headers["content-type"] == ["application/problem+json"]
            assert response.json()["status"] == response.status_code

    check()
