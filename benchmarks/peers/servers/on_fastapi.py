"""FastAPI as a good engineer would use it: one funnel a worker, called in place, fast JSON both ways.

The call blocks the worker's event loop, which costs nothing: a worker has one core and the models use it whole,
and a thread would add a change of thread to every request.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import orjson
from fastapi import FastAPI, Response
from pydantic import BaseModel, Field

from benchmarks.peers.funnel import Funnel

app = FastAPI()
funnel = Funnel.load()


class Ask(BaseModel):
    user_id: str = Field(min_length=1, max_length=512)


@app.post("/recommend")
async def recommend(ask: Ask) -> Response:
    ids, scores = funnel.recommend([ask.user_id])
    return Response(orjson.dumps({"ids": ids[0], "scores": scores[0]}), media_type="application/json")
