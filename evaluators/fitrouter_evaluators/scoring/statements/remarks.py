"""Remarks about the previous answer in a message: "shorter, please", "that's not what I asked", "perfect, thanks".

A remark wants the answer moved along named dimensions, or judges it as a whole. The grammar is closed: a clause is a
remark only if all of it matches a form, such as *too* ADJECTIVE or *no* NOUN, so that a new task with the same words
("write a shorter poem", "what is a short sale?") says nothing. A message is read sentence by sentence from its
beginning, up to the first sentence that is no remark. English only; forms are matched in linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from fitrouter_evaluators.scoring.text.lexicons import phrases

LONGEST = 400
"""Maximum characters of a message that is read as a remark."""


class Phrase(NamedTuple):
    """Effect of a phrase about an answer: moved dimensions, or praise or rejection of the whole."""

    moved: dict[str, float]
    """Dimension → −1 (less of it was wanted) … 1 (more)."""
    y: float | None = None
    """1 for praise, 0 for a rejection of the whole answer."""


_NOTHING = Phrase({})

_ADJECTIVES: dict[str, tuple[str, float]] = {
    word: (dimension, sign)
    for dimension, more, less in (
        (
            "length",
            "long, wordy, verbose, lengthy, long-winded, rambling, detailed, thorough, in-depth, comprehensive",
            "short, brief, concise, terse, succinct, compact, curt",
        ),
        ("concreteness", "specific, concrete", "vague, abstract, generic, general"),
        ("warmth", "warm, friendly, chummy, kind", "cold, dry, impersonal, unfriendly, distant"),
        ("formality", "formal, stiff, stilted, professional", "informal, casual, relaxed"),
        ("word_length", "complicated, complex, technical, academic", "simple, plain"),
        ("hedging", "evasive, wishy-washy, cautious, careful", "direct, straightforward, decisive"),
        ("assertiveness", "assertive, confident, pushy, cocksure, arrogant", "modest, humble"),
        ("flattery", "flattering, sycophantic, gushing", ""),
        ("refusal", "apologetic", ""),
        ("structure", "structured", ""),
    )
    for text, sign in ((more, 1.0), (less, -1.0))
    for word in phrases(text)
}
_COMPARATIVES = {
    word: word.removesuffix("er").removesuffix("i") + "y" * word.endswith("ier")
    for word in phrases("shorter, longer, terser, warmer, friendlier, kinder, colder, plainer")
} | {"simpler": "simple", "briefer": "brief", "terser": "terse", "vaguer": "vague", "dryer": "dry"}
_FAULTS = phrases("""
    wordy, verbose, lengthy, long-winded, rambling, terse, curt, vague, generic, cold, impersonal, unfriendly, chummy
    stiff, stilted, complicated, evasive, wishy-washy, pushy, cocksure, arrogant, flattering, sycophantic, gushing
    apologetic
""")
"""Adjectives that complain without a "too"."""
_NOUNS: dict[str, tuple[str, float]] = {
    word: (dimension, 1.0)
    for dimension, text in (
        (
            "structure",
            "bullet points, bullet point, bullets, bullet lists, bullet list, bulleted lists, bulleted list, lists"
            ", list, numbered lists, numbered list, tables, table",
        ),
        ("emphasis", "headings, headers, headlines, bold, bold text, bold words, bold face, bolding"),
        ("code", "code, code blocks, code block, code example, code examples, code snippets, code snippet"),
        ("examples", "examples, example, concrete examples, concrete example"),
        ("evidence", "sources, source, citations, citation, references, evidence"),
        ("concreteness", "concrete numbers, specifics"),
        ("length", "detail, details, text, words, fluff, filler, waffle, padding, rambling"),
        ("word_length", "jargon, big words, long words, technical terms, complicated words"),
        ("sentence_length", "long sentences"),
        ("hedging", "hedging, hedges, caveats, disclaimers, maybes"),
        ("refusal", "apologies, apologizing, apologising, refusing"),
        ("flattery", "flattery, compliments, praise, flattering me, flattering"),
        ("questions", "questions, questions back, asking questions, asking me questions"),
    )
    for word in phrases(text)
}
_WISHES: dict[str, tuple[str, float]] = {
    **dict.fromkeys(phrases("shorten, condense, trim, tighten, cut down"), ("length", -1.0)),
    **dict.fromkeys(phrases("elaborate, elaborate on, expand, expand on, lengthen"), ("length", 1.0)),
    "simplify": ("word_length", -1.0),
}
_HABITS: dict[str, tuple[str, float]] = {
    **dict.fromkeys(phrases("hedge, hedging"), ("hedging", 1.0)),
    **dict.fromkeys(
        phrases("apologize, apologise, apologizing, apologising, say sorry, refuse, refusing"), ("refusal", 1.0)
    ),
    **dict.fromkeys(phrases("flatter, flattering me"), ("flattery", 1.0)),
    **dict.fromkeys(phrases("ramble, rambles, rambling"), ("length", 1.0)),
    "ask questions": ("questions", 1.0),
    "ask me questions": ("questions", 1.0),
}


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_IT = (
    r"(?:it|this|that|they|you|everything|(?:your|the|this|that) (?:last |whole )?(?:answers?|repl(?:y|ies)|responses?"
    r"|explanations?|text|tone|style|language))"
)
_IS = r"(?:is|was|are|were|sounds?|sounded|seems?|seemed|feels?|felt|looks?|reads?) "
_ASK = (
    r"(?:(?:can|could|would|will) you (?:please )?|please |(?:i|we) (?:would )?(?:need|want|wanted|like|prefer)"
    r"(?: to)? |try to |you (?:should|could) |next time )?"
)
_DEGREE = (
    r"(?:(?:a bit|a little|a lot|a tad|much|way|far|slightly|even|somewhat|really|very|still|just|quite|so) ){0,2}"
)
_ALL = r"(?:(?:all|any|the|these|those|your|so many|so much|that many|that much|of|some|a|an|a few|few|me|using) ){0,3}"
_ANSWER = r"(?: (?:one|answer|answers|version|tone|reply|response|text|way))?"
_ADJ, _CMP, _NOUN, _BAD = (_any(words) for words in (_ADJECTIVES, _COMPARATIVES, _NOUNS, _FAULTS))
_WISH, _HABIT = _any(_WISHES), _any(_HABITS)

_Forms: TypeAlias = "tuple[tuple[re.Pattern[str], float], ...]"


def _forms(*forms: tuple[str, float]) -> _Forms:
    return tuple((re.compile(form), sign) for form, sign in forms)


_FORMS = _forms(
    # "make it a bit shorter", "a friendlier tone", "shorter sentences", "use simpler words"
    (
        rf"{_ASK}(?:(?:make|keep|write|phrase|say|be|have|use|give me|sound|answer)(?: {_IT})? )?{_DEGREE}(?:an? )?"
        rf"(?P<cmp>{_CMP})(?P<what> (?:sentences|words|language|terms))?{_ANSWER}",
        1.0,
    ),
    (rf"{_ASK}(?:(?:make|be|sound|get)(?: {_IT})? )?{_DEGREE}more (?P<adj>{_ADJ}){_ANSWER}", 1.0),
    (
        rf"{_ASK}(?:(?:make|be|sound|get)(?: {_IT})? )?{_DEGREE}(?:less|not (?:so|that|as)) (?P<adj>{_ADJ}){_ANSWER}",
        -1.0,
    ),
    (rf"{_ASK}(?:be|keep (?:it|this|that|your answers?)|make (?:it|this|that)) {_DEGREE}(?P<adj>{_ADJ})", 1.0),
    # "that's way too long", "not detailed enough"
    (rf"(?:{_IT} {_IS})?{_DEGREE}(?:too|overly) (?P<adj>{_ADJ})(?: for me| for my taste| to read)?", -1.0),
    (rf"(?:{_IT} {_IS})?not (?:nearly )?(?P<adj>{_ADJ}) enough", 1.0),
    # "no bullet points", "stop using lists", "more examples", "as a table"
    (
        rf"{_ASK}(?:no more|no|without|fewer|less|{_DEGREE}too many|{_DEGREE}too much|stop(?: with)?|skip|drop|remove"
        rf"|avoid|do not use|get rid of|leave out|enough|omit|not so many|not so much) {_ALL}(?P<noun>{_NOUN})",
        -1.0,
    ),
    (
        rf"{_ASK}(?:(?:put|format|turn|write|make|show|give|present) {_IT} (?:in|as|into|with) |make (?:it|that) "
        rf"|more |add |use |include |give me |show me |with |in |as |go into |cite |provide |not enough |too few "
        rf"|too little )(?:more )?{_ALL}(?P<noun>{_NOUN})",
        1.0,
    ),
    (rf"{_ASK}more (?P<noun>{_NOUN})", 1.0),
    (r"(?:where are |what are )?(?:the |your )?(?P<noun>sources|source|citations|references)", 1.0),
    (rf"{_ASK}(?P<verb>{_WISH})(?: (?:it|this|that|on (?:it|this|that)))?", 1.0),
    (rf"{_ASK}(?:do not|stop) (?P<verb>{_HABIT})(?: me)?", -1.0),
    (r"stop rambling|tl;?dr|get to the point(?P<short>)", 1.0),
)
_OF_COMMENTS = _forms(
    (rf"(?:{_IT} {_IS})?not (?:very |really |particularly )?(?P<adj>{_ADJ})", 1.0),
    (rf"(?:{_IT} {_IS}|sounds |seems |feels )(?:a bit |a little |very |so |quite |rather )?(?P<adj>{_BAD})", -1.0),
    (
        rf"{_IT} (?:keeps? (?:on )?)?(?P<verb>rambles|ramble|rambling|apologi[sz]ing|hedging|flattering me|refusing)",
        -1.0,
    ),
    (rf"(?:there (?:is|are|were) )?no (?P<noun>{_NOUN}) (?:given|provided|included|mentioned|at all|there)", 1.0),
    (rf"(?:there (?:is|are|were) no|{_IT} (?:lacks?|needs?)|missing) {_ALL}(?P<noun>{_NOUN})", 1.0),
)
"""Forms that are remarks only where a text is known to be about the answer: "it is cold", "no sources given"."""
_PHYSICAL = frozenset(phrases("cold, dry, warm, kind, distant, relaxed, careful, cautious, modest, humble, plain"))
_MANNER = re.compile(r"\b(?:sound|read|seem|feel|felt|tone|please|be|answer|repl)")
"""Words beside which these adjectives are about an answer."""
_REPLY = re.compile(r"(?:no|no more|more|not enough|too few) questions")
"""To an offer or a quiz of the answer, rather than about it."""
_STATED = re.compile(r"\b(?:too|enough|overly)\b")
"""A complaint, which is none as a question."""
_KIND = r"(?:great|awesome|amazing|brilliant|wonderful|fantastic)"
_THANKED = re.compile(rf"(?:{_IT} (?:is|was) )?{_DEGREE}{_KIND}")
"""Praise of an answer only beside thanks: "that's great" may be about what was told."""
_PRAISE = re.compile(
    rf"{_IT} (?:is|was) {_DEGREE}(?:absolutely )?(?:perfect|excellent|helpful|spot on|exactly right)"
    r"|(?:(?:it|this|that) (?:is|was) )?exactly what i (?:needed|wanted|asked for|meant|was looking for)"
    r"|(?:it|this|that) (?:works|worked|helps|helped)(?: great| perfectly| well| now| a lot)?"
    r"|perfect|excellent|spot on|(?:very|super|really) helpful|well done|(?:i (?:really )?)?love (?:it|this)"
    r"|(?:great|good|excellent|perfect) (?:answer|job|work|explanation)"
)
_ANY = r"(?:it|this|that|the answer|your answer)"
_REJECTION = re.compile(
    rf"(?:{_ANY} (?:is|was) (?:just |still |completely |totally |simply |also )?)?not (?:at all )?(?:what i (?:asked"
    r"|meant|wanted|needed|said|was looking for|was asking)(?: for| about)?|helpful|useful|correct|right|working)"
    rf"|{_ANY} (?:is|was) (?:just |still |completely |totally |simply |also )?(?:wrong|incorrect|useless|nonsense"
    r"|unhelpful|rubbish|garbage|irrelevant)"
    rf"|{_ANY} (?:still )?(?:does|did) not (?:work|help|answer (?:my|the) question|make (?:any )?sense)"
    r"|you (?:still )?(?:did not|have not|do not) (?:(?:even )?answer(?:ed)? (?:my|the) question"
    r"|underst(?:and|ood) (?:me|my question|the question))"
    r"|you (?:misunderstood|misread|ignored|missed|got)(?: me| my question| the question| the point"
    r"| (?:it|that|this) wrong)?|you are wrong|i did not (?:ask|mean)(?: for| about)? (?:it|this|that)"
    r"|try again|still wrong|wrong answer"
)
_MEANT = re.compile(r"no,? (?:i|that is not what i) (?:meant|said|asked|wanted)\b")

_SENTENCE = re.compile(r"([^.!?\n]+)([.!?\n]*)")
_SPLIT = re.compile(r",(?: (?:and|but))?|\b(?:and|but)\b")
_FILLER = re.compile(
    r"(?:no|nope|yes|yeah|ok|okay|hm+|well|sorry|hey|good|great|nice|fine|cool|thanks|thank you|thx|please)?"
)
_OPENING = re.compile(
    r"^(?:(?:ok|okay|hm+|well|sorry|hey|but|and|also|again|just|now|yes|yeah|so|please|pls|thanks"
    r"|thank you)\b[, ]*){1,4}"
)
_CLOSING = re.compile(
    r"(?:[, ]{1,3}(?:please|pls|thanks|thank you|thx|a lot|so much|very much|then|now|this time|next time|from now on"
    r"|instead|if possible|overall|again|at all|too|as well))+$"
)
_FOR_WHAT = re.compile(r" (?:for|given) .+$")
"""What follows an adjective in a comment: "too long for such a simple question"."""
_FULL = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"n't\b", " not"),
        (r"\b(it|this|that|what)(?:'s|s)\b(?= )", r"\1 is"),
        (r"'re\b", " are"),
        (r"'d\b", " would"),
        (r"'ve\b", " have"),
        (r"\bdont\b", "do not"),
        (r"\bdidnt\b", "did not"),
        (r"\bdoesnt\b", "does not"),
        (r"[^\S\n]+", " "),
    )
)


def read_remark(message: str) -> Phrase | None:
    """Find the remark about the previous answer in a message; None if there is none.

    >>> read_remark("Thanks, but that's too long.")
    Phrase(moved={'length': -1.0}, y=None)
    >>> read_remark("No, that's not what I asked.")
    Phrase(moved={}, y=0.0)
    >>> read_remark("Write a shorter poem about dogs.") is None
    True
    """
    moved: dict[str, float] = {}
    verdicts: set[float] = set()
    for sentence, asks in _sentences(message) if len(message) <= LONGEST else ():
        found = _read(sentence, asks=asks)
        if found is None:
            break
        moved |= found.moved
        if found.y is not None:
            verdicts.add(found.y)
    if moved:
        verdicts.discard(1.0)  # "good, but shorter"
    y = verdicts.pop() if len(verdicts) == 1 else None
    return Phrase(moved, y) if moved or y is not None else None


def clauses(comment: str) -> Iterator[tuple[str, Phrase | None]]:
    """Split a comment into clauses, each with what the grammar reads in it."""
    for sentence, asks in _sentences(comment):
        found = _read(sentence, asks=asks, comment=True)
        parts = [part.strip() for part in _SPLIT.split(sentence)]
        each = [_clause(_FOR_WHAT.sub("", part), asks=False, comment=True) for part in parts]
        if found is not None or not any(each):
            yield sentence, found
            continue
        yield from ((part, said) for part, said in zip(parts, each, strict=True) if said != _NOTHING)


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Sentences in lower case with their contractions written out, and whether they end as questions."""
    text = unicodedata.normalize("NFKC", text).replace("’", "'").lower()
    for pattern, full in _FULL:
        text = pattern.sub(full, text)
    for match in _SENTENCE.finditer(text):
        if sentence := match[1].strip(" ,"):
            yield sentence, "?" in match[2]


def _read(sentence: str, *, asks: bool, comment: bool = False) -> Phrase | None:
    """Read a sentence if all its clauses are remarks or filler, or if it begins with a rejection; else None."""
    thanked = "thank" in sentence
    if (found := _clause(sentence, asks=asks, thanked=thanked, comment=comment)) is not None:
        return found
    moved: dict[str, float] = {}
    y = 0.0 if not asks and _MEANT.match(sentence) else None
    for part in _SPLIT.split(sentence):
        found = _clause(part, asks=asks, thanked=thanked, comment=comment)
        if found is None:
            return Phrase(moved, y) if y == 0.0 and not asks else None  # "that's wrong, it should be 42"
        moved |= found.moved
        y = found.y if y is None else y
    return Phrase(moved, y)


def _clause(text: str, *, asks: bool, thanked: bool = False, comment: bool = False) -> Phrase | None:
    """Read one clause; an empty phrase for filler, None for anything else than a remark."""
    text = text.strip(" ,")
    if _FILLER.fullmatch(text):
        return _NOTHING
    if (asks and _STATED.search(text)) or (not comment and _REPLY.match(text)):
        return None
    for plain in dict.fromkeys((text, _OPENING.sub("", _CLOSING.sub("", text)))):
        for form, sign in (*_FORMS, *_OF_COMMENTS) if comment else _FORMS:
            if (match := form.fullmatch(plain)) is not None:
                found = match.groupdict()
                word = found.get("adj") or _COMPARATIVES.get(found.get("cmp") or "")
                if comment or word not in _PHYSICAL or _MANNER.search(text):
                    return Phrase(_meant(found, sign))
        if not asks and (_PRAISE.fullmatch(plain) or (thanked and _THANKED.fullmatch(plain))):
            return Phrase({}, 1.0)
        if not asks and _REJECTION.fullmatch(plain):
            return Phrase({}, 0.0)
        if _FILLER.fullmatch(plain):
            return _NOTHING
    return None


def _meant(found: Mapping[str, str | None], sign: float) -> dict[str, float]:
    """Dimension and direction that a matched form asks for."""
    if (word := found.get("cmp")) is not None:
        dimension, side = _ADJECTIVES[_COMPARATIVES[word]]
        what = found.get("what")
        if what is not None and dimension == "length":
            dimension = "sentence_length" if what == " sentences" else "word_length"
    elif (word := found.get("adj")) is not None:
        dimension, side = _ADJECTIVES[word]
    elif (word := found.get("noun")) is not None:
        dimension, side = _NOUNS[word]
    elif (word := found.get("verb")) is not None:
        dimension, side = _WISHES.get(word) or _HABITS[word]
    else:
        dimension, side = "length", -1.0
    return {dimension: sign * side}
