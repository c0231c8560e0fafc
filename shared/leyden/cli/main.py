"""Puts the subcommands together."""

from __future__ import annotations

import typer

from leyden.cli import doctor, log, rollouts, runs, services, up

app = typer.Typer(
    name="leyden",
    help="The durable log for agentic RL: unchanged agents, every sampled token on record.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("gateway", context_settings=services.PASS_ON)(services.gateway)
app.command("controller", context_settings=services.PASS_ON)(services.controller)
app.command("train", context_settings=services.PASS_ON)(services.train)
app.command("runs")(runs.runs)
app.command("doctor")(doctor.doctor)
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(log.app, name="log")


def main() -> None:
    """The entry point of the `leyden` command."""
    app()


if __name__ == "__main__":
    main()
