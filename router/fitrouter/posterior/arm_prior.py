"""Learned prior of the models for a warm start: the file that `fitrouter train policy` writes.

The format is a magic number, the sha256 of the rest, and msgpack: posteriors of each model's correction, response
profile and operations, each discounted to a number of observations so that labels override a wrong prior. A truncated
or modified file is refused, and the router starts without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fitrouter.errors import ArtifactError
from fitrouter.posterior.arms import Arms, base_arm
from fitrouter.types import Floats

MAGIC = b"fitrouter arms 1\n"
BLOCKS = ("correction", "profile", "operations")
"""Gaussian blocks of a model: means float64[d], float64[d, D] and float64[2, d]; a covariance float64[d, d] each."""

_REMEDY = "`fitrouter train policy` writes one"


class ModelPrior(msgspec.Struct, frozen=True, kw_only=True):
    """Prior of one model: block → (mean, covariance) as little-endian float64 bytes; only blocks that were learnt."""

    blocks: dict[str, tuple[bytes, bytes]] = {}
    spread: bytes = b""
    """Mean square of the profile's residuals, float64[D]."""
    worth: dict[str, float] = {}
    """Block → how many observations it counts for."""
    seen: dict[str, int] = {}
    """Block → how many there were."""


class ArmPrior(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a prior file; `id` is the sha256 of its payload."""

    id: str = ""
    d: int
    """Length of the context x."""
    D: int
    """Length of the response features h."""
    encoder: str
    """Id of the encoder of x."""
    schema: str
    """Of h."""
    models: dict[str, ModelPrior]
    sheet: dict[str, Any] = {}
    """Provenance of the prior."""

    def apply(self, arms: Arms, names: Iterable[str]) -> tuple[str, ...]:
        """Start the arms that are new here and known to the prior; return their names.

        What the variants of a model share begins with the model's arm, which is started before them. Arms that have a
        row have begun to learn and stay as they are. It copies numbers and computes none, so that every process starts
        with the same bits.
        """
        started = []
        learnt = {known.partition("@")[0] for known in arms.names}
        for arm in dict.fromkeys(each for name in names for each in (base_arm(name), name)):
            plain = arm.partition("@")[0]
            # A revision that the file does not know starts as the model, unless the arm of another one has learnt.
            known = self.models.get(arm) or (None if plain in learnt else self.models.get(plain))
            if known is None or arm in arms.names:
                continue
            k = arms.row(arm)
            for block, (mean, cov) in known.blocks.items():
                if block == "profile" or base_arm(arm) == arm:
                    # The correction has several posteriors, which start alike.
                    target = getattr(arms, block)
                    shape = target.shape[2:] if block == "correction" else target.shape[1:]
                    target[k] = np.frombuffer(mean, dtype="<f8").reshape(shape)
                    getattr(arms, f"{block}_cov")[k] = np.frombuffer(cov, dtype="<f8").reshape(arms.d, arms.d)
            if "profile" in known.blocks:
                arms.spread[k] = np.frombuffer(known.spread, dtype="<f8")
                arms.responses[k] = known.worth["profile"]
            started.append(arm)
        return tuple(started)


def pack_prior(prior: ArmPrior) -> tuple[bytes, str]:
    """Encode a prior as the bytes of a file; also return the sha256 that names it."""
    payload = msgspec.msgpack.Encoder(order="sorted").encode(msgspec.structs.replace(prior, id=""))
    digest = hashlib.sha256(payload)
    return MAGIC + digest.digest() + payload, digest.hexdigest()


def load(path: Path, *, d: int, D: int, encoder: str, schema: str) -> ArmPrior:
    """Read a prior file, and check that it fits this installation.

    Args:
        path: of the file.
        d: length of the context x here.
        D: length of the response features h here.
        encoder: id of the encoder of x here.
        schema: of h here; profiles over other features are left out.

    Raises:
        ArtifactError: the file is missing, damaged, no such file, or made for another encoder.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"policy.prior: {str(path)!r} cannot be read ({error.strerror}); {_REMEDY}") from None
    if not content.startswith(MAGIC):
        raise ArtifactError(f"policy.prior: {str(path)!r} is no prior of models; {_REMEDY}")
    digest, payload = content[len(MAGIC) : len(MAGIC) + 32], content[len(MAGIC) + 32 :]
    if hashlib.sha256(payload).digest() != digest:
        raise ArtifactError(f"policy.prior: {str(path)!r} was cut or changed, its sha256 does not match; {_REMEDY}")
    try:
        prior = msgspec.structs.replace(msgspec.msgpack.decode(payload, type=ArmPrior), id=digest.hex())
        _check(prior)
    except (msgspec.DecodeError, ValueError) as error:
        raise ArtifactError(f"policy.prior: {str(path)!r} cannot be used: {error}; {_REMEDY}") from None
    if (prior.encoder, prior.d) != (encoder, d):
        raise ArtifactError(
            f"policy.prior: {str(path)!r} was made with the prompt encoder {prior.encoder!r} ({prior.d} numbers), here "
            f"it is {encoder!r} ({d}); train it again with this configuration, or change `encoder`"
        )
    return prior if (prior.schema, prior.D) == (schema, D) else _without_profiles(prior)


def _without_profiles(prior: ArmPrior) -> ArmPrior:
    """Return the prior without profiles, which are in other response features."""
    models = {
        name: msgspec.structs.replace(
            model, blocks={block: arrays for block, arrays in model.blocks.items() if block != "profile"}
        )
        for name, model in prior.models.items()
    }
    return msgspec.structs.replace(prior, models=models)


def _check(prior: ArmPrior) -> None:
    """Check that every array has its shape and is finite, and that every covariance can be one.

    Raises:
        ValueError: saying which is not.
    """
    shapes: Mapping[str, tuple[int, ...]] = {
        "correction": (prior.d,),
        "profile": (prior.d, prior.D),
        "operations": (2, prior.d),
    }
    for name, model in prior.models.items():
        for block, (mean, cov) in model.blocks.items():
            if block not in shapes:
                raise ValueError(f"{name!r} has a block {block!r}; allowed are {BLOCKS}")
            _array(mean, shapes[block], f"{name!r}: the mean of {block}")
            found = _array(cov, (prior.d, prior.d), f"{name!r}: the covariance of {block}")
            if not np.allclose(found, found.T, rtol=1e-6, atol=1e-12) or not np.diag(found).min() > 0:
                raise ValueError(f"{name!r}: the covariance of {block} is none")
        if "profile" in model.blocks:
            spread = _array(model.spread, (prior.D,), f"{name!r}: spread")
            if spread.min() < 0 or not model.worth.get("profile", -1.0) >= 0:
                raise ValueError(f"{name!r}: spread or worth of profile is below 0")


def _array(payload: bytes, shape: tuple[int, ...], what: str) -> Floats:
    if len(payload) != 8 * int(np.prod(shape)):
        raise ValueError(f"{what} has {len(payload)} bytes, not those of float64{list(shape)}")
    values: Floats = np.frombuffer(payload, dtype="<f8").reshape(shape)
    if not np.isfinite(values).all():
        raise ValueError(f"{what} has a number that is not finite")
    return values
