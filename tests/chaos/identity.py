"""Row I: mistakes of operators with the identity of brokers, under load.

tests/cluster/test_identity.py has each of them alone, in more detail.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chaos.matrix import row
from chaos.testbed import TOPIC, Run, Testbed
from harness.bystander import RESTART_SECONDS
from harness.daemon import Cluster
from harness.identity import (
    FIXED_ID,
    REFUSED,
    assert_refused,
    copy_of,
    new_producer_id,
    produce_idempotent,
    second_process,
    start_without_the_first,
    until_logged,
)
from harness.load import Load
from harness.requests import OK, fetch_partition, try_create_topic
from ottla.protocol.errors import ErrorCode

#: The load is on these: broker 0 is the controller.
LEADERS = (1, 2)
#: Not aiokafka, which fails records at once when a broker knows no leader. A controller that nobody
#: follows does not, and clients ask it as well.
PRODUCERS = ("librdkafka", "ottla")


@row("I", "mistaken identity of a broker", "mistakes", short=1, normal=10, full=50)
def mistake_identity(run: Run) -> None:
    """Each mistake has a cluster of its own. The table has the sum of all."""
    mistakes: list[Callable[[Run], None]] = [
        _join_with_the_lowest_id,
        _restore_an_older_controller,
        _wipe_the_controller,
        _wipe_a_leader,
        _start_a_second_process,
    ]
    run.random.shuffle(mistakes)
    folder = run.folder
    for cycle in run.cycles():
        run.folder = folder / str(cycle)
        run.figures.memory_before = run.figures.memory_after = None
        mistake = mistakes[cycle % len(mistakes)]
        try:
            mistake(run)
        except Exception as error:
            error.add_note(f"in {mistake.__name__}")
            raise
        shutil.rmtree(run.folder)
    run.folder = folder


@contextmanager
def _under_load(
    run: Run,
    start: Callable[[Cluster], object] = Cluster.start,
    leaders: Sequence[int] = LEADERS,
) -> Iterator[tuple[Testbed, Cluster, Load]]:
    """Run load on some brokers, the last of which has a bystander, and verify at the end."""
    cluster = Cluster(run.folder, 3, *FIXED_ID, *run.flags({}))
    addresses = ",".join(cluster[number].address for number in leaders)
    testbed = Testbed(run, cluster.brokers, addresses, len(leaders))
    testbed.victim = cluster[leaders[-1]]
    try:
        start(cluster)
        assert asyncio.run(try_create_topic(testbed.victim, TOPIC, leaders=leaders)) == OK
        # A broker waits for its controller: see FIXED_ID.
        with run.bystanders(testbed, RESTART_SECONDS + 3):
            with testbed.load(per_second=300, producers=PRODUCERS) as load:
                yield testbed, cluster, load
                load.wait_for_acks()
            # What is wrong is logged as an error.
            run.verify(testbed, load, may_log=True)
    finally:
        cluster.kill()


def _join_with_the_lowest_id(run: Run) -> None:
    """A cluster file gets a new lowest id, whose broker is empty: nobody follows it."""
    with _under_load(run, start_without_the_first) as (_testbed, cluster, load):
        load.wait_for_acks()
        for number in LEADERS:
            assert cluster[number].stop() == 0
        cluster.start()
        for number in LEADERS:
            asyncio.run(until_logged(cluster[number], REFUSED))


def _restore_an_older_controller(run: Run) -> None:
    """The controller is restored from a copy, and creates topics: nobody follows it."""
    with _under_load(run) as (_testbed, cluster, load):
        controller = cluster[0]
        controller.stop()
        copy = copy_of(controller, run.folder / "copy")
        controller.start()
        assert asyncio.run(try_create_topic(controller, "newer", leaders=[1])) == OK
        load.wait_for_acks()
        cluster.kill()
        shutil.rmtree(controller.data)
        copy.rename(controller.data)
        controller.start()
        for number in range(5):
            assert asyncio.run(try_create_topic(controller, f"other{number}", leaders=[0])) == OK
        for number in LEADERS:
            cluster[number].start()
        for number in LEADERS:
            asyncio.run(until_logged(cluster[number], REFUSED))
        end = asyncio.run(fetch_partition(cluster[1], "newer", 0)).high_watermark
        assert end == 0, "the newer topic is not served"
        # As an operator would: until then, clients may learn old metadata from it.
        assert controller.stop() == 0


def _wipe_the_controller(run: Run) -> None:
    """A controller without a disk never repeats a producer id."""
    with _under_load(run) as (_testbed, cluster, load):
        before = {asyncio.run(new_producer_id(broker)) for broker in (*cluster, *cluster)}
        cluster[0].kill()
        shutil.rmtree(cluster[0].data)
        cluster[0].start()
        asyncio.run(until_logged(cluster[1], REFUSED))
        after = {asyncio.run(new_producer_id(broker)) for broker in (*cluster, *cluster)}
        assert not before & after, f"repeated: {before & after}"
        load.wait_for_acks()


def _wipe_a_leader(run: Run) -> None:
    """A leader without a disk says so to its clients, and the others serve."""
    with _under_load(run, leaders=(0, 2)) as (testbed, cluster, load):
        leader = cluster[1]
        assert asyncio.run(try_create_topic(leader, "wiped", leaders=[1])) == OK
        producer_id = asyncio.run(new_producer_id(leader))
        assert asyncio.run(produce_idempotent(leader, "wiped", producer_id, 0, 5)) == (0, 0)
        with run.undisturbed(testbed):
            leader.kill()
            shutil.rmtree(leader.data)
            load.wait_for_acks()
            leader.start()
            load.wait_for_acks()
        code, _offset = asyncio.run(produce_idempotent(leader, "wiped", producer_id, 5))
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, code
        fetched = asyncio.run(fetch_partition(leader, "wiped", 0, 5))
        assert fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, fetched


def _start_a_second_process(run: Run) -> None:
    """The second process with a broker id exits, and the first is not disturbed."""
    with _under_load(run) as (testbed, cluster, _load):
        number = run.random.choice(LEADERS)
        second = second_process(cluster, number, "--set", "broker.session.timeout.ms=1000")
        with run.undisturbed(testbed):
            assert_refused(second, number)
