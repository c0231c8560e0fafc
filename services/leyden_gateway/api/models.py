"""Model servers. The contract's routes mean run `default`."""

from __future__ import annotations

from fastapi import APIRouter

from leyden.schemas import Model
from leyden_gateway.api.bodies import StrictRoute
from leyden_gateway.api.scope import DefaultRun, NamedRun

router = APIRouter(tags=["models"], route_class=StrictRoute)


@router.get("/models")
async def list_models(run: DefaultRun) -> list[Model]:
    """The registered servers."""
    return await run.models.all()


@router.post("/models", status_code=201)
async def register_models(body: list[Model], run: DefaultRun) -> list[Model]:
    """Register servers, or bring new versions of registered ones."""
    await run.models.add(body)
    return body


@router.delete("/models")
async def remove_models(run: DefaultRun) -> dict[str, str]:
    """Remove every server of the run."""
    await run.models.clear()
    return {"status": "ok"}


@router.get("/runs/{run}/models")
async def list_models_of_run(run: NamedRun) -> list[Model]:
    """The registered servers of a run."""
    return await run.models.all()


@router.post("/runs/{run}/models", status_code=201)
async def register_models_of_run(body: list[Model], run: NamedRun) -> list[Model]:
    """Register servers of a run, or bring new versions of registered ones."""
    await run.models.add(body)
    return body


@router.put("/runs/{run}/models")
async def replace_models_of_run(body: list[Model], run: NamedRun) -> list[Model]:
    """Register these servers of a run and no others, in one step."""
    await run.models.replace(body)
    return body


@router.delete("/runs/{run}/models")
async def remove_models_of_run(run: NamedRun) -> dict[str, str]:
    """Remove every server of a run."""
    await run.models.clear()
    return {"status": "ok"}
