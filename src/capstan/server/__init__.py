"""The one port: HTTP protocol, admission, error rendering, routing, health, metrics, the API description."""
