"""Topic configs: names, defaults, limits and errors."""

import pytest

from ottla.protocol.configdef import ConfigError
from ottla.storage.config import TOPIC_CONFIGS, LogConfig


def test_configs_are_parsed_from_text_by_kafkas_names():
    config = LogConfig.of(
        {
            "retention.ms": "60000",
            "cleanup.policy": "compact,delete",
            "min.cleanable.dirty.ratio": "0.1",
            "message.timestamp.type": "LogAppendTime",
        }
    )

    assert config.retention_ms == 60_000
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.compacts
    assert config.deletes
    assert config.segment_bytes == 1024**3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.mz": "1"}, "Unknown config retention.mz; did you mean retention.ms"),
        ({"qwertz": "1"}, "Unknown config qwertz$"),
        ({"retention.ms": "soon"}, "Invalid value 'soon' for retention.ms: expected type long"),
        ({"retention.ms": "-2"}, "Invalid value -2 for retention.ms: the minimum is -1"),
        ({"segment.bytes": "1"}, "Invalid value 1 for segment.bytes: the minimum is 1024"),
        ({"segment.bytes": "9999999999"}, "the maximum is 2147483647"),
        ({"cleanup.policy": "shred"}, "shred for cleanup.policy: expected one of delete, compact"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "the maximum is 1"),
        ({"durability": "hope"}, "expected one of acks, page-cache, fsync"),
        ({"compression.type": "rar"}, "expected one of producer, uncompressed, gzip"),
        ({"compression.zstd.level": "23"}, "the maximum is 22"),
        ({"min.insync.replicas": "0"}, "the minimum is 1"),
        ({"preallocate": "maybe"}, "expected type bool"),
        ({"remote.storage.enable": "true"}, "only false is supported: there is no remote storage"),
        ({"local.retention.ms": "5"}, "only -2 is supported"),
    ],
)
def test_an_invalid_config_is_an_error_that_names_the_valid_values(overrides, message):
    with pytest.raises(ConfigError, match=message):
        LogConfig.of(overrides)


def test_the_cleanup_policy_selects_retention_and_compaction():
    assert LogConfig().deletes
    assert not LogConfig().compacts
    assert not LogConfig(cleanup_policy="compact").deletes


def test_a_fixed_config_may_be_set_to_its_only_value():
    overrides = {
        "remote.storage.enable": "false",
        "local.retention.bytes": "-2",
    }

    assert LogConfig.of(overrides) == LogConfig()


def test_a_config_is_overridden_and_returned_as_text():
    config = LogConfig(retention_ms=5).with_overrides({"cleanup.policy": "compact"})

    assert config == LogConfig(retention_ms=5, cleanup_policy="compact")
    assert config.text_of("retention.ms") == "5"
    assert config.text_of("preallocate") == "false"


def test_all_public_topic_configs_of_apache_kafka_are_known():
    names = """
        cleanup.policy compression.gzip.level compression.lz4.level compression.type
        compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
        index.interval.bytes local.retention.bytes local.retention.ms max.compaction.lag.ms
        max.message.bytes message.downconversion.enable message.timestamp.after.max.ms
        message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio
        min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable
        remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
        segment.bytes segment.index.bytes segment.jitter.ms segment.ms
        unclean.leader.election.enable
    """

    assert set(names.split()) <= TOPIC_CONFIGS.keys()
