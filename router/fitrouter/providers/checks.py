"""Checks of answers by a program of the configuration: an answer that fails one counts as not given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence

from fitrouter.errors import CheckFailed, in_words
from fitrouter.types import Completion, Message

SECONDS = 5.0
"""What a check may take; one that takes longer, or cannot be run, lets the answer pass."""
_log = logging.getLogger("fitrouter")


async def check(
    command: Sequence[str], messages: Sequence[Message], completion: Completion, patience_s: float = SECONDS
) -> None:
    """Run a check of an answer: a program that reads `{"messages", "message"}` as JSON, and ends with 1 if it fails.

    Args:
        command: the program, with arguments.
        messages: of the request.
        completion: the answer.
        patience_s: how long the request still has; a check gets `SECONDS` at most.

    Raises:
        CheckFailed: the answer fails it.
    """
    said = json.dumps({"messages": list(messages), "message": completion.message}, default=str).encode()
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=nothing, stderr=nothing)
        try:
            async with asyncio.timeout(min(patience_s, SECONDS)):
                await process.communicate(said)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    except (OSError, TimeoutError) as error:  # a broken check costs no answer
        _log.warning("the check %s could not be run: %s", command[0], in_words(error))
        return
    if process.returncode == 1:
        raise CheckFailed(f"its answer failed the check {command[0]}").billed(completion.usage)
