"""The settings: read from `defaults.toml`, `capstan.toml`, `CAPSTAN_…` variables and the command line.

    model       the typed structs, one per section; `section` and `data` are parts of it
    layers      the sources and their order
    build       raw values to structs; `load_settings`
    checks      rules that span values
    redaction   settings without their secrets, for display
    live        the settings of a running process; reload
    errors      `SettingsError` and its problems

The command line and the composition root use this package; other parts receive the structs they need. It imports
`core` and `catalogue` and nothing else of Capstan.
"""

from capstan.settings.build import load_settings
from capstan.settings.bundler import Bundler
from capstan.settings.data import Index, Nfts, Prices, Tokens
from capstan.settings.errors import Problem, ReloadFailed, SettingsError
from capstan.settings.live import LiveSettings, ReloadReport
from capstan.settings.model import (
    RELOADABLE,
    Access,
    Cache,
    Limits,
    Log,
    Mail,
    NetworkDefaults,
    NetworkSettings,
    Plan,
    Plans,
    Quorum,
    Redis,
    Server,
    Settings,
    Storage,
    Units,
    Upstream,
    UpstreamDefaults,
    Usage,
)
from capstan.settings.redaction import redacted

__all__ = [
    "RELOADABLE",
    "Access",
    "Bundler",
    "Cache",
    "Index",
    "Limits",
    "LiveSettings",
    "Log",
    "Mail",
    "NetworkDefaults",
    "NetworkSettings",
    "Nfts",
    "Plan",
    "Plans",
    "Prices",
    "Problem",
    "Quorum",
    "Redis",
    "ReloadFailed",
    "ReloadReport",
    "Server",
    "Settings",
    "SettingsError",
    "Storage",
    "Tokens",
    "Units",
    "Upstream",
    "UpstreamDefaults",
    "Usage",
    "load_settings",
    "redacted",
]
