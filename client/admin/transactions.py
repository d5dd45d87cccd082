"""Transactions: end one that another process has opened."""

from __future__ import annotations

from ..errors import KafkaError, ProducerFencedError
from ..transaction_requests import FENCED, end_transaction, transaction_version
from .requests import AdminRequests


class TransactionsAdmin(AdminRequests):
    """Admin requests about transactions."""

    async def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """Commit or abort a transaction that a producer has opened and detached.

        It may be called again, by any process, until the next transaction with this transactional
        id begins: the same decision succeeds, the opposite one raises KafkaError with
        INVALID_TXN_STATE. That is also raised if there is no transaction, or if it has timed out
        and is to be committed. Raises ProducerFencedError if there is a newer producer.
        """
        producer = (producer_id, producer_epoch)

        async def attempt() -> None:
            version = await transaction_version(self._cluster, transactional_id)
            await end_transaction(
                self._cluster,
                transactional_id,
                producer,
                is_commit=commit,
                transaction_version=version,
            )

        what = f"{'committing' if commit else 'aborting'} the transaction of {transactional_id}"
        try:
            await self._cluster.retry(attempt, what=what)
        except KafkaError as error:
            if error.code not in FENCED:
                raise
            raise ProducerFencedError(
                f"Cannot end the transaction of {transactional_id!r} with producer id"
                f" {producer_id} and epoch {producer_epoch}: a newer producer has replaced it"
            ) from error
