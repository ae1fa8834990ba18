"""Chains, for the operator: networks, upstreams, streams, the index, and accounts that run dry; current by itself."""

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from capstan.dashboard.chains import ChainBoard
from capstan.dashboard.desk import HEADERS, OPERATOR, Asked, Desk, Page
from capstan.dashboard.live import EVENT_STREAM, LiveParts
from capstan.dashboard.menu import Entry

ENTRY = Entry("Chains", "/dashboard/chains", "chain", "Operator", operator=True)


def chain_pages(desk: Desk, board: ChainBoard, live: LiveParts) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    @get("/chains", opt=OPERATOR)
    async def chains(request: Asked) -> Page:
        """Everything, as it is now."""
        return desk.page(request, "chains.html", {"board": await board.now()})

    @get("/chains/live", opt=OPERATOR)
    async def stream(request: Asked) -> Stream:
        """The same again whenever it changes."""

        async def part() -> str:
            return desk.part("chains_board.html", {"board": await board.now()})

        async def allowed() -> bool:
            return await desk.still_operator(request)

        return Stream(live.stream(allowed, part), media_type=EVENT_STREAM, headers=HEADERS)

    return [chains, stream]
