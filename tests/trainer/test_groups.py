import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_trainer.groups import Group, Groups, Outcome, RolloutsStalled


def group(order: int, repeats: int = 2, partition: str = "train") -> Group:
    awaited = {repeat: f"run.b.t{order}.{repeat}.0" for repeat in range(repeats)}
    return Group(uid=f"{partition}{order}", partition=partition, order=order, step=1, open=awaited)


def all_complete(groups: list[Group]) -> list[Group] | None:
    return groups if groups and all(each.complete for each in groups) else None


@given(order=st.permutations([(draw, repeat) for draw in range(3) for repeat in range(2)]))
def test_rows_come_by_draw_and_repeat_in_whatever_order_rollouts_finish(order):
    groups = Groups()
    groups.add(group(draw) for draw in (2, 0, 1))
    for draw, repeat in order:
        groups.settle(f"train{draw}", repeat, Outcome("", rows={f"d{draw}_{repeat}_0": {}}))

    found = groups.wait(all_complete, "train", 1)

    keys = [key for each in found for key in each.rows]
    assert keys == [f"d{draw}_{repeat}_0" for draw in range(3) for repeat in range(2)]
    assert not groups.waiting()


def test_a_wait_ends_as_soon_as_the_last_rollout_is_settled():
    groups = Groups()
    groups.add([group(0, repeats=1)])
    settle = threading.Timer(0.1, lambda: groups.settle("train0", 0, Outcome("a")))
    settle.start()

    started = time.monotonic()
    groups.wait(all_complete, "train", 30)

    assert time.monotonic() - started < 5


def test_a_wait_in_which_nothing_moves_names_the_rollouts_that_are_open():
    groups = Groups()
    groups.add([group(4), group(5, partition="val")])
    groups.settle("train4", 0, Outcome("a"))

    with pytest.raises(RolloutsStalled, match=r"no train rollout has moved.*waiting for 1: run\.b\.t4\.1\.0$"):
        groups.wait(all_complete, "train", 0.05)


def test_a_wait_lasts_as_long_as_something_moves():
    groups = Groups()
    groups.add([group(0, repeats=1)])
    timers = [threading.Timer(0.15 * n, groups.moved) for n in range(1, 5)]
    timers.append(threading.Timer(0.75, lambda: groups.settle("train0", 0, Outcome("a"))))
    for timer in timers:
        timer.start()

    assert groups.wait(all_complete, "train", 0.4)


def test_a_failure_elsewhere_ends_every_wait():
    groups = Groups()
    groups.add([group(0)])
    threading.Timer(0.05, lambda: groups.fail(ConnectionError("the log is gone"))).start()

    with pytest.raises(ConnectionError, match="the log is gone"):
        groups.wait(all_complete, "train", 30)


def test_another_try_is_awaited_in_place_of_the_first():
    groups = Groups()
    groups.add([group(0, repeats=1)])
    groups.replace_open("train0", 0, "run.b.t0.0.1")

    with pytest.raises(RolloutsStalled, match=r"run\.b\.t0\.0\.1"):
        groups.wait(all_complete, "train", 0.01)


def test_groups_that_were_taken_are_gone():
    groups = Groups()
    groups.add([group(0), group(1)])

    (taken,) = groups.take(["train0"])

    assert taken.order == 0
    assert [each.order for each in groups.of("train")] == [1]
