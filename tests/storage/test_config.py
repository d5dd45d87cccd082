"""Settings: names, defaults, limits, and errors that help."""

import pytest

from ottla.protocol.configdef import ConfigError
from ottla.storage.config import LogConfig


def test_settings_come_as_text_under_kafkas_names():
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
    ("settings", "message"),
    [
        ({"retention.mz": "1"}, "there is no setting retention.mz; did you mean retention.ms"),
        ({"qwertz": "1"}, "there is no setting qwertz$"),
        ({"retention.ms": "soon"}, "retention.ms: 'soon' is not of type int"),
        ({"retention.ms": "-2"}, "retention.ms: -2 is less than -1"),
        ({"segment.bytes": "1"}, "segment.bytes: 1 is less than 1024"),
        ({"segment.bytes": "9999999999"}, "is more than 2147483647"),
        ({"cleanup.policy": "shred"}, "cleanup.policy: 'shred' is not one of delete, compact"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "is more than 1"),
        ({"durability": "hope"}, "is not one of acks, page-cache, fsync"),
        ({"compression.type": "lz4"}, "lz4 cannot be, it is always producer: batches are stored"),
        ({"min.insync.replicas": "2"}, "2 cannot be, it is always 1: a partition has one replica"),
        ({"preallocate": "true"}, "true cannot be, it is always false: the space of a segment"),
        ({"preallocate": "maybe"}, "'maybe' is not of type bool"),
        ({"segment.jitter.ms": "5"}, "5 cannot be, it is always 0: segments are rolled when"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_could(settings, message):
    with pytest.raises(ConfigError, match=message):
        LogConfig.of(settings)


def test_the_policy_says_what_applies():
    assert LogConfig().deletes
    assert not LogConfig().compacts
    assert not LogConfig(cleanup_policy="compact").deletes


def test_what_can_only_be_one_thing_may_be_said():
    settings = {
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "False",
        "preallocate": "false",
        "segment.jitter.ms": "0",
    }

    assert LogConfig.of(settings) == LogConfig()


def test_a_config_is_changed_by_text_and_given_as_text():
    config = LogConfig(retention_ms=5).with_overrides({"cleanup.policy": "compact"})

    assert config == LogConfig(retention_ms=5, cleanup_policy="compact")
    assert config.text_of("retention.ms") == "5"
    assert config.text_of("preallocate") == "false"
