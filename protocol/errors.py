"""What goes wrong on the wire, and the codes by which brokers and clients tell each other.

ProtocolError                      bytes that do not fit the protocol
├── DecodeError                    theirs: what was received makes no sense
│   ├── BatchError                 a record batch makes no sense; has the code to answer with
│   └── UnsupportedVersionError    an api or a version that we do not speak
└── EncodeError                    ours: what was to be sent does not fit the version

KafkaError                         the broker answered with an error code
└── RetriableError                 the same request may succeed later
    └── RefreshError               … when metadata or coordinator were looked up again
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Retry(Enum):
    """What a client may do about an error."""

    NEVER = "never"
    LATER = "later"
    REFRESHED = "refreshed"


_LATER = Retry.LATER
_REFRESH = Retry.REFRESHED


class ErrorCode(IntEnum):
    """Kafka's error codes: what each one says, and whether trying again can help."""

    message: str
    retry: Retry

    def __new__(cls, code: int, message: str = "", retry: Retry = Retry.NEVER) -> ErrorCode:
        """Make a member that is its number and knows the rest."""
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
        """Give the member of a number; one that is newer than this list is an unknown error."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, "the broker failed in a way it did not expect"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset is outside of the log"
    CORRUPT_MESSAGE = 2, "the batch is damaged: its CRC or structure is wrong", _LATER
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the topic or partition does not exist", _REFRESH
    INVALID_FETCH_SIZE = 4, "the fetch size is negative"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader right now", _REFRESH
    NOT_LEADER_OR_FOLLOWER = 6, "this broker does not lead the partition", _REFRESH
    REQUEST_TIMED_OUT = 7, "the request took longer than its deadline", _LATER
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica is not on this broker", _REFRESH
    MESSAGE_TOO_LARGE = 10, "the batch is larger than max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, "stale controller epoch"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of the commit is too long"
    NETWORK_EXCEPTION = 13, "the connection failed", _REFRESH
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading", _LATER
    COORDINATOR_NOT_AVAILABLE = 15, "the coordinator is not available", _REFRESH
    NOT_COORDINATOR = 16, "another broker coordinates this group or transactional id", _REFRESH
    INVALID_TOPIC_EXCEPTION = 17, "the topic name is illegal, or the topic is internal"
    RECORD_LIST_TOO_LARGE = 18, "the batch does not fit a segment"
    NOT_ENOUGH_REPLICAS = 19, "too few replicas are in sync; nothing was written", _LATER
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "written, but to fewer replicas than asked for", _LATER
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the generation is not the one of the group"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member shares no protocol with its group"
    INVALID_GROUP_ID = 24, "the group id is empty or invalid"
    UNKNOWN_MEMBER_ID = 25, "the group does not have this member"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is out of bounds"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, "access to the topic is denied"
    GROUP_AUTHORIZATION_FAILED = 30, "access to the group is denied"
    CLUSTER_AUTHORIZATION_FAILED = 31, "access to the cluster is denied"
    INVALID_TIMESTAMP = 32, "the timestamp is outside the allowed window"
    UNSUPPORTED_SASL_MECHANISM = 33, "the SASL mechanism is not enabled"
    ILLEGAL_SASL_STATE = 34, "the request is out of order for SASL"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version or feature"
    TOPIC_ALREADY_EXISTS = 36, "the topic exists already"
    INVALID_PARTITIONS = 37, "the number of partitions must be positive, and grow"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is impossible"
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is wrong"
    INVALID_CONFIG = 40, "the setting or its value is wrong"
    NOT_CONTROLLER = 41, "this broker is not the controller", _LATER
    INVALID_REQUEST = 42, "the request contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the message format is too old for this"
    POLICY_VIOLATION = 44, "a policy of the broker refused"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "a sequence number is missing"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the broker has this sequence number already"
    INVALID_PRODUCER_EPOCH = 47, "the producer epoch is older than the one that is known"
    INVALID_TXN_STATE = 48, "the transaction is not in a state for this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id is not that of the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is out of bounds"
    CONCURRENT_TRANSACTIONS = 51, "the previous transaction is still completing", _LATER
    TRANSACTION_COORDINATOR_FENCED = 52, "a newer coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "access to the transactional id is denied"
    SECURITY_DISABLED = 54, "the broker has no access control"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the disk failed", _REFRESH
    LOG_DIR_NOT_FOUND = 57, "the log directory is unknown"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials are wrong"
    UNKNOWN_PRODUCER_ID = 59, "the broker has forgotten this producer"
    REASSIGNMENT_IN_PROGRESS = 60, "a reassignment is under way"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation token auth disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, "the delegation token is unknown"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token has another owner"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "this connection may not ask for delegation tokens"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "delegation token authorization failed"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "the type of principal is unknown"
    NON_EMPTY_GROUP = 68, "the group has members"
    GROUP_ID_NOT_FOUND = 69, "the group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session is unknown or was evicted", _LATER
    INVALID_FETCH_SESSION_EPOCH = (
        71,
        "the epoch of the fetch session is not the expected one",
        _LATER,
    )
    LISTENER_NOT_FOUND = 72, "the leader has no such listener", _REFRESH
    TOPIC_DELETION_DISABLED = 73, "topics may not be deleted here"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is older than that of the broker", _REFRESH
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than that of the broker", _LATER
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this version has no such compression"
    STALE_BROKER_EPOCH = 77, "stale broker epoch"
    OFFSET_NOT_AVAILABLE = 78, "the leader is new, and does not know yet", _LATER
    MEMBER_ID_REQUIRED = 79, "join again with the member id that was given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is offline", _REFRESH
    GROUP_MAX_SIZE_REACHED = 81, "the group is full"
    FENCED_INSTANCE_ID = 82, "a newer member has taken over the static member id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no eligible leader is available", _REFRESH
    ELECTION_NOT_NEEDED = 84, "no election is needed", _REFRESH
    NO_REASSIGNMENT_IN_PROGRESS = 85, "no reassignment is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group is subscribed to the topic"
    INVALID_RECORD = 87, "a record or batch is invalid"
    UNSTABLE_OFFSET_COMMIT = 88, "a transaction may still change the offset", _LATER
    THROTTLING_QUOTA_EXCEEDED = 89, "a quota is exceeded", _LATER
    PRODUCER_FENCED = 90, "a newer producer with this transactional id exists"
    RESOURCE_NOT_FOUND = 91, "the resource does not exist"
    DUPLICATE_RESOURCE = 92, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential is not acceptable"
    INCONSISTENT_VOTER_SET = 94, "inconsistent voter set"
    INVALID_UPDATE_VERSION = 95, "invalid update version"
    FEATURE_UPDATE_FAILED = 96, "feature update failed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "principal deserialization failure"
    SNAPSHOT_NOT_FOUND = 98, "snapshot not found"
    POSITION_OUT_OF_RANGE = 99, "position out of range"
    UNKNOWN_TOPIC_ID = 100, "no topic has this id", _REFRESH
    DUPLICATE_BROKER_REGISTRATION = 101, "duplicate broker registration"
    BROKER_ID_NOT_REGISTERED = 102, "broker id not registered"
    INCONSISTENT_TOPIC_ID = 103, "the partition belongs to another topic id", _REFRESH
    INCONSISTENT_CLUSTER_ID = 104, "the cluster has another id"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "no transaction has this id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and ids", _LATER
    INELIGIBLE_REPLICA = 107, "ineligible replica"
    NEW_LEADER_ELECTED = 108, "new leader elected"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the member epoch is stale; join again"
    UNRELEASED_INSTANCE_ID = 111, "another member still has the static member id"
    UNSUPPORTED_ASSIGNOR = 112, "the assignor is not available"
    STALE_MEMBER_EPOCH = 113, "the member epoch is old; retry with the new one"
    MISMATCHED_ENDPOINT_TYPE = 114, "the endpoint is of another type"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "the type of endpoint is unknown"
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
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is wrong"
    REBOOTSTRAP_REQUIRED = 129, "the client must bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, "streams invalid topology"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "streams invalid topology epoch"
    STREAMS_TOPOLOGY_FENCED = 132, "streams topology fenced"
    SHARE_SESSION_LIMIT_REACHED = 133, "share session limit reached", _LATER


class ProtocolError(Exception):
    """Bytes that do not fit the protocol."""


class DecodeError(ProtocolError):
    """What was received makes no sense: which field of which message, and where in the frame."""

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
        place = "" if position is None else f" at byte {position}"
        super().__init__(_describe(message, version, f"{field}{place}".strip(), reason))


class BatchError(DecodeError):
    """A record batch makes no sense; `code` is what a producer is told."""

    def __init__(self, reason: str, code: ErrorCode, *, position: int | None = None) -> None:
        self.code = code
        super().__init__(reason, "RecordBatch", 2, position=position)


class UnsupportedVersionError(DecodeError):
    """A request for an api, or in a version, that we do not speak."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        super().__init__(f"api key {api_key} version {api_version} is not supported")


class EncodeError(ProtocolError):
    """What was to be sent does not fit the version: which field of which message."""

    def __init__(self, reason: str, message: str, version: int, field: str) -> None:
        self.reason = reason
        self.message = message
        self.version = version
        self.field = field
        super().__init__(_describe(message, version, field, reason))


def _describe(message: str, version: int | None, place: str, reason: str) -> str:
    subject = message if version is None else f"{message} v{version}"
    return ": ".join(part for part in (subject, place, reason) if part)


class KafkaError(Exception):
    """The broker answered with an error code."""

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
    """The request may succeed when metadata or the coordinator have been looked up again."""


_EXCEPTIONS: dict[Retry, type[KafkaError]] = {
    Retry.NEVER: KafkaError,
    Retry.LATER: RetriableError,
    Retry.REFRESHED: RefreshError,
}


def error_of(code: int, detail: str | None = None) -> KafkaError | None:
    """Give the exception for an error code of a response, or None where it says that all is well.

    `detail` is the message that came with it, if one did.
    """
    if code == ErrorCode.NONE:
        return None
    known = ErrorCode.of(code)
    if known != code:
        detail = (
            f"error {code}, which this version of ottla does not know: {detail or 'no message'}"
        )
    return _EXCEPTIONS[known.retry](known, detail)
