"""A `HumanInputProvider` that reports what people decide about an agent's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Report = Callable[[Any], None]


class ReportingProvider:
    """A `HumanInputProvider` that wraps another one.

    Args:
        inner: asks people.
        again: called with the agent when a person requests changes, before it answers again.
        content: called with the agent when a person accepts its answer.
    """

    def __init__(self, inner: Any, again: Report, content: Report) -> None:
        self.inner, self._again, self._content = inner, again, content

    def setup_messages(self, context: Any) -> bool:
        return bool(self.inner.setup_messages(context))

    def post_setup_messages(self, context: Any) -> None:
        self.inner.post_setup_messages(context)

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        answer = self.inner.handle_feedback(formatted_answer, _Watched(context, self._again))
        self._content(context.agent)
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        answer = await self.inner.handle_feedback_async(formatted_answer, _Watched(context, self._again))
        await asyncio.to_thread(self._content, context.agent)
        return answer

    @staticmethod
    def _get_output_string(answer: Any) -> str:
        """Return an answer's output as text; part of CrewAI's protocol."""
        return answer.output if isinstance(answer.output, str) else str(answer.output.model_dump_json())


class _Watched:
    """Wrapper of an agent's executor that notices when the executor runs again."""

    def __init__(self, executor: Any, again: Report) -> None:
        self.__dict__.update(_executor=executor, _again=again)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._executor, name, value)

    def _invoke_loop(self) -> Any:
        self._again(self._executor.agent)
        return self._executor._invoke_loop()

    async def _ainvoke_loop(self) -> Any:
        await asyncio.to_thread(self._again, self._executor.agent)
        return await self._executor._ainvoke_loop()
