"""All models' answers to all prompts, with the features that the router, the scorer and the users see."""

from __future__ import annotations

import asyncio
import math

import msgspec
import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter.context.features import context_features, read_prompt
from fitrouter.providers import Simulated
from fitrouter.types import Call, Completion, Floats, Request
from fitrouter_evaluators.scoring import Answer, ResponseFeatures, global_scalar
from fitrouter_evaluators.simulation.pool import Pool
from fitrouter_integrations.demo._reading import notice
from fitrouter_integrations.demo._world import DemoWorld

_CUT = 3.0


class Stage(msgspec.Struct, frozen=True):
    """Answers, costs and features of K models on N prompts. `pool.topics` is float64[N, topics], one-hot."""

    pool: Pool
    topic: tuple[int, ...]
    """Of each prompt."""
    cost: Floats
    """float64[K, N] in USD."""
    centre: Floats
    scale: Floats
    """Mean and standard deviation of the users' attributes, float64[attributes]."""

    def noticed(self, world: DemoWorld, text: str) -> Floats:
        """Return the attributes of a text, standardised and clipped at ±3, float64[attributes]."""
        return _standardise(notice(text, world.tastes, world.hidden_tastes), self.centre, self.scale)


def _standardise(raw: Floats, centre: Floats, scale: Floats) -> Floats:
    result: Floats = np.clip((raw - centre) / scale, -_CUT, _CUT)
    return result


def set_stage(world: DemoWorld, encoder: str = "static") -> Stage:
    """Let every model answer every prompt, and compute all features.

    Args:
        world: its models and prompts.
        encoder: name of the encoder of the router and the scorer.
    """
    models = tuple(sorted(world.models))
    topics, prompts = zip(*world.asked(), strict=True)
    answers = asyncio.run(_answers(world, models, prompts))
    texts = [str(answer.message["content"]) for row in answers for answer in row]
    K, N = len(models), len(prompts)
    reader = get_encoder(encoder)
    x = [
        context_features(read_prompt(Request(messages=({"role": "user", "content": prompt},))), reader)
        for prompt in prompts
    ]
    features = ResponseFeatures(reader, scalar=global_scalar(reader))
    asked = [prompt for _ in models for prompt in prompts]
    h = features.encode([Answer(text=text, prompt=prompt) for text, prompt in zip(texts, asked, strict=True)])
    raw = np.array([notice(text, world.tastes, world.hidden_tastes) for text in texts])
    centre, scale = raw.mean(axis=0), raw.std(axis=0) + 1e-9
    prices = np.array([(world.models[model].prices.input, world.models[model].prices.output) for model in models])
    tokens = np.array([[(a.usage.prompt_tokens, a.usage.completion_tokens) for a in row] for row in answers])
    names = list(world.prompts)
    topic = tuple(names.index(name) for name in topics)
    return Stage(
        pool=Pool(
            models=models,
            prompts=prompts,
            x=np.array(x),
            h=np.asarray(h).reshape(K, N, -1),
            attributes=_standardise(raw, centre, scale).reshape(K, N, -1),
            topics=np.eye(len(names))[list(topic)],
            schema=features.schema,
            names=features.names,
            prompt_tokens=tokens[0, :, 0],
            completion_tokens=tokens[:, :, 1],
        ),
        topic=topic,
        cost=np.einsum("kp,knp->kn", prices, tokens) / 1e6,
        centre=centre,
        scale=scale,
    )


async def _answers(world: DemoWorld, models: tuple[str, ...], prompts: tuple[str, ...]) -> list[list[Completion]]:
    """Compute the answers that the gateway's provider will give: a text depends on (seed 0, model, prompt)."""
    provider = Simulated({name: model.persona for name, model in world.models.items()}, speed=math.inf)
    rows = []
    for model in models:
        calls = [Call(target=model, messages=({"role": "user", "content": prompt},)) for prompt in prompts]
        rows.append([answer for call in calls if isinstance(answer := await provider.complete(call), Completion)])
    return rows
