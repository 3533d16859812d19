"""Checks of answers by a program, a JSON schema or a judge: an answer that fails one counts as not given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fitrouter.config import answer_schema
from fitrouter.errors import CheckFailed
from fitrouter.hooks import Hooks
from fitrouter.types import Check, Completion, Identity, Message, Request

SECONDS = 5.0
"""What a program or a schema may take; a check that takes longer, or cannot be run, lets the answer pass."""
AT_ONCE = 8
"""Programs that run at the same time, schemas of requests among them; others wait, within their time."""
Judge = Callable[[str, Identity, Sequence[Message], Message], float]
"""What a judge of a name says of an answer, from −1 to 1; NaN for nothing. It may take seconds."""


class Checks:
    """Runs checks of answers.

    Args:
        judge: of the scorer.
        hooks: told of what could not be run, which is logged and counted.
    """

    def __init__(self, judge: Judge | None, hooks: Hooks) -> None:
        self._judge, self.hooks, self._free = judge, hooks, asyncio.Semaphore(AT_ONCE)
        # Of their own: in the common ones, slow judges would keep the stores from being read.
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="fitrouter-judge")

    async def run(self, check: Check, request: Request, completion: Completion, patience_s: float) -> None:
        """Check an answer.

        Args:
            check: what checks it.
            request: the request.
            completion: the answer.
            patience_s: how long the request still has; a program and a schema get `SECONDS` at most.

        Raises:
            CheckFailed: the answer fails it.
        """
        try:
            async with asyncio.timeout(patience_s if check.judge else min(patience_s, SECONDS)):
                failed = await self._failed(check, request, completion.message)
        except Exception as error:  # noqa: BLE001 - a broken check costs no answer
            self.hooks.trouble("check", error)
            return
        if failed:
            raise CheckFailed(f"its answer failed the check {check.name}").billed(completion.usage)

    async def _failed(self, check: Check, request: Request, message: Message) -> bool:
        if check.judge:
            if self._judge is None:
                raise RuntimeError(f"there is no scorer with the judge {check.judge!r}")
            given = check.judge, request.identity, request.messages, message
            said = await asyncio.get_running_loop().run_in_executor(self._threads, self._judge, *given)
            return not math.isnan(said) and said < check.least
        if check.command:
            return await self._fails(check.command, {"messages": list(request.messages), "message": message})
        if message.get("tool_calls"):  # no content to be checked
            return False
        schema: Any = check.schema
        if check.of_request:
            form = request.params.get("response_format")
            wanted = form.get("json_schema") if isinstance(form, dict) and form.get("type") == "json_schema" else None
            schema = wanted.get("schema") if isinstance(wanted, dict) else None
            if not isinstance(schema, dict):
                return False
        elif "pattern" not in repr(schema):
            return await asyncio.to_thread(answer_schema.fails, schema, message.get("content"))
        # In a process that can be ended: a stranger's schema takes any time, and a pattern holds all threads meanwhile.
        program = [sys.executable, "-I", answer_schema.__file__]
        return await self._fails(program, {"schema": schema, "content": message.get("content")})

    async def _fails(self, command: Sequence[str], given: dict[str, Any]) -> bool:
        async with self._free:
            return await _fails(command, given)


async def _fails(command: Sequence[str], given: dict[str, Any]) -> bool:
    """Whether a program that reads JSON ends with 1."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=nothing, stderr=nothing, start_new_session=True
    )
    try:
        await process.communicate(json.dumps(given, default=str).encode())
    finally:
        if process.returncode is None:  # what it began ends with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode not in {0, 1}:
        raise RuntimeError(f"the check {command[0]} ended with {process.returncode}; 0 is for passed, and 1 for failed")
    return process.returncode == 1
