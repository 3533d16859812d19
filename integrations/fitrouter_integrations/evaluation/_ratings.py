"""Predicted ratings of single answers from a running gateway."""

from __future__ import annotations

import msgspec

from fitrouter.errors import InvalidRequest
from fitrouter_integrations._http import call

PATIENCE_S = 60.0
"""How long one answer may take to be scored."""


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted rating of an answer, on a scale from 0 to 1, as in `POST /v1/score`."""

    mean: float
    sd: float
    low: float
    high: float
    """80% interval."""
    population: float
    words: str = ""


class _Answer(msgspec.Struct):
    dimensions: dict[str, Rating]
    words: str


class _Item(msgspec.Struct):
    answers: tuple[_Answer]


class _Scores(msgspec.Struct):
    items: tuple[_Item]


class Ratings(msgspec.Struct, frozen=True, kw_only=True):
    """Client that asks a gateway for the ratings of a person, of a role, or of everybody."""

    url: str
    user: str | None = None
    role: str | None = None
    dimension: str = "overall"

    def of(self, prompt: str, answer: str) -> Rating:
        """Return the predicted rating of an answer; waits for the gateway.

        Raises:
            InvalidRequest: too long a text, or a dimension that nobody has rated.
            NotAuthorized: the key of `FITROUTER_API_KEY` may not read what was learnt of people.
            NoGateway: nothing answers at the URL.
        """
        who = {name: value for name, value in (("user", self.user), ("role", self.role)) if value is not None}
        body = {**who, "items": [{"prompt": prompt, "answers": [answer]}]}
        found = msgspec.convert(call("POST", self.url, "/v1/score", body, timeout_s=PATIENCE_S), _Scores)
        scored = found.items[0].answers[0]
        if self.dimension not in scored.dimensions:
            raise InvalidRequest(
                f"dimension: {self.dimension!r} is not rated here; there are {', '.join(scored.dimensions)}"
            )
        return msgspec.structs.replace(scored.dimensions[self.dimension], words=scored.words)
