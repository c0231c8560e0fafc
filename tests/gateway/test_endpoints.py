from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leyden.schemas import Model
from leyden_gateway.proxy.endpoints import Health, ranked

names = st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True)


def models(numbers: list[int]) -> list[Model]:
    return [Model(model="m", endpoint=f"http://host-{number}/v1") for number in numbers]


@given(numbers=names, rollout=st.text(min_size=1, max_size=20))
def test_only_the_rollouts_of_an_endpoint_that_goes_move(numbers, rollout):
    before = ranked(models(numbers), rollout)

    for gone in before[1:]:
        left = [model for model in before if model != gone]
        assert ranked(left, rollout)[0] == before[0]


def test_rollouts_spread_over_endpoints():
    servers = models([1, 2, 3, 4])
    first = [ranked(servers, f"rollout-{number}")[0].endpoint for number in range(1000)]

    assert all(200 < first.count(server.endpoint) < 300 for server in servers)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_endpoint_that_failed_is_passed_over_until_it_has_cooled():
    clock, (first, second) = Clock(), models([1, 2])
    health = Health(5, clock)
    health.failed(first.endpoint)

    assert health.best([first, second]) == second
    clock.now += 5
    assert health.best([first, second]) == first


def test_each_further_failure_doubles_the_cool_down_and_an_answer_ends_it():
    clock, (first, second) = Clock(), models([1, 2])
    health = Health(5, clock)
    health.failed(first.endpoint)
    clock.now += 5
    health.failed(first.endpoint)
    clock.now += 9

    assert health.best([first, second]) == second
    health.answered(first.endpoint)
    assert health.best([first, second]) == first


def test_calls_that_fail_together_are_one_failure():
    clock, (first, second) = Clock(), models([1, 2])
    health = Health(5, clock)
    for _ in range(100):
        health.failed(first.endpoint)
    clock.now += 5

    assert health.best([first, second]) == first


def test_if_all_are_cooling_the_one_that_cools_soonest_is_asked():
    clock, (first, second) = Clock(), models([1, 2])
    health = Health(5, clock)
    health.failed(second.endpoint)
    clock.now += 1
    health.failed(first.endpoint)

    assert health.best([first, second]) == second
