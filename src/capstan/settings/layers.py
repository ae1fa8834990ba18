"""Where settings come from: files, environment, command line, laid over each other.

`read_layers` reads every source and keeps, for each setting, the last value given and where it came from, so that an
error can name the source. Names are checked against `model` here; values are checked in `build`. The order is:
`defaults.toml`, the operator's file, `CAPSTAN_…` variables, then the overrides of the command line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from capstan.catalogue.networks import NAME_PATTERN, builtin_names
from capstan.settings.errors import Problem, SettingsError, dotted, suggestion
from capstan.settings.kinds import parse_text, struct_type
from capstan.settings.model import NetworkSettings, Settings

KeyPath = tuple[str, ...]

DEFAULTS = "built-in defaults"
COMMAND_LINE = "command line"
PREFIX = "CAPSTAN_"
CONFIG_VARIABLE = "CAPSTAN_CONFIG"
CONFIG_FILE = Path("capstan.toml")

# Kubernetes sets these for a service named "capstan". They are not meant for us, and none can be a setting.
_KUBERNETES = re.compile(
    r"CAPSTAN_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_LINE = re.compile(r"\(at (line \d+, column \d+|end of document)\)")


class Value(NamedTuple):
    """A raw value and where it came from."""

    value: object
    source: str


class Layers:
    """The raw values of all sources read so far. A later `add_…` wins over an earlier one."""

    def __init__(self) -> None:
        self.values: dict[KeyPath, Value] = {}
        self.networks: dict[str, str] = {}
        """The networks mentioned, and the source that did so last."""
        self.problems: list[Problem] = []

    def source_of(self, path: KeyPath) -> str:
        """Where the value of a setting came from."""
        found = self.values.get(path)
        if found is not None:
            return found.source
        return self.networks.get(path[1], DEFAULTS) if path[:1] == ("networks",) and len(path) > 1 else DEFAULTS

    def report(self, source: str, path: KeyPath, reason: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(source, dotted(path), reason))

    def add_file(self, path: Path) -> None:
        """Add a TOML file of the operator."""
        try:
            text = path.read_bytes().decode("utf-8")
            tables = tomllib.loads(text)
        except OSError as error:
            raise SettingsError([Problem(str(path), "", f"cannot be read: {error.strerror or error}")]) from None
        except UnicodeDecodeError as error:
            raise SettingsError([Problem(str(path), "", f"is not UTF-8 text: byte {error.start}")]) from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError([Problem(str(path), "", _syntax_reason(str(error), text))]) from None
        self.add_tables(tables, str(path))

    def add_tables(self, tables: Mapping[str, Any], source: str) -> None:
        """Add nested tables, as TOML gives them."""
        self._add_section(Settings, tables, (), source)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add every `CAPSTAN_…` variable but `CAPSTAN_CONFIG`, in the order of their names."""
        for name in sorted(environ):
            if name.startswith(PREFIX) and name != CONFIG_VARIABLE and not _KUBERNETES.fullmatch(name):
                self._add_variable(name, environ[name])

    def add_overrides(self, overrides: Mapping[str, object]) -> None:
        """Add dotted settings. `None` means not given. Text is read by kind, as in the environment."""
        for key, value in overrides.items():
            path = split_dotted(key)
            if value is not None:
                self._add_single(path, str(value) if isinstance(value, Path) else value, COMMAND_LINE, as_key=True)

    def _add_variable(self, name: str, text: str) -> None:
        path = variable_path(name)
        self._add_single(path, text, f"environment variable {name}", as_key=False)

    def _add_single(self, path: KeyPath, value: object, source: str, *, as_key: bool) -> None:
        annotation = annotation_at(path)
        if annotation is None:
            spell = dotted if as_key else variable_name
            self.report(source, path, "unknown setting" + suggestion(spell(path), map(spell, sibling_paths(path))))
            return
        if isinstance(value, str):
            try:
                value = parse_text(value, annotation)
            except ValueError as error:
                self.report(source, path, str(error))
                return
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        self.add_tables(nested, source)

    def _add_section(self, section: type[msgspec.Struct], table: Any, path: KeyPath, source: str) -> None:
        if not isinstance(table, Mapping):
            self.report(source, path, "must be a table")
            return
        fields = section_fields(section)
        for key, value in table.items():
            here = (*path, key)
            if key not in fields:
                self.report(source, here, "unknown setting" + _suggest_key(key, path, fields))
            elif here == ("networks",):
                self._add_networks(value, source)
            elif (inner := struct_type(fields[key])) is not None:
                self._add_section(inner, value, here, source)
            else:
                self.values[here] = Value(value, source)

    def _add_networks(self, tables: Any, source: str) -> None:
        if not isinstance(tables, Mapping):
            self.report(source, ("networks",), 'must be tables named "chain/network"')
            return
        for name, table in tables.items():
            if not NAME_PATTERN.fullmatch(name):
                reason = 'a network is named "chain/network" in lower case letters, digits and hyphens'
                self.report(source, ("networks", name), reason + suggestion(name, builtin_names()))
                continue
            self.networks[name] = source
            self._add_section(NetworkSettings, table, ("networks", name), source)


def read_layers(config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Layers:
    """All sources, in order. Raises `SettingsError` only for a file that cannot be read; the rest is in `problems`."""
    layers = Layers()
    layers.add_tables(tomllib.loads(defaults_text()), DEFAULTS)
    if config is not None:
        layers.add_file(config)
    layers.add_environment(environ)
    layers.add_overrides(overrides)
    return layers


def find_config(config_path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The operator's file: the one named, else `CAPSTAN_CONFIG`, else `./capstan.toml` if there is one."""
    if config_path is not None:
        return config_path
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return CONFIG_FILE if CONFIG_FILE.exists() else None


def defaults_text() -> str:
    """The shipped `defaults.toml`."""
    return resources.files("capstan").joinpath("defaults.toml").read_text(encoding="utf-8")


@cache
def section_fields(section: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The keys of a section and their types. A network's name is its table's, so it is no key."""
    skipped = {"chain", "network"} if section is NetworkSettings else set()
    return {
        field.encode_name: field.type for field in msgspec.structs.fields(section) if field.encode_name not in skipped
    }


def leaf_paths(section: type[msgspec.Struct] = Settings, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every setting outside `networks`."""
    for key, annotation in section_fields(section).items():
        inner = struct_type(annotation)
        if inner is not None:
            yield from leaf_paths(inner, (*path, key))
        elif (*path, key) != ("networks",):
            yield (*path, key)


def sibling_paths(path: KeyPath) -> Iterator[KeyPath]:
    """The settings that a wrong path may stand for: those of the same network, or all outside `networks`."""
    if path[:1] == ("networks",) and len(path) > 1:
        return ((*path[:2], key) for key in section_fields(NetworkSettings))
    return leaf_paths()


def annotation_at(path: KeyPath) -> Any:
    """The type of the setting or section at a path; `None` if there is no such thing."""
    in_network = path[:1] == ("networks",) and len(path) > 1
    annotation: Any = NetworkSettings if in_network else Settings
    for part in path[2:] if in_network else path:
        section = struct_type(annotation)
        annotation = section_fields(section).get(part) if section is not None else None
        if annotation is None:
            return None
    return annotation if path else None


def variable_path(name: str) -> KeyPath:
    """The setting a variable stands for. `CAPSTAN_NETWORKS__ETHEREUM_MAINNET__…` belongs to `ethereum/mainnet`."""
    parts = tuple(name.removeprefix(PREFIX).lower().split("__"))
    if parts[0] == "networks" and len(parts) > 1 and "/" not in parts[1]:
        return (parts[0], parts[1].replace("_", "/", 1), *parts[2:])
    return parts


def variable_name(path: KeyPath) -> str:
    """The environment variable of a setting."""
    return PREFIX + "__".join(part.upper().replace("/", "_") for part in path)


def split_dotted(key: str) -> KeyPath:
    """The parts of a dotted name. A part may be quoted as in TOML, which it must be when it holds a dot."""
    return tuple(quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^."]+)', key))


def _suggest_key(key: str, path: KeyPath, fields: Mapping[str, Any]) -> str:
    close = suggestion(key, fields)
    if close:
        return close
    elsewhere = [dotted(leaf) for leaf in leaf_paths() if leaf[-1] == key]
    return f'; did you mean "{elsewhere[0]}"?' if elsewhere and path[:1] != ("networks",) else ""


def _syntax_reason(message: str, text: str) -> str:
    found = _LINE.search(message)
    if found is None:
        return f"is not valid TOML: {message}"
    where = found[1] if found[1] != "end of document" else f"line {max(1, len(text.splitlines()))}, end of file"
    return f"{where}: is not valid TOML: {message[: found.start()].strip()}"
