"""Sets up logging: one JSON object a line, or plain lines for a terminal.

The command line calls it once at start. Every string that goes into a log line passes through the redaction of API keys
and signing secrets, also in lines of libraries.
"""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from capstan.core.redact import redacted


def configure_logs(level: str, style: Literal["json", "console"]) -> None:
    """Send all logging, ours and the libraries', to standard error."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # These tell about every connection and statement at info level, which our own lines already do better.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for noisy in ("uvicorn", "alembic", "aiosqlite", "sqlalchemy", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: redacted(value) if isinstance(value, str) else value for key, value in event.items()}
