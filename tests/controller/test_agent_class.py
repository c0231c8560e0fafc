"""Agent classes, as Agent Lightning runs them."""

from __future__ import annotations

import pytest

from leyden_controller.local.runner import LocalRunner
from leyden_controller.runner import Cause, Ending
from tests.controller.test_local_runner import run

MODULE = """
import asyncio, os, sys

class Agent:
    def __init__(self, greeting="hello"):
        self.greeting = greeting
    def run(self):
        print(self.greeting, sys.argv[1:], os.getcwd() == sys.path[0])
        sys.exit(5)

class Returning:
    def run(self):
        return "something"

class Awaited:
    async def run(self):
        await asyncio.sleep(0)
        sys.exit(6)

class Raising:
    def run(self):
        raise RuntimeError("went wrong")

class RaisingLater:
    async def run(self):
        raise RuntimeError("went wrong later")

class Demanding:
    def __init__(self, needed):
        pass

class Idle:
    pass

class Killed:
    def run(self):
        print("so far")
        os.kill(os.getpid(), 9)

def function():
    pass
"""


@pytest.fixture
def module(tmp_path):
    package = tmp_path / "agents"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.py").write_text(MODULE)
    (package / "broken.py").write_text("import no_such_dependency\n")
    return str(tmp_path)


async def of_class(runner: LocalRunner, path: str, cwd: str) -> Ending:
    return await run(runner, agent_class=path, cwd=cwd)


@pytest.mark.parametrize("path", ["agents.mine.Agent", "agents.mine:Agent"])
async def test_a_class_is_created_without_arguments_and_run_in_its_folder(runner, module, path):
    ending = await of_class(runner, path, module)

    assert ending == Ending(Cause.FAILED, "exited with code 5", "hello [] True\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [("Awaited", "exited with code 6"), ("Raising", "exited with code 1"), ("RaisingLater", "exited with code 1")],
)
async def test_its_run_is_awaited_if_need_be_and_what_it_raises_is_its_failure(runner, module, name, message):
    ending = await of_class(runner, f"agents.mine.{name}", module)

    assert (ending.cause, ending.message) == (Cause.FAILED, message)
    assert ("went wrong" in ending.output) == name.startswith("Raising")


async def test_what_run_returns_does_not_matter(runner, module):
    assert await of_class(runner, "agents.mine:Returning", module) == Ending(Cause.SUCCEEDED)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "no_such_module.Agent",
            "agent_class 'no_such_module.Agent' can't be imported: No module named 'no_such_module'",
        ),
        (
            "agents.mine.Missing",
            "'agents.mine.Missing' can't be imported: module 'agents.mine' has no attribute 'Missing'",
        ),
        ("agents.broken:Agent", "No module named 'no_such_dependency'"),
        ("agents.mine:function", "'agents.mine:function' is a function, not a class"),
        ("Agent", "'Agent' is neither pkg.module.Class nor pkg.module:Class"),
        (":Agent", "':Agent' is neither"),
        ("agents.mine:Demanding", "missing 1 required positional argument: 'needed'"),
        ("agents.mine:Idle", "has no attribute 'run'"),
    ],
)
async def test_a_class_that_can_not_be_used_is_a_failure_whose_last_line_says_why(runner, module, path, reason):
    ending = await of_class(runner, path, module)

    assert (ending.cause, ending.message) == (Cause.FAILED, "exited with code 1")
    assert reason in ending.output.splitlines()[-1]


async def test_what_it_printed_before_it_was_killed_is_kept(runner, module):
    assert await of_class(runner, "agents.mine.Killed", module) == Ending(Cause.KILLED, "killed by SIGKILL", "so far\n")
