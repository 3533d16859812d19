"""Work on a whole log in a process of its own at low priority, which takes neither a gateway's memory nor its time.

A module that does such work ends with `if __name__ == "__main__": work(function)`, and is called by its name.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from fitrouter.errors import FitrouterError, MissingExtra, StoreError

LIMIT_S = 90.0
"""Longest time of a piece of work."""


async def in_background(
    module: str, asked: dict[str, Any], limit_s: float = LIMIT_S, *, command: str = "fitrouter replay"
) -> dict[str, Any]:
    """Run a module's function in its own process and return its result; `error` holds the message of a FitrouterError.

    Args:
        module: name.
        asked: argument of its function, as JSON can hold it.
        limit_s: after which the process is killed.
        command: does the same without a limit.

    Raises:
        StoreError: it takes too long, or ends without an answer.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(limit_s):
            said, _ = await process.communicate(msgspec.json.encode(asked))
        return msgspec.json.decode(said, type=dict[str, Any])
    except TimeoutError as error:
        raise StoreError(f"there was no answer within {limit_s:g} s; run `{command}` instead") from error
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"the process that reads the log ended without an answer, with exit status {process.returncode}; "
            f"`{command}` says why"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def work(function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Call a function with the JSON request on standard input, and write its result or error to standard output."""
    os.nice(10)
    try:
        found = function(msgspec.json.decode(sys.stdin.buffer.read()))
    except ModuleNotFoundError as error:
        found = {"error": str(MissingExtra.of(error.name, "replay"))}
    except FitrouterError as error:
        found = {"error": str(error)}
    sys.stdout.buffer.write(msgspec.json.encode(found))
