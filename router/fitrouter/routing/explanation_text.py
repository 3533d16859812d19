"""Sentences for an explained decision."""

from __future__ import annotations

from fitrouter.posterior.arms import ArmParams
from fitrouter.routing.explanation import Account, Contrast, Explanation, Feature
from fitrouter.routing.tiers import QUALITY
from fitrouter.types import FULL_SHARE, UNPRICED

FEATURES: dict[str, tuple[str, str]] = {
    "g": ("has higher general quality", "has lower general quality"),
    "length": ("writes longer", "writes shorter"),
    "structure": ("uses more lists", "uses fewer lists"),
    "emphasis": ("uses more headings and bold type", "uses fewer headings and less bold type"),
    "hedging": ("hedges more", "hedges less"),
    "warmth": ("is warmer in tone", "is cooler in tone"),
    "formality": ("is more formal", "is more casual"),
    "word_length": ("uses longer words", "uses shorter words"),
    "code": ("includes more code", "includes less code"),
    "digits": ("includes more numbers", "includes fewer numbers"),
    "examples": ("gives more examples", "gives fewer examples"),
    "sentence_length": ("writes longer sentences", "writes shorter sentences"),
    "vocabulary": ("has a richer vocabulary", "has a plainer vocabulary"),
    "questions": ("asks more questions", "asks fewer questions"),
    "refusal": ("refuses more", "refuses less"),
    "assertiveness": ("sounds more certain", "sounds less certain"),
    "flattery": ("flatters more", "flatters less"),
    "evidence": ("cites more evidence", "cites less evidence"),
    "concreteness": ("is more concrete", "is less concrete"),
    "personal": ("refers to itself more", "refers to itself less"),
    "autonomy_protection": ("leaves more decisions to the user", "protects the user more"),
    "caution": ("is more cautious", "is bolder"),
    "refusal_directness": ("refuses more directly", "refuses more gently"),
    "individual_collective": ("favours individual goals more", "favours shared goals more"),
    "tradition_change": ("favours the established more", "favours the new more"),
    "evidence_experience": ("relies more on studies", "relies more on experience"),
    "tool_calls": ("calls more tools", "calls fewer tools"),
    "tool_arguments_fit": ("writes more valid tool arguments", "writes fewer valid tool arguments"),
    "tool_repeats": ("repeats more tool calls", "repeats fewer tool calls"),
}
"""Response feature → phrases for a model with more of it and for one with less."""
LENGTH_FIT = "length_fit"
"""Feature of explanations: the rating that everybody's taste for length and `HINGES` gives."""
PHRASES = FEATURES | {LENGTH_FIT: ("has a length that people like more", "has a length that people like less")}
"""`FEATURES`, and what explanations have besides."""

_TERMS = {
    "fit": ("has a lower predicted rating", "has a higher predicted rating"),
    "model": (
        "is rated lower on similar prompts than its text suggests",
        "is rated higher on similar prompts than its text suggests",
    ),
    "role": ("is rated lower in this role, whatever it writes", "is rated higher in this role, whatever it writes"),
    "offset": ("is rated lower by this user, whatever it writes", "is rated higher by this user, whatever it writes"),
    "price": ("costs more", "costs less"),
    "latency": ("is slower", "is faster"),
    "availability": ("fails more often", "fails less often"),
}
"""Term of a utility → phrases for a rival whose term is smaller and for one whose term is larger."""

_OTHER = "differs in other properties of its text"
_UNTRIED = ArmParams().answers / (ArmParams().answers + ArmParams().fails)
"""Availability of a model without calls, to which every model's returns with time."""
_WHO = ("people like", "people in this role like", "this user likes")
_ROUNDING = 1e-6
_REASONS = 3
_SHOWN = 4
"""Probabilities that a sentence lists."""
_SLIGHT = 0.15
"""Reasons smaller than this share of the largest are left out."""


def number(value: float) -> str:
    """Format a number with two significant digits.

    >>> number(-0.0512), number(0.8249), number(0.0125), number(0.0)
    ('−0.05', '0.82', '0.013', '0')
    """
    text = f"{value:.2f}" if abs(value) >= 0.05 else f"{value:.2g}"
    if "e" in text or not float(text):
        text = "0"
    return text.replace("-", "−")


def odds(probability: float) -> str:
    """Format the probability of a draw, which is known: two significant digits, and 0% and 100% only if it is that.

    >>> odds(0.684), odds(0.0172), odds(1.0), odds(0.9993), odds(0.00001), odds(0.0)
    ('68%', '1.7%', '100%', 'over 99.9%', 'under 0.1%', '0%')
    """
    if 0.0 < probability < 0.001:
        return "under 0.1%"
    if 0.999 < probability < 1.0:
        return "over 99.9%"
    digits = 1 if 0.0 < probability < 0.0995 or 0.99 < probability < 1.0 else 0
    return f"{100.0 * probability:.{digits}f}%"


def sentences_of(found: Explanation) -> tuple[str, ...]:
    """Write the sentences of an explanation, the most important first."""
    accounts = {account.arm: account for account in found.models}
    said = [_how(found, accounts.get(found.chosen))]
    if found.contrast is not None:
        said.append(_contrast(found.contrast, accounts))
    said += _shadow(found, accounts)
    said += _evidence(found, accounts)
    said += _people(accounts.get(found.chosen))
    if found.own is not None:
        said.append(
            f"Personal ratings count {found.own:.0%} here, everybody's the rest, by how well each predicted the "
            "earlier ratings."
        )
    said += _exploration(found)
    said += _objective(found)
    if unpriced := [account.arm for account in found.models if account.unpriced]:
        said.append(f"No price is configured for {_listed(unpriced)}. {UNPRICED}")
    said += [f"{arm} was excluded: {reason}." for arm, reason in found.excluded]
    said += _candidates(found, accounts.get(found.chosen))
    if found.served_by not in {None, found.chosen}:
        said.append(f"{found.chosen} did not answer; {found.served_by} answered instead.")
    if found.split:
        when = "with the estimates of now" if found.now else "exactly as at the time of the decision"
        said.append(f"The predicted rating is split into terms {when}.")
    return tuple(said)


def changes_of(then: Explanation, now: Explanation) -> list[str]:
    """Write sentences on what has changed in the predicted ratings of a decision."""
    if not now.split:
        return []
    before = {account.arm: account for account in then.models}
    moved = []
    for account in now.models:
        was, is_ = before[account.arm].rating, account.rating
        if was is not None and is_ is not None and number(was) != number(is_):
            moved.append(f"{account.arm} from {number(was)} to {number(is_)}")
    said = [f"Since then the predicted rating went: {_listed(moved)}." if moved else "The estimates have not changed."]
    if now.leader is not None and then.leader is not None and now.leader != then.leader:
        said.append(f"By the estimates of now {now.leader} would have the highest expected utility.")
    return said


def _shadow(found: Explanation, accounts: dict[str, Account]) -> list[str]:
    """Say which model the policy would have drawn for a request that the default model took."""
    if found.would is None:
        return []
    pmf = {arm: account.candidates[FULL_SHARE] for arm, account in accounts.items()}
    likeliest = sorted(pmf, key=lambda arm: (arm != found.would, -pmf[arm]))
    listed = _listed([f"{arm} {odds(pmf[arm])}" for arm in likeliest[:_SHOWN]])
    more = f", {len(pmf) - _SHOWN} others less" if len(pmf) > _SHOWN else ""
    return [f"The policy would have drawn {found.would} (probabilities: {listed}{more})."]


def _evidence(found: Explanation, accounts: dict[str, Account]) -> list[str]:
    """Report the user's feedback on answers of the chosen model and its rival."""
    said: list[str] = []
    for arm in dict.fromkeys((found.chosen, found.contrast.rival if found.contrast else found.chosen)):
        account = accounts.get(arm)
        if account is not None and account.votes:
            down = account.votes_down > account.votes_up
            count, where = (account.votes_down, "down") if down else (account.votes_up, "up")
            answers = f"{account.votes} answer{'s' * (account.votes > 1)}"
            said.append(f"{'' if said else 'rated '}{count} of {answers} of {arm} {where}")
    return [f"This user had {_listed(said)}."] if said else []


def _how(found: Explanation, chosen: Account | None) -> str:
    arm = found.chosen
    if found.mode == "pinned":
        return f"The request named {arm}; nothing was drawn."
    if found.mode == "forced":
        return f"An operator forced {arm}; nothing was drawn."
    if found.mode == "sticky":
        drew = "" if found.drew is None else f", which chose it with probability {odds(found.drew)}"
        return f"The session stays on {arm}; nothing was drawn. The model comes from draw {found.draw_id}{drew}."
    if found.mode == "shadow":
        how = f"{arm} is the default model, which receives a share of {odds(1.0 - found.share)} of the traffic"
    elif found.mode == "uniform":
        how = f"{arm} was drawn from the uniform slice"
    else:
        how = f"{arm} was drawn"
    how = f"The session's model was redrawn ({found.redraw}): {how}" if found.redraw else how
    how += f" with probability {odds(found.propensity)}"
    if chosen is None or chosen.utility is None:
        fits = "" if chosen is None or chosen.fit is None else f"; its predicted rating is {_pm(chosen.fit, chosen.sd)}"
        missing = f"; {found.missing}" if found.missing else ""
        return f"{how}{fits}{missing}."
    if not found.explores:
        return f"{how}. It has the highest expected utility, {_pm(chosen.utility, chosen.sd)}."
    likelier = next(account for account in found.models if account.arm == found.leader)
    likely = "" if likelier.probability is None else f" with probability {odds(likelier.probability)}"
    why = "" if found.mode == "shadow" else ". This draw explores"
    utility = _pm(chosen.utility, chosen.sd)
    return f"{how}; its expected utility is {utility}. The highest is that of {found.leader}{likely}{why}."


def _pm(value: float, sd: float | None) -> str:
    return number(value) if sd is None else f"{number(value)} (± {number(sd)})"


def _contrast(contrast: Contrast, accounts: dict[str, Account]) -> str:
    apart = number(abs(contrast.gap))
    text = f"{contrast.rival} is {apart} {'behind' if contrast.gap < 0 else 'ahead'}"
    reasons = sorted(_reasons(contrast, accounts), key=lambda reason: -abs(reason[0]))
    least = _SLIGHT * abs(reasons[0][0]) if reasons else 0.0
    reasons = [reason for reason in reasons if abs(reason[0]) > max(least, 5e-4)]
    if apart == "0":
        text = f"{contrast.rival} has the same expected utility to four decimals"
        alike = [phrase for _, phrase in reasons][: 2 * _REASONS]
        return f"{text}, although it {_listed(alike)}." if alike else f"{text}."
    sign = -1.0 if contrast.gap < 0 else 1.0
    because = [phrase for value, phrase in reasons if value * sign > 0][:_REASONS]
    although = [phrase for value, phrase in reasons if value * sign < 0][:_REASONS]
    if because:
        text += f" because it {_listed(because)}"
    if although:
        text += f", although it {_listed(although)}"
    return f"{text}."


def _reasons(contrast: Contrast, accounts: dict[str, Account]) -> list[tuple[float, str]]:
    """Return (contribution to the gap, phrase about the rival), unordered; a prior never reads like an observation."""
    found = []
    values = {term.name: term.value for term in contrast.terms}
    chosen, rival = accounts[contrast.arm], accounts[contrast.rival]
    if chosen.answers == 0 or rival.answers == 0:
        assumed = sum(values.pop(name) for name in tuple(values) if name not in {"fit", "price"})
        untried = f"has answered before, while the rating of {contrast.arm} is assumed"
        if rival.answers == 0:
            untried = "has not answered yet, so that its rating is assumed"
        found.append((assumed, f"{untried} ({_signed(assumed)})"))
        return found + [
            (value, f"{_phrase(name, value > 0, chosen, rival)} ({_signed(value)})") for name, value in values.items()
        ]
    tastes = sum(values.pop(name, 0.0) for name in ("text", "style"))
    for feature in contrast.features:
        tastes += feature.role
        values["role"] -= feature.role
        if feature.name in PHRASES:
            found.append((feature.value, f"{_feature(feature)} ({_signed(feature.value)})"))
            tastes -= feature.value
    found.append((tastes, f"{_OTHER} ({_signed(tastes)})"))
    for name, value in values.items():
        found.append((value, f"{_phrase(name, value > 0, chosen, rival)} ({_signed(value)})"))
    return found


def _phrase(name: str, more: bool, chosen: Account, rival: Account) -> str:
    """Word one term as a phrase about the rival, by whose term is larger and by what was observed of each."""
    worse = chosen if more else rival
    if name == "availability" and (worse.availability or 0.0) >= _UNTRIED - _ROUNDING:
        amount = "more" if more else "less"
        return f"was called {amount} lately, so that its answer is {amount} certain"
    if name == "price" and chosen.switch != rival.switch:
        return f"costs {'less' if more else 'more'}, counting a switch of the session's model"
    if name == "offset" and not rival.votes and chosen.votes:
        return f"has no ratings by this user, who likes {chosen.arm} {'less' if more else 'more'}, whatever it writes"
    if name == "model" and rival.labels == 0 and chosen.labels:
        level = "lower" if more else "higher"
        return f"has no ratings, while {chosen.arm} is rated {level} on similar prompts than its text suggests"
    return _TERMS[name][more]


def _feature(feature: Feature) -> str:
    """Word one feature as a phrase: what the rival does, and who likes it."""
    parts = (feature.population, feature.role, feature.user)
    who = _WHO[max(range(3), key=lambda i: abs(parts[i]))]
    does = PHRASES[feature.name][feature.difference < 0]
    if feature.name == LENGTH_FIT:
        return does
    return f"{does} than {who}" if feature.value < 0 else f"{does}, which {who}"


def _signed(value: float) -> str:
    text = number(value)
    return text if value < 0 or text == "0" else f"+{text}"


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _people(chosen: Account | None) -> list[str]:
    """Describe the effect of personalisation on the chosen model."""
    if chosen is None or chosen.probability is None:
        return []
    if chosen.personal_probability is not None:
        off = "Personalisation is off here, by a setting or because it did not help"
        return [f"{off}; with it the probability would have been {odds(chosen.personal_probability)}."]
    if chosen.blind_probability is None:
        return []
    if abs(chosen.probability - chosen.blind_probability) < 0.005:
        return ["Personalisation did not change this choice."]
    blind = odds(chosen.blind_probability)
    return [f"Without personalisation the probability would have been {blind}."]


def _exploration(found: Explanation) -> list[str]:
    said = []
    if found.floor_each > 0.0:
        said.append(f"Every model keeps a probability of at least {odds(found.floor_each)} for exploration.")
    if new := [account.arm for account in found.models if account.new]:
        said.append(f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new and tried more often at first.")
    if found.share < 1.0 and found.mode != "shadow":
        said.append(
            f"The policy routes a share of {odds(found.share)} of the traffic; the default model receives the rest."
        )
    return said


def _objective(found: Explanation) -> list[str]:
    said = []
    if found.tier:
        cent = 0.01 * found.cost_weight / found.cost_unit_usd if found.cost_unit_usd else 0.0
        way = "less" if found.tier == QUALITY else "more"
        said.append(
            f"The request asked for the tier {found.tier}, in which price counts {way}: each cent costs "
            f"{number(cent)} of predicted rating."
        )
    if not found.budget_weight:
        return said
    cent = 0.01 * found.budget_weight / found.budget_unit_usd if found.budget_unit_usd else 0.0
    beside = f"each cent costs {number(cent)} of predicted rating on top of the usual cost weight"
    return [*said, f"The budget is tight: {beside}."]


def _candidates(found: Explanation, chosen: Account | None) -> list[str]:
    if chosen is None:
        return []
    return [
        f"The candidate policy {name!r} would have chosen {found.chosen} with probability {odds(p)}."
        for name, p in chosen.candidates.items()
        if name != FULL_SHARE
    ]
