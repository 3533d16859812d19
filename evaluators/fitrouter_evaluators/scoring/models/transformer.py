"""Hugging Face models over prompts and answers: tokens, batches, shared prefixes."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fitrouter.types import Floats
from fitrouter_evaluators.scoring._answer import Answer
from fitrouter_evaluators.scoring.models.batches import TokenBatches
from fitrouter_evaluators.scoring.models.reward_model import Item, ModelError

Tokens = dict[str, list[int]]
"""A sequence's input_ids, and token_type_ids where the tokenizer gives them."""

SHARED = 256
"""Tokens that a shared prefix must save to be computed on its own."""

_PROBE = [Item(answer=Answer(text=text, prompt="Which colour has the sky?")) for text in ("It is blue.", "No idea!")]


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        ModelError: there is none that can be loaded.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"{str(folder)!r} has no tokenizer that can be loaded ({type(error).__name__}); "
            f"put the model's tokenizer.json and tokenizer_config.json there"
        ) from None


def tokenised(tokenizer: Any, answer: Answer, limit: int) -> Tokens:
    """Tokens of prompt and answer, by the tokenizer's chat template, or as a pair of texts if it has none.

    At most `limit`; the middle of a longer sequence is left out, so that the template's ends remain.
    """
    prompt, text = (part.encode("utf-8", "replace").decode() for part in (answer.prompt, answer.text))
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
        found = {"input_ids": tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)}
    else:
        found = tokenizer(prompt, text, return_attention_mask=False)
    ids = found["input_ids"]
    keep = (
        range(len(ids)) if len(ids) <= limit else [*range(limit - limit // 2), *range(len(ids) - limit // 2, len(ids))]
    )
    return {name: [int(row[i]) for i in keep] for name, row in found.items() if name in {"input_ids", "token_type_ids"}}


class Transformer:
    """Runs a model over prompts and answers, and gives a vector for each.

    Batches are sorted by length and filled to a budget of tokens, in bfloat16 on cuda. Answers to one prompt share the
    pass over their common tokens where the architecture caches keys and values so that the outputs stay the same, which
    a trial finds out.

    Args:
        folder: of the model.
        classify: True gives the outputs of the classification head, False the last hidden state of the last token.
        dimensions: number of outputs of the head; None for the configured one.
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
        classify: bool,
        dimensions: int | None = None,
        head: str = "",
        max_tokens: int = 4096,
        batch_tokens: int = 16_384,
        device: str = "cpu",
        compiled: bool = False,
        report: Callable[[Exception], None] = print,
    ) -> None:
        import torch  # heavy, and only these models need it

        self._torch, self.device, self._report = torch, device, report
        self._tokenizer = tokenizer_of(folder)
        self._classify = classify
        self._model = self._loaded(folder, dimensions, head)
        config = self._model.config.get_text_config()
        self._pads = config.pad_token_id is None
        longest = (getattr(config, "max_position_embeddings", None), self._tokenizer.model_max_length)
        self._limit = min(max_tokens, *(int(size) for size in longest if size and size > 0))
        self._base = self._model.base_model if classify else self._model
        self._head = getattr(self._model, "score", None) if classify else lambda hidden: hidden
        self._call = self._model
        self.shares = False
        """Whether answers to one prompt share its pass."""
        self.tokens = 0
        """Tokens read so far, without padding."""
        self.width = 0
        """Length of the vectors."""
        self._try(compiled)
        self.batches = TokenBatches(batch_tokens, self.width, report)

    def run(self, items: Sequence[Item]) -> Floats:
        """float64[n, width]; NaN for an answer without a text, and for one that fails."""
        out = np.full((len(items), self.width), np.nan)
        spoken = [i for i, item in enumerate(items) if item.answer.has_text]
        rows = [tokenised(self._tokenizer, items[i].answer, self._limit) for i in spoken]
        alone = np.ones(len(rows), dtype=bool)
        for prefix, group in self._groups(rows):
            alone[group] = False
            forward = functools.partial(self._after_prefix, [rows[i] for i in group], prefix)
            found = self.batches.run([len(rows[i]["input_ids"]) - prefix for i in group], forward)
            out[[spoken[i] for i in group]] = found
        left = np.flatnonzero(alone).tolist()
        found = self.batches.run(
            [len(rows[i]["input_ids"]) for i in left], lambda batch: self._whole([rows[left[i]] for i in batch])
        )
        out[[spoken[i] for i in left]] = found
        self.tokens += sum(len(row["input_ids"]) for row in rows)
        return out

    # --- forward passes ---

    def _whole(self, rows: Sequence[Tokens]) -> Floats:
        """Vectors of sequences, each from its first token on."""
        torch = self._torch
        lengths = [len(row["input_ids"]) for row in rows]
        config = self._model.config.get_text_config()
        if self._pads:  # the model finds the last token by its padding, which must be another one
            ends = {row["input_ids"][-1] for row in rows}
            config.pad_token_id = next(i for i in range(len(ends) + 1) if i not in ends)
        with torch.inference_mode():
            batch = {name: self._padded([row[name] for row in rows]) for name in rows[0]}
            batch["input_ids"] = self._padded([row["input_ids"] for row in rows], config.pad_token_id)
            found = self._call(**batch, attention_mask=self._mask(lengths))
            if self._classify:
                return self._numbers(found.logits)
            return self._numbers(found.last_hidden_state[torch.arange(len(rows)), torch.tensor(lengths) - 1])

    def _after_prefix(self, group: Sequence[Tokens], prefix: int, batch: Sequence[int]) -> Floats:
        """Vectors of sequences that share their first `prefix` tokens, which are read once."""
        torch = self._torch
        rows = [group[i]["input_ids"] for i in batch]
        lengths = [len(row) - prefix for row in rows]
        with torch.inference_mode():
            first = torch.tensor([rows[0][:prefix]], device=self.device)
            cache = self._base(input_ids=first, use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(rows))
            found = self._base(
                input_ids=self._padded([row[prefix:] for row in rows]),
                attention_mask=self._mask(lengths, prefix),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            return self._numbers(self._head(found[torch.arange(len(rows)), torch.tensor(lengths) - 1]))

    def _groups(self, rows: Sequence[Tokens]) -> list[tuple[int, list[int]]]:
        """(length of the common prefix, indices) of sequences that begin alike, if sharing it pays."""
        if not self.shares:
            return []
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            alike[tuple(row["input_ids"][:32])].append(i)
        groups = []
        for group in alike.values():
            arrays = [rows[i]["input_ids"] for i in group]
            shortest = min(map(len, arrays)) - 1  # a last token of its own for each
            same = 0
            while same < shortest and all(row[same] == arrays[0][same] for row in arrays):
                same += 1
            if same * (len(group) - 1) >= SHARED:
                groups.append((same, group))
        return groups

    def _padded(self, rows: Sequence[Sequence[int]], pad: int = 0) -> Any:
        width = max(map(len, rows))
        return self._torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self.device)

    def _mask(self, lengths: Sequence[int], prefix: int = 0) -> Any:
        mask = np.arange(max(lengths) + prefix)[None, :] < np.array(lengths)[:, None] + prefix
        return self._torch.from_numpy(mask.astype(np.int64)).to(self.device)

    @staticmethod
    def _numbers(found: Any) -> Floats:
        out: Floats = found.float().cpu().numpy().astype(np.float64)
        return out

    # --- loading ---

    def _loaded(self, folder: Path, dimensions: int | None, head: str) -> Any:
        import transformers

        kind: Any = transformers.AutoModelForSequenceClassification if self._classify else transformers.AutoModel
        options: dict[str, Any] = {}
        if self._classify and dimensions is not None:
            options["num_labels"] = dimensions
        if head:
            options["key_mapping"] = {rf"^{head}\.": "score."}
        dtype = self._torch.bfloat16 if self.device.startswith("cuda") else self._torch.float32
        level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # what its report says is in the errors below
        try:
            model, info = kind.from_pretrained(
                str(folder),
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:300]
            raise ModelError(
                f"{str(folder)!r} cannot be loaded ({type(error).__name__}: {reason}); allowed are architectures of the "
                f"transformers library with weights in safetensors, and {dimensions or 'the configured'} outputs"
            ) from None
        finally:
            transformers.logging.set_verbosity(level)
        if missing := sorted(info["missing_keys"]):
            raise ModelError(
                f"{str(folder)!r} has no weights for {missing[:3]}, which would be random; take a model with a trained "
                f"reward head, and name its layer with 'head' if the architecture has another name for it"
            )
        try:
            return model.eval().to(self.device)
        except RuntimeError as error:
            raise ModelError(
                f"{str(folder)!r} does not fit on {self.device!r} ({str(error).splitlines()[0][:200]}); free memory there, "
                f"or set 'scorer: {{device: cpu}}'"
            ) from None

    def _try(self, compiled: bool) -> None:
        """Run two short answers: finds the width, whether prefixes can be shared, and whether compiling works."""
        rows = [tokenised(self._tokenizer, item.answer, self._limit) for item in _PROBE]
        try:
            plain = self._whole(rows)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            raise ModelError(f"the model failed on a short answer ({reason}); take another one") from None
        self.width = plain.shape[1]
        scale = 1e-4 if self._model.dtype == self._torch.float32 else 5e-2
        close = functools.partial(np.allclose, plain, rtol=scale, atol=scale * max(1.0, float(np.abs(plain).max())))
        if self._head is not None and len(rows[0]) == 1:
            try:
                same = next(
                    i
                    for i, pair in enumerate(zip(*(row["input_ids"] for row in rows), strict=False))
                    if len({*pair}) > 1
                )
                self.shares = same > 0 and bool(close(self._after_prefix(rows, same, [0, 1])))
            except Exception:  # noqa: BLE001 - an architecture without such a cache
                self.shares = False
        if compiled:
            try:
                self._call = self._torch.compile(self._model, dynamic=True)
                if not close(self._whole(rows)):
                    raise ModelError("the compiled model gives other outputs")
            except Exception as error:  # noqa: BLE001 - it serves uncompiled
                self._call = self._model
                self._report(ModelError(f"torch.compile failed ({type(error).__name__}); set 'compile: false'"))
