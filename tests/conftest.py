"""Fixtures that every test may use. Servers and chains start when the first test asks for them."""

pytest_plugins = [
    "tests.support.devnet",
    "tests.support.servers",
    "tests.support.service",
    "tests.support.solana",
    "tests.support.storage",
    "tests.support.browser",
    "tests.support.development",
]
