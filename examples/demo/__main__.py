"""`python -m examples.demo [--model smollm2|tiny]`: train a real agent's model, and show what came of it.

Invariants:
- everything that it starts ends with it;
- run again after an interruption, it goes on where it was; after a demo that has ended, it begins a new one beside it;
- the exit code is 0 only if the reward on held-out tasks rose by more than twice its standard error.
"""

import argparse
import asyncio
import itertools
import json
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from examples.demo import plot
from examples.demo.outcome import Outcome, OutcomeUnknown, read_outcome
from examples.demo.processes import ROOT, ProcessFailed, leyden_up, make_model, train
from examples.demo.recipes import RECIPES, Recipe
from examples.serve_vllm import ServerFailed, VllmServer
from leyden.processes import free_port
from leyden_trainer.config import load
from leyden_trainer.progress import StepProgress

FOLDER = ROOT / ".leyden"
_ENDED = "outcome.json"
_TRACKER = "latest_checkpointed_iteration.txt"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Train a real agent's model.")
    parser.add_argument("--model", choices=sorted(RECIPES), default="smollm2")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where models and demos are kept")
    parser.add_argument("overrides", nargs="*", help="trainer settings, such as trainer.total_training_steps=5")
    asked = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False, soft_wrap=True)
    recipe = RECIPES[asked.model]
    try:
        return _run(recipe, asked.folder.absolute(), asked.overrides, console)
    except (ServerFailed, ProcessFailed, OutcomeUnknown) as error:
        console.print(f"[bold red]The demo failed.[/] {_escaped(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted. The same command goes on where it was.")
        return 130


def _run(recipe: Recipe, folder: Path, overrides: list[str], console: Console) -> int:
    started = time.monotonic()
    demo = _unfinished(folder, recipe)
    overrides = [*_overrides(recipe, folder, demo), *overrides]
    steps = load(overrides, recipe.config).trainer.total_training_steps
    console.print(f"[bold]{recipe.about}[/], in {steps} steps of GRPO.")
    console.print(f"About {recipe.minutes} minutes on two cores with nothing else to do. Everything is in {demo}.\n")

    model = folder / "models" / recipe.model
    console.print(f"model: {model}")
    if not model.exists():
        make_model(recipe.model_maker, model, demo / "model.log")
    recipe.make_tasks().write(demo / "tasks")

    server = VllmServer(
        model=model,
        name=recipe.model,
        port=free_port(),
        log=demo / "vllm.log",
        threads=recipe.server_threads,
        kv_cache=recipe.server_cache,
    )
    console.print(f"vLLM starts on the CPU, its log is {server.log}")
    with server, leyden_up(demo / "log", recipe.slots) as known:
        console.print(f"gateway: {known.gateway_url}; trainer's log: {demo / 'train.log'}")
        with StepProgress(known.redis_url, _run_name(recipe), console):
            train(
                known,
                recipe.config,
                [*overrides, f"leyden.engines.urls=['{server.url}']", *_first_evaluation(demo)],
                demo / "train.log",
            )
        outcome = asyncio.run(read_outcome(known.redis_url, _run_name(recipe)))
    _tell(recipe, outcome, demo, console)
    console.print(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    return 0 if outcome.clear else 1


def _run_name(recipe: Recipe) -> str:
    return f"demo-{recipe.model}"


def _unfinished(folder: Path, recipe: Recipe) -> Path:
    """The folder of the newest demo if that has not ended, else a new one's."""
    numbered = (folder / f"demo-{recipe.model}-{number}" for number in itertools.count(1))
    return next(demo for demo in numbered if not (demo / _ENDED).exists())


def _overrides(recipe: Recipe, folder: Path, demo: Path) -> list[str]:
    """The settings that depend on where the demo runs. What decides what is trained is the same for every demo."""
    return [
        f"actor_rollout_ref.model.path={folder / 'models' / recipe.model}",
        f"data.train_rows={demo / 'tasks' / 'train.jsonl'}",
        f"data.val_rows={demo / 'tasks' / 'held_out.jsonl'}",
        f"trainer.experiment_name={_run_name(recipe)}",
        f"trainer.default_local_dir={demo / 'checkpoints'}",
        f"leyden.engines.weights_dir={demo / 'weights'}",
        # Nothing acknowledges for this reader: the demo's rollouts stay in the log, for people to look at.
        "leyden.extra_readers=[demo]",
        f"leyden.local.command=['{sys.executable}','-m','examples.two_tries.agent']",
        f"leyden.local.cwd={ROOT}",
        "+leyden.local.env_map.TASK=input",
    ]


def _first_evaluation(demo: Path) -> list[str]:
    """A demo that goes on from a checkpoint was evaluated when it began."""
    return ["trainer.val_before_train=false"] if (demo / "checkpoints" / _TRACKER).exists() else []


def _tell(recipe: Recipe, outcome: Outcome, demo: Path, console: Console) -> None:
    before, after = outcome.before, outcome.after
    picture = demo / "reward.png"
    plot.write_png(outcome, recipe.about, picture)
    console.print()
    console.out(plot.for_terminal(outcome))
    for name, each in (("before", before), ("after", after)):
        console.print(
            f"held-out reward {name}: {each.mean:.3f} ± {each.standard_error:.3f} "
            f"({len(each.rewards)} tasks, {each.right:.0%} right at the first try, step {each.step})"
        )
    verdict = "[bold green]a clear gain[/]" if outcome.clear else "[bold red]no clear gain[/]"
    console.print(f"gain: {outcome.gain:+.3f} ± {outcome.gain_error:.3f}: {verdict}")
    console.print(f"plot: {picture}")
    console.print(f"log: {demo / 'log'}; look into it with: leyden up --data-dir {demo / 'log'}, and then")
    console.print(f"     leyden rollouts list --run {_run_name(recipe)} --data-dir {demo / 'log'}")
    console.print(f"checkpoints: {demo / 'checkpoints'}; trained model: {demo / 'weights'}")
    result = {
        "gain": outcome.gain,
        "gain_error": outcome.gain_error,
        "before": before.mean,
        "after": after.mean,
        "reward_by_step": outcome.by_step,
    }
    (demo / _ENDED).write_text(json.dumps(result, indent=2) + "\n")


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


if __name__ == "__main__":
    sys.exit(main())
