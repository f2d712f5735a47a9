"""Takes secrets out of log records, whoever writes them: SDKs and HTTP clients log requests and answers at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .redaction import redact

__all__ = ["hide_in_logs"]

_FORMATTER = logging.Formatter()


def hide_in_logs(known: Callable[[], frozenset[str]]) -> Callable[[], None]:
    """From now on no log record of this process holds a secret, in its message or its traceback; call the result to
    end that. `known` gives the secrets; it is asked at each record."""
    former = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, secrets = former(*args, **kwargs), known()
        try:
            message = record.getMessage()
        except Exception:  # a wrong call of somebody's logger: logging reports it, with the arguments
            record.msg, record.args = redact(f"{record.msg} {record.args}", secrets), ()
            return record
        if (hidden := redact(message, secrets)) != message:
            record.msg, record.args = hidden, ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            text = _FORMATTER.formatException(record.exc_info)
            if (hidden := redact(text, secrets)) != text:
                record.exc_text, record.exc_info = hidden, None
        return record

    logging.setLogRecordFactory(make)

    def end() -> None:
        if logging.getLogRecordFactory() is make:
            logging.setLogRecordFactory(former)

    return end
