"""Enforcement of client quotas: counters of what clients use, and how long they are throttled.

A request over a limit is answered at once, with the time that its client is to wait; its connection
is not read from for as long, so that clients that ignore the time wait too. Nothing is delayed for
anybody else. Rates are measured as Kafka does, over `quota.window.num` samples of
`quota.window.size.seconds`, the current one included. A client that used `total` in `window`
seconds has to wait until the same total in a longer window would be within the limit:

    total / limit - window

- Produce: the bytes of the request count, and nothing is refused.
- Fetch: a response over the limit is not sent. The client gets an empty one, and its bytes do not
  count. If nothing else was fetched, it is sent all the same, or it would never be.
- request_percentage: the time that requests take to decode, handle and encode, as a percentage of
  one core; what is encoded counts for the next request. A client waits for at most one sample.
- controller_mutation_rate: a token bucket, which holds as much as all samples. It may be overdrawn
  once, by however many partitions; then requests are refused until it is positive again.

Requests of other brokers and authentication are exempt; requests that only brokers may send are not
if anybody else sends them. The counters of entities that were not used for longest are forgotten
when there are too many of a quota, and only the first characters of a client id count: clients
choose their client ids.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.coord.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    QuotaLimit,
)
from ottla.protocol import registry
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message

from .errors import ApiError

if TYPE_CHECKING:
    from ..observability.metrics import Metrics
    from .dispatch import RequestContext

#: Entities with a counter of a quota, and clients with remembered limits.
MAX_COUNTERS = 10_000
#: Characters of a client id that count.
_MAX_CLIENT_ID = 255
#: The requests of clients before they have authenticated.
_EXEMPT = frozenset(
    {
        registry.API_VERSIONS.key,
        registry.SASL_HANDSHAKE.key,
        registry.SASL_AUTHENTICATE.key,
    }
)

T = TypeVar("T")


class Rate:
    """What was used in each of the last samples."""

    __slots__ = ("_index", "_sample_seconds", "_samples", "total")

    def __init__(self, sample_count: int, sample_seconds: float) -> None:
        self._sample_seconds = sample_seconds
        self._samples = [0.0] * sample_count
        self._index = 0
        self.total = 0.0

    def record(self, value: float, now: float) -> None:
        """Count a value in the current sample."""
        self.advance(now)
        self._samples[self._index % len(self._samples)] += value
        self.total += value

    def advance(self, now: float) -> None:
        """Forget the samples that are too old."""
        index, count = int(now / self._sample_seconds), len(self._samples)
        if index - self._index >= count:
            self._samples = [0.0] * count
            self.total = 0.0
        else:
            for expired in range(self._index + 1, index + 1):
                self.total -= self._samples[expired % count]
                self._samples[expired % count] = 0.0
        self._index = index

    def throttle_seconds(self, limit: float, now: float) -> float:
        """Return how long to wait until the rate is within a limit; 0 if it is."""
        window = (len(self._samples) - 1 + now / self._sample_seconds % 1) * self._sample_seconds
        return max(self.total / limit - window, 0.0)


class MutationBucket:
    """The partitions that may be created and deleted: `rate` more each second, up to a burst."""

    __slots__ = ("_tokens", "_updated")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._updated = 0.0

    def tokens(self, rate: float, burst: float, now: float) -> float:
        """Return the tokens that there are; negative if it is overdrawn."""
        self._tokens = min(self._tokens + (now - self._updated) * rate, burst)
        self._updated = now
        return self._tokens

    def take(self, count: float) -> None:
        """Take tokens, more than there are if need be."""
        self._tokens -= count


class _Limits(NamedTuple):
    """The limits of a client; None where it has none."""

    produce: QuotaLimit | None
    fetch: QuotaLimit | None
    request: QuotaLimit | None
    mutation: QuotaLimit | None


class QuotaManager:
    """The counters of all entities of one broker."""

    def __init__(
        self,
        quotas: ClientQuotas,
        metrics: Metrics,
        sample_count: int,
        sample_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quotas = quotas
        self._metrics = metrics
        self._sample_count = sample_count
        self.sample_seconds = sample_seconds
        self._clock = clock
        self._version = quotas.version
        self._limits: dict[tuple[str, str], _Limits] = {}
        #: By quota, and by what shares the counter; least recently used first.
        self._rates: defaultdict[str, OrderedDict[object, Rate]] = defaultdict(OrderedDict)
        self._buckets: OrderedDict[object, MutationBucket] = OrderedDict()

    def begin(self, context: RequestContext) -> RequestUsage | None:
        """Return what is to be counted of a request; None if its client has no limits."""
        # What is forwarded was counted by the other broker.
        if context.api.key in _EXEMPT or context.is_forwarded:
            return None
        limits = self._limits_of(context)
        return RequestUsage(self, limits) if any(limits) else None

    def mutation(self, context: RequestContext, *, is_strict: bool) -> MutationQuota | None:
        """Return the quota of a client that changes topics; None if it has none."""
        if context.usage is None and not context.is_forwarded:
            return None  # Exempt, or without limits.
        limit = self._limits_of(context).mutation
        return None if limit is None else MutationQuota(self, limit, is_strict=is_strict)

    def admits_connection(self, ip: str) -> bool:
        """Count a new connection; return False, and do not count it, if there are too many."""
        limit = self._quotas.connection_rate_of(ip)
        if limit is None:
            return True
        now = self._clock()
        rate = self.rate(CONNECTION_CREATION_RATE, ip)
        rate.record(1, now)
        if rate.throttle_seconds(limit, now) <= 0:
            return True
        rate.record(-1, now)
        self.count(CONNECTION_CREATION_RATE, 0)
        return False

    def rate(self, quota: str, counter: object) -> Rate:
        """Return the rate of what shares a counter."""
        rates = self._rates[quota]
        rate = rates.get(counter)
        if rate is None:
            if len(rates) >= MAX_COUNTERS:
                rates.popitem(last=False)
            rate = rates[counter] = Rate(self._sample_count, self.sample_seconds)
        else:
            rates.move_to_end(counter)
        return rate

    def bucket(self, counter: object) -> MutationBucket:
        """Return the token bucket of what shares a counter."""
        bucket = self._buckets.get(counter)
        if bucket is None:
            if len(self._buckets) >= MAX_COUNTERS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[counter] = MutationBucket()
        else:
            self._buckets.move_to_end(counter)
        return bucket

    def burst_seconds(self) -> float:
        """Return for how many seconds' worth of its rate a bucket has room."""
        return self._sample_count * self.sample_seconds

    def full_window_seconds(self) -> float:
        """Return the time that all samples but the current one take."""
        return (self._sample_count - 1) * self.sample_seconds

    def now(self) -> float:
        """Return the time of the clock."""
        return self._clock()

    def count(self, quota: str, seconds: float) -> None:
        """Count a throttled request."""
        self._metrics.throttled_requests[quota] += 1
        self._metrics.throttled_seconds[quota] += seconds

    def _limits_of(self, context: RequestContext) -> _Limits:
        if self._version != self._quotas.version:
            self._version = self._quotas.version
            self._limits.clear()
        client = (context.principal.name, (context.client_id or "")[:_MAX_CLIENT_ID])
        limits = self._limits.get(client)
        if limits is None:
            if len(self._limits) >= MAX_COUNTERS:
                self._limits.clear()
            of = self._quotas.limit_of
            limits = self._limits[client] = _Limits(
                of(PRODUCER_BYTE_RATE, *client),
                of(CONSUMER_BYTE_RATE, *client),
                of(REQUEST_PERCENTAGE, *client),
                of(CONTROLLER_MUTATION_RATE, *client),
            )
        return limits


class RequestUsage:
    """What one request of a client with limits uses."""

    __slots__ = ("_limits", "_manager", "_throttled_by")

    def __init__(self, manager: QuotaManager, limits: _Limits) -> None:
        self._manager = manager
        self._limits = limits
        self._throttled_by = CONTROLLER_MUTATION_RATE

    @property
    def max_fetch_bytes(self) -> int | None:
        """How much one fetch may return, so that it can ever be within the limit."""
        limit = self._limits.fetch
        return None if limit is None else int(limit.limit * self._manager.full_window_seconds())

    def run(self, handle: Callable[[], T]) -> T:
        """Call a function, and count the time that it takes; of a coroutine, all its steps."""
        limit = self._limits.request
        if limit is None:
            return handle()
        start = perf_counter()
        try:
            result = handle()
        finally:
            self.record_seconds(perf_counter() - start)
        if hasattr(result, "send"):
            return _TimedCoroutine(result, self.record_seconds)  # type: ignore[return-value]
        return result

    def record_seconds(self, seconds: float) -> None:
        """Count time of the event loop, in percent of a core."""
        limit = self._limits.request
        if limit is not None:
            rate = self._manager.rate(REQUEST_PERCENTAGE, limit.counter)
            rate.record(100 * seconds, self._manager.now())

    def fetch_throttle_seconds(self, size_bytes: int) -> float:
        """Count fetched bytes; return how long to wait, without them, if they are too many."""
        limit = self._limits.fetch
        if limit is None:
            return 0.0
        now = self._manager.now()
        rate = self._manager.rate(CONSUMER_BYTE_RATE, limit.counter)
        rate.advance(now)
        is_first = rate.total <= 0
        rate.record(size_bytes, now)
        seconds = rate.throttle_seconds(limit.limit, now)
        if seconds <= 0 or is_first:
            return 0.0
        rate.record(-size_bytes, now)
        self._throttled_by = CONSUMER_BYTE_RATE
        return seconds

    def fetched_throttle_seconds(self, size_bytes: int) -> float:
        """Count fetched bytes that are sent in any case; return how long to wait."""
        limit = self._limits.fetch
        if limit is None:
            return 0.0
        now = self._manager.now()
        rate = self._manager.rate(CONSUMER_BYTE_RATE, limit.counter)
        rate.record(size_bytes, now)
        self._throttled_by = CONSUMER_BYTE_RATE
        return rate.throttle_seconds(limit.limit, now)

    def produce_throttle_seconds(self, size_bytes: int) -> float:
        """Count produced bytes; return how long to wait."""
        limit = self._limits.produce
        if limit is None:
            return 0.0
        now = self._manager.now()
        rate = self._manager.rate(PRODUCER_BYTE_RATE, limit.counter)
        rate.record(size_bytes, now)
        return rate.throttle_seconds(limit.limit, now)

    def finish_without_response(self, context: RequestContext) -> None:
        """Throttle the client of a Produce with acks=0."""
        seconds = self.produce_throttle_seconds(context.size_bytes)
        if seconds > 0:
            self._manager.count(PRODUCER_BYTE_RATE, seconds)
            context.connection.mute(seconds)

    def finish(self, context: RequestContext, response: Message) -> None:
        """Throttle the client of a request, if it is over a limit, before its response is sent."""
        # Set if the handler, or the controller, has a reason to throttle.
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        seconds, quota = throttle_ms / 1000, self._throttled_by
        if context.api is registry.PRODUCE:
            produced = self.produce_throttle_seconds(context.size_bytes)
            if produced > seconds:
                seconds, quota = produced, PRODUCER_BYTE_RATE
        limit = self._limits.request
        if limit is not None:
            now = self._manager.now()
            rate = self._manager.rate(REQUEST_PERCENTAGE, limit.counter)
            rate.advance(now)
            used = min(rate.throttle_seconds(limit.limit, now), self._manager.sample_seconds)
            if used > seconds:
                seconds, quota = used, REQUEST_PERCENTAGE
        if seconds <= 0:
            return
        self._manager.count(quota, seconds)
        throttle_field = response.fields.get("throttle_time_ms")
        if throttle_field is not None and throttle_field.exists_in(context.version):
            response.throttle_time_ms = max(int(seconds * 1000), 1)  # type: ignore[attr-defined]
        context.connection.mute(seconds)


class MutationQuota:
    """The token bucket of a client, for one request."""

    def __init__(self, manager: QuotaManager, limit: QuotaLimit, *, is_strict: bool) -> None:
        self._bucket = manager.bucket(limit.counter)
        self._manager = manager
        self._rate = limit.limit
        self._is_strict = is_strict

    def take(self, partition_count: int) -> None:
        """Count partitions to create or delete. Raises ApiError if it is strict and overdrawn."""
        if self._is_strict and self._tokens() < 0:
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"The quota {CONTROLLER_MUTATION_RATE} is exceeded: try again in"
                f" {self.throttle_ms} ms",
            )
        self._tokens()
        self._bucket.take(partition_count)

    @property
    def throttle_ms(self) -> int:
        """How long to wait until the bucket is no longer overdrawn."""
        return max(int(-self._tokens() / self._rate * 1000), 0)

    def _tokens(self) -> float:
        burst = self._rate * self._manager.burst_seconds()
        return self._bucket.tokens(self._rate, burst, self._manager.now())


class _TimedCoroutine(Awaitable[Any]):
    """Awaits a coroutine, and measures the time of its steps, without what it waits for."""

    def __init__(self, coroutine: Any, record: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._record = record

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        spent = 0.0
        try:
            value: Any = None
            error: BaseException | None = None
            while True:
                start = perf_counter()
                try:
                    waited_for = steps.send(value) if error is None else steps.throw(error)
                except StopIteration as stop:
                    return stop.value
                finally:
                    spent += perf_counter() - start
                error = None
                try:
                    value = yield waited_for
                except BaseException as thrown:  # noqa: BLE001  # Passed on to the coroutine.
                    error = thrown
        finally:
            self._record(spent)
