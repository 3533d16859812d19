"""The demo's world, `demo.yaml`, fixed before anything was tuned on it."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fitrouter.errors import ConfigError
from fitrouter.providers import Persona
from fitrouter_evaluators.simulation.worlds import World


class Raters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Feedback behaviour of the users. All values are fractions, except `anger`."""

    rate: float
    """Satisfied users who volunteer."""
    anger: float
    """Factor by which unsatisfied users volunteer more often."""
    asked: float
    """Answers for which the gateway asks for feedback."""
    answers: float
    """Asked users who answer."""
    stars: float
    """Users who give 1 to 5 stars; the others give thumbs."""


class PerMillion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens."""

    input: float
    output: float


class SimulatedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated model."""

    prices: PerMillion
    persona: Persona


class Asks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prompts of a topic: every one of `ask` combined with every one of `about`."""

    ask: tuple[str, ...]
    about: tuple[str, ...]


class DemoWorld(World, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A world with its models, prompts and feedback behaviour. All weights are in logits."""

    quality_sd: float
    """Standard deviation of a model's quality over seeds."""
    level: float
    """Added to every utility."""
    strength_weight: float
    """Logits of the full range of a persona's `skill`, relative to the other models'."""
    tastes: tuple[str, ...]
    """Attributes that are related to features of the scorer."""
    hidden_tastes: tuple[str, ...]
    """Attributes that the scorer has no feature for."""
    role_names: tuple[str, ...]
    uniform_role: str
    """All users in this role have the same taste."""
    raters: Raters
    flatterer: str
    imitates: str
    """The model whose style the flatterer copies: the best one."""
    default_model: str
    models: dict[str, SimulatedModel]
    prompts: dict[str, Asks]

    def asked(self) -> list[tuple[str, str]]:
        """Return all (topic, prompt), in order."""
        return [
            (topic, ask.format(about))
            for topic, asks in self.prompts.items()
            for ask in asks.ask
            for about in asks.about
        ]

    def without_tastes(self) -> DemoWorld:
        """Return a copy of the world in which nobody has tastes."""
        return msgspec.structs.replace(self, name=f"{self.name}-null", taste_weight=0.0)


def world_text(source: str | None = None) -> str:
    """Return the text of a world file; the one of the package for None and 'null'.

    Raises:
        ConfigError: there is no such file.
    """
    if source in {None, "null"}:
        return resources.files(__package__ or __name__).joinpath("demo.yaml").read_text(encoding="utf-8")
    try:
        return Path(str(source)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the world {source!r} cannot be read ({error}); give a file, or 'null'") from None


def open_world(source: str | None = None) -> tuple[DemoWorld, str]:
    """Load the world of a file, with the sha256 of its text; 'null' is the one of the package without tastes.

    Raises:
        ConfigError: the file is missing, or is not a demo world.
    """
    text = world_text(source)
    try:
        world: DemoWorld = msgspec.convert(yaml.safe_load(text), DemoWorld)
        _check(world)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{source or 'demo.yaml'!r} is not a demo world: {error}") from None
    return (world.without_tastes() if source == "null" else world), hashlib.sha256(text.encode()).hexdigest()


def _check(world: DemoWorld) -> None:
    names: dict[str, Any] = {"quality": set(world.quality), "flatterer": {world.flatterer}}
    names |= {"imitates": {world.imitates}, "default_model": {world.default_model}}
    for field, given in names.items():
        if not given <= set(world.models) or (field == "quality" and given != set(world.models)):
            raise ValueError(f"{field} names {sorted(given)}; the models are {sorted(world.models)}")
    if len(world.role_names) != world.roles or world.uniform_role not in world.role_names:
        raise ValueError(f"there are {world.roles} roles, and role_names are {list(world.role_names)}")
