"""`GET /v1/usage`: what the account behind the key has used.

Beyond the specification: callers would otherwise have to count for themselves what they are charged for. A key sees the
whole account, because limits count per account, and never another's.
"""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, SkipValidation
from msgspec import Meta

from capstan.usage.models import Counts, Usage
from capstan.usage.store import Group, UsageStore

_CONTROL: dict[str, Any] = {"units": "rest.control"}
_ROWS_AT_MOST = 500

Number = Annotated[int, Meta(ge=0)]


class Caller(Protocol):
    """The authenticated sender of a request."""

    @property
    def account_id(self) -> str: ...


class UsageTotals(msgspec.Struct, frozen=True):
    """What was used in all."""

    requests: Annotated[Number, Meta(description="Calls that were admitted. Each call of a batch counts.")]
    units: Annotated[Number, Meta(description="Compute units they cost, less those given back.")]
    errors: Annotated[Number, Meta(description="Those of the calls that failed.")]
    cached: Annotated[Number, Meta(description="Those of the calls that were answered from the cache.")]


class Latency(msgspec.Struct, frozen=True):
    """How long the calls took, in microseconds. All but the mean are estimates from a histogram."""

    mean: Number
    p50: Annotated[Number, Meta(description="Half of the calls took no longer.")]
    p95: Number
    p99: Number


class UsageRow(msgspec.Struct, frozen=True):
    """What was used under one name."""

    name: Annotated[
        str,
        Meta(
            description="The method, key id, network or UTC day (`2026-01-31`). Methods that are not known are counted "
            "as `other`; requests that concern no network have an empty network."
        ),
    ]
    requests: Number
    units: Number
    errors: Number
    cached: Number
    latency_microseconds: Latency


class UsageView(msgspec.Struct, frozen=True):
    """What the account used. The last second may be missing."""

    first_day: Annotated[str, Meta(description="The first UTC day counted, `2026-01-31`.")]
    last_day: Annotated[str, Meta(description="The last UTC day counted: today.")]
    group: Annotated[str, Meta(description="What the rows stand for.")]
    totals: UsageTotals
    rows: Annotated[
        list[UsageRow],
        Meta(description=f"The most used first, days in their order; at most {_ROWS_AT_MOST}. None without use."),
    ]


def usage_routes(store: UsageStore) -> list[HTTPRouteHandler]:
    """The handler of the path."""

    @get("/v1/usage", opt=_CONTROL, tags=["account"], summary="What the account used")
    async def usage(
        caller: NamedDependency[SkipValidation[Caller]],
        days: Annotated[
            int, Parameter(ge=1, le=90, description="How many UTC days to count, back from today; 1 is today alone.")
        ] = 1,
        group: Annotated[Group, Parameter(description="What the rows stand for.")] = "method",
    ) -> UsageView:
        """Requests, compute units, errors and latencies of the account behind the key, in all and by group."""
        report = await store.report(group, caller.account_id, days)
        total = report.total
        return UsageView(
            first_day=report.first_day,
            last_day=report.last_day,
            group=group,
            totals=UsageTotals(total.requests, total.units, total.errors, total.cached),
            rows=[_row(entry) for entry in report.entries[:_ROWS_AT_MOST]],
        )

    return [usage]


def _row(entry: Usage) -> UsageRow:
    counts = entry.counts
    return UsageRow(
        name=entry.name,
        requests=counts.requests,
        units=counts.units,
        errors=counts.errors,
        cached=counts.cached,
        latency_microseconds=_latency(counts),
    )


def _latency(counts: Counts) -> Latency:
    return Latency(counts.mean_microseconds, *(counts.quantile_microseconds(percent) for percent in (50, 95, 99)))
