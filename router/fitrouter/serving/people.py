"""What is known of people: who they are, what they declared, and what was learnt of their tastes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
import numpy as np

from fitrouter.context.encoders import Encoder
from fitrouter.errors import InvalidRequest, StoreError
from fitrouter.posterior.draws import Draws, RatingDraws, draw_ratings
from fitrouter.posterior.gaussian import Gaussian
from fitrouter.posterior.labels import Label
from fitrouter.posterior.person_draws import draw_person, draw_person_ratings
from fitrouter.posterior.tastes import OVERALL
from fitrouter.serving.model_registry import ModelRegistry
from fitrouter.serving.recorder import read_in_time
from fitrouter.serving.services import ScorerPlugin
from fitrouter.state.learner import Learner
from fitrouter.stores.contents import ContentStore
from fitrouter.stores.identities import Identities, UnknownSubject
from fitrouter.stores.journal import Journal
from fitrouter.types import Decision, Event, Floats, Identity

STRANGER = "stranger"
"""User of an identity that events do not know; no subject has this form."""


class People:
    """Reads what reports, profiles and certificates ask about people; nothing here is on the path of a request.

    Args:
        learner: the folded state.
        identities: users and their subjects.
        journal: the event log, with the latest declarations.
        scorer: computes response features, if any.
        contents: prompts, answers and comments, if they are kept.
        registry: the models in use.
        encoder: of requests.
    """

    def __init__(
        self,
        learner: Learner,
        identities: Identities,
        journal: Journal,
        scorer: ScorerPlugin | None,
        contents: ContentStore | None,
        registry: ModelRegistry,
        encoder: Encoder,
    ) -> None:
        self.encoder = encoder
        self._learner, self._identities, self._journal = learner, identities, journal
        self._scorer, self._contents, self._registry = scorer, contents, registry

    async def identify(self, identity: Identity) -> Identity:
        """Replace the user of an identity by their subject, as events hold it; a new user gets one.

        Raises:
            StoreError: the identities cannot be read now.
        """
        if not identity.user:
            return identity
        subject = await read_in_time(self._identities.subject, identity.tenant, identity.user)
        return msgspec.structs.replace(identity, user=await read_in_time(self._identities.canonical, subject))

    async def recall(self, identity: Identity) -> Identity:
        """Replace the user of an identity by their subject without creating one; an unknown user is `STRANGER`."""
        if not identity.user:
            return identity
        subject = await read_in_time(self._identities.existing, identity.tenant, identity.user)
        if subject is not None:
            subject = await read_in_time(self._identities.canonical, subject)
        return msgspec.structs.replace(identity, user=subject or STRANGER)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the response features."""
        return self._learner.names

    @property
    def schema(self) -> str:
        """Name and version of the response features; empty without a scorer."""
        return self._learner.schema

    def dimensions(self, tenant: str = "default") -> tuple[str, ...]:
        """The dimensions that people of a tenant have rated, `overall` first."""
        return (OVERALL, *self._learner.of(tenant).dimensions())

    def read(self, identity: Identity, answers: Sequence[tuple[str, str]], heard: Sequence[str] = ()) -> Floats:
        """Compute response features of any (prompt, text), float64[n, D], NaN where missing.

        Call it off the event loop.

        Args:
            identity: as events hold it; what its user declared about topics is a feature.
            answers: prompts and texts.
            heard: statements about topics besides those that were declared.

        Raises:
            InvalidRequest: there is no scorer.
        """
        if self._scorer is None:
            raise InvalidRequest("score: there is no reward model without a scorer; set 'scorer.encoder'")
        values, topics = self.declared(identity)
        return self._scorer.read(answers, list(dict.fromkeys([*topics, *heard])), values)

    def declared(self, identity: Identity) -> tuple[dict[str, float], list[str]]:
        """Return a person's declared values, dimension → −1 … 1, and statements about topics.

        Call it off the event loop.

        Args:
            identity: as events hold it, see `recall`.

        Raises:
            StoreError: they cannot be read now.
        """
        profile = self._journal.profile(identity.user) if identity.user else None
        if profile is None:
            return {}, []
        topics = self._decrypted(profile.topics)
        return dict(profile.declared), msgspec.json.decode(topics, type=list[str]) if topics else []

    def stated(self, identity: Identity) -> str:
        """Return the words that a person gave to `declare`; empty if only values were given.

        Call it off the event loop.

        Args:
            identity: as events hold it, see `recall`.

        Raises:
            StoreError: they cannot be read now.
        """
        profile = self._journal.profile(identity.user) if identity.user else None
        return "" if profile is None else self._decrypted(profile.stated)

    def _decrypted(self, text: bytes) -> str:
        try:
            return self._identities.decrypt(text) if text else ""
        except UnknownSubject:  # erased: nothing was said
            return ""
        except ValueError as error:
            raise StoreError(f"the words of this person are not readable: {error}") from error

    @property
    def keeps_contents(self) -> bool:
        """Whether prompts, answers and comments are kept (`content`)."""
        return self._contents is not None

    def comments(self, identity: Identity, most: int = 200) -> list[tuple[float, str]]:
        """Time and text of a person's latest comments, oldest first; none where `content` does not keep them.

        Call it off the event loop.

        Args:
            identity: as events hold it, see `recall`.
            most: how many.

        Raises:
            StoreError: the contents cannot be read now.
        """
        if self._contents is None or not identity.user:
            return []
        return [
            (each.ts, str(each.content.message["content"])) for each in self._contents.comments(identity.user, most)
        ]

    def taste(self, identity: Identity, dimension: str = OVERALL) -> tuple[Gaussian, Gaussian]:
        """Posterior of a person's taste over the response features in a dimension, and the population's.

        It is the one that scores and decisions read. Call it off the event loop.

        Args:
            identity: as events hold it, see `recall`.
            dimension: one of `dimensions`.
        """
        blocks = self._learner.of(identity.tenant).heads(identity, dimension)
        return Gaussian(reduce(np.add, (b.mean for b in blocks)), reduce(np.add, (b.cov for b in blocks))), blocks[0]

    def published(self, tenant: str, dimension: str = OVERALL) -> Gaussian:
        """Return the population's taste as shown to callers who may not read what was learnt of people.

        It is a copy that changes only after many people have voted, so that no single person can be told from it. Call
        it off the event loop.

        Args:
            tenant: whose population.
            dimension: one of `dimensions`.
        """
        return self._learner.published(tenant, dimension)

    def draw_ratings(
        self,
        identity: Identity,
        x: Floats,
        models: Sequence[str],
        n: int,
        seed: Sequence[int],
        votes: Sequence[Label] | None = None,
        written: Floats | None = None,
    ) -> tuple[RatingDraws, RatingDraws]:
        """Draw models' mean ratings jointly, by a person or role and by the population.

        Args:
            identity: as events hold it, see `recall`.
            x: contexts, float64[P, d]; ratings are means over them.
            models: names as a request pins them.
            n: number of draws.
            seed: of the random numbers.
            votes: of the person: their exact posterior is drawn; None draws the posterior that decisions read.
            written: mean features of answers that the models gave there, float64[K, D]; None predicts them.
        """
        learner, arms = self._learner.of(identity.tenant), [self._registry.models.names[model].arm for model in models]
        learner.users.load(identity.user or "")
        fit = learner.fit
        common = draw_ratings(fit, Identity(tenant=identity.tenant), x, arms, n, seed, written)
        if votes is None:
            return draw_ratings(fit, identity, x, arms, n, seed, written), common
        return draw_person_ratings(fit, identity, votes, x, arms, n, seed, written), common

    def average_context(self) -> Floats:
        """The context of a task of which nothing is known, float64[d]."""
        x = np.zeros(self._learner.fit.d)
        x[0] = 1.0
        return x

    def profiles(self, x: Floats, models: Sequence[str], tenant: str = "default") -> Floats:
        """Expected response features of models' answers over contexts, as a tenant has seen them: float64[K, D]."""
        arms = tuple(self._registry.models.names[model].arm for model in models)
        found: Floats = np.mean([self._learner.of(tenant).fit.profile(row, arms) for row in x], axis=0)
        return found

    def apart(self, pair: tuple[str, str], events: Sequence[Event]) -> tuple[float, float] | None:
        """Predict by how much whoever asked would rate the first of two answers above the second, as of today.

        Blocks for milliseconds: call it off the event loop.

        Args:
            pair: the decisions of the answers, of one person.
            events: of both, the first decision first.

        Returns:
            mean and standard deviation; None where an answer has not been scored yet.
        """
        decision = events[0]
        assert isinstance(decision, Decision)
        return self._learner.of(decision.identity.tenant).apart(decision.identity, *pair, events)

    def draw_person(
        self, identity: Identity, x: Floats, models: Sequence[str], n: int, seed: Sequence[int], votes: Sequence[Label]
    ) -> Draws:
        """Draw from a person's exact posterior. Blocks for milliseconds: call it off the event loop.

        Args:
            identity: as events hold it, see `identify`.
            x: contexts, float64[P, d].
            models: names as a request pins them.
            n: number of draws.
            seed: of the random numbers.
            votes: of the person.
        """
        learner, arms = self._learner.of(identity.tenant), [self._registry.models.names[model].arm for model in models]
        learner.users.load(identity.user or "")
        return draw_person(learner.fit, identity, votes, x, arms, n, seed)
