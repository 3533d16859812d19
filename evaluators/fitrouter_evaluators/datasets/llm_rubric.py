"""LLM-Rubric: judges of information-seeking dialogues answer nine questions (Hashemi et al., ACL 2024; MIT).

Questions: Q0 overall satisfaction, Q1 naturalness, Q2 grounding in the sources, Q3 presence, Q4 suitability and Q5
choice of citations, Q6 no redundancy, Q7 conciseness, Q8 number of turns. The tables write 0 where a question did not
apply. Q8 offered three answers and the best is the one in the middle: judges who gave 2 are the most satisfied (Q0 3.2
on average, against 2.4 for 1 and for 3), so its rating is a category rather than a degree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fitrouter.types import Message
from fitrouter_evaluators.datasets._formats import Rating
from fitrouter_evaluators.datasets._sources import number, read_json, read_table, source

QUESTIONS = tuple(f"Q{index}" for index in range(9))

_ROLES = ("user", "assistant")
_JUDGEMENTS = {
    "real": "real_data/human_judges_real_convs_FIXED_ANON.tsv",
    "synth": "synth_data/human_judges_synth_all_FIXED_ANON.tsv",
}


def convert(folder: str | os.PathLike[str]) -> list[Rating]:
    """Convert the judgements of synthetic, then of real dialogues, each in its file's order, Q0 to Q8.

    Answers are 1–4, to Q8 1–3. An answer of 0 (did not apply) or an empty one is left out. `user`
    is the judge, `item` the dialogue, `model` the system that led it. Of a real dialogue the prompt is what the user
    said and the response what the assistant said, turns apart by empty lines; the texts of synthetic ones were not
    published, so their prompt is empty. `extra` has split (synth, real) and judgement (row of the split's table, from
    0); of synthetic dialogues also round and the judge's answers to the quality questions DQQ0–2.
    """
    texts = dialogues(folder)
    ratings = []
    for split in ("synth", "real"):
        for index, row in enumerate(read_table(source(folder, _JUDGEMENTS[split]), "\t")):
            for question in QUESTIONS:
                answer = number(row[question])
                if answer:
                    ratings.append(_rating(row, split, index, question, answer, texts.get(row["text_id"], ())))
    return ratings


def dialogues(folder: str | os.PathLike[str]) -> dict[str, tuple[Message, ...]]:
    """The real dialogues by id, as chat messages; the assistant speaks first and last."""
    return {row["_id"]: tuple(row["messages"]) for row in read_json(source(folder, "real_data/real_data.json"))}


def _rating(
    row: Mapping[str, str], split: str, index: int, question: str, answer: float, messages: tuple[Message, ...]
) -> Rating:
    said = {role: [str(message["content"]) for message in messages if message["role"] == role] for role in _ROLES}
    item = row["text_id"]
    extra = {"split": split, "judgement": index}
    extra |= {name: row[name] for name in ("round", "DQQ0", "DQQ1", "DQQ2") if name in row}
    return Rating(
        user=row["annotator_id"],
        prompt="\n\n".join(said["user"]),
        rating=answer,
        scale=(1.0, 3.0 if question == "Q8" else 4.0),
        response="\n\n".join(said["assistant"]) if messages else None,
        model=f"system {row['dialogue_system']}" if split == "real" else item.partition("_")[0],
        item=item,
        dimension=question,
        extra=extra,
    )
