"""How an address that a user chooses is written: the one pattern of webhook addresses and decision hooks.

Used by the bodies of requests, so that the API description says what is taken. It is about the form alone: whether the
host is public is for the guarded client to see. Pure.
"""

import re

LONGEST_URL = 2_048

_PORT = r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"  # up to 65535
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# A name; of addresses only those of this machine, which development mode allows. No name of the internet ends in a
# number, so nothing that fits is another spelling of an address.
_HOST = rf"(127\.0\.0\.1|\[::1\]|({_LABEL}\.){{0,6}}[A-Za-z]([A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?)"
URL_PATTERN = rf"^https?://{_HOST}{_PORT}([/?][!-~]*)?$"
_URL = re.compile(URL_PATTERN.removesuffix("$") + r"\Z")


def is_well_formed(url: str) -> bool:
    """Whether the address fits the pattern."""
    return len(url) <= LONGEST_URL and _URL.match(url) is not None
