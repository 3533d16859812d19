"""Laws of retrieval and of what a profile adds: what is labelled is found, and only the own profile helps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.research.profiles import nearness, profile_pairs
from benchmarks.research.retrieval import (
    BM25,
    CONTRIEVER,
    Contriever,
    Dense,
    Query,
    get_retriever,
    measure_retriever,
    top,
)

from fitrouter.context.encoders import get_encoder
from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import Pair, Text, personalized_rewardbench

pytest.importorskip("bm25s")

_TOPICS = {
    "gardening": ("tomatoes", "compost", "seedlings", "pruning", "soil", "garden", "plants"),
    "cycling": ("bicycle", "pedals", "gears", "tyres", "saddle", "cycling", "handlebar"),
    "astronomy": ("telescope", "galaxies", "planets", "nebula", "eclipse", "astronomy", "stars"),
    "baking": ("sourdough", "flour", "oven", "yeast", "crust", "baking", "bread"),
    "chess": ("openings", "bishop", "endgame", "checkmate", "rook", "chess", "gambit"),
    "sailing": ("sailboat", "mast", "harbour", "rudder", "regatta", "sailing", "anchor"),
}


def _sentence(rng: np.random.Generator, topic: str, n: int = 3) -> str:
    words = rng.choice(_TOPICS[topic], n, replace=False)
    return f"Last week I spent time with {', '.join(words)} and liked it."


def _queries(rng: np.random.Generator, n: int = 12) -> list[Query]:
    """Forty posts on six topics; those of the question's topic are relevant."""
    out = []
    for _ in range(n):
        topics = rng.choice(list(_TOPICS), 40)
        asked = str(topics[0])
        posts = tuple(_sentence(rng, str(topic)) for topic in topics)
        question = f"What should I know about {' and '.join(rng.choice(_TOPICS[asked], 4, replace=False))}?"
        out.append(Query(question, posts, frozenset(np.flatnonzero(topics == asked).tolist())))
    return out


@pytest.mark.parametrize(("name", "recall"), [("bm25", 0.9), ("static", 0.9), ("hashing", 0.7)])
def test_labelled_posts_are_found(name: str, recall: float) -> None:
    """Among forty posts on six topics the top ten hold nearly all of the question's topic, and chance a quarter."""
    found = measure_retriever(get_retriever(name), _queries(np.random.default_rng(0)))
    assert found["recall"] >= recall
    assert found["mrr"] >= recall
    assert found["ndcg"] >= recall


def test_metrics_of_known_places() -> None:
    """Relevant posts at places 2 and 12 of 12, k = 10: recall ½, MRR ½, nDCG (1/log₂3) / (1 + 1/log₂3)."""

    class Given:
        name = "given"

        def scores(self, question: str, posts: object) -> np.ndarray:
            return -np.arange(12.0)

    query = Query("q", tuple("abcdefghijkl"), frozenset({1, 11}))
    empty = Query("q", ("a",), frozenset())
    found = measure_retriever(Given(), [query, empty])
    gain = 1 / np.log2(3)
    assert found == pytest.approx({"recall": 0.5, "mrr": 0.5, "ndcg": gain / (1 + gain), "queries": 1.0})
    with pytest.raises(ValueError, match="relevant"):
        measure_retriever(Given(), [empty])


def test_bm25_counts_rare_words_more() -> None:
    """A word of one post outweighs a word of all; what shares no word has 0; empty posts and questions are fine."""
    bm25 = BM25()
    scores = bm25.scores("river zeppelin", ["river bank", "river boat", "river zeppelin", "mountain"])
    assert scores.argmax() == 2
    assert scores[0] > scores[3] == 0.0
    np.testing.assert_array_equal(bm25.scores("", ["a post"]), 0.0)
    np.testing.assert_array_equal(bm25.scores("question", ["", "  "]), 0.0)
    assert top(bm25, "question", []) == []
    assert top(bm25, "nothing shared", ["aa", "bb", "cc"], k=2) == [0, 1]


def test_dense_keeps_vectors_and_equals_the_encoder() -> None:
    """Scores are the encoder's cosines, whatever is cached; a small cache is cleared, not wrong."""
    encoder = get_encoder("static")
    posts = [_sentence(np.random.default_rng(i), "chess") for i in range(5)]
    expected = encoder.encode(posts) @ encoder.encode(["gambit"])[0]
    for cache in (1, 3, 100):
        dense = Dense(encoder, cache)
        for _ in range(2):
            np.testing.assert_allclose(dense.scores("gambit", posts), expected, atol=1e-12)


def test_contriever_is_mean_pooling_and_dot_product(tmp_path: Path) -> None:
    """A small model in Contriever's layout: padding takes no part, and scores are dot products of the token means."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "boat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    retriever = get_retriever(str(tmp_path))
    assert isinstance(retriever, Contriever)
    with torch.inference_mode():
        ids = torch.tensor([[2, 5, 8, 3]])
        alone = model(input_ids=ids).last_hidden_state[0].mean(dim=0).double().numpy()
    found = retriever.encode(["red boat", "red boat green blue red boat green"])
    np.testing.assert_allclose(found[0], alone, atol=1e-5)
    np.testing.assert_allclose(
        retriever.scores("red boat", ["red boat", "blue"]),
        [alone @ alone, alone @ retriever.encode(["blue"])[0]],
        atol=1e-4,
    )


def test_missing_weights_name_the_remedy() -> None:
    """Offline, Contriever by name says what to run; an unknown name says what there is."""
    with pytest.raises(ConfigError, match=f"hf download {CONTRIEVER}"):
        get_retriever(CONTRIEVER)
    with pytest.raises(ConfigError, match="'bm25' and"):
        get_retriever("bm52")


# --- with the profile minus without it ---


def _published(folder: Path, rng: np.random.Generator, per_subset: int = 16) -> list[Pair]:
    """A set in the published layout whose users want what they write about; half of the chosen answers are b."""
    for subset in personalized_rewardbench.SUBSETS:
        rows = []
        for i in range(per_subset):
            mine, theirs = rng.choice(list(_TOPICS), 2, replace=False)
            posts = [{"id": f"p{j}", "category": subset, "text": _sentence(rng, str(mine))} for j in range(12)]
            rows.append(
                {
                    "id": f"{subset}-{i}",
                    "question": f"How should I spend a day with {rng.choice(_TOPICS[str(mine)])}?",
                    "profile": posts,
                    "category": subset,
                    "chosen": _sentence(rng, str(mine)),
                    "rejected": _sentence(rng, str(theirs)),
                    "rubric_aspects": [],
                    "narrative": "",
                }
            )
        (folder / subset).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / subset / "test-00000-of-00001.jsonl").write_text(text)
    pairs = personalized_rewardbench.load(folder)
    return [
        pair if i % 2 else Pair(pair.user, pair.prompt, pair.b, pair.a, 1.0 - pair.label, extra=pair.extra)
        for i, pair in enumerate(pairs)
    ]


def test_only_the_own_profile_helps(tmp_path: Path) -> None:
    """Where users want what they write about, the profile lifts a blind head far above chance; another's does not."""
    rng = np.random.default_rng(5)
    rows = _published(tmp_path, rng)
    out = profile_pairs(rows, lambda answers: np.zeros(len(answers)), BM25(), encoder=get_encoder("static"))
    assert out["pairs"] == out["users"] == 48
    assert out["without"] == [0.5, 0.5, 0.5]
    assert out["with"][0] >= 0.95
    assert out["difference"][1] > 0.4
    assert out["personal"][1] > 0.2
    assert out["somebody_else"][0] < 0.75
    assert out["weights"][0] == 0.0


def test_an_artefact_is_not_taken_for_the_profile(tmp_path: Path) -> None:
    """Chosen answers that end in '!': a head that sees it needs no profile, and the difference says so."""
    rng = np.random.default_rng(6)
    rows = [
        Pair(
            f"u{i}",
            "Which one?",
            Text(_sentence(rng, "chess") + "!"),
            Text(_sentence(rng, "chess")),
            1.0,
            extra={"profile": [{"text": _sentence(rng, "sailing")}]},
        )
        for i in range(40)
    ]
    out = profile_pairs(
        rows,
        lambda answers: np.array([float(answer.text.endswith("!")) for answer in answers]),
        BM25(),
        encoder=get_encoder("static"),
    )
    assert out["without"][0] == 1.0
    assert abs(out["difference"][0]) < 0.05
    assert abs(out["personal"][0]) < 0.05


def test_profiles_take_only_what_can_be_used() -> None:
    """Ties and pairs without posts take no part; too few users, and scores that are no numbers, are refused."""
    posts = {"profile": [{"text": "a post"}]}
    rows = [Pair(f"u{i}", "q", Text("a"), Text("b"), 1.0, extra=posts) for i in range(6)]
    unusable = [Pair("t", "q", Text("a"), Text("b"), 0.5, extra=posts), Pair("n", "q", Text("a"), Text("b"), 1.0)]
    encoder = get_encoder("hashing")

    def head(answers: object) -> np.ndarray:
        return np.tile([1.0, 0.0], 6)

    out = profile_pairs([*rows, *unusable], head, BM25(), encoder=encoder)
    assert out["pairs"] == out["users"] == 6
    assert out["without"][0] == 1.0
    with pytest.raises(ValueError, match="folds"):
        profile_pairs(rows[:3], head, BM25(), encoder=encoder)
    with pytest.raises(ValueError, match="finite"):
        profile_pairs(rows, lambda answers: np.full(12, np.nan), BM25(), encoder=encoder)
    np.testing.assert_array_equal(nearness(np.ones(3), np.zeros((0, 3))), 0.0)
