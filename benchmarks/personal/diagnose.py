"""Diagnosis of personalisation on planted histories. Prints JSON.

    python -m benchmarks.personal.diagnose                    # held-out wordings, a minute on one core
    python -m benchmarks.personal.diagnose --split tuned      # the wordings that constants were chosen on

200 people state two attributes each in conversations with small talk, statements about this moment, about others, and
in play. Of the 400 attributes 10 % are sensitive, 10 % are later negated or outdated, and for 30 % the prompt about
which the person then asks is irrelevant (the rest of the truth follows from the scenarios' own labels: attribute A is
irrelevant to the prompt for B, and so on). Answers are planted: adapted (with or without naming the attribute), generic
or contrary ("missed"), a lexical echo before a contrary answer ("under_adapted"), an echo before an answer to an
irrelevant prompt ("over_retrieved", and "inappropriate" if sensitive), a sensitive attribute in a letter to others
("inappropriate"), and claims that were never stated, or hold no more ("invented").

Wordings are in `diagnose_scenarios.jsonl`, in quarters. Constants and the corpus of `kinds.json` were chosen on three
of them; the last was written after that, and is read by the default run only. None of it is in the corpus.

Reported: precision and recall of attributes, of relevance (pairs of standing attributes that were found, and prompts),
and of each failure; the share of irrelevant pairs that are judged relevant, of found attributes that were never stated
or hold no more, and of planted echoes that count as adapted, also with the echo but not without it.

`--choices FILE` reports instead, of statements that others wrote (`../shared/data/declared_topics/choices.jsonl`): how
many are found, are relevant to their own prompt and to those of other topics, and how many answers that respect and
that violate them count as adapted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fitrouter.context.encoders import get_encoder
from fitrouter_evaluators.personal.diagnose import FAILURES, Attribute, Diagnostician
from fitrouter_evaluators.personal.diagnose.attributes import Memory

FILE = Path(__file__).with_name("diagnose_scenarios.jsonl")
LONG = " ".join(
    f"{n}, there is a further point, which one could go on to discuss at some length, with its causes and its effects."
    for n in ("First", "Second", "Third", "Moreover", "Besides", "In addition", "Furthermore", "Finally") * 4
)


class Planted(NamedTuple):
    """A question of one person, and the planted mistakes of its answer, as (failure, attribute)."""

    prompt: str
    answer: str
    relevant: frozenset[str]
    """Names of the standing attributes to which it is relevant."""
    wrong: frozenset[tuple[str, str]]
    echoed: frozenset[str] = frozenset()
    """Attributes that are named, and not followed."""
    plain: str = ""
    """The answer without its echo, where it has one."""


class History(NamedTuple):
    """The simulated history of one person."""

    before: tuple[str, ...]
    """Messages, in order."""
    standing: dict[str, str]
    """Name → statement."""
    gone: frozenset[str]
    questions: tuple[Planted, ...]


def scenarios(split: str, file: Path = FILE) -> tuple[dict[str, list[str]], list[dict[str, Any]]]:
    """Load neutral texts and scenarios, with the wordings of one split."""
    neutral, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def part(texts: list[str]) -> list[str]:
        n = 3 * len(texts) // 4
        return (texts[n:] if split == "held-out" else texts[:n]) or texts

    return {name: part(texts) for name, texts in neutral["neutral"].items()}, [
        {name: part(value) if isinstance(value, list) and name != "relevant" else value for name, value in row.items()}
        for row in rows
    ]


def planted(split: str, people: int = 200, seed: int = 0) -> list[History]:
    """Generate histories with planted mistakes."""
    neutral, rows = scenarios(split)
    rng = np.random.default_rng((seed, split == "held-out"))
    plain, sensitive = ([row for row in rows if row["sensitive"] is kind] for kind in (False, True))
    return [_history(rng, neutral, plain, sensitive) for _ in range(people)]


def _history(rng: np.random.Generator, neutral: dict[str, list[str]], plain: Any, sensitive: Any) -> History:
    def pick(texts: Sequence[Any]) -> Any:
        return texts[int(rng.integers(len(texts)))]

    while True:
        own = [pick(sensitive if rng.random() < 0.1 else plain) for _ in range(2)]
        one, other = own
        if not (one["domain"] in other["relevant"] or other["domain"] in one["relevant"]):
            break
    before, standing, gone, questions = [], {}, set(), []
    for row in own:
        statement = pick(row["statements"])
        before.append(" ".join(map(str, rng.permutation([statement, pick(neutral["filler"])]))))
        standing[row["name"]] = statement
    before.append(pick(neutral["distractors"]))
    for row in own:
        if row["ended"][0] and rng.random() < 0.1:
            before.append(pick(row["ended"]))
            gone.add(row["name"])
            standing.pop(row["name"])
    everywhere = {row["name"] for row in own if row["relevant"] == ["*"]} & set(standing)
    for row in own:
        name, there, since = row["name"], row["name"] in standing, pick(row["since"])
        wrong: set[tuple[str, str]] = set()
        relevant, echoed, plain = set(everywhere), set(), ""
        bad = [LONG if each == "LONG" else each for each in row["bad"]]
        if row["relevant"] != ["*"] and rng.random() < (0.6 if row["sensitive"] else 0.3):
            letter = row["sensitive"] and rng.random() < 0.5
            k = int(rng.integers(len(neutral["outward" if letter else "prompts"])))
            prompt = neutral["outward" if letter else "prompts"][k]
            answer = neutral["outward_answers" if letter else "answers"][k]
            if there and rng.random() < 0.4:
                answer = f"Since {since}, I kept this simple. {answer}"
                if not letter:
                    wrong.add(("over_retrieved", name))
                if row["sensitive"]:
                    wrong.add(("inappropriate", name))
        else:
            prompt, luck = pick(row["prompts"]), rng.random()
            if there:
                relevant.add(name)
            if not there:
                answer = pick(bad)
            elif luck < 0.5:
                answer = pick(row["good"])
                if row["relevant"] != ["*"] and rng.random() < 0.5:
                    answer = f"Since {since}, here is an idea. {answer}"
            elif luck < 0.7 or row["relevant"] == ["*"]:
                answer = pick(bad)
                wrong.add(("missed", name))
            else:
                frame = pick(("Since {}, you will love this. ", "Knowing that {}, I chose with care. ", "As {}: "))
                plain = pick(bad)
                answer = frame.format(since) + plain
                wrong.add(("under_adapted", name))
                echoed.add(name)
        if not there and rng.random() < 0.5:
            answer = f"Since {since}, I chose with care. {answer}"
            wrong.add(("invented", ""))
        elif rng.random() < 0.1:
            answer = (
                f"{pick(('Given that', 'Because', 'I remember that'))} {pick(neutral['strangers'])}, a word. {answer}"
            )
            wrong.add(("invented", ""))
        for each in everywhere - {name}:  # short answers suit; long ones do not
            wrong |= {("missed", each)} if len(answer) > 1000 else set()
        questions.append(Planted(prompt, answer, frozenset(relevant), frozenset(wrong), frozenset(echoed), plain))
    return History(tuple(before), standing, frozenset(gone), tuple(questions))


class Counts:
    """Counter of hits and misses, for precision and recall."""

    def __init__(self) -> None:
        self.hit = self.false = self.missed = 0

    def add(self, said: bool, true: bool) -> None:
        """Count a case by what was said and what is true."""
        self.hit += said and true
        self.false += said and not true
        self.missed += true and not said

    def shown(self) -> dict[str, float]:
        """Return precision, recall, and the number of true cases."""
        return {
            "precision": self.hit / max(self.hit + self.false, 1),
            "recall": self.hit / max(self.hit + self.missed, 1),
            "true": self.hit + self.missed,
        }


def measured(split: str, people: int = 200, encoder: str = "static", verbose: bool = False) -> dict[str, Any]:
    """Measure all figures of a split."""
    diagnostician = Diagnostician(get_encoder(encoder))
    stages = {name: Counts() for name in ("attributes", "relevance", *FAILURES)}
    found = invented = irrelevant = over = echoes = counted = turned = gone = kept = 0
    histories = planted(split, people)
    began = time.perf_counter()
    for history in histories:
        memory = Memory(diagnostician.encoder)
        for message in history.before:
            memory.add(message, diagnostician.reader.read(message))
        owners = {id(each): _owner(each, history) for each in memory.standing}
        for name in history.standing:
            stages["attributes"].add(name in owners.values(), True)
            if verbose and name not in owners.values():
                print("NOT FOUND", history.standing[name])
        for each in memory.standing:
            found += 1
            if owners[id(each)] not in history.standing:
                invented += 1
                stages["attributes"].add(True, False)
                if verbose:
                    print("FALSE ATTRIBUTE", each, history.before)
        gone += len(history.gone)
        for question in history.questions:
            relevances = diagnostician.relevant(memory.standing, question.prompt)
            for each, relevant in zip(memory.standing, relevances, strict=True):
                if (name := owners[id(each)]) in history.standing:
                    true = name in question.relevant
                    stages["relevance"].add(relevant, true)
                    irrelevant, over = irrelevant + (not true), over + (relevant and not true)
                    if verbose and relevant != true:
                        print("RELEVANCE", relevant, each.text, "|", question.prompt)
                    if name in question.echoed:
                        echoes += 1
                        adapted = diagnostician.answers.use(each, question.prompt, question.answer).adapted
                        counted += adapted
                        without = diagnostician.answers.use(each, question.prompt, question.plain).adapted
                        turned += adapted and not without
            texts = {each.text: owners[id(each)] for each in memory.standing}
            said = {
                (failure, texts.get(text, ""))
                for failure, text, failed in diagnostician.judged(memory, question.prompt, question.answer)
                if failed
            }
            for pair in said | set(question.wrong):
                stages[pair[0]].add(pair in said, pair in question.wrong)
                if verbose and (pair in said) != (pair in question.wrong):
                    print("ANSWER", pair, pair in said, "|", question.prompt, "|", question.answer[:160], "|", texts)
            kept += 1
    return {
        "split": split,
        "people": people,
        "attributes": sum(len(history.standing) for history in histories) + gone,
        "negated or outdated": gone,
        "answers": kept,
        "ms an answer": 1000 * (time.perf_counter() - began) / kept,
        "stages": {name: counts.shown() for name, counts in stages.items()},
        "irrelevant pairs judged relevant": over / max(irrelevant, 1),
        "irrelevant pairs": irrelevant,
        "found attributes that were not stated or hold no more": invented / max(found, 1),
        "echoes that count as adapted": counted / max(echoes, 1),
        "of them only for the echo": turned,
        "echoes": echoes,
    }


def declared(file: Path, encoder: str = "static") -> dict[str, float]:
    """Measure a set of statements with a prompt and answers, of which one respects the statements."""
    tool = Diagnostician(get_encoder(encoder))
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    read = [(row, tool.reader.read(" ".join(row["declared"])).attributes) for row in rows]
    known = [(row, own) for row, own in read if own]
    relevant = [any(tool.relevant(own, row["prompt"])) for row, own in known]
    prompts = [(row["topic"], row["prompt"]) for row in rows]
    elsewhere = [
        any(tool.relevant(own, prompt))
        for i, (row, own) in enumerate(known)
        for topic, prompt in (prompts[(i + step) % len(prompts)] for step in (101, 203, 307))
        if topic.split("_")[0] != row["topic"].split("_")[0]
    ]
    adapted: dict[bool, list[bool]] = {True: [], False: []}
    for row, own in known:
        for k, option in enumerate(row["options"]):
            uses = [tool.answers.use(each, row["prompt"], option).adapted for each in own]
            adapted[k == row["best"]].append(all(uses))
    return {
        "statements": len(rows),
        "found": len(known) / len(rows),
        "relevant to its prompt": float(np.mean(relevant)),
        "relevant to a prompt of another topic": float(np.mean(elsewhere)),
        "respecting answers that count as adapted": float(np.mean(adapted[True])),
        "violating answers that count as adapted": float(np.mean(adapted[False])),
    }


def _owner(attribute: Attribute, history: History) -> str:
    """Return the name of the planted attribute whose statement an attribute was read from; empty for none."""
    return next(
        (name for name, statement in history.standing.items() if normalised(attribute.text) in normalised(statement)),
        "",
    )


def normalised(sentence: str) -> str:
    """Lower-case a sentence and normalise its spaces."""
    return " ".join(sentence.lower().split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("held-out", "tuned"), default="held-out")
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong")
    parser.add_argument("--choices", type=Path)
    options = parser.parse_args()
    if options.choices is not None:
        found = declared(options.choices, options.encoder)
    else:
        found = measured(options.split, options.people, options.encoder, options.verbose)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
