"""Leader epochs: start and end offsets, truncation, and the checkpoint file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.leader_epochs import LeaderEpochs


def some_epochs():
    return LeaderEpochs([(0, 0), (2, 100), (5, 250)])


def test_a_new_log_has_no_leader_epoch():
    epochs = LeaderEpochs()

    assert epochs.current == -1
    assert epochs.end_of(0, log_end=10) == (-1, -1)
    assert list(epochs) == []


def test_the_current_epoch_is_the_last_assigned_one():
    epochs = LeaderEpochs()

    assert epochs.assign(0, 0)
    assert epochs.assign(3, 120)
    assert epochs.current == 3
    assert list(epochs) == [(0, 0), (3, 120)]


def test_assigning_the_current_epoch_again_changes_nothing():
    epochs = some_epochs()

    assert not epochs.assign(5, 300)
    assert list(epochs) == [(0, 0), (2, 100), (5, 250)]


def test_an_older_epoch_cannot_be_assigned():
    epochs = some_epochs()

    with pytest.raises(ValueError, match="Epoch 4 is older than the current epoch 5"):
        epochs.assign(4, 300)
    assert epochs.current == 5


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_negative_epochs_and_offsets_are_rejected(epoch, offset):
    with pytest.raises(ValueError, match=f"Invalid epoch {epoch} at offset {offset}"):
        LeaderEpochs().assign(epoch, offset)


def test_an_epoch_without_records_is_replaced_by_the_next():
    epochs = some_epochs()

    epochs.assign(6, 250)

    assert list(epochs) == [(0, 0), (2, 100), (6, 250)]
    assert epochs.end_of(5, log_end=400) == (2, 250)


@pytest.mark.parametrize(
    ("epoch", "expected"),
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
def test_an_epoch_ends_where_the_next_starts_and_the_current_at_the_log_end(epoch, expected):
    assert some_epochs().end_of(epoch, log_end=400) == expected


def test_an_epoch_before_all_known_ones_ends_where_the_first_starts():
    assert LeaderEpochs([(2, 100)]).end_of(1, log_end=400) == (1, 100)


@pytest.mark.parametrize(
    ("offset", "remaining"),
    [
        (400, [(0, 0), (2, 100), (5, 250)]),
        (251, [(0, 0), (2, 100), (5, 250)]),
        (250, [(0, 0), (2, 100)]),
        (101, [(0, 0), (2, 100)]),
        (100, [(0, 0)]),
        (0, []),
    ],
)
def test_truncation_forgets_epochs_without_records(offset, remaining):
    epochs = some_epochs()

    changed = epochs.truncate(offset)

    assert list(epochs) == remaining
    assert changed == (remaining != list(some_epochs()))


@pytest.mark.parametrize(
    ("offset", "remaining"),
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
def test_advancing_the_log_start_forgets_epochs_without_records(offset, remaining):
    epochs = some_epochs()

    changed = epochs.trim_start(offset)

    assert list(epochs) == remaining
    assert changed == (remaining != list(some_epochs()))


def test_a_log_start_before_the_first_epoch_changes_nothing():
    epochs = LeaderEpochs([(2, 100)])

    assert not epochs.trim_start(50)
    assert not LeaderEpochs().trim_start(50)
    assert list(epochs) == [(2, 100)]


def test_the_checkpoint_is_readable_text():
    assert LeaderEpochs([(0, 0), (3, 120)]).encode() == (
        b'{"version": 1, "epochs": [[0, 0], [3, 120]]}\n'
    )


@pytest.mark.parametrize("epochs", [LeaderEpochs(), some_epochs()], ids=["none", "some"])
def test_the_checkpoint_round_trips(epochs):
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
def test_a_malformed_checkpoint_is_rejected(data):
    with pytest.raises(ValueError, match=r".+"):
        LeaderEpochs.decode(data)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["lead", "append", "truncate", "trim"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_end_of_agrees_with_a_model_in_which_each_record_has_its_epoch(steps):
    epochs, leader, start, log = LeaderEpochs(), 0, 0, []
    for step, number in steps:
        end = start + len(log)
        if step == "lead":
            leader += 1 + number
        elif step == "append":
            epochs.assign(leader, end)
            log += [leader] * (number + 1)
        elif step == "truncate":
            del log[max(len(log) - number, 0) :]
            epochs.truncate(start + len(log))
        else:
            trimmed = min(number, len(log))
            del log[:trimmed]
            start += trimmed
            epochs.trim_start(start)

        end = start + len(log)
        for epoch in set(log):
            later = [start + at for at, other in enumerate(log) if other > epoch]
            assert epochs.end_of(epoch, end) == (epoch, later[0] if later else end)
        assert json.loads(epochs.encode())["epochs"] == [list(pair) for pair in epochs]
