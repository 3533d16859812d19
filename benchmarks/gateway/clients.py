"""Matrix of other clients against the gateway: whole answers, streams and tool calls. Prints JSON; 1 if one fails.

    python -m benchmarks.gateway.clients --page docs/results/clients.md

Each client is the published package, pointed at a gateway by its base URL and nothing else, over a model that gives one
answer, calls the first tool it is offered, and repeats what the tool returned. A client that is not installed is named
as such; `make bench-clients` installs all into environments of their own. Those that are programs, and those of Node
(`node/clients.mjs`), run as processes, with telemetry and updates switched off and an empty home.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import yaml
from tests.kits.gateway import Echo, make_router, serving

from fitrouter.types import AUTO, Call, Chunk, Completion, Message

PROMPT, CITY = "Hello there", "Oslo"
ANSWER = "Grüße aus Zürich 🚀"
FUNCTION = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FUNCTION}
WEATHER = 'def weather(city: str) -> str:\n    """The weather in a city."""\n    return f"Rain in {city}"\n'
_ON = ("DO_NOT_TRACK", "PROMPTFOO_DISABLE_TELEMETRY", "PROMPTFOO_DISABLE_UPDATE", "PROMPTFOO_DISABLE_REMOTE_GENERATION")
_OFF = ("AIDER_ANALYTICS", "AIDER_CHECK_UPDATE", "LANGSMITH_TRACING", "LITELLM_TELEMETRY")
QUIET = dict.fromkeys(_ON, "1") | dict.fromkeys(_OFF, "false") | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""What makes clients call nobody but the gateway, by the names in their documentation."""
ENVIRONMENT = Path(sys.prefix)


class Scripted(Echo):
    """Calls the first tool that it is offered, repeats a tool's result, and gives the answer otherwise."""

    async def complete(self, call: Call) -> Completion | AsyncIterator[Chunk]:
        """Return the next message."""
        last = call.messages[-1]
        message: Message = {"role": "assistant", "content": ANSWER}
        if last["role"] == "tool":
            message["content"] = f"The tool says: {last['content']}"
        elif offered := call.params.get("tools"):
            asked = {"name": offered[0]["function"]["name"], "arguments": json.dumps({"city": CITY})}
            message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": asked}]}
        return await Echo(message).complete(call)


def openai(url: str, kind: str) -> str:
    """The SDK of OpenAI."""
    OpenAI: Any = import_module("openai").OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    asked: dict[str, Any] = {"model": AUTO, "messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        return "".join(
            each.choices[0].delta.content or ""
            for each in client.chat.completions.create(**asked, stream=True)
            if each.choices
        )
    message = (
        client.chat.completions.create(**asked, **({"tools": [TOOL]} if kind == "tools" else {})).choices[0].message
    )
    return str(message.tool_calls[0].function.arguments if message.tool_calls else message.content)


def openai_responses(url: str, kind: str) -> str:
    """The SDK of OpenAI, at `/v1/responses`."""
    responses: Any = import_module("openai").OpenAI(base_url=f"{url}/v1", api_key="none").responses
    asked: dict[str, Any] = {"model": AUTO, "input": PROMPT}
    if kind == "stream":
        events = responses.create(**asked, stream=True)
        return "".join(each.delta for each in events if each.type == "response.output_text.delta")
    if kind == "tools":
        found = responses.create(**asked, tools=[{"type": "function", "strict": False, **FUNCTION}]).output
        return next(str(each.arguments) for each in found if each.type == "function_call")
    return str(responses.create(**asked).output_text)


def anthropic(url: str, kind: str) -> str:
    """The SDK of Anthropic."""
    Anthropic: Any = import_module("anthropic").Anthropic

    client = Anthropic(base_url=url, api_key="none")
    asked: dict[str, Any] = {"model": AUTO, "max_tokens": 100, "messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        with client.messages.stream(**asked) as stream:
            return "".join(stream.text_stream)
    schema = {"name": "weather", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
    block = client.messages.create(**asked, **({"tools": [schema]} if kind == "tools" else {})).content[-1]
    return json.dumps(block.input) if block.type == "tool_use" else str(block.text)


def _langchain(model: Any, kind: str) -> str:
    if kind == "stream":
        return "".join(each.text for each in model.stream(PROMPT))
    if kind == "tools":
        return json.dumps(model.bind_tools([TOOL]).invoke(PROMPT).tool_calls[0]["args"])
    return str(model.invoke(PROMPT).text)


def langchain_openai(url: str, kind: str) -> str:
    """LangChain's adapter of OpenAI."""
    ChatOpenAI: Any = import_module("langchain_openai").ChatOpenAI

    return _langchain(ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=AUTO), kind)


def langchain_anthropic(url: str, kind: str) -> str:
    """LangChain's adapter of Anthropic."""
    ChatAnthropic: Any = import_module("langchain_anthropic").ChatAnthropic

    return _langchain(ChatAnthropic(base_url=url, api_key="none", model=AUTO, max_tokens=100), kind)


def litellm(url: str, kind: str) -> str:
    """LiteLLM's SDK."""
    completion: Any = import_module("litellm").completion

    asked: dict[str, Any] = {"model": f"openai/{AUTO}", "api_base": f"{url}/v1", "api_key": "none"}
    asked |= {"messages": [{"role": "user", "content": PROMPT}]}
    if kind == "stream":
        return "".join(each.choices[0].delta.content or "" for each in completion(**asked, stream=True))
    message = completion(**asked, **({"tools": [TOOL]} if kind == "tools" else {})).choices[0].message
    return str(message.tool_calls[0].function.arguments if message.tool_calls else message.content)


def pydantic_ai(url: str, kind: str) -> str:
    """Agents of Pydantic AI; with tools, their structured output."""
    BaseModel: Any = import_module("pydantic").BaseModel
    Agent: Any = import_module("pydantic_ai").Agent
    ToolOutput: Any = import_module("pydantic_ai").ToolOutput
    OpenAIChatModel: Any = import_module("pydantic_ai.models.openai").OpenAIChatModel
    OpenAIProvider: Any = import_module("pydantic_ai.providers.openai").OpenAIProvider

    model = OpenAIChatModel(AUTO, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    if kind == "tools":
        city: Any = type("City", (BaseModel,), {"__annotations__": {"city": str}})
        return str(Agent(model, output_type=ToolOutput(city, name="weather")).run_sync(PROMPT).output.city)
    if kind == "stream":

        async def streamed() -> str:
            async with Agent(model).run_stream(PROMPT) as found:
                return str(await found.get_output())

        return asyncio.run(streamed())
    return str(Agent(model).run_sync(PROMPT).output)


def instructor(url: str, kind: str) -> str:
    """Structured output of instructor; with tools, by a function call, otherwise by text."""
    create_model: Any = import_module("pydantic").create_model
    found: Any = import_module("instructor")
    client = found.from_openai(import_module("openai").OpenAI(base_url=f"{url}/v1", api_key="none"))
    asked: dict[str, Any] = {"model": AUTO, "messages": [{"role": "user", "content": PROMPT}]}
    city = create_model("City", city=(str, ...))
    if kind == "stream":
        return str(list(client.chat.completions.create_partial(response_model=city, **asked))[-1].city)
    if kind == "tools":
        return str(client.chat.completions.create(response_model=city, **asked).city)
    return str(client.chat.completions.create(response_model=None, **asked).choices[0].message.content)


PROGRAMS = {
    "aider": "aider/bin/aider",
    "inspect": "inspect/bin/inspect",
    "promptfoo": "promptfoo/node_modules/.bin/promptfoo",
}
"""Clients in environments of their own, within this one."""


def _run(program: str, *arguments: str, folder: str, **environment: str) -> str:
    """Run a program of this environment, and return its output."""
    found = ENVIRONMENT / program
    if not found.exists():
        raise ModuleNotFoundError(name=found.name)
    paths = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ["PATH"]])
    more = {"PATH": paths, "HOME": folder, "TERM": "dumb", "PYTHONUTF8": "1", **QUIET, **environment}
    done = subprocess.run([found, *arguments], cwd=folder, env=more, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout


def llm(url: str, kind: str) -> str:
    """The command `llm`."""
    with tempfile.TemporaryDirectory() as folder:
        model = {"model_id": "ours", "model_name": AUTO, "api_base": f"{url}/v1", "supports_tools": True}
        Path(folder, "extra-openai-models.yaml").write_text(yaml.safe_dump([model]))
        more = {"whole": ["--no-stream"], "stream": [], "tools": ["--functions", WEATHER]}[kind]
        return _run("bin/llm", "-m", "ours", *more, PROMPT, folder=folder, LLM_USER_PATH=folder, OPENAI_API_KEY="none")


def aider(url: str, kind: str) -> str:
    """The command `aider`, which edits files without tools of a model."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--model openai/{AUTO} --no-git --yes-always --no-pretty --analytics-disable --no-show-release-notes"
        stream = "--stream" if kind == "stream" else "--no-stream"
        keys = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
        return _run(PROGRAMS["aider"], *options.split(), stream, "--message", PROMPT, folder=folder, **keys)


def inspect(url: str, kind: str) -> str:
    """The command `inspect eval`, by its provider of OpenAI-compatible services."""
    with tempfile.TemporaryDirectory() as folder:
        tools = {"tools": "use_tools(weather()), "}.get(kind, "")
        Path(folder, "task.py").write_text(
            "from inspect_ai import Task, task\n"
            "from inspect_ai.dataset import Sample\n"
            "from inspect_ai.solver import generate, use_tools\n"
            "from inspect_ai.tool import tool\n\n\n"
            '@tool\ndef weather():\n    async def execute(city: str):\n        """The weather in a city.\n\n'
            '        Args:\n            city: The city.\n        """\n        return f"Rain in {city}"\n\n'
            "    return execute\n\n\n"
            f"@task\ndef asked():\n    return Task([Sample({PROMPT!r})], solver=[{tools}generate()])\n"
        )
        options = f"--model openai-api/ours/{AUTO} -M stream={str(kind == 'stream').lower()} --log-format json"
        more = {"OURS_BASE_URL": f"{url}/v1", "OURS_API_KEY": "none", "INSPECT_LOG_DIR": folder}
        _run(PROGRAMS["inspect"], "eval", "task.py", *options.split(), "--display=none", folder=folder, **more)
        (log,) = Path(folder).glob("*.json")
        return str(json.loads(log.read_text())["samples"][0]["output"]["completion"])


def promptfoo(url: str, kind: str) -> str:
    """The command `promptfoo eval`, by its provider `openai:chat`."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"apiBaseUrl": f"{url}/v1", "apiKey": "none"} | ({"tools": [TOOL]} if kind == "tools" else {})
        settings = {
            "prompts": [PROMPT],
            "providers": [{"id": f"openai:chat:{AUTO}", "config": options}],
            "tests": [{"vars": {"x": 1}}],
        }
        Path(folder, "promptfooconfig.yaml").write_text(yaml.safe_dump(settings))
        arguments = ("eval", "--no-cache", "--no-write", "--no-progress-bar", "--output", "found.json")
        _run(PROGRAMS["promptfoo"], *arguments, folder=folder, PROMPTFOO_CONFIG_DIR=folder)
        result = json.loads(Path(folder, "found.json").read_text())["results"]["results"][0]
        return json.dumps(result.get("response") or result["error"], ensure_ascii=False)


CLIENTS: dict[str, Callable[[str, str], str]] = {
    "openai": openai,
    "openai, responses": openai_responses,
    "anthropic": anthropic,
    "langchain-openai": langchain_openai,
    "langchain-anthropic": langchain_anthropic,
    "litellm": litellm,
    "pydantic-ai-slim": pydantic_ai,
    "instructor": instructor,
    "llm": llm,
    "aider": aider,
    "inspect": inspect,
    "promptfoo": promptfoo,
}
KINDS = {"whole": ANSWER, "stream": ANSWER, "tools": CITY}
OTHERWISE = {("instructor", "stream"): CITY}
LACKING = {("aider", "tools"): "none: edits by text", ("promptfoo", "stream"): "none"}


def judged(ask: Callable[[], str], expected: str) -> str:
    """Ask: passed, not installed, or what failed."""
    try:
        found = ask()
    except ModuleNotFoundError as error:
        return f"not installed: {error.name}"
    except Exception as error:  # noqa: BLE001 - any client, any error
        return f"{type(error).__name__}: {str(error)[-300:]}"
    return "passed" if expected in found else f"got {found[-300:]!r}"


def of_python(url: str, name: str) -> dict[str, str]:
    """Row of a client."""
    distribution = name.split(",")[0]
    row = {"version": "unknown"}
    if distribution in PROGRAMS:
        with contextlib.suppress(ModuleNotFoundError, RuntimeError), tempfile.TemporaryDirectory() as folder:
            row["version"] = _run(PROGRAMS[distribution], "--version", folder=folder).split()[-1]
    else:
        with contextlib.suppress(metadata.PackageNotFoundError):
            row["version"] = metadata.version(distribution)
    for kind, expected in KINDS.items():
        lacking = LACKING.get((name, kind))
        row[kind] = lacking or judged(
            functools.partial(CLIENTS[name], url, kind), OTHERWISE.get((name, kind), expected)
        )
    return row


def of_node(url: str) -> dict[str, dict[str, str]]:
    """Rows of the clients of Node, by name."""
    place = ENVIRONMENT / "node"
    if not (place / "node_modules").is_dir():
        return {"node": dict.fromkeys(KINDS, "not installed")}
    program = shutil.copy(Path(__file__).parent / "node" / "clients.mjs", place)
    with tempfile.TemporaryDirectory() as folder:
        told = _run("bin/node", str(program), url, AUTO, PROMPT, folder=folder)
    rows = json.loads(told)
    for row in rows.values():
        for kind, expected in KINDS.items():
            found = row[kind].get("text") or row[kind].get("error", "")
            row[kind] = "passed" if expected in found else f"got {found[-300:]!r}"
    return {f"{name} (Node)": row for name, row in rows.items()}


def written(page: str, rows: dict[str, dict[str, str]]) -> str:
    """A page with the table of these rows in place of its own."""
    names = ("version", *KINDS)
    lines = [f"| client | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for client, row in rows.items():
        lines.append(f"| {' | '.join([client, *(row.get(name, '').replace('|', '/') for name in names)])} |")
    before, _, rest = page.partition("| client |")
    _, _, after = rest.partition("\n\n")
    return before + "\n".join(lines) + "\n\n" + after


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[*CLIENTS, "node"], help="names of clients")
    parser.add_argument("--page", type=Path, help="file whose table is replaced, if all clients were asked")
    chosen = parser.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory() as folder, serving(make_router(Path(folder), {"echo": Scripted()})) as url:
        rows = {name: of_python(url, name) for name in chosen.only if name in CLIENTS}
        rows |= of_node(url) if "node" in chosen.only else {}
    print(json.dumps(rows, indent=1, ensure_ascii=False))
    if chosen.page is not None and {*CLIENTS, "node"} <= {*chosen.only}:
        chosen.page.write_text(written(chosen.page.read_text("utf-8"), rows), encoding="utf-8")
    fine = ("passed", "none", "not installed")
    if any(not row.get(kind, "").startswith(fine) for row in rows.values() for kind in KINDS):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
