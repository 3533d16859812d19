"""Stuck agents: how many runs are solved, with and without a draw of another model when an agent is stuck.

A run is a session of an agent of one of three roles: `STEPS` tool calls, one of which may be an impasse. In an impasse
a model that does not know its way repeats its last call; only one of five models knows the way of a role's impasse, or
none does. The agent gives up after `PATIENCE` repeated calls. A person rates the end of the run: 1 if it was solved,
else 0. Solved runs, calls and cost of the last half of the runs, beside the same without such draws and beside an
oracle that is solved by whoever can.

    python -m benchmarks.policies.unstuck --runs 400 --seeds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from typing import Any, NamedTuple

import numpy as np

from fitrouter.config import parse_config
from fitrouter.router import Router
from fitrouter.types import Call, Completion, FeedbackKind, Identity, Message, Request, Usage

MODELS = ("amber", "birch", "cedar", "delta", "ebony")
WAYS = {"builder": "birch", "analyst": "delta", "porter": "ebony"}
"""Role → the model that knows the way out of its impasse."""
STEPS, PATIENCE, SHARE = 5, 5, 0.5
"""Steps of a run, repeated calls after which an agent gives up, and the share of runs with an impasse."""


class Model:
    """Makes the next tool call of a run; in an impasse the last one again, unless it knows the way."""

    def __init__(self, ways: dict[str, str]) -> None:
        self.ways = ways

    async def complete(self, call: Call) -> Completion:
        """Return a tool call, or the final text."""
        task: dict[str, Any] = json.loads(str(call.messages[0]["content"]).rpartition(" ")[2])
        done = progress(call.messages)
        usage = Usage(prompt_tokens=200, completion_tokens=50)
        if done >= STEPS:
            return Completion(message={"role": "assistant", "content": "Solved."}, usage=usage)
        fails = done == task["impasse"] and self.ways.get(task["role"]) != call.target
        arguments = json.dumps({"step": done, "way": "old" if fails else f"new {call.target}"})
        function = {"name": "act", "arguments": arguments}
        made = [{"id": f"c{len(call.messages)}", "type": "function", "function": function}]
        return Completion(
            message={"role": "assistant", "content": None, "tool_calls": made}, finish_reason="tool_calls", usage=usage
        )

    async def aclose(self) -> None:
        """Nothing is open."""


def progress(messages: Any) -> int:
    """Number of steps that the calls so far have done."""
    made = [json.loads(each["function"]["arguments"]) for one in messages for each in one.get("tool_calls") or ()]
    return len({each["step"] for each in made if each["way"] != "old"})


class Run(NamedTuple):
    """How a run ended."""

    impasse: bool
    solved: bool
    calls: int
    usd: float


async def run(router: Router, role: str, impasse: int, number: int) -> Run:
    """Let an agent work until it has solved its task or given up, and rate it."""
    task = {"role": role, "impasse": impasse, "number": number}
    messages: tuple[Message, ...] = (
        {"role": "user", "content": f"As a {role}, do the usual job {json.dumps(task, separators=(',', ':'))}"},
    )
    who, usd, calls, repeated = Identity(user=f"u{number % 40}", role=role, session=f"s{number}"), 0.0, 0, 0
    while True:
        answer = await router.complete(Request(messages=messages, identity=who))
        usd, calls, message = usd + (answer.cost_usd or 0.0), calls + 1, answer.completion.message
        made: list[Any] = message.get("tool_calls") or []
        repeated += bool(made) and '"old"' in made[0]["function"]["arguments"]
        if not made or repeated >= PATIENCE:
            break
        messages = (*messages, message, {"role": "tool", "tool_call_id": made[0]["id"], "content": "ok"})
    labels = router._learner.of("default").fit.labels
    await router.feedback(answer.decision.id, FeedbackKind.RATING, float(not made))
    for _ in range(2000):
        if router._learner.of("default").fit.labels > labels:
            break
        await asyncio.sleep(0.005)
    return Run(impasse >= 0, not made, calls, usd)


async def simulate(runs: int, seed: int, redraws: int, ways: dict[str, str]) -> list[Run]:
    """Serve runs in order with one router that learns; return those of the last half."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "data": folder,
                "providers": {"p": {"kind": "simulated"}},
                "models": [{"name": name, "provider": "p", "prices": {"input": 1, "output": 4}} for name in MODELS],
                "session": {"redraw_stuck": redraws},
                "feedback": {"votes_per_day": 1000},
                "seed": seed,
            }
        )
        async with Router.from_config(config, providers={"p": Model(ways)}) as router:
            found = []
            for number in range(runs):
                role = str(rng.choice(list(WAYS)))
                impasse = int(rng.integers(1, STEPS)) if rng.uniform() < SHARE else -1
                found.append(await run(router, role, impasse, number))
    return found[runs // 2 :]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    settings = parser.parse_args()
    print("| who knows the way | draws when stuck | solved | of the oracle's | calls with an impasse | cost of a run |")
    print("|---|---|---|---|---|---|")
    for name, ways in (("one of five", WAYS), ("none", {})):
        usual = 0.0
        for redraws in (0, 2):
            ends = [asyncio.run(simulate(settings.runs, seed, redraws, ways)) for seed in range(settings.seeds)]
            all_ = [end for each in ends for end in each]
            solved = float(np.mean([end.solved for end in all_]))
            oracle = float(np.mean([bool(ways) or not end.impasse for end in all_]))
            usd, calls = float(np.mean([end.usd for end in all_])), np.mean([end.calls for end in all_ if end.impasse])
            usual = usual or usd
            cells = (str(redraws), f"{solved:.3f}", f"{solved / oracle:.2f}", f"{calls:.2f}", f"{usd / usual - 1:+.0%}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
