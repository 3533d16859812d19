"""What moved a decision, in sentences."""

from __future__ import annotations

from fitrouter.routing.explanation import Account, Contrast, Explanation, Feature

FEATURES: dict[str, tuple[str, str]] = {
    "g": ("is better by the general measure of quality", "is worse by the general measure of quality"),
    "length": ("writes longer", "writes shorter"),
    "structure": ("uses more lists", "uses fewer lists"),
    "emphasis": ("sets more headings and bold type", "sets fewer headings and less bold type"),
    "hedging": ("hedges more", "hedges less"),
    "warmth": ("is warmer", "is cooler"),
    "formality": ("is more formal", "is more casual"),
    "word_length": ("uses longer words", "uses shorter words"),
    "code": ("shows more code", "shows less code"),
    "digits": ("gives more figures", "gives fewer figures"),
    "examples": ("gives more examples", "gives fewer examples"),
    "sentence_length": ("writes longer sentences", "writes shorter sentences"),
    "vocabulary": ("has a richer vocabulary", "has a plainer vocabulary"),
    "questions": ("asks more back", "asks less back"),
    "refusal": ("refuses more", "refuses less"),
    "assertiveness": ("sounds more certain", "sounds less certain"),
    "flattery": ("flatters more", "flatters less"),
    "evidence": ("cites more evidence", "cites less evidence"),
    "concreteness": ("is more concrete", "is less concrete"),
    "personal": ("speaks more of itself", "speaks less of itself"),
    "autonomy_protection": ("lets people decide more", "protects people more"),
    "caution": ("is more cautious", "is bolder"),
    "refusal_directness": ("says no more plainly", "says no more gently"),
    "individual_collective": ("stands more for one's own aims", "stands more for what is shared"),
    "tradition_change": ("leans more to what has proved itself", "leans more to what is new"),
    "evidence_experience": ("trusts studies more", "trusts experience more"),
    "tool_calls": ("calls more tools", "calls fewer tools"),
    "tool_arguments_fit": ("fits its tool arguments better", "fits its tool arguments worse"),
    "tool_repeats": ("repeats more tool calls", "repeats fewer tool calls"),
}
"""Response feature → what a model does that has more of it, and one that has less."""

_TERMS = {
    "fit": ("is expected to fit worse", "is expected to fit better"),
    "correction": (
        "gains less on such prompts from what labels say beyond the text",
        "gains more on such prompts from what labels say beyond the text",
    ),
    "role_offset": ("is liked less in this role whatever it writes", "is liked more in this role whatever it writes"),
    "user_offset": ("is liked less by this user whatever it writes", "is liked more by this user whatever it writes"),
    "since": ("was thought less of then than now", "was thought more of then than now"),
    "cost": ("costs more", "costs less"),
    "budget": ("takes more of a short budget", "takes less of a short budget"),
    "latency": ("is slower", "is faster"),
    "availability": ("answers less reliably", "answers more reliably"),
    "switch": ("would make the session change its model", "would leave the session where it is"),
}
"""Term of a utility → what is said of a rival that has less of it, and of one that has more."""

_OTHER = "writes differently in ways without a name"
_WHO = ("people like", "people in this role like", "this user likes")
_EXACT = 1e-9
_REASONS = 3
_SLIGHT = 0.15
"""A reason is named from this share of the largest one on."""


def number(value: float) -> str:
    """Two digits that mean something.

    >>> number(-0.0512), number(0.8249), number(0.0125), number(0.0)
    ('−0.05', '0.82', '0.013', '0')
    """
    text = f"{value:.2f}" if abs(value) >= 0.05 else f"{value:.2g}"
    if "e" in text or not float(text):
        text = "0"
    return text.replace("-", "−")


def tell(found: Explanation) -> tuple[str, ...]:
    """The sentences of an explanation, the most important first."""
    accounts = {account.arm: account for account in found.models}
    said = [_how(found, accounts.get(found.chosen))]
    if found.contrast is not None:
        said.append(_contrast(found.contrast))
    said += _people(accounts.get(found.chosen))
    said += _exploration(found)
    said += _objective(found)
    said += [f"{arm} could not be asked: {reason}." for arm, reason in found.excluded]
    said += _candidates(found, accounts.get(found.chosen))
    if found.served_by not in {None, found.chosen}:
        said.append(f"{found.chosen} gave no answer; {found.served_by} took its place.")
    if found.split:
        since = [abs(term.value) for account in found.models for term in account.terms if term.name == "since"]
        exact = max(since, default=1.0) < _EXACT
        said.append(
            f"The parts of the fit are {'exactly those that decided' if exact else 'those of what is known now'}."
        )
    return tuple(said)


def _how(found: Explanation, chosen: Account | None) -> str:
    arm = found.chosen
    if found.mode == "pinned":
        return f"{arm} was named by the request; nothing was drawn."
    if found.mode == "forced":
        return f"{arm} was forced; nothing was drawn."
    if found.mode == "sticky":
        drew = "" if found.drew is None else f", which fell on it with probability {number(found.drew)}"
        return (
            f"{arm} stayed from earlier in the session; nothing was drawn. It lives on the draw {found.draw_id}{drew}."
        )
    if found.mode == "shadow":
        how = f"{arm} is the default model, which takes {number(1.0 - found.share)} of the traffic"
    elif found.mode == "uniform":
        how = f"{arm} was drawn from the slice that is spread evenly"
    else:
        how = f"{arm} was drawn"
    how = f"The session was drawn again ({found.redraw}): {how}" if found.redraw else how
    how += f" with probability {number(found.propensity)}"
    if chosen is None or chosen.utility is None:
        fits = "" if chosen is None or chosen.fit is None else f": its expected fit is {_pm(chosen.fit, chosen.sd)}"
        missing = f"; {found.missing}" if found.missing else ""
        return f"{how}{fits}{missing}."
    if not found.explores:
        return f"{how}: best expected utility, {_pm(chosen.utility, chosen.sd)}."
    likelier = next(account for account in found.models if account.arm == found.leader)
    odds = "" if likelier.probability is None else f", which had probability {number(likelier.probability)}"
    why = "" if found.mode == "shadow" else ": this draw explores"
    return f"{how}, at an expected utility of {_pm(chosen.utility, chosen.sd)}; the best is {found.leader}{odds}{why}."


def _pm(value: float, sd: float | None) -> str:
    return number(value) if sd is None else f"{number(value)} (± {number(sd)})"


def _contrast(contrast: Contrast) -> str:
    where = "behind" if contrast.gap < 0 else "ahead"
    told = f"{contrast.rival} is {number(abs(contrast.gap))} {where}"
    reasons = sorted(_reasons(contrast), key=lambda reason: -abs(reason[0]))
    least = _SLIGHT * abs(reasons[0][0]) if reasons else 0.0
    reasons = [reason for reason in reasons if abs(reason[0]) > max(least, 5e-4)]
    sign = -1.0 if contrast.gap < 0 else 1.0
    because = [text for value, text in reasons if value * sign > 0][:_REASONS]
    although = [text for value, text in reasons if value * sign < 0][:_REASONS]
    if because:
        told += f" because it {_listed(because)}"
    if although:
        told += f", although it {_listed(although)}"
    return f"{told}."


def _reasons(contrast: Contrast) -> list[tuple[float, str]]:
    """(what it adds to the gap, what is said of the rival), in no order."""
    found = []
    values = {term.name: term.value for term in contrast.terms}
    tastes = sum(values.pop(name, 0.0) for name in ("population", "role_taste", "user_taste"))
    for feature in contrast.features:
        if feature.name in FEATURES:
            found.append((feature.value, f"{_feature(feature)} ({_signed(feature.value)})"))
            tastes -= feature.value
    found.append((tastes, f"{_OTHER} ({_signed(tastes)})"))
    for name, value in values.items():
        found.append((value, f"{_TERMS[name][value > 0]} ({_signed(value)})"))
    return found


def _feature(feature: Feature) -> str:
    """What the rival does, and who likes that."""
    parts = (feature.population, feature.role, feature.user)
    who = _WHO[max(range(3), key=lambda i: abs(parts[i]))]
    does = FEATURES[feature.name][feature.difference < 0]
    return f"{does} than {who}" if feature.value < 0 else f"{does}, which {who}"


def _signed(value: float) -> str:
    text = number(value)
    return text if value < 0 or text == "0" else f"+{text}"


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _people(chosen: Account | None) -> list[str]:
    """What is known of the user and the role changed."""
    if chosen is None or chosen.probability is None:
        return []
    if chosen.personal_probability is not None:
        off = "What is known of the user and the role does not count here, by the settings or since it did not help"
        return [f"{off}; with it the probability would have been {number(chosen.personal_probability)}."]
    if chosen.blind_probability is None:
        return []
    if abs(chosen.probability - chosen.blind_probability) < 0.005:
        return ["What is known of the user and the role changed nothing to speak of."]
    blind = number(chosen.blind_probability)
    return [f"Without what is known of the user and the role the probability would have been {blind}."]


def _exploration(found: Explanation) -> list[str]:
    said = []
    if found.floor_each > 0.0:
        said.append(f"{number(found.floor_each)} of the traffic goes to every model for exploration.")
    if new := [account.arm for account in found.models if account.new]:
        said.append(f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new and asked more often at first.")
    if found.share < 1.0 and found.mode != "shadow":
        said.append(f"Routing has {number(found.share)} of the traffic; the default model takes the rest.")
    return said


def _objective(found: Explanation) -> list[str]:
    if not found.budget_weight:
        return []
    cent = 0.01 * found.budget_weight / found.budget_unit_usd if found.budget_unit_usd else 0.0
    return [f"The budget is short: a cent costs {number(cent)} of fit on top of its usual price."]


def _candidates(found: Explanation, chosen: Account | None) -> list[str]:
    if chosen is None:
        return []
    return [
        f"The candidate {name!r} would have asked {found.chosen} with probability {number(p)}."
        for name, p in chosen.candidates.items()
    ]
