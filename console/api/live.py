"""Numbers for charts, cheap enough to be asked for every few seconds."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from .. import queries
from ..models import Model, TopicName
from .dependencies import ClientDep

router = APIRouter(tags=["live"])


class Sample(Model):
    """A number at a time."""

    #: In milliseconds since 1970.
    timestamp: int
    #: Null if there are too many partitions to ask for.
    end_offsets: int | None


@router.get("/live/end-offsets")
async def get_end_offsets(
    client: ClientDep, topic: Annotated[TopicName | None, Query()] = None
) -> Sample:
    """Return the sum of the end offsets of a topic, or of all: its growth is the record rate."""
    total = await queries.end_offset_sum(client, topic)
    return Sample(timestamp=int(time.time() * 1000), end_offsets=total)
