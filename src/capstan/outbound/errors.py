"""What can go wrong on the way out.

    OutboundError
     ├─ OutboundRefused   we do not ask there: not HTTPS, not a public address; asking again changes nothing
     └─ OutboundFailed    we asked and got no usable answer: no connection, too slow, too large, a bad certificate

Messages name the host and the reason and may be shown to the user who chose the address. They never hold the query of
the address, which may carry a secret.
"""


class OutboundError(Exception):
    """Base of both."""


class OutboundRefused(OutboundError):
    """The address may not be asked."""


class OutboundFailed(OutboundError):
    """The address was asked, or tried, and gave no usable answer."""
