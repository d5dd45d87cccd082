"""The pytest plugin in a foreign project: fixtures, configs, imports, error messages."""

import pytest

CLIENTS = """
    import asyncio

    import aiokafka
    import confluent_kafka
    import kafka
    from ottla.client.blocking import Consumer

    def test_confluent_kafka(ottla_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": ottla_broker.bootstrap})
        producer.produce("t", b"x")
        producer.flush()
        ottla_broker.assert_values("t", "x")

    def test_kafka_python(ottla_broker):
        producer = kafka.KafkaProducer(bootstrap_servers=ottla_broker.bootstrap)
        producer.send("t", b"x").get(30)
        producer.close()
        ottla_broker.assert_values("t", "x")

    def test_aiokafka(ottla_broker):
        async def main():
            servers = ottla_broker.bootstrap
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
                await producer.send_and_wait("t", b"x")

        asyncio.run(main())
        ottla_broker.assert_values("t", "x")

    def test_ours(ottla_broker):
        ottla_broker.produce("t", "x")
        with Consumer(ottla_broker.bootstrap, "t") as consumer:
            assert next(consumer).value == b"x"
"""

SCOPES = """
    import pytest

    @pytest.mark.parametrize("turn", range(2))
    def test_each_test_has_its_own_broker(ottla_broker, turn):
        ottla_broker.produce("t", str(turn))
        ottla_broker.assert_values("t", str(turn))

    @pytest.mark.parametrize("turn", range(2))
    def test_all_tests_share_the_session_broker(ottla_session_broker, turn):
        ottla_session_broker.produce("t", str(turn))
        ottla_session_broker.assert_values("t", *map(str, range(turn + 1)))

    def partitions(broker):
        return len({broker.produce("t", "x", key=str(key))[0].partition for key in range(9)})

    def test_configs_of_the_project(ottla_broker, ottla_session_broker):
        assert partitions(ottla_broker) == partitions(ottla_session_broker) > 1

    @pytest.mark.ottla_broker(num_partitions=1)
    class TestOfAClass:
        def test_configs_of_a_class(self, ottla_broker):
            assert partitions(ottla_broker) == 1

        @pytest.mark.ottla_broker(num_partitions=4)
        def test_configs_of_a_test(self, ottla_broker):
            assert partitions(ottla_broker) > 1

    def test_several(ottla_broker_factory):
        one, other = ottla_broker_factory(num_partitions=1), ottla_broker_factory()
        one.produce("t", "x")
        assert (one.topics(), other.topics()) == (["t"], [])
"""


def run(pytester, text, *arguments):
    pytester.makepyfile(text)
    # kafka-python emits it on import.
    ignored = "ignore:(read|open)_text is deprecated:DeprecationWarning"
    pytester.makeini(f"[pytest]\nfilterwarnings = error\n    {ignored}\n")
    return run_pytest(pytester, *arguments)


def run_pytest(pytester, *arguments):
    # pytest-asyncio warns without configuration, and hypothesis is slow to import.
    without = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:hypothesispytest")
    return pytester.runpytest_subprocess(*without, *arguments)


def test_the_fixture_works_with_any_client(pytester):
    run(pytester, CLIENTS).assert_outcomes(passed=4)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_fixture_scopes_and_config_overrides(pytester, workers):
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def ottla_broker_config():
            return {"num_partitions": 3}
        """
    )
    # xdist workers are processes, each with its own session.
    deselected = ("-k", "not all_tests_share") if workers else ()
    expected = 6 if workers else 8

    result = run(pytester, SCOPES, "--strict-markers", *workers, *deselected)
    assert result.parseoutcomes()["passed"] == expected


def test_failures_are_explained(pytester):
    result = run(
        pytester,
        """
        import pytest

        def test_values(ottla_broker):
            ottla_broker.produce("t", "a")
            ottla_broker.assert_values("t", "b", timeout=0.1)

        @pytest.mark.ottla_broker(num_partition=3)
        def test_config(ottla_broker): ...

        @pytest.mark.ottla_broker("num.partitions=3")
        def test_marker(ottla_broker): ...
        """,
    )

    result.assert_outcomes(failed=1, errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "E *AssertionError: 't' does not have the expected values after 0.* s",
            "E *  missing: b'b'",
            "E *  unexpected: b'a'",
            "*Unknown config num.partition; did you mean num.partitions?",
            "*use keyword arguments, as in num_partitions=3",
        ]
    )


def test_nothing_is_imported_before_a_fixture_is_used(pytester):
    result = run(
        pytester,
        """
        import sys

        def test_it():
            packages = ("ottla", "construct")
            imported = {name for name in sys.modules if name.split(".")[0] in packages}
            assert imported == {"ottla", "ottla.testing", "ottla.testing.pytest_plugin"}
        """,
    )

    result.assert_outcomes(passed=1)


def test_fixtures_and_marker_are_listed(pytester):
    run_pytest(pytester, "--fixtures").stdout.fnmatch_lines_random(
        [
            "ottla_broker -- *pytest_plugin.py:*",
            "ottla_broker_factory -- *",
            "ottla_session_broker [[]session scope[]] -- *",
            "ottla_broker_config [[]session scope[]] -- *",
        ]
    )
    run_pytest(pytester, "--markers").stdout.fnmatch_lines(
        ["@pytest.mark.ottla_broker(**configs): *"]
    )
