"""Leader epochs: where each begins and ends, and what a cut log makes of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.leader_epochs import LeaderEpochs


def some_epochs():
    return LeaderEpochs([(0, 0), (2, 100), (5, 250)])


def test_a_new_log_has_no_epoch():
    epochs = LeaderEpochs()

    assert epochs.current == -1
    assert epochs.end_of(0, log_end=10) == (-1, -1)
    assert list(epochs) == []


def test_the_current_epoch_is_the_last_that_was_assigned():
    epochs = LeaderEpochs()

    assert epochs.assign(0, 0)
    assert epochs.assign(3, 120)
    assert epochs.current == 3
    assert list(epochs) == [(0, 0), (3, 120)]


def test_an_epoch_that_is_at_it_already_is_not_new():
    epochs = some_epochs()

    assert not epochs.assign(5, 300)
    assert list(epochs) == [(0, 0), (2, 100), (5, 250)]


def test_epochs_never_go_back():
    epochs = some_epochs()

    with pytest.raises(ValueError, match="epoch 4 after epoch 5"):
        epochs.assign(4, 300)
    assert epochs.current == 5


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_there_are_no_negative_epochs_and_offsets(epoch, offset):
    with pytest.raises(ValueError, match=f"epoch {epoch} from offset {offset}"):
        LeaderEpochs().assign(epoch, offset)


def test_an_epoch_that_wrote_nothing_makes_room_for_the_next():
    epochs = some_epochs()

    epochs.assign(6, 250)

    assert list(epochs) == [(0, 0), (2, 100), (6, 250)]
    assert epochs.end_of(5, log_end=400) == (2, 250)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 100)),
        (1, (0, 100)),
        (2, (2, 250)),
        (4, (2, 250)),
        (5, (5, 400)),
        (9, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_starts_and_the_current_at_the_end_of_the_log(asked, answer):
    assert some_epochs().end_of(asked, log_end=400) == answer


def test_an_epoch_before_all_that_are_known_ends_where_they_start():
    assert LeaderEpochs([(2, 100)]).end_of(1, log_end=400) == (1, 100)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (400, [(0, 0), (2, 100), (5, 250)]),
        (251, [(0, 0), (2, 100), (5, 250)]),
        (250, [(0, 0), (2, 100)]),
        (101, [(0, 0), (2, 100)]),
        (100, [(0, 0)]),
        (0, []),
    ],
)
def test_cutting_the_end_forgets_epochs_with_nothing_left(offset, left):
    epochs = some_epochs()

    changed = epochs.truncate(offset)

    assert list(epochs) == left
    assert changed == (left != list(some_epochs()))


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (0, [(0, 0), (2, 100), (5, 250)]),
        (1, [(0, 1), (2, 100), (5, 250)]),
        (99, [(0, 99), (2, 100), (5, 250)]),
        (100, [(2, 100), (5, 250)]),
        (180, [(2, 180), (5, 250)]),
        (250, [(5, 250)]),
        (400, [(5, 400)]),
    ],
)
def test_cutting_the_start_forgets_epochs_with_nothing_left(offset, left):
    epochs = some_epochs()

    changed = epochs.trim_start(offset)

    assert list(epochs) == left
    assert changed == (left != list(some_epochs()))


def test_cutting_the_start_before_the_first_epoch_changes_nothing():
    epochs = LeaderEpochs([(2, 100)])

    assert not epochs.trim_start(50)
    assert not LeaderEpochs().trim_start(50)
    assert list(epochs) == [(2, 100)]


def test_the_file_is_text_that_a_person_can_read():
    assert LeaderEpochs([(0, 0), (3, 120)]).encode() == (
        b'{"version": 1, "epochs": [[0, 0], [3, 120]]}\n'
    )


@pytest.mark.parametrize("epochs", [LeaderEpochs(), some_epochs()], ids=["none", "some"])
def test_the_file_brings_the_epochs_back(epochs):
    read = LeaderEpochs.decode(epochs.encode())

    assert list(read) == list(epochs)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\xfd",
        b'{"version": 1, "epochs": [[0,',
        b"[]",
        b"7",
        b"{}",
        b'{"version": 2, "epochs": []}',
        b'{"version": 1}',
        b'{"version": 1, "epochs": {}}',
        b'{"version": 1, "epochs": [0]}',
        b'{"version": 1, "epochs": [[0]]}',
        b'{"version": 1, "epochs": [[0, 0, 0]]}',
        b'{"version": 1, "epochs": [[0, "0"]]}',
        b'{"version": 1, "epochs": [[0, 1.5]]}',
        b'{"version": 1, "epochs": [[true, 0]]}',
        b'{"version": 1, "epochs": [[-1, 0]]}',
        b'{"version": 1, "epochs": [[0, -1]]}',
        b'{"version": 1, "epochs": [[1, 0], [0, 9]]}',
        b'{"version": 1, "epochs": [[1, 0], [1, 9]]}',
        b'{"version": 1, "epochs": [[0, 9], [1, 9]]}',
        b'{"version": 1, "epochs": [[0, 9], [1, 3]]}',
    ],
)
def test_a_file_that_we_did_not_write_is_refused(data):
    with pytest.raises(ValueError, match=r".+"):
        LeaderEpochs.decode(data)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["lead", "append", "cut", "trim"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_the_answer_is_that_of_a_log_whose_every_record_knows_its_epoch(steps):
    epochs, leader, start, log = LeaderEpochs(), 0, 0, []
    for step, number in steps:
        end = start + len(log)
        if step == "lead":
            leader += 1 + number
        elif step == "append":
            epochs.assign(leader, end)
            log += [leader] * (number + 1)
        elif step == "cut":
            del log[max(len(log) - number, 0) :]
            epochs.truncate(start + len(log))
        else:
            trimmed = min(number, len(log))
            del log[:trimmed]
            start += trimmed
            epochs.trim_start(start)

        end = start + len(log)
        for asked in set(log):
            later = [start + at for at, epoch in enumerate(log) if epoch > asked]
            assert epochs.end_of(asked, end) == (asked, later[0] if later else end)
        assert json.loads(epochs.encode())["epochs"] == [list(pair) for pair in epochs]
