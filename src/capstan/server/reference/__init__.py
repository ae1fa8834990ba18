"""The API reference for people: one HTML page made from the OpenAPI document.

`render_reference` turns the document into the page, `static_file` gives the page's style sheet and script; `pages.py`
serves both. The page works without JavaScript and loads nothing from elsewhere. This package knows OpenAPI and HTML; it
must not know routes, services or settings: what the page shows is what the document says.
"""

from capstan.server.reference.page import render_reference, static_file

__all__ = ["render_reference", "static_file"]
