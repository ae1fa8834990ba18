"""What Capstan knows of chains and prices, as data files with typed readers.

`networks` describes every known network, `units` the compute units each call costs. Settings and the composition root
read them. This package imports nothing of Capstan but `core`.
"""

from capstan.catalogue.networks import (
    Network,
    NetworkNotConfigured,
    Networks,
    UnknownChain,
    UnknownNetwork,
    builtin_networks,
)
from capstan.catalogue.units import UnitTable, load_units

__all__ = [
    "Network",
    "NetworkNotConfigured",
    "Networks",
    "UnitTable",
    "UnknownChain",
    "UnknownNetwork",
    "builtin_networks",
    "load_units",
]
