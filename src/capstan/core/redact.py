"""Takes API keys out of text that is about to leave the process in a log line or a message.

Called by the logging set-up on every field, and wherever a message repeats something the caller sent. It knows the
shape of our own secrets only; other secrets are kept out of logs by not passing them.
"""

import re

_SECRETS = re.compile(r"(svc_(?:live|test)_)[0-9A-Za-z_-]+|(whsec_)[0-9A-Za-z+/=_-]+", re.IGNORECASE)
_LONGEST = 200


def redacted(text: str) -> str:
    """`text` with the random part of any key or signing secret replaced."""
    return _SECRETS.sub(r"\1\2[redacted]", text)


def quoted(text: str) -> str:
    """Something the caller sent, made fit to be repeated in a message: without secrets, printable, not too long."""
    cleaned = "".join(character if character.isprintable() else "?" for character in redacted(text))
    return cleaned if len(cleaned) <= _LONGEST else cleaned[:_LONGEST] + "…"
