"""What follows from how attempts ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leyden.schemas import RolloutConfig, State
from leyden_controller.runner import Cause, Ending
from leyden_controller.verdict import INFRA_FAILURES, MESSAGE_CHARACTERS, OWN_FAILURES, Finish, Try, verdict

CONFIGS = st.builds(RolloutConfig, max_attempts=st.integers(1, 4), max_infra_attempts=st.integers(1, 4))
CAUSES = st.sampled_from(Cause)


@given(config=CONFIGS, causes=st.lists(CAUSES, max_size=40))
def test_attempts_are_numbered_and_a_rollout_ends_within_its_limits(config, causes):
    endings: list[Ending] = []
    for cause in causes:
        step = verdict(config, endings)
        if isinstance(step, Finish):
            break
        assert step == Try(str(len(endings)))
        endings.append(Ending(cause))

    own = sum(ending.cause in OWN_FAILURES for ending in endings)
    infra = sum(ending.cause in INFRA_FAILURES for ending in endings)
    assert own <= config.max_attempts
    assert infra <= config.max_infra_attempts
    over = own == config.max_attempts or infra == config.max_infra_attempts
    over = over or any(ending.cause in (Cause.SUCCEEDED, Cause.REFUSED) for ending in endings)
    assert isinstance(verdict(config, endings), Finish) == over


@given(config=CONFIGS, before=st.lists(st.sampled_from(sorted(INFRA_FAILURES | {Cause.STOPPED})), max_size=3))
def test_an_attempt_that_succeeds_ends_its_rollout_whatever_was_before(config, before):
    assert verdict(config, [*map(Ending, before), Ending(Cause.SUCCEEDED)]) == Finish(State.SUCCEEDED)


def test_by_default_a_failure_of_the_agents_own_is_final_and_one_of_ours_is_tried_three_times():
    config = RolloutConfig()

    assert verdict(config, [Ending(Cause.FAILED, "exited with code 1")]) == Finish(State.FAILED, "exited with code 1")
    assert verdict(config, [Ending(Cause.KILLED)] * 2) == Try("2")
    assert verdict(config, [Ending(Cause.KILLED, "killed by SIGKILL")] * 3) == Finish(
        State.FAILED, "killed by SIGKILL (attempt 3 of 3)"
    )


@given(config=CONFIGS, stops=st.integers(0, 50))
def test_being_handed_back_costs_no_attempt(config, stops):
    assert verdict(config, [Ending(Cause.STOPPED)] * stops) == Try(str(stops))


@given(message=st.text(max_size=5000), output=st.text(max_size=5000))
def test_an_error_message_is_bounded_and_ends_as_the_output_does(message, output):
    step = verdict(RolloutConfig(), [Ending(Cause.FAILED, message, output)])

    assert isinstance(step, Finish)
    assert len(step.error) <= MESSAGE_CHARACTERS
    assert output.strip()[-100:] in step.error
    assert step.error.startswith(message[:500])
