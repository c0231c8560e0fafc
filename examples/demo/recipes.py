"""What the demo trains, model by model: how it is made, on which tasks, with which settings."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.two_tries.tasks import TaskSet, chain_sums, digits

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """A demo. `minutes` is what two cores without other work take from start to end, model download included.

    `model_maker` is the module that makes the model's folder, `server_threads` how many cores the model server
    computes on, `server_cache` the memory that it keeps keys and values in, `slots` how many agents run at a time.
    """

    model: str
    about: str
    model_maker: str
    make_tasks: Callable[[], TaskSet]
    server_threads: int
    server_cache: str
    slots: int
    minutes: int

    @property
    def config(self) -> Path:
        """The trainer's settings."""
        return _HERE / f"{self.model}.yaml"


RECIPES = {
    recipe.model: recipe
    for recipe in (
        Recipe(
            model="smollm2",
            about="SmolLM2-135M-Instruct learns to add and subtract one-digit numbers",
            model_maker="examples.models.smollm2",
            make_tasks=lambda: chain_sums(train=90, held_out=64, seed=1),
            server_threads=2,
            server_cache="512M",
            slots=16,
            minutes=13,
        ),
        Recipe(
            model="tiny",
            about="a random model of 95,000 parameters learns to answer in digits",
            model_maker="examples.models.tiny",
            make_tasks=lambda: digits(train=256, held_out=32, seed=1),
            server_threads=1,
            server_cache="64M",
            slots=8,
            minutes=6,
        ),
    )
}
