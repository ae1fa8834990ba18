"""Fixtures that every test may use. Servers and chains start when the first test asks for them."""

import importlib.util

pytest_plugins = [
    name
    for name in (
        "tests.support.development",
        "tests.support.devnet",
        "tests.support.servers",
        "tests.support.service",
        "tests.support.solana",
        "tests.support.storage",
        "tests.support.browser",
    )
    if importlib.util.find_spec(name) is not None
]
