"""Compute units: what a call costs.

`limits` asks `UnitTable.cost` once for every call, so a listed method is a single dictionary lookup. The prices are
data (`units.toml`), changed by `units.overrides` in the settings. Whether a call reads an old block is for the caller
to decide; this module only knows which methods then cost more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta

Cost = Annotated[int, Meta(ge=0, le=1_000_000)]


class UnitPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `units.toml`."""

    default: Cost
    archive_methods: tuple[str, ...]
    prefixes: dict[Annotated[str, Meta(pattern="^[a-z0-9]+_$")], Cost]
    methods: dict[str, Cost]


class UnitTable:
    """The price of every call. Immutable; a reload of the settings makes a new one."""

    def __init__(self, prices: UnitPrices, *, archive_factor: int, overrides: Mapping[str, int] | None = None) -> None:
        changes = dict(overrides or {})
        self._default = prices.default
        self._prefixes = {
            **prices.prefixes,
            **{name[:-1]: cost for name, cost in changes.items() if name.endswith("*")},
        }
        self._plain = {
            **prices.methods,
            **{name: cost for name, cost in changes.items() if not name.endswith("*")},
        }
        self._archive = {name: self.cost(name) * archive_factor for name in prices.archive_methods}

    def cost(self, method: str, *, archive: bool = False) -> int:
        """Units for one call. `archive`: it reads state at a block older than the archive depth."""
        if archive:
            found = self._archive.get(method)
            if found is not None:
                return found
        found = self._plain.get(method)
        return found if found is not None else self._unlisted(method)

    def is_archive_priced(self, method: str) -> bool:
        """Whether the method costs more at an old block: only then is it worth finding out how old the block is."""
        return method in self._archive

    def _unlisted(self, method: str) -> int:
        namespace, underscore, _ = method.partition("_")
        return self._prefixes.get(namespace + underscore, self._default)


@cache
def builtin_prices() -> UnitPrices:
    """The shipped prices."""
    text = resources.files("capstan.catalogue").joinpath("units.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), UnitPrices)


def load_units(*, archive_factor: int, overrides: Mapping[str, int] | None = None) -> UnitTable:
    """The shipped prices with an operator's changes: `load_units(archive_factor=settings.units.archive_factor, …)`."""
    return UnitTable(builtin_prices(), archive_factor=archive_factor, overrides=overrides)
