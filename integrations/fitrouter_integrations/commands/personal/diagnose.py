"""`fitrouter personal diagnose`: where a chat system's personalisation fails, from recorded conversations."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from fitrouter.config import load_config
from fitrouter.context.encoders import get_encoder
from fitrouter.stores.figures import many
from fitrouter_evaluators.personal.diagnose import AttributeJudge, Diagnosis, Diagnostician, Rate, parsed
from fitrouter_integrations.commands._files import read_file, write_json
from fitrouter_integrations.commands._options import DEFAULT, ConfigFile, JsonFile
from fitrouter_integrations.commands._text import printable

_EXAMPLES = 2


def command(
    history: Annotated[Path, typer.Option(help="JSON lines with OpenAI messages, and optionally user and marks.")],
    out: JsonFile = None,
    encoder: Annotated[str, typer.Option(help="Text encoder; constants were chosen with static.")] = "static",
    judge: Annotated[bool, typer.Option(help="Let a judge of the configuration, if it has one, read messages.")] = True,
    config: ConfigFile = DEFAULT,
) -> None:
    """Diagnose personalisation: attributes that people stated, their relevance to prompts, their use in answers.

    Messages are read in English, German and Spanish. Nothing is stored, and nothing sent but to a configured judge.
    """
    asked = AttributeJudge.of(load_config(config)) if judge and config.exists() else None
    found = Diagnostician(get_encoder(encoder), asked).diagnose(parsed(read_file(history, "--history")))
    typer.echo("\n".join(text(found)))
    write_json(found, out)


def text(found: Diagnosis) -> list[str]:
    """The lines of a diagnosis, at most 80 columns wide."""
    lines = [
        f"{many(found.people, 'person', 'people')}, {many(found.conversations, 'conversation')}, "
        f"{many(found.answers, 'answer')}",
        f"{found.attributes} lasting attributes ({found.sensitive} sensitive), {found.retracted} retracted;"
        f" {found.relevant} relevant to an answer",
        f"messages: {_languages(found)}",
        *(line for note in found.notes for line in wrap(note[0].upper() + note[1:] + ".", 80)),
        "",
        f"{'failure':<16} {'rate':>6} {'95% interval':>16} {'of':>6}   {'agrees with people (κ)':<24}",
    ]
    for name, rate in found.rates.items():
        agreement, agrees = found.agreement.get(name), ""
        if agreement is not None:
            kappa = "" if agreement.kappa is None else f" ({agreement.kappa:.2f})"
            agrees = f"{_percent(agreement.agree)}{kappa} of {agreement.answers}"
        interval = "" if rate.low is None else f"{rate.low:.1%} to {rate.high:.1%}"
        lines.append(f"{name:<16} {_percent(rate):>6} {interval:>16} {rate.cases:>6}   {agrees:<24}".rstrip())
    lines.append("")
    for name in found.rates:
        for each in [each for each in found.failures if each.name == name][:_EXAMPLES]:
            said = f"“{each.attribute}” " if each.attribute else ""
            lines.append(f"{name}, conversation {each.conversation}: {said}at “{' '.join(each.prompt.split())}”")
    return [printable(line)[:80].rstrip() for line in lines]


def _languages(found: Diagnosis) -> str:
    listed = ", ".join(f"{n} in {name}" for name, n in found.languages.items())
    read = "" if not found.judged else f"; {found.judged} read by a judge"
    return f"{found.messages} ({listed}){read}"


def _percent(rate: Rate) -> str:
    return "" if rate.rate is None else f"{rate.rate:.1%}"
