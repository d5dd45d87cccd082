"""The blocking admin client."""

from __future__ import annotations

from typing import Any

from ..admin import Admin as AsyncAdmin
from .client import BlockingClient, blocking, signature_of


class Admin(BlockingClient[AsyncAdmin]):
    """Like `ottla.client.Admin`, where the methods are documented."""

    @signature_of(AsyncAdmin)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    create_topic = blocking(AsyncAdmin.create_topic)
    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    describe_topic_configs = blocking(AsyncAdmin.describe_topic_configs)
    describe_broker_configs = blocking(AsyncAdmin.describe_broker_configs)
    describe_group_configs = blocking(AsyncAdmin.describe_group_configs)
    describe_configs_of_all_brokers = blocking(AsyncAdmin.describe_configs_of_all_brokers)
    alter_topic_configs = blocking(AsyncAdmin.alter_topic_configs)
    alter_broker_configs = blocking(AsyncAdmin.alter_broker_configs)
    alter_group_configs = blocking(AsyncAdmin.alter_group_configs)
    list_groups = blocking(AsyncAdmin.list_groups)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)
    group_lag = blocking(AsyncAdmin.group_lag)
    describe_share_groups = blocking(AsyncAdmin.describe_share_groups)
    list_share_group_offsets = blocking(AsyncAdmin.list_share_group_offsets)
    alter_share_group_offsets = blocking(AsyncAdmin.alter_share_group_offsets)
    delete_share_group_offsets = blocking(AsyncAdmin.delete_share_group_offsets)
    beginning_offsets = blocking(AsyncAdmin.beginning_offsets)
    end_offsets = blocking(AsyncAdmin.end_offsets)
    offsets_for_times = blocking(AsyncAdmin.offsets_for_times)
    delete_records = blocking(AsyncAdmin.delete_records)
    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transactions = blocking(AsyncAdmin.describe_transactions)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    find_hanging_transactions = blocking(AsyncAdmin.find_hanging_transactions)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    fence_producers = blocking(AsyncAdmin.fence_producers)
    end_transaction = blocking(AsyncAdmin.end_transaction)
    create_acls = blocking(AsyncAdmin.create_acls)
    describe_acls = blocking(AsyncAdmin.describe_acls)
    delete_acls = blocking(AsyncAdmin.delete_acls)
    describe_client_quotas = blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = blocking(AsyncAdmin.alter_client_quotas)
    alter_partition_reassignments = blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdmin.list_partition_reassignments)
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    describe_user_scram_credentials = blocking(AsyncAdmin.describe_user_scram_credentials)
    create_user = blocking(AsyncAdmin.create_user)
    delete_users = blocking(AsyncAdmin.delete_users)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    api_versions = blocking(AsyncAdmin.api_versions)
