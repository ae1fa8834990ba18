"""The header Link for lists in pages (RFC 8288).

Called by routes whose lists grow while a client reads them: the link to the next page also carries what keeps the pages
as they are.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode


def next_link(path: str, query: str, changes: Mapping[str, int]) -> str:
    """The value of Link for the page that follows the one at this path and query string."""
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in changes]
    return f'<{path}?{urlencode([*kept, *changes.items()])}>; rel="next"'
