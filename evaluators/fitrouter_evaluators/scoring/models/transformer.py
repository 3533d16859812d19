"""Hugging Face models over prompts and answers: tokens, batches, shared prefixes."""

from __future__ import annotations

import copy
import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.models.batches import TokenBatches
from fitrouter_evaluators.scoring.models.reward_model import Item, ModelError, reason_of

_log = logging.getLogger(__name__)
Tokens = dict[str, list[int]]
"""A sequence's input_ids, and token_type_ids where the tokenizer gives them."""

SHARED = 256
"""Tokens that a shared prefix must save to be computed on its own."""

_PROBE = [Answer(text=text, prompt="Which colour has the sky?") for text in ("It is blue.", "No idea!")]

_TRIAL_TOKENS, _TRIAL_PREFIX, _TRIAL_WINDOW = 64, 20, 8
_TRIAL: list[Tokens] = [
    {"input_ids": [*range(1, _TRIAL_PREFIX + 1), *(7 * i % 61 + 1 for i in range(begin, begin + length))]}
    for begin, length in ((3, 14), (20, 9))
]
"""Sequences of a trial: a common prefix and tails, all longer than the trial's sliding window."""


def tokenised(tokenizer: Any, answer: Answer, limit: int) -> Tokens:
    """Tokenise prompt and answer by the tokenizer's chat template, or as a pair of texts if it has none.

    At most `limit`; the middle of a longer sequence is left out, so that the template's ends remain.
    """
    prompt, text = (part.encode("utf-8", "replace").decode() for part in (answer.prompt, answer.text))
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
        found = {"input_ids": tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)}
    else:
        found = tokenizer(prompt, text)
    n = len(found["input_ids"])
    keep = range(n) if n <= limit else [*range(limit - limit // 2), *range(n - limit // 2, n)]
    return {name: [int(row[i]) for i in keep] for name, row in found.items() if name in {"input_ids", "token_type_ids"}}


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Number of first tokens that all sequences have in common, without the last token of any."""
    same, most = 0, min(map(len, rows)) - 1
    while same < most and all(row[same] == rows[0][same] for row in rows):
        same += 1
    return same


def _close(plain: Floats, other: Floats) -> bool:
    return np.allclose(plain, other, rtol=1e-4, atol=1e-4)


def _fault(trial: Callable[[], bool]) -> str:
    """Return why a trial failed, empty if it did not."""
    try:
        return "" if trial() else "its outputs differ"
    except Exception as error:  # noqa: BLE001 - the library's errors have many types
        return reason_of(error)


class Transformer:
    """A `RewardModel` that runs a model over prompts and answers, and gives a vector for each.

    Batches are sorted by length and filled to a budget of tokens, in bfloat16 on cuda. Answers to one prompt share the
    pass over their common tokens where the architecture caches keys and values such that the outputs stay the same,
    which a trial finds out.

    Args:
        folder: of the model.
        outputs: of the classification head; None gives the last hidden state of the last token instead.
        head: name of the head in the checkpoint if it is not the architecture's own.
        max_tokens: tokens of a sequence.
        batch_tokens: tokens of a batch.
        device: cpu or cuda.
        compiled: compile the model with torch.
        report: called with failures that cost single answers.

    Raises:
        ModelError: the model cannot be loaded or run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        outputs: int | None = None,
        head: str = "",
        max_tokens: int = 4096,
        batch_tokens: int = 16_384,
        device: str = "cpu",
        compiled: bool = False,
        report: Callable[[Exception], None],
    ) -> None:
        import torch  # heavy, and only these models need it

        self._torch, self._device, self._classify = torch, device, outputs is not None
        self._tokenizer, self._model = self._loaded(folder, outputs, head)
        self._call = self._model
        self._model.config.use_cache = False  # keys and values are only kept of shared prefixes
        self._config = self._model.config.get_text_config()
        self._pads = self._config.pad_token_id is None
        longest = (getattr(self._config, "max_position_embeddings", None), self._tokenizer.model_max_length)
        self._limit = min(max_tokens, *(int(size) for size in longest if size and size > 0))
        self.shares = False
        """Whether answers to one prompt share its pass."""
        self.tokens = 0
        """Tokens read so far, without padding."""
        self.width = self._tried(compiled, report)
        """Length of the vectors."""
        self.batches = TokenBatches(batch_tokens, self.width, report)

    def score(self, items: Sequence[Item]) -> Floats:
        """Run the model over prompts and answers, float64[n, width]; NaN for an answer without a text or that fails."""
        out = np.full((len(items), self.width), np.nan)
        rows = {
            i: tokenised(self._tokenizer, item.answer, self._limit)
            for i, item in enumerate(items)
            if item.answer.has_text
        }
        alone = dict(rows)
        for prefix, group in self._groups(rows) if self.shares else ():
            shared = [alone.pop(i) for i in group]
            forward = functools.partial(self._after_prefix, shared, prefix)
            out[group] = self.batches.run([len(row["input_ids"]) - prefix for row in shared], forward)
        left = list(alone.values())
        lengths = [len(row["input_ids"]) for row in left]
        out[list(alone)] = self.batches.run(lengths, lambda batch: self._whole([left[i] for i in batch]))
        self.tokens += sum(len(row["input_ids"]) for row in rows.values())
        return out

    def _whole(self, rows: Sequence[Tokens]) -> Floats:
        """Compute the vectors of sequences, reading each in full."""
        if self._pads:  # the model finds the last token by its padding, which must be another one
            ends = {row["input_ids"][-1] for row in rows}
            self._config.pad_token_id = next(i for i in range(len(ends) + 1) if i not in ends)
        lengths = [len(row["input_ids"]) for row in rows]
        with self._torch.inference_mode():
            batch = {name: self._padded([row[name] for row in rows]) for name in rows[0]}
            batch["input_ids"] = self._padded([row["input_ids"] for row in rows], self._config.pad_token_id)
            found = self._call(**batch, attention_mask=self._mask(lengths))
            return self._numbers(found.logits if self._classify else self._last(found, lengths))

    def _after_prefix(self, group: Sequence[Tokens], prefix: int, batch: Sequence[int]) -> Floats:
        """Compute the vectors of sequences that share their first `prefix` tokens, reading these once."""
        rows = [group[i]["input_ids"] for i in batch]
        lengths = [len(row) - prefix for row in rows]
        base = self._model.base_model
        with self._torch.inference_mode():
            cache = base(input_ids=self._padded([rows[0][:prefix]]), use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(rows))
            found = base(
                input_ids=self._padded([row[prefix:] for row in rows]),
                attention_mask=self._mask(lengths, prefix),
                past_key_values=cache,
                use_cache=True,
            )
            last = self._last(found, lengths)
            return self._numbers(self._model.score(last) if self._classify else last)

    def _groups(self, rows: dict[int, Tokens]) -> list[tuple[int, list[int]]]:
        """Group sequences that begin alike, if sharing it pays, as (length of the common prefix, keys)."""
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, row in rows.items():
            alike[tuple(row["input_ids"][:32])].append(i)
        found = [(_common([rows[i]["input_ids"] for i in group]), group) for group in alike.values()]
        return [(same, group) for same, group in found if same * (len(group) - 1) >= SHARED]

    def _last(self, found: Any, lengths: Sequence[int]) -> Any:
        return found.last_hidden_state[self._torch.arange(len(lengths)), self._torch.tensor(lengths) - 1]

    def _padded(self, rows: Sequence[Sequence[int]], pad: int | None = 0) -> Any:
        width = max(map(len, rows))
        return self._torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._device)

    def _mask(self, lengths: Sequence[int], prefix: int = 0) -> Any:
        mask = np.arange(max(lengths) + prefix)[None, :] < np.array(lengths)[:, None] + prefix
        return self._torch.from_numpy(mask.astype(np.int64)).to(self._device)

    @staticmethod
    def _numbers(found: Any) -> Floats:
        out: Floats = found.float().cpu().numpy().astype(np.float64)
        return out

    def _loaded(self, folder: Path, outputs: int | None, head: str) -> tuple[Any, Any]:
        """Load the tokenizer and the model of a folder."""
        import transformers

        kind: Any = transformers.AutoModelForSequenceClassification if self._classify else transformers.AutoModel
        plain: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **plain)
        except Exception as error:  # noqa: BLE001 - the library's errors have many types
            raise ModelError(
                f"{str(folder)!r} has no tokenizer that can be loaded ({type(error).__name__}); "
                f"put the model's tokenizer.json and tokenizer_config.json there"
            ) from None
        if self._classify:
            plain["num_labels"] = outputs
        if head:
            plain["key_mapping"] = {rf"^{head}\.": "score."}
        dtype = self._torch.bfloat16 if self._device == "cuda" else self._torch.float32
        level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.ERROR)  # what it would say about weights is in the errors below
        try:
            model, info = kind.from_pretrained(
                str(folder), dtype=dtype, use_safetensors=True, output_loading_info=True, **plain
            )
            model = model.eval().to(self._device)
        except Exception as error:  # noqa: BLE001 - as above
            raise ModelError(
                f"{str(folder)!r} cannot be loaded on {self._device!r} ({reason_of(error)}); allowed are architectures "
                f"of the transformers library, weights in safetensors, and {outputs or 'the configured'} outputs"
            ) from None
        finally:
            transformers.logging.set_verbosity(level)
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"{str(folder)!r} has no weights for {missing[:3]}, which would be random; use a model with a trained "
                f"reward head, and name its layer with 'head' if it has another name"
            )
        return tokenizer, model

    def _tried(self, compiled: bool, report: Callable[[Exception], None]) -> int:
        """Run two short answers, to find the width and whether prefixes can be shared and compiling works.

        The latter two are tried in float32: in bfloat16 sums in another order differ by more than some faults do.
        """
        rows = [tokenised(self._tokenizer, answer, self._limit) for answer in _PROBE]
        try:
            plain = self._whole(rows)
        except Exception as error:  # noqa: BLE001 - as above
            raise ModelError(f"the model failed on a short answer ({reason_of(error)}); use another one") from None
        if len(rows[0]) == 1 and _common([row["input_ids"] for row in rows]):
            reason = _fault(self._shares_well)
            self.shares = not reason
            if reason:
                _log.warning("scores take longer, since the model cannot share a prefix: %s", reason)
        if compiled and (failure := _fault(lambda: self._compiles_well(rows))):
            self._call = self._model
            report(ModelError(f"torch.compile failed ({failure}); set 'compile: false'"))
        return int(plain.shape[1])

    def _shares_well(self) -> bool:
        """Whether outputs stay the same where a prefix is shared."""
        small = self._small()
        return _close(small._whole(_TRIAL), small._after_prefix(_TRIAL, _TRIAL_PREFIX, [0, 1]))

    def _compiles_well(self, rows: Sequence[Tokens]) -> bool:
        """Compile the model; whether its outputs stay the same in a trial, and are numbers."""
        small = self._small()
        plain = small._whole(_TRIAL)
        small._call = self._torch.compile(small._model, dynamic=True)
        self._call = self._torch.compile(self._model, dynamic=True)
        return _close(plain, small._whole(_TRIAL)) and bool(np.isfinite(self._whole(rows)).all())

    def _small(self) -> Transformer:
        """Copy the architecture with few layers and random weights, in float32, where no rounding hides a fault.

        One layer of each kind, and a sliding window that a trial's texts exceed.
        """
        torch, config = self._torch, copy.deepcopy(self._model.config)
        text = config.get_text_config()
        kinds = getattr(text, "layer_types", None) or []
        layers = max([2, *(kinds.index(kind) + 1 for kind in set(kinds))])
        text.num_hidden_layers = min(layers, text.num_hidden_layers)
        text.vocab_size, text.pad_token_id, text.initializer_range = _TRIAL_TOKENS, 0, text.hidden_size**-0.5
        if kinds:
            text.layer_types = kinds[: text.num_hidden_layers]
        if getattr(text, "sliding_window", None):
            text.sliding_window = _TRIAL_WINDOW
        found = copy.copy(self)
        with torch.random.fork_rng(), torch.device(self._device):
            torch.manual_seed(0)
            found._model = found._call = type(self._model)(config).float().eval()
        found._config, found._pads = text, False
        return found
