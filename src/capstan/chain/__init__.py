"""The only code that talks to nodes: upstreams, the pool of each network, and the registry of networks.

Capabilities receive a `Network` and call `network.pool`; they never see an upstream or an HTTP session.
"""
