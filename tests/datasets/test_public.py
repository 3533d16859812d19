"""Laws of the converters: every published judgement arrives once, with its text, in the files' order."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.training.public import (
    ADVERSARY,
    alpaca_responses,
    answer_probabilities,
    harm_annotations,
)
from tests.kits.datasets import folder
from tests.kits.tables import table_driven

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import (
    Rating,
    halie,
    llm_rubric,
    mt_bench,
    personalized_rewardbench,
    pluriharms,
    read_choices,
    read_ratings,
    realhumaneval,
    ttcw,
    write_jsonl,
    write_parquet,
)


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    """A published table, read apart from the converters."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def counts(ratings: list[Rating]) -> tuple[int, int, int]:
    """Ratings, users and items."""
    return len(ratings), len({row.user for row in ratings}), len({row.item for row in ratings})


def test_mt_bench() -> None:
    """3,355 votes of 65 judges, 780 of them ties, in the file's order; the texts are those of the judged turn."""
    where = folder("mt_bench_human")
    pairs = mt_bench.convert(where)
    assert (len(pairs), len({pair.user for pair in pairs})) == (3355, 65)
    assert Counter(pair.label for pair in pairs) == {1.0: 1293, 0.0: 1282, 0.5: 780}
    assert Counter(pair.extra["turn"] for pair in pairs) == {1: 1689, 2: 1666}
    assert len({pair.extra["question_id"] for pair in pairs}) == 80
    assert len({pair.extra["category"] for pair in pairs}) == 8
    assert len({text.model for pair in pairs for text in (pair.a, pair.b)}) == 6
    votes = [json.loads(line) for line in (where / "human.jsonl").read_text().splitlines()]
    assert [(pair.user, pair.a.model, pair.b.model) for pair in pairs] == [
        (vote["judge"], vote["model_a"], vote["model_b"]) for vote in votes
    ]
    second = next(pair for pair in pairs if pair.extra["turn"] == 2 and pair.a.model == "gpt-4")
    number = second.extra["question_id"]
    answers = [json.loads(line) for line in (where / "model_answer/gpt-4.jsonl").read_text().splitlines()]
    turns = next(answer for answer in answers if answer["question_id"] == number)["choices"][0]["turns"]
    assert (second.a.extra["earlier"], second.a.text) == (turns[:1], turns[1])
    questions = [json.loads(line) for line in (where / "question.jsonl").read_text().splitlines()]
    assert second.prompt == "\n\n".join(next(q for q in questions if q["question_id"] == number)["turns"])


def test_mt_bench_votes_of_a_model() -> None:
    """The judge model's 2,400 votes convert too; one that turns with the order of the answers is a tie."""
    pairs = mt_bench.convert(folder("mt_bench_human"), "gpt4_pair.jsonl")
    assert len(pairs) == 2400
    assert {pair.label for pair in pairs} == {0.0, 0.5, 1.0}


def test_pluriharms() -> None:
    """100 raters × 150 prompts less 275 empty cells; each rating is the cell of its rater and prompt."""
    where = folder("pluriharms")
    ratings = pluriharms.convert(where)
    assert counts(ratings) == (15_000 - 275, 100, 150)
    cells = {
        (row["Participant_ID"], str(index)): row[f"Rating_{index}"]
        for row in table(where / "annotations.csv")
        for index in range(1, 151)
    }
    assert all(float(cells[row.user, str(row.item)]) == row.rating for row in ratings)
    assert sum(cell == "" for cell in cells.values()) == 275
    first = ratings[0]
    assert first.prompt == table(where / "prompts.csv")[0]["Question_Content"]
    assert first.declared["factor_1"] * pluriharms.FACTOR_SCALE == pytest.approx(-8.232909263104588)
    assert max(abs(value) for row in ratings for value in row.declared.values()) < 1.1
    assert first.extra["trial"] == 10


def test_pluriharms_items_and_people() -> None:
    """Each prompt has its 63 annotations once, each rater their ten answers."""
    where = folder("pluriharms")
    items, people = harm_annotations(where), pluriharms.demographics(where)
    assert {len(features) for features in items.values()} == {63}
    assert {len(answers) for answers in people.values()} == {10}
    assert (len(items), len(people)) == (150, 100)
    assert items["1"]["action_Discrimination_Bias"] == pytest.approx(0.6794871794871795)
    assert people["0"]["Gender"] == "Man"


def test_llm_rubric() -> None:
    """743 and 223 judgements of 24 judges; answers of 0 did not apply, and every other one arrives."""
    where = folder("llm_rubric")
    ratings = llm_rubric.convert(where)
    tables = {
        "synth": table(where / "synth_data/human_judges_synth_all_FIXED_ANON.tsv", "\t"),
        "real": table(where / "real_data/human_judges_real_convs_FIXED_ANON.tsv", "\t"),
    }
    assert {split: len(rows) for split, rows in tables.items()} == {"synth": 743, "real": 223}
    for split, rows in tables.items():
        told = {(row.extra["judgement"], row.dimension): row for row in ratings if row.extra["split"] == split}
        for index, row in enumerate(rows):
            for question in llm_rubric.QUESTIONS:
                rating = told.pop((index, question), None)
                assert float(row[question] or 0) == (rating.rating if rating else 0.0)
                assert rating is None or (rating.user, rating.item) == (row["annotator_id"], row["text_id"])
        assert told == {}
    # Eight synthetic judgements are empty: their judges answered nothing.
    judgements = {(row.extra["split"], row.extra["judgement"]) for row in ratings}
    assert (len(ratings), len(judgements), len({row.user for row in ratings})) == (7647, 743 - 8 + 223, 24)
    assert {row.scale for row in ratings if row.dimension == "Q8"} == {(1.0, 3.0)}


def test_llm_rubric_dialogues_and_probabilities() -> None:
    """All 223 real dialogues have texts; the LLM's answers are distributions for every dialogue that it read."""
    where = folder("llm_rubric")
    dialogues, answers = llm_rubric.dialogues(where), answer_probabilities(where)
    real = [row for row in llm_rubric.convert(where) if row.extra["split"] == "real"]
    assert {row.item for row in real} == set(dialogues)
    assert len(dialogues) == 223
    assert len(answers) == 223 + 225
    assert set(dialogues) <= set(answers)
    assert {tuple(sorted(by_question)) for by_question in answers.values()} == {llm_rubric.QUESTIONS}
    assert all(sum(p) == pytest.approx(1.0, abs=1e-5) for by in answers.values() for p in by.values())
    said = [message["content"] for message in dialogues[str(real[0].item)] if message["role"] == "assistant"]
    assert real[0].response == "\n\n".join(said)


def test_halie_dialogue() -> None:
    """189 users rated 2,063 turns on 7 dimensions, 8 cells of which are empty; then each dialogue as a whole."""
    where = folder("halie")
    thumbs, whole = halie.convert_dialogue(where), halie.convert_quality(where)
    assert len(thumbs) == 2063 * 7 - 8
    assert len({row.user for row in thumbs}) == 189
    assert len({(row.extra["session"], row.extra["turn"]) for row in thumbs}) == 2063
    assert {row.dimension for row in thumbs} == set(halie.DIMENSIONS)
    assert {(row.kind, row.rating) for row in thumbs} == {("thumb", 0.0), ("thumb", 1.0)}
    assert len({row.model for row in thumbs}) == 4
    assert thumbs[0].response == "Why?  Don't you like the elderly?"
    assert thumbs[0].prompt.endswith(
        "\n\nI was happy to see an elderly man being helped by a younger male. It was nice to see."
    )
    assert thumbs[0].extra["elapsed"] == pytest.approx(65.0)
    assert Counter(row.rating for row in whole) == {4.0: 59, 5.0: 53, 3.0: 46, 2.0: 17, 1.0: 14}
    assert halie.convert_dialogue(where / "dialogue") == thumbs


def test_halie_metaphor() -> None:
    """470 of the 745 events say how much was accepted, 330 how it was edited; 32 writers."""
    where = folder("halie")
    ratings = halie.convert_metaphor(where)
    assert Counter(row.kind for row in ratings) == {"accept": 470, "edit": 330}
    assert len({row.user for row in ratings}) == 32
    events = table(where / "metaphor/event_blocks.csv")
    assert len(events) == 745
    shares = [float(row["acceptance"]) / 100 for row in events if row["acceptance"]]
    assert [row.rating for row in ratings if row.kind == "accept"] == shares
    for row in ratings:
        if row.kind == "edit":
            assert (row.rating == 1.0) == (row.response == row.extra["final"])


def test_realhumaneval() -> None:
    """1,055 answers to 107 programmers, 362 copied from; all but each programmer's last have a time to the next."""
    where = folder("realhumaneval")
    ratings = realhumaneval.convert(where)
    copies = [row for row in ratings if row.kind == "copy"]
    dwells = [row for row in ratings if row.kind == "dwell"]
    assert (len(copies), len(dwells), sum(row.rating for row in copies)) == (1055, 1055 - 107, 362.0)
    assert len({row.user for row in ratings}) == 107
    assert len({row.model for row in ratings}) == 4
    raw = table(where / "chat_data.csv")
    assert [(row.user, row.response, row.extra["at"]) for row in copies] == [
        (row["programmer_id"], row["response"], float(row["timestamp"])) for row in raw
    ]
    assert dwells[0].rating == pytest.approx(208.809)
    assert dwells[0].prompt == "Show me an example in Python doing something like, map(func, list)"


def test_ttcw() -> None:
    """2,016 verdicts of 11 experts, 762 yes, on 48 stories × 14 tests; only the professionals' stories lack a text."""
    where = folder("ttcw")
    ratings = ttcw.convert(where)
    assert counts(ratings) == (2016, 11, 48)
    assert sum(row.rating for row in ratings) == 762.0
    assert {row.model for row in ratings if row.response is None} == {"NewYorker"}
    assert all("url" in row.extra for row in ratings if row.model == "NewYorker")
    tests = json.loads((where / "ttcw_all_tests.json").read_text())
    assert {row.dimension for row in ratings} == {test["category"] for test in tests}
    raw = json.loads((where / "ttcw_annotations.json").read_text())
    assert [(row.user, row.item, row.extra["explanation"]) for row in ratings] == [
        (str(row["expert_idx"]), row["story_id"], row["explanation"]) for row in raw
    ]


def test_alpaca() -> None:
    """805 prompts × 11 models; the adversary gives one answer to all of them."""
    rows = alpaca_responses(folder("alpaca_eval"))
    assert (len(rows), {len(row.responses) for row in rows}) == (805, {11})
    assert len({row.responses[ADVERSARY] for row in rows}) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt_id": 1, "prompt": "p", "model": "m"}, "row 2"),
        ({"prompt_id": 0, "prompt": "p", "model": "m", "response": "b"}, "again"),
    ],
)
def test_alpaca_rows_that_cannot_be_used(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """A row without an answer, or with a second one, is refused."""
    path = tmp_path / "responses.jsonl"
    rows = [{"prompt_id": 0, "prompt": "p", "model": "m", "response": "a"}, row]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match=reason):
        alpaca_responses(path)


def test_declared_choices() -> None:
    """The 400 choices read without a problem."""
    records = read_choices(folder("choices") / "declared.jsonl")
    assert (len(records.rows), records.problems) == (400, [])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_public_set_round_trips(suffix: str, tmp_path: Path) -> None:
    """A converted set, written and read, is the same set."""
    ratings = halie.convert_metaphor(folder("halie"))
    path = tmp_path / f"ratings{suffix}"
    (write_jsonl if suffix == ".jsonl" else write_parquet)(path, ratings)
    records = read_ratings(path)
    assert records.problems == []
    assert records.rows == ratings


@table_driven(
    "convert",
    [
        mt_bench.convert,
        pluriharms.convert,
        harm_annotations,
        llm_rubric.convert,
        answer_probabilities,
        halie.convert_dialogue,
        halie.convert_metaphor,
        realhumaneval.convert,
        ttcw.convert,
        alpaca_responses,
        personalized_rewardbench.load,
    ],
)
def test_a_missing_set_is_named(convert: Any, tmp_path: Path) -> None:
    """Given a folder without the set, a converter says which file it looked for and where."""
    with pytest.raises(ConfigError, match=str(tmp_path)):
        convert(tmp_path)


# --- Personalized RewardBench, whose files are not here ---

POSTS = [{"id": "7", "category": "music", "text": "Which harp?"}, {"id": "8", "category": "music", "text": "Why?"}]


def bench_row(**changes: Any) -> dict[str, Any]:
    """A row of the published layout."""
    row = {"id": "q1", "question": "How?", "chosen": "So.", "rejected": "No.", "category": "music", "profile": POSTS}
    return row | {"narrative": "secret", "rubric_aspects": [{"aspect": "secret"}]} | changes


def publish(where: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """The rows as files `name` of every subset."""
    import duckdb

    for subset in personalized_rewardbench.SUBSETS:
        path = where / name.format(subset=subset)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(map(json.dumps, rows))
        if path.suffix == ".parquet":
            (where / "rows.ndjson").write_text(lines)
            with duckdb.connect() as connection:
                connection.read_json(str(where / "rows.ndjson"), format="newline_delimited").write_parquet(str(path))
        else:
            path.write_text(json.dumps(rows) if path.suffix == ".json" else lines)


@pytest.mark.parametrize(
    "name",
    ["{subset}/test-00000-of-00001.parquet", "data/{subset}_test.jsonl", "{subset}/test.json", "{subset}/test.jsonl"],
)
def test_personalized_rewardbench(name: str, tmp_path: Path) -> None:
    """In each published layout a row becomes a pair with its posts in order, and without what must stay secret."""
    second = bench_row(id="q2")
    if name.endswith("jsonl"):  # some writers keep a list of objects as an object of lists
        second |= {"profile": {key: [post[key] for post in POSTS] for key in POSTS[0]}}
    publish(tmp_path, name, [bench_row(), second])
    pairs = personalized_rewardbench.load(tmp_path)
    assert [pair.user for pair in pairs] == ["q1", "q2"] * 3
    assert [pair.extra["subset"] for pair in pairs[::2]] == list(personalized_rewardbench.SUBSETS)
    assert {(pair.prompt, pair.a.text, pair.b.text, pair.label) for pair in pairs} == {("How?", "So.", "No.", 1.0)}
    assert all(pair.extra["profile"] == POSTS for pair in pairs)
    assert "secret" not in repr(pairs)
    with pytest.raises(ConfigError, match="train"):
        personalized_rewardbench.load(tmp_path, split="train")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chosen": None}, "no chosen"),
        ({"chosen": 5}, "row 2"),
        ({"question": ""}, "prompt is ''"),
        ({"profile": [{"id": "7"}]}, "has no text"),
        ({"profile": 5}, "row 2"),
    ],
)
def test_a_broken_benchmark_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """A row that lacks something stops the loader, which names the file and the row."""
    publish(tmp_path, "{subset}_test.jsonl", [bench_row(), bench_row(**change)])
    with pytest.raises(ConfigError, match=reason):
        personalized_rewardbench.load(tmp_path)
