"""The transaction coordinator: the shards of `__transaction_state` that this broker leads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.coord.config import TransactionConfig
from ottla.coord.metadata_image import TRANSACTIONS_TOPIC
from ottla.coord.transaction_shard import Transaction, TransactionShard

from ..observability.logging import log_limited
from .coordinator import Coordinator
from .markers import MarkerSender
from .shard_runtime import ShardRuntime, current_time
from .verification import Verifications

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

#: Memory that is to be free: about that of one more transactional id, or group.
_SPARE_BYTES = 4096


class TransactionCoordinator(Coordinator[TransactionShard]):
    """The transactional ids that this broker coordinates."""

    topic_name = TRANSACTIONS_TOPIC

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._config = _transaction_config(broker.config)
        self.markers = MarkerSender(broker)
        #: Of the partitions that this broker leads, with any coordinator.
        self.verifications = Verifications(broker)

    def apply_config(self, config: BrokerConfig) -> None:
        """Apply the broker's dynamic configs."""
        self._config = _transaction_config(config)
        for runtime in self._runtimes():
            runtime.shard.config = self._config

    def stop(self) -> None:
        """Stop loading, all timers, and sending markers."""
        super().stop()
        self.markers.stop()
        self.verifications.stop()

    def abort_timed_out(self) -> None:
        """Abort the transactions that are open for longer than their timeout."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.abort_timed_out(current_time()))

    def remove_expired(self) -> None:
        """Remove the transactional ids that were not used for a long time."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.remove_expired(current_time()))

    def remove_idle(self) -> None:
        """Remove transactional ids that are not in use, if broker.memory.max.bytes is exhausted."""
        if not self._broker.memory.fits(_SPARE_BYTES):
            for runtime in self.shards.values():
                runtime.run(runtime.shard.remove_idle(current_time()))

    # Queries.

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return a transactional id that is served here."""
        runtime = self.shard_of(transactional_id)
        return None if runtime is None else runtime.shard.transactions.get(transactional_id)

    def transactions(self) -> list[Transaction]:
        """Return all transactional ids that are served here."""
        return [
            transaction
            for runtime in self.shards.values()
            for transaction in runtime.shard.transactions.values()
        ]

    def count_states(self) -> Counter[str]:
        """Count the transactional ids by state. Safe to call from another thread."""
        counts: Counter[str] = Counter()
        for runtime in list(self.shards.values()):
            counts += runtime.shard.count_states()
        return counts

    def count_timed_out(self) -> int:
        """Count the transactions that were aborted by timeout, since the broker started."""
        return sum(runtime.shard.timed_out_count for runtime in list(self.shards.values()))

    def count_unwritten_markers(self) -> int:
        """Count the markers that are yet to be written. Safe to call from another thread."""
        return sum(
            runtime.shard.count_unwritten_markers() for runtime in list(self.shards.values())
        )

    # Shards.

    def _new_runtime(self, partition: Partition) -> ShardRuntime[TransactionShard]:
        shard = TransactionShard(self._config, self._count_ids, self._has_memory)
        runtime = ShardRuntime(shard, partition)
        runtime.send_markers = partial(self.markers.send, runtime)
        return runtime

    def _planned_topic(self) -> tuple[int, Mapping[str, str]]:
        config = self._broker.config
        return config.transaction_state_log_num_partitions, {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            # A decision that is lost in a power cut, while some markers survive, would tear the
            # transaction apart.
            "durability": "acks",
        }

    def _count_ids(self) -> int:
        return sum(len(runtime.shard) for runtime in self.shards.values())

    def _has_memory(self, size_bytes: int) -> bool:
        fits = self._broker.memory.fits(size_bytes)
        if not fits:
            log_limited(
                logger,
                "Request refused: broker.memory.max.bytes is exhausted",
                extra={"transactions_bytes": self.size_bytes()},
            )
        return fits


def _transaction_config(config: BrokerConfig) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        max_ids=config.broker_max_transactional_ids,
    )
