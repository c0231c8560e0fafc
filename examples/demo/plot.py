"""Reward by step, as PNG and for the terminal."""

from pathlib import Path

from examples.demo.outcome import Outcome

_COLUMNS, _LINES = 78, 16


def write_png(outcome: Outcome, title: str, file: Path) -> None:
    """Draw the outcome into `file`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(list(outcome.by_step), list(outcome.by_step.values()), marker=".", label="training, mean of a step")
    evaluations = (outcome.before, outcome.after)
    axes.errorbar(
        [each.step for each in evaluations],
        [each.mean for each in evaluations],
        yerr=[each.standard_error for each in evaluations],
        fmt="s",
        capsize=4,
        label="held out, mean ± standard error",
    )
    axes.set(title=title, xlabel="step", ylabel="reward", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def for_terminal(outcome: Outcome) -> str:
    """Draw the rewards of training as text."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(_COLUMNS, _LINES)
    plotext.plot(list(outcome.by_step), list(outcome.by_step.values()), marker="braille")
    plotext.title("reward by step")
    plotext.ylim(0, 1)
    return plotext.build()
