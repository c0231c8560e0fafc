"""What the tokens that agents are given allow, by their run's rules."""

from __future__ import annotations

import pytest

from leyden.auth import AGENT_RIGHTS, AgentClaims, Authority, Right
from leyden.schemas import State
from tests.controller.conftest import KEY
from tests.controller.support import asked, outcomes, shell


@pytest.mark.parametrize("allowed", [True, False])
async def test_an_agent_may_report_rewards_only_if_its_run_says_so(run, start_controller, tmp_path, allowed):
    rules = await run.settings()
    await run.set_settings(rules.model_copy(update={"agents_may_reward": allowed}))
    await start_controller()
    await run.rollouts.create(asked("a", shell("echo $AGL_KEY > token"), cwd=str(tmp_path)))

    assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED

    claims = Authority(KEY).check((tmp_path / "token").read_text().strip())
    assert isinstance(claims, AgentClaims)
    assert claims.rights == (AGENT_RIGHTS if allowed else AGENT_RIGHTS - {Right.REWARD})
