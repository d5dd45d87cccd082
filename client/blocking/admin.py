"""The admin without `await`."""

from __future__ import annotations

from typing import Any

from .. import admin as there
from .portal import Blocking, Verb, like


class Admin(Blocking[there.Admin]):
    """As `ottla.client.Admin`, which says what the verbs do."""

    @like(there.Admin)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    list_topics = Verb(there.Admin.list_topics)
    describe_topics = Verb(there.Admin.describe_topics)
    create_topic = Verb(there.Admin.create_topic)
    create_topics = Verb(there.Admin.create_topics)
    delete_topics = Verb(there.Admin.delete_topics)
    create_partitions = Verb(there.Admin.create_partitions)
    describe_topic_configs = Verb(there.Admin.describe_topic_configs)
    describe_broker_configs = Verb(there.Admin.describe_broker_configs)
    alter_topic_configs = Verb(there.Admin.alter_topic_configs)
    alter_broker_configs = Verb(there.Admin.alter_broker_configs)
    list_groups = Verb(there.Admin.list_groups)
    describe_groups = Verb(there.Admin.describe_groups)
    delete_groups = Verb(there.Admin.delete_groups)
    list_group_offsets = Verb(there.Admin.list_group_offsets)
    alter_group_offsets = Verb(there.Admin.alter_group_offsets)
    delete_group_offsets = Verb(there.Admin.delete_group_offsets)
    group_lag = Verb(there.Admin.group_lag)
    beginning_offsets = Verb(there.Admin.beginning_offsets)
    end_offsets = Verb(there.Admin.end_offsets)
    offsets_for_times = Verb(there.Admin.offsets_for_times)
    delete_records = Verb(there.Admin.delete_records)
    describe_cluster = Verb(there.Admin.describe_cluster)
    api_versions = Verb(there.Admin.api_versions)
