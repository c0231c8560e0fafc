"""`leyden doctor`: whether a deployment can do what it promises, and what to change if not."""

from __future__ import annotations

from pathlib import Path

import httpx
import typer

from leyden import deployment
from leyden.cli.console import DataDir, out, with_log
from leyden.log import Log

_ANSWER_SECONDS = 5.0


def doctor(data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Check Redis, its settings, the gateway and every run's model servers; exit code 1 if anything is wrong."""
    problems: list[str] = []

    async def look(log: Log) -> None:
        report = await log.inspect()
        out.print(f"log: {report.name} {report.version}, appendfsync {report.appendfsync}", highlight=False)
        out.print(f"memory: {report.memory}", highlight=False)
        problems.extend(report.problems)
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS) as client:
            problems.extend(await _of_gateway(client, data_dir))
            for name in await log.runs.names():
                problems.extend(await _of_run(client, log, name))

    with_log(data_dir, look)
    for problem in problems:
        out.print(f"[bold red]problem:[/] {problem}", highlight=False)
    if problems:
        raise typer.Exit(1)
    out.print("no problems found")


async def _of_gateway(client: httpx.AsyncClient, data_dir: Path) -> list[str]:
    known = deployment.load(data_dir)
    if known is None:
        return []
    fault = await _fault(client, f"{known.gateway_url}/readyz")
    out.print(f"gateway: {known.gateway_url}, {fault or 'ready'}", highlight=False)
    return [f"the gateway {known.gateway_url} is not ready: {fault}"] if fault else []


async def _of_run(client: httpx.AsyncClient, log: Log, name: str) -> list[str]:
    models, pause = await log.run(name).models.all(), await log.run(name).pause.state()
    held = f", calls held: {pause.reason or 'paused'}" if pause.paused else ""
    out.print(f"run {name}: {len(models)} model servers, {pause.inflight} calls in flight{held}", highlight=False)
    problems = []
    for model in models:
        fault = await _fault(client, f"{model.endpoint.rstrip('/')}/models")
        if fault:
            problems.append(
                f"run {name}: the server of {model.model}, {model.shown_endpoint}, does not answer: {fault}"
            )
    return problems


async def _fault(client: httpx.AsyncClient, url: str) -> str:
    """What is wrong with a server, "" if it answers. One that wants a credential answers."""
    try:
        status = (await client.get(url)).status_code
    except httpx.HTTPError as error:
        return f"{type(error).__name__} {error}".strip()
    return "" if status < 400 or status in (401, 403) else f"status {status}"
