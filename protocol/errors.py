"""Protocol errors and Kafka's error codes.

ProtocolError                      bytes and messages that do not match the protocol
├── DecodeError                    received bytes are malformed: the peer's fault
│   ├── BatchError                 a record batch is invalid; has the error code to respond with
│   └── UnsupportedVersionError    an API key or version that is not supported
└── EncodeError                    a message cannot be encoded in a version: our fault

KafkaError                         the broker responded with an error code
└── RetriableError                 the same request may succeed later
    └── RefreshError               … after a refresh of metadata or coordinator
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Retry(Enum):
    """Whether, and when, a client may retry after an error."""

    NEVER = "never"
    LATER = "later"
    REFRESHED = "refreshed"


_LATER = Retry.LATER
_REFRESH = Retry.REFRESHED


class ErrorCode(IntEnum):
    """Kafka's error codes, each with a message and whether it is retriable."""

    message: str
    retry: Retry

    def __new__(cls, code: int, message: str = "", retry: Retry = Retry.NEVER) -> ErrorCode:
        """Create a member that is an int with a message and a retry rule."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retry = retry
        return member

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.retry is not Retry.NEVER

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member of a code; UNKNOWN_SERVER_ERROR for codes newer than this list."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, "unexpected broker error"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset is outside the range of the log"
    CORRUPT_MESSAGE = 2, "the record batch is corrupt: its CRC or structure is invalid", _LATER
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the topic or partition does not exist", _REFRESH
    INVALID_FETCH_SIZE = 4, "the fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", _REFRESH
    NOT_LEADER_OR_FOLLOWER = 6, "this broker is not the leader of the partition", _REFRESH
    REQUEST_TIMED_OUT = 7, "the request timed out", _LATER
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica is not on this broker", _REFRESH
    MESSAGE_TOO_LARGE = 10, "the record batch is larger than max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, "stale controller epoch"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of the committed offset is too long"
    NETWORK_EXCEPTION = 13, "the connection failed", _REFRESH
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading", _LATER
    COORDINATOR_NOT_AVAILABLE = 15, "the coordinator is not available", _REFRESH
    NOT_COORDINATOR = (
        16,
        "this broker is not the coordinator",
        _REFRESH,
    )
    INVALID_TOPIC_EXCEPTION = 17, "the topic name is invalid, or the topic is internal"
    RECORD_LIST_TOO_LARGE = 18, "the record batch is larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, "too few in-sync replicas; nothing was written", _LATER
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "written to too few in-sync replicas",
        _LATER,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the generation id is not that of the group"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member has no protocol in common with the group"
    INVALID_GROUP_ID = 24, "the group id is empty or invalid"
    UNKNOWN_MEMBER_ID = 25, "the member id is not known to the group"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is not within the allowed range"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offset commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "access to the topic is denied"
    GROUP_AUTHORIZATION_FAILED = 30, "access to the group is denied"
    CLUSTER_AUTHORIZATION_FAILED = 31, "access to the cluster is denied"
    INVALID_TIMESTAMP = 32, "the timestamp is not within the allowed range"
    UNSUPPORTED_SASL_MECHANISM = 33, "the SASL mechanism is not enabled"
    ILLEGAL_SASL_STATE = 34, "the request is not valid in this SASL state"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version or feature"
    TOPIC_ALREADY_EXISTS = 36, "the topic already exists"
    INVALID_PARTITIONS = 37, "the number of partitions must be positive and must not decrease"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is invalid"
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is invalid"
    INVALID_CONFIG = 40, "the config or its value is invalid"
    NOT_CONTROLLER = 41, "this broker is not the controller", _LATER
    INVALID_REQUEST = 42, "the request is invalid"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the message format does not support this request"
    POLICY_VIOLATION = 44, "a broker policy rejected the request"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the sequence number is out of order"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the sequence number was already appended"
    INVALID_PRODUCER_EPOCH = 47, "the producer epoch is older than the current one"
    INVALID_TXN_STATE = 48, "the operation is not valid in this transaction state"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is not within the allowed range"
    CONCURRENT_TRANSACTIONS = 51, "the previous transaction is still completing", _LATER
    TRANSACTION_COORDINATOR_FENCED = 52, "the transaction coordinator was fenced by a newer one"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "access to the transactional id is denied"
    SECURITY_DISABLED = 54, "security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "disk error on the log directory", _REFRESH
    LOG_DIR_NOT_FOUND = 57, "the log directory was not found"
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed"
    UNKNOWN_PRODUCER_ID = 59, "the producer id is not known to the broker"
    REASSIGNMENT_IN_PROGRESS = 60, "a partition reassignment is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation token auth disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, "the delegation token was not found"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "this connection may not request delegation tokens"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "delegation token authorization failed"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "the principal type is not supported"
    NON_EMPTY_GROUP = 68, "the group is not empty"
    GROUP_ID_NOT_FOUND = 69, "the group id was not found"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session id was not found", _LATER
    INVALID_FETCH_SESSION_EPOCH = (
        71,
        "the fetch session epoch is invalid",
        _LATER,
    )
    LISTENER_NOT_FOUND = 72, "the leader has no listener matching this one", _REFRESH
    TOPIC_DELETION_DISABLED = 73, "topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is older than the broker's", _REFRESH
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than the broker's", _LATER
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this version does not support the compression type"
    STALE_BROKER_EPOCH = 77, "stale broker epoch"
    OFFSET_NOT_AVAILABLE = (
        78,
        "the new leader does not know the offset yet",
        _LATER,
    )
    MEMBER_ID_REQUIRED = 79, "join again with the assigned member id"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is offline", _REFRESH
    GROUP_MAX_SIZE_REACHED = 81, "the group has reached its maximum size"
    FENCED_INSTANCE_ID = 82, "a newer member with the same group instance id fenced this one"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "eligible leaders are not available", _REFRESH
    ELECTION_NOT_NEEDED = 84, "no election is needed", _REFRESH
    NO_REASSIGNMENT_IN_PROGRESS = 85, "no partition reassignment is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to the topic"
    INVALID_RECORD = 87, "a record is invalid"
    UNSTABLE_OFFSET_COMMIT = 88, "the offset is part of an open transaction", _LATER
    THROTTLING_QUOTA_EXCEEDED = 89, "the throttling quota was exceeded", _LATER
    PRODUCER_FENCED = 90, "a newer producer with the same transactional id fenced this one"
    RESOURCE_NOT_FOUND = 91, "the resource was not found"
    DUPLICATE_RESOURCE = 92, "the request names a resource more than once"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential is not acceptable"
    INCONSISTENT_VOTER_SET = 94, "inconsistent voter set"
    INVALID_UPDATE_VERSION = 95, "invalid update version"
    FEATURE_UPDATE_FAILED = 96, "feature update failed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "principal deserialization failure"
    SNAPSHOT_NOT_FOUND = 98, "snapshot not found"
    POSITION_OUT_OF_RANGE = 99, "position out of range"
    UNKNOWN_TOPIC_ID = 100, "the topic id is not known to the broker", _REFRESH
    DUPLICATE_BROKER_REGISTRATION = 101, "duplicate broker registration"
    BROKER_ID_NOT_REGISTERED = 102, "broker id not registered"
    INCONSISTENT_TOPIC_ID = 103, "the topic id does not match the topic", _REFRESH
    INCONSISTENT_CLUSTER_ID = 104, "the cluster id does not match"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "the transactional id was not found"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and topic ids", _LATER
    INELIGIBLE_REPLICA = 107, "ineligible replica"
    NEW_LEADER_ELECTED = 108, "new leader elected"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the member epoch is fenced; join again"
    UNRELEASED_INSTANCE_ID = 111, "the group instance id is still in use by another member"
    UNSUPPORTED_ASSIGNOR = 112, "the assignor is not supported"
    STALE_MEMBER_EPOCH = 113, "the member epoch is stale; retry with the current one"
    MISMATCHED_ENDPOINT_TYPE = 114, "the endpoint type does not match"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "the endpoint type is not supported"
    UNKNOWN_CONTROLLER_ID = 116, "unknown controller id"
    UNKNOWN_SUBSCRIPTION_ID = 117, "unknown subscription id"
    TELEMETRY_TOO_LARGE = 118, "telemetry too large"
    INVALID_REGISTRATION = 119, "invalid registration"
    TRANSACTION_ABORTABLE = 120, "the transaction can only be aborted"
    INVALID_RECORD_STATE = 121, "invalid record state"
    SHARE_SESSION_NOT_FOUND = 122, "share session not found", _LATER
    INVALID_SHARE_SESSION_EPOCH = 123, "invalid share session epoch", _LATER
    FENCED_STATE_EPOCH = 124, "fenced state epoch"
    INVALID_VOTER_KEY = 125, "invalid voter key"
    DUPLICATE_VOTER = 126, "duplicate voter"
    VOTER_NOT_FOUND = 127, "voter not found"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, "the client must rebootstrap"
    STREAMS_INVALID_TOPOLOGY = 130, "streams invalid topology"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "streams invalid topology epoch"
    STREAMS_TOPOLOGY_FENCED = 132, "streams topology fenced"
    SHARE_SESSION_LIMIT_REACHED = 133, "share session limit reached", _LATER


class ProtocolError(Exception):
    """Bytes or messages that do not match the protocol."""


class DecodeError(ProtocolError):
    """Received bytes are malformed; names the message, the field and the byte in the frame."""

    def __init__(
        self,
        reason: str,
        message: str = "",
        version: int | None = None,
        field: str = "",
        position: int | None = None,
    ) -> None:
        self.reason = reason
        self.message = message
        self.version = version
        self.field = field
        self.position = position
        at = "" if position is None else f" at byte {position}"
        super().__init__(_describe(message, version, f"{field}{at}".strip(), reason))


class BatchError(DecodeError):
    """A record batch is invalid; `code` is the error code of the response."""

    def __init__(self, reason: str, code: ErrorCode, *, position: int | None = None) -> None:
        self.code = code
        super().__init__(reason, "RecordBatch", 2, position=position)


class UnsupportedVersionError(DecodeError):
    """A request with an API key or version that is not supported."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        super().__init__(f"Unsupported API key {api_key} or version {api_version}")


class EncodeError(ProtocolError):
    """A message cannot be encoded in a version; names the message and the field."""

    def __init__(self, reason: str, message: str, version: int, field: str) -> None:
        self.reason = reason
        self.message = message
        self.version = version
        self.field = field
        super().__init__(_describe(message, version, field, reason))


def _describe(message: str, version: int | None, field: str, reason: str) -> str:
    subject = message if version is None else f"{message} v{version}"
    return ": ".join(part for part in (subject, field, reason) if part)


class KafkaError(Exception):
    """The broker responded with an error code."""

    def __init__(self, code: ErrorCode, detail: str | None = None) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"{code.name} ({code.value}): {detail or code.message}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable


class RetriableError(KafkaError):
    """The same request may succeed later."""


class RefreshError(RetriableError):
    """The request may succeed after a refresh of metadata or coordinator."""


_EXCEPTIONS: dict[Retry, type[KafkaError]] = {
    Retry.NEVER: KafkaError,
    Retry.LATER: RetriableError,
    Retry.REFRESHED: RefreshError,
}


def error_of(code: int, detail: str | None = None) -> KafkaError | None:
    """Return the exception for the error code of a response, or None for NONE.

    `detail` is the error message of the response, if it has one.
    """
    if code == ErrorCode.NONE:
        return None
    known = ErrorCode.of(code)
    if known != code:
        detail = f"unknown error code {code}: {detail or 'no message'}"
    return _EXCEPTIONS[known.retry](known, detail)
