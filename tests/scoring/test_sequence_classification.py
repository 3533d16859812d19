"""Laws of transformer reward models, on tiny models of three architectures with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kits.tiny_models import ARCHITECTURES, save_model

from fitrouter.config import RewardModelConfig
from fitrouter_evaluators.scoring import Answer, ToolCall
from fitrouter_evaluators.scoring.models import Item, ModelError
from fitrouter_evaluators.scoring.models.sequence_classification import describe, load
from fitrouter_evaluators.scoring.models.transformer import Transformer

torch = pytest.importorskip("torch")
TEXTS = ("it is blue", "no", "a good long answer is it " * 9, "bad", "the sky has no colour", "it is blue")


def item(text: str, prompt: str = "which colour has the sky") -> Item:
    return Item(answer=Answer(text=text, prompt=prompt))


ITEMS = [item(text, prompt) for prompt in ("which colour has the sky", "is it good") for text in TEXTS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each architecture, with three outputs."""
    made = {name: tmp_path_factory.mktemp(name) for name in ARCHITECTURES}
    for name, folder in made.items():
        save_model(folder, name, labels=3)
    return made


def loaded(folder: Path, failures: list[Exception] | None = None, **settings: Any) -> Transformer:
    entry = RewardModelConfig(name="m", kind="sequence_classification", model=str(folder), **settings)
    return load(entry, "cpu", (failures if failures is not None else []).append)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_gives_what_single_answers_give(folders: dict[str, Path], architecture: str) -> None:
    """Batched equals single to 1e-5, in any order and with any budget, and the outputs are no constant."""
    model = loaded(folders[architecture])
    single = np.concatenate([model.score([one]) for one in ITEMS])
    order = np.random.default_rng(0).permutation(len(ITEMS))
    assert single.shape == (12, 3)
    assert single.std(axis=0).min() > 1e-3
    np.testing.assert_allclose(model.score(ITEMS), single, atol=1e-5)
    np.testing.assert_allclose(model.score([ITEMS[i] for i in order]), single[order], atol=1e-5)
    np.testing.assert_allclose(loaded(folders[architecture], batch_tokens=64).score(ITEMS), single, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_are_those_of_the_model_itself(folders: dict[str, Path], architecture: str) -> None:
    """One answer's outputs are the logits of the library's model over the tokenizer's own chat template or pair."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = str(folders[architecture])
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    answer = ITEMS[2].answer
    if architecture == "deberta":
        batch = tokenizer(answer.prompt, answer.text, return_tensors="pt")
    else:
        messages = [{"role": "user", "content": answer.prompt}, {"role": "assistant", "content": answer.text}]
        batch = tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**batch).logits.numpy()
    np.testing.assert_allclose(loaded(folders[architecture]).score([ITEMS[2]]), logits, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_shared_prompt_is_read_once_where_the_architecture_allows(
    folders: dict[str, Path], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders share the pass over a long prompt, with the same outputs to 1e-5; an encoder reads each whole."""
    model = loaded(folders[architecture])
    assert model.shares is (architecture != "deberta")
    items = [item(text, "which colour has the sky " * 40) for text in TEXTS]
    single = np.concatenate([model.score([one]) for one in items])
    calls: list[tuple[int, ...]] = []
    embed = model._model.get_input_embeddings()
    embed.register_forward_hook(lambda _module, args, _out: calls.append(tuple(args[0].shape)))
    np.testing.assert_allclose(model.score(items), single, atol=1e-5)
    read = sum(rows * tokens for rows, tokens in calls)
    assert (read < 600) is model.shares, calls  # six prompts of 200 tokens are 1,200


class Rough(Transformer):
    """In bfloat16, as on cuda, with weights so large that rounding is seen."""

    def _loaded(self, folder: Path, outputs: int | None, head: str) -> tuple[Any, Any]:
        tokenizer, model = super()._loaded(folder, outputs, head)
        model.score.weight.data *= 200
        return tokenizer, model.to(torch.bfloat16)


@pytest.mark.parametrize("compiled", [False, True])
def test_rounding_decides_nothing(folders: dict[str, Path], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 a shared prompt changes outputs by rounding, by more than a tolerance: sharing stays allowed."""
    monkeypatch.setattr(torch, "compile", lambda model, **_settings: model)
    failures: list[Exception] = []
    model = Rough(folders["llama"], outputs=3, compiled=compiled, report=failures.append)
    items = [item(text, "which colour has the sky " * 40) for text in TEXTS]
    single = np.concatenate([model.score([one]) for one in items])
    assert model.shares
    assert np.abs(model.score(items) - single).max() > 0.01
    assert failures == []


def test_outputs_that_change_with_the_cache_forbid_sharing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An architecture that counts positions anew after a cached prefix reads every answer whole, and it is said."""
    from transformers import LlamaModel

    forward = LlamaModel.forward

    def forgetful(self: Any, input_ids: Any = None, **rest: Any) -> Any:
        if rest.get("past_key_values") is not None:
            rest["position_ids"] = torch.arange(input_ids.shape[1])[None]
        return forward(self, input_ids=input_ids, **rest)

    monkeypatch.setattr(LlamaModel, "forward", forgetful)
    for kind in (Transformer, Rough):
        caplog.clear()
        assert not kind(folders["llama"], outputs=3, report=print).shares
        assert "cannot share a prefix: its outputs differ" in caplog.text


def test_a_model_that_cannot_be_tried_shares_nothing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no small copy can be made, answers are read whole and the model is not compiled; both are said."""

    def refused(_self: Transformer) -> Transformer:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Transformer, "_small", refused)
    failures: list[Exception] = []
    model = Transformer(folders["llama"], outputs=3, compiled=True, report=failures.append)
    assert not model.shares
    assert "cannot share a prefix" in caplog.text
    assert ["torch.compile failed" in str(failure) for failure in failures] == [True]
    np.testing.assert_allclose(model.score(ITEMS), loaded(folders["llama"]).score(ITEMS), atol=1e-6)


def test_sliding_windows_are_tried_beyond_their_length(tmp_path: Path) -> None:
    """A trial's texts exceed the window, and sharing is allowed only if the outputs stay the same there."""
    from benchmarks.scoring.reward_model import TINY, tokenizer
    from transformers import MistralConfig, MistralForSequenceClassification

    made = MistralForSequenceClassification(MistralConfig(num_labels=1, pad_token_id=0, sliding_window=16, **TINY))
    made.eval().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = Transformer(tmp_path, outputs=1, report=print)
    assert model._small()._model.config.sliding_window < 16
    items = [item(text, "w1 w2 w3 w4 w5 " * 60) for text in ("w1 w2", "w7 " * 30, "w9")]
    single = np.concatenate([model.score([one]) for one in items])
    np.testing.assert_allclose(model.score(items), single, atol=1e-5)


def test_a_padding_token_is_not_needed(tmp_path: Path) -> None:
    """Without a configured padding token, batches of unequal lengths still give the single outputs."""
    save_model(tmp_path, "llama", pad_token_id=None)
    model = loaded(tmp_path)
    single = np.concatenate([model.score([one]) for one in ITEMS])
    np.testing.assert_allclose(model.score(ITEMS), single, atol=1e-5)


def test_a_batch_that_is_too_large_is_halved(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory halves the batch until it fits; nothing is lost, and later batches start smaller."""
    failures: list[Exception] = []
    model = loaded(folders["qwen2"], failures)
    single = np.concatenate([model.score([one]) for one in ITEMS])
    sizes = _with_memory_for(model, 3, monkeypatch)
    np.testing.assert_allclose(model.score(ITEMS), single, atol=1e-5)
    assert sizes[0] == 12
    assert max(sizes[3:]) <= 6
    assert model.batches.budget < 16_384
    assert failures == []
    sizes.clear()
    model.score(ITEMS)
    assert max(sizes) < 12


def _with_memory_for(model: Transformer, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make larger batches fail as on a GPU; returns the sizes that were tried."""
    forward, sizes = model._call, []

    def limited(**batch: Any) -> Any:
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return forward(**batch)

    monkeypatch.setattr(model, "_call", limited)
    return sizes


def test_one_answer_without_memory_is_missing(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one answer alone does not fit, it is NaN, and the message says what to lower."""
    failures: list[Exception] = []
    model = loaded(folders["llama"], failures)
    _with_memory_for(model, 0, monkeypatch)
    assert np.isnan(model.score(ITEMS)).all()
    assert "12 of 12 answers" in str(failures[0])
    assert "max_tokens" in str(failures[0])


def test_a_bad_answer_costs_no_other_one(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch with a sequence that makes the model fail only that one is missing."""
    failures: list[Exception] = []
    model = loaded(folders["llama"], failures)
    single = np.concatenate([model.score([one]) for one in ITEMS])
    forward = model._call

    def fragile(**batch: Any) -> Any:
        if batch["attention_mask"].sum(1).max() > 50 and len(ITEMS) == 12:
            raise ValueError("index out of range in self")
        return forward(**batch)

    monkeypatch.setattr(model, "_call", fragile)
    found = model.score(ITEMS)
    long = np.array([len(one.answer.text) > 100 for one in ITEMS])
    assert np.isnan(found[long]).all()
    np.testing.assert_allclose(found[~long], single[~long], atol=1e-5)
    assert len(failures) == 1


def test_an_answer_without_text_is_missing(folders: dict[str, Path]) -> None:
    """Tool calls have no text to score; an empty answer has one."""
    call = Item(answer=Answer(text="", prompt="is it good", calls=(ToolCall("f", "{}"),)))
    found = loaded(folders["llama"]).score([call, item("")])
    assert np.isnan(found).all(axis=1).tolist() == [True, False]


def test_a_long_answer_keeps_its_ends(folders: dict[str, Path]) -> None:
    """Longer sequences lose their middle: the template's last token is read, and the outputs are numbers."""
    model = loaded(folders["llama"], max_tokens=32)
    found = model.score([item("good " * 500), item("bad " * 500)])
    assert np.isfinite(found).all()
    assert model.tokens == 64


def test_named_outputs_are_the_dimensions(folders: dict[str, Path], tmp_path: Path) -> None:
    """Dimensions: `score` for one output, the labels' names, else numbers; a configured list takes precedence."""

    def named(folder: Path, **settings: Any) -> tuple[str, ...]:
        return describe(RewardModelConfig(name="m", kind="sequence_classification", model=str(folder), **settings))[0]

    assert named(folders["llama"]) == ("0", "1", "2")
    assert named(folders["llama"], dimensions=("a", "b", "c")) == ("a", "b", "c")
    save_model(tmp_path / "one", "llama")
    assert named(tmp_path / "one") == ("score",)
    labels = {0: "Helpfulness", 1: "code complexity"}
    save_model(tmp_path / "two", "qwen2", labels=2, id2label=labels, label2id={v: k for k, v in labels.items()})
    assert named(tmp_path / "two") == ("helpfulness", "code_complexity")


def test_a_head_of_another_name_is_found(tmp_path: Path) -> None:
    """Multi-objective checkpoints such as ArmoRM's name their 19-dimensional layer otherwise: `head` maps it."""
    from safetensors.torch import load_file, save_file

    model = save_model(tmp_path, "llama", labels=19)
    weights = load_file(tmp_path / "model.safetensors")
    weights["regression_layer.weight"] = weights.pop("score.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for \['score.weight'\].*'head'"):
        loaded(tmp_path)
    found = loaded(tmp_path, head="regression_layer", dimensions=tuple(f"d{i}" for i in range(19)))
    assert torch.equal(found._model.score.weight, model.score.weight)
    assert found.score(ITEMS[:2]).shape == (2, 19)


def test_unusable_folders_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    """Every message names what was given, and what to do."""
    with pytest.raises(ModelError, match=r"there is no folder '/nowhere'; give a folder"):
        loaded(Path("/nowhere"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        loaded(tmp_path)
    shutil.copytree(folders["llama"], tmp_path / "mute")
    for file in (tmp_path / "mute").glob("*token*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer that can be loaded .* put the model's tokenizer\.json"):
        loaded(tmp_path / "mute")
    save_model(tmp_path / "headless", "llama", head=False)
    with pytest.raises(ModelError, match="would be random"):
        loaded(tmp_path / "headless")
    shutil.copytree(folders["llama"], tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles are not loaded"):
        loaded(tmp_path / "pickled")
    with pytest.raises(ModelError, match="5 outputs"):
        loaded(folders["llama"], dimensions=("a", "b", "c", "d", "e"))
    shutil.copytree(folders["llama"], tmp_path / "strange")
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(ModelError, match="allowed are architectures of the transformers library"):
        loaded(tmp_path / "strange")


def test_the_hub_is_respected_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no folder is looked up on the hub; offline, the message says so at once."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'nobody/nothing' is no folder.*HF_HUB_OFFLINE"):
        loaded(Path("nobody/nothing"))


def test_a_model_that_cannot_be_compiled_serves_uncompiled(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing torch.compile is reported once, and the outputs are those of the model itself."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    failures: list[Exception] = []
    model = loaded(folders["llama"], failures, compile=True)
    np.testing.assert_allclose(model.score(ITEMS), loaded(folders["llama"]).score(ITEMS), atol=1e-6)
    assert ["torch.compile failed" in str(failure) for failure in failures] == [True]
