"""Diagnosis of personalisation: what is read from messages and answers, and rates that can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.personal.diagnose import measured, scenarios
from benchmarks.personal.histories import ASIDE, FRESH, figures
from benchmarks.training.clauses import fit, marked, messages, rounded
from tests.kits.tables import table_driven
from typer.testing import CliRunner

from fitrouter.config import RewardModelConfig
from fitrouter.context.encoders import get_encoder
from fitrouter.errors import InvalidRequest
from fitrouter.types import Call, Completion, Usage
from fitrouter_evaluators.personal.diagnose import FAILURES, AttributeJudge, Diagnostician, clauses, parsed
from fitrouter_evaluators.personal.diagnose.attributes import Memory
from fitrouter_evaluators.personal.diagnose.diagnosis import rate
from fitrouter_evaluators.personal.diagnose.kinds import corpus
from fitrouter_integrations.cli import app


@pytest.fixture(scope="module")
def tool() -> Diagnostician:
    return Diagnostician(get_encoder("static"))


@table_driven(
    ("message", "kinds"),
    [
        ("I'm a vegetarian. What can I cook?", ["diet"]),
        ("As a vegan, what should I eat?", ["diet"]),
        ("I live in Oslo and I have two kids.", ["home", "family"]),
        ("I've been diagnosed with epilepsy, by the way", ["health"]),
        ("I prefer short answers.", ["style"]),
        ("I moved from Graz to Vienna.", ["home"]),
        ("I gave up alcohol years ago.", ["diet"]),
        ("I'm looking for a vegan restaurant.", []),
        ("My boss is vegan.", []),
        ("A friend of mine has a dog.", []),
        ("Imagine I am a nurse.", []),
        ("I'm not a nurse.", []),
        ("I have a question about dogs.", []),
        ("> I live in Oslo\nPlease translate that.", []),
        ("The hero says “I live in Oslo and I am a nurse.”", []),
        ("Do I live in a simulation?", []),
        ("I'm hungry tonight.", []),
        ("I strongly dislike card games.", ["taste"]),
        ("I love the second version.", []),
        ("", []),
    ],
)
def test_what_is_lasting(tool: Diagnostician, message: str, kinds: list[str]) -> None:
    """Statements of the first person that last, and neither moments, others, quotes nor play."""
    assert [each.kind for each in tool.reader.read(message).attributes] == kinds


@table_driven(
    ("message", "kinds"),
    [
        ("been off meat for 2 yrs n my lad has asthma", ["diet", "family", "health"]),
        ("lost my job in may so money is tight", ["debt", "money"]),
        ("Our daughter is allergic to sesame.", ["allergy", "family"]),
        ("Which park suits my wheelchair?", ["health"]),
        ("From now on, answer in short sentences.", ["style"]),
        ("my flatmate is diabetic", []),
        ("Ich esse kein Fleisch und wohne in Kassel.", ["diet", "home"]),
        ("Unser Sohn hat Zöliakie.", ["allergy", "family"]),
        ("hab seit märz keinen job mehr, bin arbeitslos", ["debt"]),
        ("Antworte mir künftig in kurzen Sätzen.", ["style"]),
        ("Mein Kollege hat Epilepsie.", []),
        ("Stell dir vor, ich bin Arzt.", []),
        ("Ich bin kein Veganer.", []),
        ("Sie schrieb: „Ich bin schwanger und wohne in Ulm.“", []),
        ("Soy celíaca y trabajo como enfermera.", ["allergy", "work"]),
        ("mi hijo tiene epilepsia", ["health", "family"]),
        ("A partir de ahora, respuestas breves.", ["style"]),
        ("Mi jefa es vegana.", []),
        ("Imagina que soy médico.", []),
        ("No soy vegano.", []),
        ("Decía: «soy viudo y vivo en Lugo».", []),
        ("Ik ben veganist en ik woon in Gent.", []),
    ],
)
def test_plain_language(tool: Diagnostician, message: str, kinds: list[str]) -> None:
    """Three languages, also without capitals and commas; households count, others, play, denials and quotes do not."""
    assert sorted(each.kind for each in tool.reader.read(message).attributes) == sorted(kinds)


@pytest.mark.parametrize(
    ("messages", "standing"),
    [
        (["I'm a nurse.", "I'm no longer a nurse."], []),
        (["I live in Graz.", "I moved to Vienna."], ["vienna"]),
        (["I have a dog.", "I have two kids.", "I don't have a dog any more."], ["kids"]),
        (["I'm vegan.", "My boss is no longer vegan."], ["vegan"]),
        (["I have a dog.", "I have a dog."], ["dog"]),
        (["Ich wohne in Graz.", "Ich bin nach Wien gezogen."], ["wien", "gezogen"]),
        (["Soy vegana.", "Ya no soy vegana."], []),
    ],
)
def test_what_still_stands(tool: Diagnostician, messages: list[str], standing: list[str]) -> None:
    """A retraction takes back what it is about, and nothing else."""
    memory = Memory(tool.encoder)
    for message in messages:
        memory.add(message, tool.reader.read(message))
    assert [word for each in memory.standing for word in each.words] == standing


VEGAN, ILL = "I'm a vegan.", "I have diabetes."
DINNER, TIDES = "What should I cook for dinner?", "Explain how tides work."


@table_driven(
    ("said", "prompt", "answer", "wrong"),
    [
        (VEGAN, DINNER, "A lentil curry with rice.", set()),
        (VEGAN, DINNER, "As a vegan, you will like a lentil curry with rice.", set()),
        (VEGAN, DINNER, "Roast a chicken.", {"missed"}),
        (VEGAN, DINNER, "Since you're vegan, here is a treat: roast a chicken.", {"under_adapted"}),
        (VEGAN, DINNER, "A curry without chicken or butter, with rice.", set()),
        (VEGAN, TIDES, "The moon pulls the sea.", set()),
        (VEGAN, TIDES, "As you're vegan: the moon pulls the sea.", {"over_retrieved"}),
        (VEGAN, TIDES, "Since you're a dentist, I kept it short. The moon pulls the sea.", {"invented"}),
        ("My boss is a dentist.", TIDES, "As a dentist, you know that the moon pulls the sea.", {"invented"}),
        (VEGAN, TIDES, "As a first step, look at the moon. As a result, the sea rises.", set()),
        (ILL, TIDES, "Given your diabetes, be brief: the moon.", {"over_retrieved", "inappropriate"}),
        (ILL, "Write a letter to my landlord.", "I live with diabetes and need it warm.", {"inappropriate"}),
        ("I prefer short answers.", TIDES, "The moon pulls the sea.", set()),
        ("I prefer short answers.", TIDES, "The moon pulls the sea, as was said before. " * 60, {"missed"}),
    ],
)  # fmt: skip
def test_what_an_answer_makes_of_it(tool: Diagnostician, said: str, prompt: str, answer: str, wrong: set[str]) -> None:
    """An echo alone is not an adaptation; what is ruled out, beside the point, private or made up is a failure."""
    memory = Memory(tool.encoder)
    memory.add(said, tool.reader.read(said))
    assert {name for name, _, failed in tool.judged(memory, prompt, answer) if failed} == wrong


def line(*turns: str, **more: Any) -> str:
    """A conversation of user and assistant in turn."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return json.dumps({"messages": messages, **more}) + "\n"


def test_the_command(tmp_path: Path) -> None:
    """Rates, intervals and agreement with marks that can be counted by hand; people are apart."""
    history = tmp_path / "chats.jsonl"
    history.write_text(
        line(VEGAN, "Noted!", user="a")
        + line(DINNER, "Roast a chicken.", user="a", marks=["missed"])
        + line(DINNER, "Cook a lentil curry.", user="a", marks=[])
        + line(TIDES, "As you're vegan: the moon.", user="a", marks=["missed"])
        + line(DINNER, "Roast a chicken.", user="b", marks=[])
        + line(DINNER, "", user="b")
    )
    out = tmp_path / "out.json"
    run = CliRunner().invoke(app, ["personal", "diagnose", "--history", str(history), "--json", str(out)])
    assert run.exit_code == 0, run.output
    assert all(len(row) <= 80 for row in run.stdout.splitlines())
    found = json.loads(out.read_text())
    assert (found["people"], found["answers"], found["attributes"], found["relevant"]) == (2, 5, 1, 2)
    counts = {name: (each["failures"], each["cases"]) for name, each in found["rates"].items()}
    assert counts == {
        "missed": (1, 2),
        "under_adapted": (0, 2),
        "over_retrieved": (1, 1),
        "invented": (0, 5),
        "inappropriate": (0, 0),
    }
    assert (found["agreement"]["missed"]["agree"]["failures"], found["agreement"]["missed"]["answers"]) == (3, 4)
    assert found["agreement"]["missed"]["kappa"] == pytest.approx(0.5)
    assert found["agreement"]["invented"]["kappa"] is None
    assert "missed, conversation 2" in run.stdout


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"{", "line 1"),
        (b'{"messages": 3}', "line 1"),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}', "no answer"),
        (line("Hi", "Hello", marks=["boring"]).encode(), "unknown marks"),
        (b"", "no answer"),
    ],
)
def test_what_is_no_history(payload: bytes, message: str) -> None:
    """The line and the remedy are named."""
    with pytest.raises(InvalidRequest, match=message):
        parsed(payload)


def test_intervals_are_wilson_s() -> None:
    """As in Wilson (1927): 15 of 148 is 10.1%, from 6.2% to 16.0%."""
    found = rate(15, 148)
    assert (round(found.low, 3), round(found.high, 3)) == (0.062, 0.16)
    assert (rate(0, 0).rate, rate(7, 7).high) == (None, 1.0)


@pytest.mark.parametrize("piece", ["i have diabetes and ", " 'a", "«", "I x. ", "moved ", "“a", "\n"])
def test_long_messages_are_read_to_an_end(tool: Diagnostician, piece: str) -> None:
    """A megabyte of anything is read, and gives few attributes."""
    said = tool.reader.read(piece * (1_000_000 // len(piece)))
    assert len(said.attributes) < 300


def test_what_cannot_be_read_is_said(tool: Diagnostician) -> None:
    """Messages of other languages are counted and named; of German answers only naming is judged."""
    lines = line("Je suis végétarien et je vis à Lyon.", "Bien.") + line(
        "Ich bin Veganer.", "Aha.", "Was koche ich?", "Huhn."
    )
    found = tool.diagnose(parsed(lines.encode()))
    assert (found.messages, found.unread, found.languages) == (3, 1, {"German": 2, "French": 1})
    assert "1 message of 3 cannot be read" in found.notes[0]
    assert "3 answers of 3 not in English" in found.notes[1]
    assert (found.attributes, found.relevant, found.rates["missed"].cases) == (1, 1, 0)


class Judge:
    """A provider that replies with what a function says of a message."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply, self.calls = reply, list[Call]()

    async def complete(self, call: Call) -> Completion:
        self.calls.append(call)
        text = self.reply(call.messages[1]["content"].split("<message>\n")[1])
        return Completion(message={"role": "assistant", "content": text}, usage=Usage(prompt_tokens=9))

    async def aclose(self) -> None:
        pass


def asked(provider: Judge, **given: Any) -> AttributeJudge:
    entry = RewardModelConfig(
        name="j", kind="judge", model="m", provider="p", principles={"*": ("x",)}, send_text=True, **given
    )
    return AttributeJudge(entry, lambda: provider)


def said(*found: tuple[str, str, bool, bool]) -> str:
    keys = ("quote", "kind", "sensitive", "ended")
    return json.dumps({"attributes": [dict(zip(keys, each, strict=True)) for each in found]})


def test_a_judge_reads_messages(tool: Diagnostician) -> None:
    """In any language; a quote that the message lacks, and a kind that there is not, are dropped."""
    french, over = "Je suis diabétique, et je vis à Lyon.", "Je ne suis plus diabétique."

    def reply(message: str) -> str:
        if over in message:
            return said((over, "health", True, True))
        return said(
            (french[:18], "health", True, False),
            ("je vis à Nice", "home", False, False),
            ("Lyon", "star", False, False),
        )

    provider = Judge(reply)
    judged = Diagnostician(tool.encoder, asked(provider))
    first = judged.diagnose(parsed(line(french, "Bien.").encode()))
    assert (first.attributes, first.sensitive, first.judged, first.unread) == (1, 1, 1, 0)
    both = judged.diagnose(parsed(line(french, "Bien.", over, "Bien.").encode()))
    assert (both.attributes, both.retracted, len(provider.calls)) == (0, 1, 3)


@pytest.mark.parametrize(
    ("reply", "given", "why", "calls"),
    [
        ("no JSON", {}, "DecodeError", 1),
        (
            said((VEGAN, "diet", False, False)),
            {"usd_per_day": 1e-9, "prices": {"input": 1, "output": 1}},
            "usd_per_day",
            0,
        ),
    ],
)
def test_rules_read_what_a_judge_does_not(
    tool: Diagnostician, reply: str, given: dict[str, Any], why: str, calls: int
) -> None:
    """A reply that cannot be read, or a day's money that is spent: rules read, and a sentence says so."""
    provider = Judge(lambda _message: reply)
    found = Diagnostician(tool.encoder, asked(provider, **given)).diagnose(parsed(line(VEGAN, "Noted!").encode()))
    assert (found.attributes, found.judged, len(provider.calls)) == (1, 0, calls)
    assert why in found.notes[0]


def test_long_messages_are_not_sent() -> None:
    """Neither are more than two hundred."""
    provider = Judge(lambda _message: said())
    asked(provider).read(["x " * 5_000, *(f"Message {n}." for n in range(300)), " "])
    assert len(provider.calls) == 200


@pytest.mark.parametrize(("file", "recall", "precision"), [(FRESH, 0.71, 0.69), (ASIDE, 0.53, 0.6)])
def test_histories_in_plain_language(file: Path, recall: float, precision: float) -> None:
    """The figures of the results page hold, of histories that the classifier was not trained on."""
    found = figures(file)["all"]
    assert found["recall"]["share"] >= recall
    assert found["precision"]["share"] >= precision


def test_planted_failures_are_found() -> None:
    """On held-out wordings: few irrelevant attributes are retrieved, few are invented, and no echo counts."""
    found = measured("held-out")
    assert found["irrelevant pairs judged relevant"] <= 0.1
    assert found["found attributes that were not stated or hold no more"] <= 0.02
    assert found["of them only for the echo"] == 0
    assert found["echoes"] >= 20
    assert set(found["stages"]) == {"attributes", "relevance", *FAILURES}
    assert found["stages"]["attributes"]["recall"] >= 0.9


def test_held_out_wordings_are_held_out() -> None:
    """No statement or prompt of the last quarter is in the corpus, or in the others."""
    known = {text for kind in corpus().kinds.values() for text in kind.statements}
    known |= {text for prompts in corpus().domains.values() for text in prompts}
    plain = {text.lower().strip(" .?") for text in known}
    for row, other in zip(scenarios("held-out")[1], scenarios("tuned")[1], strict=True):
        for text in (*row["statements"], *row["prompts"]):
            assert text.lower().strip(" .?") not in plain
            assert text not in (*other["statements"], *other["prompts"])


@pytest.mark.reproduction
def test_the_classifier_is_made_by_the_command() -> None:
    """The committed messages give the weights that ship, to one unit of rounding."""
    shipped = np.load(Path(clauses.__file__).with_name("clauses.npy"), allow_pickle=False)
    made = rounded(fit(list(marked(messages()))))
    np.testing.assert_allclose(made.astype(int), shipped.astype(int), atol=1)
