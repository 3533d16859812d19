"""Sets at hand as rows of the shape of Personalized RewardBench, and the served score on them. Prints JSON lines.

    python -m benchmarks.personal.rewardbench [--data ../shared/data] [--encoders static hashing]

`declared_topics` and `own` (`scoring/topic_choices.jsonl`): each person has forty posts, one of which states the taste
that decides the question, nineteen state tastes in other topics, and twenty are questions. The rows of a question have
the answer that respects the taste as chosen and each other one as rejected, so that best of 4 is of the four answers.
`human_feedback`: the answer that a person rated higher, with the prompts of their earlier comparisons as posts. These
were given to them, so nothing can be gained; how much is lost is measured.
`fitrouter bench rewardbench` scores the rows, without a provider.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
from typer.testing import CliRunner

from fitrouter_evaluators.datasets import read_choices
from fitrouter_integrations.cli import app

Row = dict[str, Any]
OWN = Path(__file__).parents[1] / "scoring/topic_choices.jsonl"
PAIRS = 600
"""Comparisons of `human_feedback` that are scored."""


def row(name: str, question: str, chosen: str, rejected: str, posts: list[str]) -> Row:
    """Make a row of the published shape."""
    shaped = {"id": name, "question": question, "chosen": chosen, "rejected": rejected, "narrative": ""}
    return shaped | {"profile": [{"text": post} for post in posts], "rubric_aspects": []}


def of_choices(file: Path) -> list[Row]:
    """Rows of choices among four answers, with the statement in one of forty posts."""
    choices, rng, found = read_choices(file).rows, random.Random(0), []
    for place, each in enumerate(choices):
        topic = each.extra.get("topic", each.user)
        apart = [other for other in choices if other.extra.get("topic", other.user) != topic]
        said = [each.declared[0], *(other.declared[0] for other in rng.sample(apart, 19))]
        posts = [f"{text} {rng.choice(apart).prompt}" for text in said] + [rng.choice(apart).prompt for _ in range(20)]
        rng.shuffle(posts)
        best = each.options[each.best]
        for number, option in enumerate(each.options):
            if number != each.best:
                found.append(row(f"{place}-{number}", each.prompt, best, option, posts))
    return found


def of_comparisons(file: Path) -> list[Row]:
    """Rows of people's comparisons, with the prompts of their earlier ones as posts."""
    query = 'select "user", prompt, a, b, a_rating, b_rating from read_parquet(?) order by "user", "order"'
    earlier: dict[str, dict[str, None]] = defaultdict(dict)
    found = []
    for number, (user, prompt, a, b, of_a, of_b) in enumerate(duckdb.execute(query, [str(file)]).fetchall()):
        posts = [text for text in earlier[user] if text != prompt]
        earlier[user][prompt] = None
        if of_a != of_b and len(posts) >= 3:
            found.append(row(f"{number}", prompt, *((a, b) if of_a > of_b else (b, a)), posts))
    return random.Random(0).sample(found, PAIRS)


def measured(name: str, rows: list[Row], encoder: str) -> dict[str, Any]:
    """Run the command on rows; the figures of all of them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
        Path("fitrouter.yaml").write_text(
            f"data: d\nencoder: {encoder}\nproviders: {{s: {{kind: simulated, options: {{a: {{}}}}}}}}\n"
            "models: [{name: a, provider: s}]\n",
            encoding="utf-8",
        )
        given = ["bench", "rewardbench", "rows.jsonl", "--n", "4", "--json", "out.json"]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output
        return {"set": name, "encoder": encoder} | json.loads(Path("out.json").read_text())["domains"][-1]


def main() -> None:
    """Print the figures of each set and encoder."""
    parser = argparse.ArgumentParser(description="Rows of the shape of Personalized RewardBench, scored as served.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoders", nargs="+", default=["static", "hashing"])
    given = parser.parse_args()
    sets = {"own": of_choices(OWN), "declared_topics": of_choices(given.data / "declared_topics/choices.jsonl")}
    sets["human_feedback"] = of_comparisons(given.data / "human_feedback/comparisons.parquet")
    for name, rows in sets.items():
        for encoder in given.encoders:
            print(json.dumps(measured(name, rows, encoder)), flush=True)


if __name__ == "__main__":
    main()
