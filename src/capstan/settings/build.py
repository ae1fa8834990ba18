"""Turns the raw layers into `Settings`, or into a list of everything that is wrong with them.

Called by `load_settings` and by a reload. A network is put together from its family, the built-in catalogue, the
`network_defaults` and the operator's values, an upstream from `[upstreams]` and its own keys. Rules that span several
settings are in `checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from capstan.catalogue.networks import builtin_names, builtin_table, checksummed, family_table, network_faults
from capstan.settings.checks import check
from capstan.settings.errors import Problem, SettingsError, dotted, suggestion
from capstan.settings.kinds import describe, show, struct_type
from capstan.settings.layers import KeyPath, Layers, find_config, read_layers, section_fields
from capstan.settings.model import NetworkSettings, Settings, Upstream
from capstan.settings.redaction import secret_rule

StructT = TypeVar("StructT", bound=msgspec.Struct)

_WRONG: Any = object()
_DEFINING = ("chain_id", "kind", "family")
_FLAGS = ("default_testnet", "default_in_development")


def load_settings(
    config_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Read every source and return the settings. Raises `SettingsError` with all problems found.

    `config_path` is the file named on the command line. `overrides` are dotted names of the command line or the
    development mode, such as `{"server.port": 9000}`; a value of `None` counts as not given.
    """
    variables = environ or {}
    return build_settings(read_layers(find_config(config_path, variables), variables, overrides or {}))


def build_settings(layers: Layers) -> Settings:
    """The settings the layers amount to. Raises `SettingsError` with all problems found."""
    builder = _Builder(layers)
    settings = builder.settings()
    if settings is not None:
        check(settings, builder.report)
    if layers.problems or settings is None:
        raise SettingsError(layers.problems)
    return settings


class _Builder:
    """Converts layer by layer, noting problems instead of stopping at the first."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def report(self, path: KeyPath, reason: str, within: str = "") -> None:
        """Note a problem of a setting; `within` names the part of its value, such as `[0].url`."""
        source = self._layers.source_of(path)
        self._layers.problems.append(Problem(source, dotted(path) + within, reason))

    def settings(self) -> Settings | None:
        values = self._section_values(Settings, ())
        networks = {name: self._network(name, values) for name in self._layers.networks}
        if self._layers.problems or any(network is None for network in networks.values()):
            return None
        settings = Settings(**{**values, "networks": networks})
        return msgspec.structs.replace(settings, networks=self._settle_flags(settings.networks))

    def _section(self, section: type[StructT], path: KeyPath) -> StructT | Any:
        values = self._section_values(section, path)
        if any(value is _WRONG for value in values.values()):
            return _WRONG
        return section(**values)

    def _section_values(self, section: type[msgspec.Struct], path: KeyPath) -> dict[str, Any]:
        """Field values by attribute name; `_WRONG` where a problem was noted."""
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(section):
            here = (*path, field.encode_name)
            inner = struct_type(field.type)
            if here == ("networks",):
                continue
            if inner is not None:
                found[field.name] = self._section(inner, here)
            else:
                found[field.name] = self._convert(self._layers.values[here].value, field.type, here)
        return found

    def _convert(self, value: object, annotation: Any, path: KeyPath, within: str = "") -> Any:
        try:
            return msgspec.convert(value, annotation)
        except msgspec.ValidationError:
            shown = "" if secret_rule(annotation) else f", not {show(value)}"
            self.report(path, f"must be {describe(annotation)}{shown}", within)
            return _WRONG

    def _network(self, name: str, settings: Mapping[str, Any]) -> NetworkSettings | None:
        path: KeyPath = ("networks", name)
        fields = section_fields(NetworkSettings)
        own = {key: entry.value for (*_, key), entry in self._own_values(path)}
        table = self._network_table(name, own)
        if table is None:
            return None
        defaults, nodes = settings["network_defaults"], settings["upstreams"]
        if defaults is _WRONG or nodes is _WRONG:
            return None
        raw = {**table, **msgspec.to_builtins(defaults), "quorum": {}, "upstreams": [], **own}
        values: dict[str, Any] = {
            key: self._convert(raw[key], annotation, (*path, key))
            for key, annotation in fields.items()
            if key != "upstreams"
        }
        values["upstreams"] = self._upstreams(raw["upstreams"], msgspec.to_builtins(nodes), (*path, "upstreams"))
        if any(value is _WRONG for value in values.values()):
            return None
        chain, _, network = name.partition("/")
        return self._consistent(NetworkSettings(chain=chain, network=network, **values))

    def _own_values(self, path: KeyPath) -> list[tuple[KeyPath, Any]]:
        return [(key, value) for key, value in self._layers.values.items() if key[:-1] == path]

    def _network_table(self, name: str, own: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The facts below the operator's values: the catalogue's, or for a new network those of its family."""
        builtin = builtin_table(name)
        family = own.get("family", builtin["family"] if builtin else None)
        if builtin is not None:
            return builtin if family == builtin["family"] else {**builtin, **family_table(str(family))}
        missing = [key for key in _DEFINING if key not in own]
        if missing:
            reason = (
                f"is not a built-in network, so it needs chain_id, kind and family; missing: {', '.join(missing)}"
                + suggestion(name, builtin_names())
            )
            self.report(("networks", name), reason)
            return None
        # A family that does not exist is reported with the other values, over the facts of one that does.
        return family_table(str(family)) or family_table("evm")

    def _consistent(self, network: NetworkSettings) -> NetworkSettings | None:
        faults = network_faults(network)
        for key, reason in faults:
            field, _, part = key.partition(".")
            self.report(("networks", network.name, field), reason, f".{part}" if part else "")
        return None if faults else checksummed(network)

    def _upstreams(self, value: Any, defaults: Mapping[str, Any], path: KeyPath) -> Any:
        if not isinstance(value, (list, tuple)):
            self.report(path, "must be a list of addresses or tables")
            return _WRONG
        found = [self._upstream(item, defaults, path, f"[{index}]") for index, item in enumerate(value)]
        return _WRONG if any(item is _WRONG for item in found) else tuple(found)

    def _upstream(self, item: Any, defaults: Mapping[str, Any], path: KeyPath, where: str) -> Any:
        table = {"url": item} if isinstance(item, str) else item
        if not isinstance(table, Mapping):
            self.report(path, "must be an address or a table", where)
            return _WRONG
        fields = {field.encode_name: field for field in msgspec.structs.fields(Upstream)}
        wrong = False
        for key in table:
            if key not in fields:
                self.report(path, "unknown setting" + suggestion(key, fields), f"{where}.{key}")
                wrong = True
        if "url" not in table:
            self.report(path, "is missing", f"{where}.url")
            wrong = True
        values = {
            key: self._convert(value, fields[key].type, path, f"{where}.{key}")
            for key, value in {**defaults, **table}.items()
            if key in fields
        }
        return _WRONG if wrong or any(value is _WRONG for value in values.values()) else Upstream(**values)

    def _settle_flags(self, networks: Mapping[str, NetworkSettings]) -> dict[str, NetworkSettings]:
        """Where the operator marks a network as its chain's default, the catalogue's own mark on another one yields."""
        settled = dict(networks)
        for flag in _FLAGS:
            chosen: dict[str, str] = {}
            for name, network in networks.items():
                if getattr(network, flag) and ("networks", name, flag) in self._layers.values:
                    if network.chain in chosen:
                        self.report(("networks", name, flag), f"is already set on {chosen[network.chain]}")
                    chosen[network.chain] = name
            for name, network in settled.items():
                if chosen.get(network.chain, name) != name:
                    settled[name] = msgspec.structs.replace(network, **{flag: False})
        return settled
