"""Converters of response matrices: every published layout becomes rows of the open format, which round-trip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fitrouter.errors import ConfigError
from fitrouter_evaluators.datasets import (
    MatrixRow,
    paretobandit,
    read_matrix,
    routellm,
    routerbench,
    write_jsonl,
    write_parquet,
)

DATA = Path(__file__).parents[3] / "shared" / "data"


def arms() -> str:
    """A line of ParetoBandit's files."""
    cells = {
        "a/small": {"reward": 0.4, "cost": 3.7e-05, "near_best": False},
        "b/large": {"reward": 1.0, "cost": 0.0006, "near_best": True},
    }
    row = {"prompt": "Copy a list.", "difficulty": "hard", "best_arm": "b/large", "arms": cells, "source": "mbpp"}
    return json.dumps(row)


def test_paretobandit_rows_keep_rewards_costs_and_source(tmp_path: Path) -> None:
    """Each arm becomes a cell; the authors' prices are read per million tokens."""
    (tmp_path / "val_k4.jsonl").write_text(arms() + "\n" + arms() + "\n", encoding="utf-8")
    prices = {"models": [{"model_id": "a/small", "input_cost_per_m": 0.1, "output_cost_per_m": 0.2}]}
    (tmp_path / "models_k4.json").write_text(json.dumps(prices), encoding="utf-8")
    rows = paretobandit.convert(tmp_path)
    assert len(rows) == 2
    assert rows[0].source == "mbpp"
    assert rows[0].extra == {"difficulty": "hard"}
    assert {name: (cell.reward, cell.cost_usd) for name, cell in rows[0].models.items()} == {
        "a/small": (0.4, 3.7e-05),
        "b/large": (1.0, 0.0006),
    }
    assert paretobandit.prices(tmp_path) == {"a/small": (0.1, 0.2)}


def test_routellm_mmlu_and_gsm8k_rewards_and_costs(tmp_path: Path) -> None:
    """True is 1; costs are price · characters / 4, and nothing is made up for a model without a price."""
    (tmp_path / "mmlu").mkdir()
    mmlu = 'prompt,strong,weak\n"How many?\nA. 1\nB. 2\nAnswer:",True,False\n'
    (tmp_path / "mmlu" / "mmlu_virology.csv").write_text(mmlu, encoding="utf-8")
    gsm = "prompt,strong,weak,strong_response,weak_response\nAdd 1 and 1.,False,True,Three.,Two.\n"
    (tmp_path / "gsm8k_responses.csv").write_text(gsm, encoding="utf-8")
    prices = {"strong": 4e6}
    (row,) = routellm.convert_mmlu(tmp_path, prices)
    assert row.source == "mmlu/virology"
    assert {name: cell.reward for name, cell in row.models.items()} == {"strong": 1.0, "weak": 0.0}
    assert row.models["strong"].cost_usd == pytest.approx(len(row.prompt) + 1)
    assert row.models["weak"].cost_usd is None
    (row,) = routellm.convert_gsm8k(tmp_path, prices)
    assert row.models["strong"].cost_usd == pytest.approx(len("Add 1 and 1.") + len("Three."))
    assert row.models["weak"].response == "Two."
    assert row.models["weak"].reward == 1.0


def test_routellm_mt_bench_is_parsed_from_the_judge_prompts(tmp_path: Path) -> None:
    """Both turns, the questions without the answers, the score on [0, 1]."""
    first = (
        "[Instruction]\nPlease judge.\n\n[Question]\nName a colour.\n\n[The Start of Assistant's Answer]\nRed.\n"
        "[The End of Assistant's Answer]"
    )
    second = (
        "<|The Start of Reference Answer|>\n\n### User:\nNo.\n\n<|The End of Reference Answer|>\n\n\n"
        "<|The Start of Assistant A's Conversation with User|>\n\n### User:\nName a colour.\n\n### Assistant A:\n"
        "Red.\n\n### User:\nAnother.\n\n### Assistant A:\nBlue.\n\n<|The End of Assistant A's Conversation with User|>"
    )
    lines = [
        {"question_id": 81, "model": model, "user_prompt": text, "score": score, "turn": turn}
        for model, score in (("x", 10), ("y", 7.5))
        for turn, text in ((1, first), (2, second))
    ]
    (tmp_path / "mt_bench_judgements.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    one, two = routellm.convert_mt_bench(tmp_path)
    assert (one.prompt, one.models["x"].response, one.models["y"].reward) == ("Name a colour.", "Red.", 0.75)
    assert (two.prompt, two.models["y"].response) == ("Name a colour.\n\nAnother.", "Blue.")
    assert two.extra == {"question_id": 81, "turn": 2}


WIDE = (
    "sample_id,prompt,eval_name,m1,m2,m1|model_response,m2|model_response,m1|total_cost,m2|total_cost,oracle\n"
    "t.1,\"['What is it?']\",mmlu,1.0,0.25,It is.,,0.001,0.0001,m1\n"
    "t.2,Plain?,gsm,,0.5,,Yes.,0.002,0.0002,m2\n"
    "t.3,Nobody?,gsm,,,,,,,\n"
)


def test_routerbench_table_gives_a_cell_for_every_score(tmp_path: Path) -> None:
    """A missing score is no cell, a line without any is no row; the prompt's list is unpacked."""
    (tmp_path / "table.csv").write_text(WIDE, encoding="utf-8")
    rows = routerbench.convert(tmp_path / "table.csv")
    assert [row.prompt for row in rows] == ["What is it?", "Plain?"]
    assert [row.source for row in rows] == ["mmlu", "gsm"]
    assert rows[0].extra == {"sample_id": "t.1"}
    assert (rows[0].models["m1"].reward, rows[0].models["m1"].cost_usd) == (1.0, 0.001)
    assert rows[0].models["m1"].response == "It is."
    assert set(rows[1].models) == {"m2"}
    assert routerbench.convert(tmp_path) == rows


def test_routerbench_reads_parquet_like_csv(tmp_path: Path) -> None:
    """The same table in both files gives the same rows."""
    import duckdb

    (tmp_path / "table.csv").write_text(WIDE, encoding="utf-8")
    with duckdb.connect() as connection:
        table = connection.read_csv(str(tmp_path / "table.csv"))
        table.write_parquet(str(tmp_path / "table.parquet"))
    assert routerbench.convert(tmp_path / "table.parquet") == routerbench.convert(tmp_path / "table.csv")


def test_an_invalid_table_is_refused(tmp_path: Path) -> None:
    """A pickle is never read; a table without costs is not RouterBench's; a folder without the files is named."""
    (tmp_path / "routerbench.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match="a pickle is not read"):
        routerbench.convert(tmp_path / "routerbench.pkl")
    (tmp_path / "other.csv").write_text("prompt,m1\nhello,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no column"):
        routerbench.convert(tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="mmlu"):
        routellm.convert_mmlu(tmp_path)
    with pytest.raises(ConfigError, match=r"val_k4\.jsonl"):
        paretobandit.convert(tmp_path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_converted_rows_round_trip(tmp_path: Path, suffix: str) -> None:
    """Rows of every converter round-trip through JSONL and Parquet."""
    (tmp_path / "val_k4.jsonl").write_text(arms() + "\n", encoding="utf-8")
    (tmp_path / "table.csv").write_text(WIDE, encoding="utf-8")
    sets: list[list[MatrixRow]] = [paretobandit.convert(tmp_path), routerbench.convert(tmp_path / "table.csv")]
    for rows in sets:
        path = tmp_path / f"rows{suffix}"
        (write_jsonl if suffix == ".jsonl" else write_parquet)(path, rows)
        records = read_matrix(path)
        assert records.problems == []
        assert records.rows == rows


@pytest.mark.skipif(not (DATA / "paretobandit").is_dir(), reason="the published sets are not beside the project")
def test_published_sets_have_their_stated_sizes() -> None:
    """1,766 prompts × 4 models; 14,042 + 1,319 prompts × 2 models and 160 judged turns."""
    rows = paretobandit.convert(DATA / "paretobandit")
    assert (len(rows), {len(row.models) for row in rows}) == (1766, {4})
    rows = paretobandit.convert(DATA / "paretobandit", "cross_judge_claude_val.jsonl")
    assert {len(row.models) for row in rows} == {3}
    rows = routellm.convert(DATA / "routellm")
    assert (len(rows), {len(row.models) for row in rows}) == (14042 + 1319 + 160, {2})
    assert all(cell.cost_usd for row in rows for cell in row.models.values())
