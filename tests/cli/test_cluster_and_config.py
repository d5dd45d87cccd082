"""ottla cluster …, ottla config …, ottla perf …"""

import re

from ottla.protocol.registry import PRODUCE


def test_cluster_describe_lists_brokers_and_counts_topics(run, topic):
    found = run.json("cluster", "describe")

    (one,) = found["brokers"]
    assert f"{one['host']}:{one['port']}" == run.address
    assert (one["broker"], one["is_controller"], found["controller"]) == (0, True, 0)
    everything = run.json("topic", "list", "--internal")
    assert found["topics"] + found["internal_topics"] == len(everything)
    assert found["topics"] == len(run.json("topic", "list"))
    assert found["partitions_without_leader"] == found["under_replicated_partitions"] == 0
    assert found["under_min_isr_partitions"] == 0
    assert (found["metadata_store"], found["store_members"]) == (None, [])
    assert one["replicas"] == one["in_sync"] == found["partitions"]
    assert found["partitions"] == one["partitions_led"] >= 2
    assert re.search(
        r"^ +0 +127.0.0.1 +\d+ +- +up +yes +\d+ +\d+ +\d+$",
        run("cluster", "describe"),
        re.MULTILINE,
    )


def test_api_versions_shows_the_version_in_use(run):
    found = {row["api"]: row for row in run.json("cluster", "api-versions", "--broker", "0")}

    produce = found["Produce"]
    assert (produce["first"], produce["last"], produce["used"]) == (0, 13, PRODUCE.versions.last)
    assert "Produce" in run("cluster", "api-versions")
    assert "Unknown broker 9: the cluster has 0" in run.fails(
        5, "cluster", "api-versions", "--broker", "9"
    )


def test_topic_configs_are_described_and_set(run, topic):
    assert run("config", "set", "topic", topic, "retention.ms=5", "segment.ms=9") == (
        f"topic {topic}: altered\n"
    )
    run("config", "set", "topic", topic, "--unset", "segment.ms")

    assert [
        (row["name"], row["value"]) for row in run.json("config", "describe", "topic", topic)
    ] == [("retention.ms", "5")]
    everything = {
        row["name"]: row for row in run.json("config", "describe", "topic", topic, "--all")
    }
    assert everything["retention.ms"]["source"] == "dynamic topic config"
    assert everything["segment.ms"]["source"] == "default"
    assert everything["segment.ms"]["documentation"]
    assert "retention.bytes" in run("config", "describe", "topic", topic, "retention", "--docs")


def test_broker_configs_are_described_and_set(run):
    run("config", "set", "broker", "0", "group.max.size=77")
    (found,) = run.json("config", "describe", "broker", "0", "group.max.size")
    assert (found["value"], found["source"]) == ("77", "dynamic broker config")
    run("config", "set", "broker", "0", "--unset", "group.max.size")
    assert run.json("config", "describe", "broker", "0", "group.max.size")[0]["source"] == "default"

    (done,) = run.json("config", "set", "broker", "0", "num.partitions=3", "--dry-run")
    assert done == {"broker": "0", "dry_run": True}
    assert run.json("config", "describe", "broker", "0", "num.partitions")[0]["value"] == "1"


def test_invalid_config_changes_are_rejected(run, topic):
    run.fails(7, "config", "set", "topic", topic, "nonsense=1")
    run.fails(7, "config", "set", "broker", "0", "broker.id=3")
    run.fails(5, "config", "set", "broker", "9", "log.level=DEBUG")
    run.fails(5, "config", "describe", "topic", f"{topic}-missing")
    assert "invalid broker id 'zero'" in run.fails(2, "config", "describe", "broker", "zero")
    assert "nothing to change" in run.fails(2, "config", "set", "topic", topic)
    done = run.run("config", "describe", "topic", topic)
    assert "show the defaults with --all" in done.stderr


def test_perf_measures_throughput(run, topic):
    sent = run.json("perf", "produce", topic, "--records", "3000", "--size", "50", "-z", "lz4")
    assert (sent["records"], sent["bytes"]) == (3000, 150_000)
    assert sent["records_per_second"] > 0
    paced = run.json("perf", "produce", topic, "-n", "100", "--rate", "1000")
    assert paced["seconds"] >= 0.09

    read = run.json("perf", "consume", topic)
    assert (read["records"], read["bytes"]) == (3100, 150_000 + 100 * 100)
    assert run.json("perf", "consume", topic, "--records", "10")["records"] >= 10
    assert "records per second" in run("perf", "consume", topic)


def test_perf_latency_ignores_records_of_other_producers(run, name):
    found = run.json("perf", "latency", name, "--create", "-n", "20", "--rate", "500")

    assert found["records"] == 20
    for what in ("acknowledged", "read"):
        times = [found[f"{what}_ms_{share}"] for share in ("p50", "p95", "p99", "max")]
        assert times == sorted(times)
        assert times[0] > 0
    assert "--create" in run.fails(5, "perf", "latency", f"{name}-missing")
