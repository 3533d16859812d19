"""The vocabulary of attitude that `_polarity` reads, lower case, English."""

from __future__ import annotations

import re

from fitrouter_evaluators.scoring.text.lexicons import phrases

FUNCTION = frozenset(
    phrases("""
    a, an, the, this, that, these, those, i, me, my, mine, myself, we, us, our, you, your, yours, he, him, his, she, her
    it, its, they, them, their, there, here, who, whom, whose, what, which, when, where, why, how, whenever, wherever
    if, whether, as, at, by, for, from, in, into, of, on, onto, to, up, out, off, down, with, about, after, before
    during, through, under, upon, via, within, per, against, towards, and, or, nor, so, then, also, too, both, either
    am, is, are, was, were, be, been, being, do, does, did, done, doing, have, has, had, having, will, would, shall
    should, can, could, may, might, must, ought, let, lets, get, gets, getting, got, go, goes, going, come, comes
    give, gives, given, giving, gave, make, makes, making, made, use, uses, using, used, write, writes, writing
    written, put, puts, add, adds, adding, include, includes, including, provide, provides, providing, keep, keeps
    keeping, take, takes, show, shows, showing, say, says, saying, said, tell, tells, telling, told, hear, hearing
    see, sees, seeing, find, finds, look, looks, feel, feels, seem, seems, sound, sounds, stick, stay, remain, offer
    answer, answers, answering, reply, replies, replying, response, responses, respond, responding, output, message
    messages, text, texts, thing, things, stuff, way, ways, lot, lots, bit, really, very, quite, just
    simply, only, even, ever, always, usually, generally, often, sometimes, mostly, all, any, anything, some
    something, everything, each, every, much, many, other, others, such, own, same, please, pls, thanks, kindly
    now, again, still, yet, already, well, rather, instead, whatever, actually, honestly, personally, absolutely
    definitely, truly, especially, particularly, want, wants, wanted, read, reading, reads, one, ones, part, parts
    anymore, contain, contains, containing, think, thinks, yes, happier
    time, times, try, trying, need, needs, needed, people, someone, anyone, assistant, ai, at all
    """)
)
"""Words without content of their own."""

AUXILIARIES = frozenset(phrases("do, does, did, is, are, was, were, can, could, will, would, should, must"))
"""Before a "not" they deny the subject of a clause."""

JOINS = frozenset(phrases("and, or, nor, plus, &"))
"""Between two pieces of content that share a sign."""

SUBJECTS = frozenset(phrases("i, you, it, they, we, he, she, there, this, that, my, your"))
"""Behind a comma or conjunction they begin a clause."""

COMMANDS = frozenset(
    phrases("""
    be, give, use, write, keep, make, show, tell, include, add, put, get, stick, stay, go, let, say, explain, provide
    answer, reply, respond, speak, talk, take, start, end, do, have, want, need, offer, try, focus, cite, quote, name
    """)
)
"""Verbs that begin a clause behind a comma or conjunction."""

LEADS = frozenset(phrases("and, then, just, please, simply, only, rather, instead, always, so, also, FOR"))
"""Passed over in looking for what begins a clause."""

_FLIPS = phrases("""
    not, no, never, neither, nor, none, nothing, nobody, without, minus, zero, less, fewer, least, hardly, rarely
    seldom
    barely, scarcely, except, excluding, sans
    avoid, avoids, avoiding, avoided, skip, skips, skipping, skipped, omit, omits, omitting, omitted, drop, dropping
    dropped, ditch, ditching, remove, removing, exclude, eliminate, eliminating, forget, forgetting, ignore, ignoring
    stop, stops, stopping, stopped, quit, cease, refrain, reduce, reducing, limit, limiting, minimise, minimising
    minimize, minimizing, cut, cutting, trim, restrict, ban, banish, banning, scrap, scrapping, lose, losing, leave
    hate, hates, hated, hating, dislike, dislikes, disliked, disliking, detest, loathe, despise, abhor, resent, distrust
    mistrust, fail, fails, failing, resist, hesitate, hesitating, withhold, mind, unlike, nix, axe, shun, discard
""")
_AGAINST = phrases("""
    annoy, annoys, annoying, annoyed, bore, bores, bored, irritate, irritates, irritated, distract, distracts
    distracted, confuse, confuses, confused, frustrate, frustrates, frustrated, bother, bothers, bothered, tire, tires
    disgust, disgusts, disgusted, appal, appals, appall, appalls, exhaust, exhausts, exhausted, overwhelm, overwhelms
    overwhelmed, repel, repels, offend, offends, offended, infuriate, infuriates, puzzle
    puzzles, unsettle, unsettles, sucks, backfire, disturb, disturbs, grate, grates, upset, upsets, patronising
    deter, deters, drain, drains, stink, stinks, nuisance, overkill, clutter, clutters, noise, nonsense, rubbish
    worthless, unwelcome, unpleasant, unbearable, insufferable, intolerable, unhelpful, off-putting, taboo
    undesirable, overrated, unsatisfying, unsatisfactory, dispensable, unpopular, hateful, redundant, wearisome
    loathsome, horrible, terrible, awful, dreadful, hopeless
""")
_EXCESS = phrases("too, overly, excessive, excessively, needlessly, unduly, ridiculously, excess")
_COMPLAINTS = phrases("""
    needless, unnecessary, pointless, endless, useless, gratuitous, superfluous, unwanted, boring, tedious, tiresome
    irritating, distracting, ridiculous, silly, mindless, empty, tiring, exhausting, confusing, frustrating
    unneeded, unasked, unsolicited, infuriating, maddening, meaningless, overwhelming, fake, forced, hollow
""")
_FORS = phrases("""
    like, likes, liked, liking, love, loves, loved, loving, enjoy, enjoys, enjoyed, prefer, prefers, preferred, adore
    appreciate, appreciates, appreciated, value, values, favour, favor, fond, keen, crave, craves, wish, hope, welcome
    help, helps, helpful, useful, great, good, nice, fine, better, best, happy, glad, pleased, pleasant, important
    essential, crucial, vital, matter, matters, convince, convinces, convinced, persuade, persuades, persuaded
    impress, impresses, sway, sways
    delight, delights, please, pleases, suit, suits, work, works, okay, ok
    more, most, plenty, lots, extra, favourite, favorite, preferable, preference, fan, advocate, cherish
    treasure, relish, embrace, expect, demand, require, insist, ideal, perfect, wonderful, lovely, necessary, missing
    lack, lacks, lacking, insufficient, bring, grateful, thrilled, desirable, satisfying, satisfactory, excites, excite
    thing, cup, tea, taste, interest, interested, interests, bothering
""")

MARKS: dict[str, str] = {
    **dict.fromkeys(_FORS, "FOR"),
    **dict.fromkeys(_FLIPS, "FLIP"),
    **dict.fromkeys(_AGAINST, "AGAINST"),
    **dict.fromkeys(_EXCESS, "EXCESS"),
    **dict.fromkeys(phrases("but, yet, although, though, however, because, since, while, whereas, otherwise"), "CUT"),
    **dict.fromkeys(phrases("unless"), "SKIP"),
}
"""One word → its mark."""


def _any(text: str) -> str:
    return "|".join(phrases(text))


_DET = r"(?: (?:the|a|an|any|all|your|those|these|my|of|about|with|on|in|to|from|at|for|into)\b)*"

REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), mark)
    for pattern, mark in (
        # contractions
        (r"\bcannot\b|\bcan't\b|\bcant\b", "can not"),
        (r"\bwon't\b|\bwont\b", "will not"),
        (r"\bshan't\b|\bain't\b", "is not"),
        (r"n't\b", " not"),
        (r"\b(do|does|did|is|are|would|should|could|have|has|was|were)nt\b", r"\1 not"),
        (r"'(?:s|m|re|ve|ll|d)\b", ""),
        (r"\b(\w+)-free\b", r" FLIP \1 CUT "),
        (r"\bfree (?:of|from)\b", " FLIP "),
        (r"(?<=\w) nor\b", " or"),
        # "no" and "not" that deny nothing
        (r"\bno[- ]nonsense\b", " direct "),
        (r"\bwithout (?:fail|exception|hesitation|delay)\b|\bno matter\b|\bor not\b|\bno doubt\b|\bfull stop\b", " "),
        (
            r"\b(?:a|an|say|says|saying|said|plain|clear|blunt|flat|hear) no\b(?= *(?:$|[.,;!]|gently|to|is|in"
            r"|openly|softly|"
            r"hurts|better|instead|politely|directly|plainly|when))",
            " refusal ",
        ),
        (r"\bnot (?:only|just|merely|solely)\b(?=.*\bbut\b)", " FOR "),
        (r"\bnothing (?:but|beats|is better than|like|better than|short of|works like)\b", " FOR "),
        (
            r"\bleave no stone unturned\b|\bno holds barred\b|\bwith nothing left out\b|\bnothing left out\b",
            " thorough ",
        ),
        # idioms whose words mislead
        (r"\blet (?:me|us|people|everyone) (?:pick|choose|decide)\b", " autonomy "),
        (r"\b(?:leav|keep)(?:e|es|s|ing)? me (?:guessing|wondering|hanging|in doubt|in the dark)\b", " evasive "),
        (
            r"\b(?:when|if|where|unless) (?:you|it|they|i|we) (?:is|are|am|do|can|was|were|need) not(?: to)? *(?=$"
            r"|[.,;!?])",
            " ",
        ),
        (r"\bas (\w+) as (?:you can|possible)\b", r" \1 "),
        (r"\b(?:not|never) leave (?:anything|things?) out\b|\bleave nothing out\b", " thorough "),
        (r"\bhow (?:certain|sure|confident)\b", " uncertainty "),
        (r"\bleaves? me (?:wanting|hungry|unsatisfied|dissatisfied)(?: \w+)?", " AGAINST "),
        (r"\bleave (.{2,20}?) to me\b", r" \1 "),
        (r"\b(?:kind|sort) of\b|\bfor nothing\b", " "),
        (r", (\w+(?: \w+)?) (?:do|does|is|are|will|can) not(?= *(?:$|[.;!?]))", r" CUT FLIP \1 CUT "),
        (r"\blet(?:ting)? me down\b", " refusal "),
        (r"\bbe (?:\w+ )?nice\b", " friendly "),
        (r"\bhow (?:many|much|often|long|far|big)\b", " quantity "),
        (r"\b(?:go|goes|going|drone|droning) on(?: and on)\b", " ramble "),
        (r"\bcut(?:ting)? corners\b", " FLIP thorough "),
        (r"\bover and over(?: again)?\b|\bagain and again\b", " repeatedly "),
        (r"\b(?:turn|turns|turned|turning)(?: (?:me|it|them|people))? down\b", " refuse "),
        (
            r"\bless is more\b|\btl;?dr\b|\blong story short\b|\b(?:get|come|straight) (?:straight )?to the point\b"
            r"|\bcut to the chase\b",
            " brief ",
        ),
        (
            r"\b(?:no|not) (?:more|longer) than\b|\bat (?:the )?most\b|\bat max(?:imum)?\b|\b(?:less|fewer) than\b",
            " atmost ",
        ),
        (r"\b(?:no|not) (?:less|fewer|shorter) than\b|\bat (?:the very )?least\b|\bmore than enough\b", " atleast "),
        (r"\bbeat(?:ing|s)? (?:about|around) the bush\b", " evasive FLIP FLIP "),
        (r"\bkeep in mind\b|\bmake up your mind\b|\bin mind\b", " decide "),
        (r"\bleave (?:me|it) to\b", " let "),
        (r"\bnot sure\b|\bnot certain\b|\bnot know\b|\bno idea\b|\bunsure\b", " uncertain "),
        (
            r"\b(?:is|are|am|be) not able to\b|\bunable to\b|\bcan not (?:help|assist|answer|do it)(?: me| with)?\b",
            " refusal ",
        ),
        (r"\bjust (?:an|the) ai\b", " refusal "),
        (r"\b(?:would|should) not mind\b", " FOR "),
        (r"\bnot mind\b|\bneither here nor there\b", " SKIP "),
        # more than enough, and too little
        (r"\b(?:can|could) (?:not|never|hardly) (?:\w+ ){0,2}(?:enough|too (?:much|many)|too)\b(?: of)?", " FOR "),
        (r"\bno such thing as too (?:much|many)\b|\bnever enough\b", " FOR "),
        (
            r"\b(?:not|never) (?:\w+ ){0,2}?enough\b|\b(?:not|never) (\w+) enough\b|\btoo (?:few|little)\b"
            r"|\bshort of\b",
            r" FOR \1 ",
        ),
        (r"\b(?:sick|tired|weary|bored|had enough|fed up|enough)(?: and tired)? (?:of|with|by)\b", " FLIP "),
        (r"\b(?:is|are) enough\b|\benough\b", " "),
        # phrases that flip
        (r"\bwho needs\b|\b(?:am|are|is) against\b", " FLIP "),
        (r"\bwhy (?:do|not|can) not (?:you|we)\b", " FOR "),
        (r"\? *(?:no|nope|never)(?: thanks| thank you| please| way)?(?= *(?:$|[.!]))", " AGAINST "),
        (r"\b(?:the|is|are) (?:the )?worst\b", " AGAINST "),
        (
            r"\b(?:not|never|stop|without|do not) (?:be )?wast(?:e|ing)(?: (?:my|any|your|our|the))*"
            r"(?: (?:time|words|space|breath|energy))*(?: (?:on|with))?",
            " FLIP ",
        ),
        (r"\b(?:is|are|a|just)*\s*(?:a |just )*waste of (?:my )?\w+", " AGAINST "),
        (r"\bwaste (?:my )?(?:time|space)\b", " AGAINST "),
        (
            r"\b(?:not|never) (?:\w+ )?(?:bother|bothering)(?: (?:me|yourself))? (?:with|to|about|adding|including"
            r"|giving)\b",
            " FLIP ",
        ),
        (r"\bbother me with\b|\bbother to\b", " "),
        (r"\b(?:do|can|could|will) without\b|\blive without\b", " FLIP "),
        (r"\b(?:can|could) not (?:bear|stand|stomach|tolerate|abide|take|deal with|endure)\b", " FLIP "),
        (
            r"\b(?:have|has|had|got|with) (?:no|little|zero|never)(?: \w+)? (?:time|patience|need|use|interest"
            r"|appetite|taste|love"
            r"|tolerance|desire|wish|liking|stomach)" + _DET,
            " FLIP ",
        ),
        (
            r"\b(?:have|had|do|see|get) not (?:\w+ )?(?:any |the |have |see |get )*(?:time|patience|need|use"
            r"|interest|appetite|point|desire)" + _DET,
            " FLIP ",
        ),
        (r"\bno (?:need|use|time|patience|interest|point|room|place|thanks|reason)" + _DET, " FLIP "),
        (
            r"\b(?:not|never)(?: (?:really|much|a|an|big|great|particularly|very|one|any|such|exactly|so|my))*"
            r" (?:fan|fond|keen|lover|friend|one|big|into|interested|care|cup|fussed|thing)" + _DET,
            " FLIP ",
        ),
        (
            r"\b(?:not|never) (?:my thing|my cup of tea|for me|worth \w+|necessary|needed|wanted|required|welcome"
            r"|helpful)\b",
            " FLIP FOR ",
        ),
        (r"\b(?:lose|losing|lost) (?:patience|interest)" + _DET, " FLIP "),
        (r"\bnot (?:overly|too (?:much|many)?|so (?:much|many)|that (?:much|many)|excessively|unduly)\b", " EXCESS "),
        (r"\b(?:glaze over|tune out|switch off|zone out)(?: (?:at|when|with|from))?", " AGAINST "),
        (r"\b(?:skip|scroll|skim) (?:past|over)\b", " FLIP "),
        (r"\b(?:spare|save)(?: (?:me|us|yourself))?\b", " FLIP "),
        (r"\b(?:go |take it )?easy (?:on|with) (?:the)?", " FLIP "),
        (r"\b(?:hold|lay) (?:off|back)?(?: on)?\b(?= the|ing| \w)", " FLIP "),
        (r"\b(?:cut|cutting|dial|dialling|tone|toning|play|scale|keep) (?:out|down|back)(?: on)?\b", " FLIP "),
        (
            r"\b(?:cut|dial|tone|play|keep) ((?:the |your |all )?\w+(?: \w+)?) (?:down|back|out)(?: of it)?\b",
            r" FLIP \1 ",
        ),
        (r"\b(?:leave|leaving) (?:out|off|aside|away)\b", " FLIP "),
        (r"\b(?:leave|leaving) ((?:\w+ ){1,4})(?:out|off|aside|away)\b", r" FLIP \1 "),
        (r"\bleft out\b", " FLIP "),
        (r"\bto a (?:bare )?minimum\b|\bto yourself\b", " AGAINST "),
        (
            r"\b(?:do|doing) away with\b|\b(?:get|getting) rid of\b|\brid of\b|\bsteer clear of\b|\b(?:stay|keep"
            r"|shy)(?:ing)? away from\b"
            r"|\baway with\b|\bdevoid of\b|\blight on\b|\blow on\b|\bskimp(?:ing)? on\b|\bstingy with\b|\bshort on\b",
            " FLIP ",
        ),
        (
            r"\b(?:be|being) (?:afraid|scared|shy|hesitant|stingy|reluctant) (?:to|of|about|with)\b|\bshy about\b"
            r"|\bfear to\b",
            " FLIP ",
        ),
        (
            r"\b(?:averse|allergic|opposed|hostile|resistant|immune) to\b"
            r"|\b(?:wary|suspicious|distrustful|leery|sceptical|skeptical) of\b"
            r"|\buncomfortable with\b|\bimpatient with\b|\bintolerant of\b",
            " FLIP ",
        ),
        (
            r"\b(?:put|puts|turn|turns|tick|ticks) (?:me|people|us) off\b|\bput-off\b|\b(?:is|are) (?:bad|worse"
            r"|wrong)(?= *$)"
            r"|\bhurts? (?:me|my \w+)\b|\b(?:are|is) lost on me\b",
            " AGAINST ",
        ),
        (
            r"\b(?:drive|drives|driving) me \w+(?: \w+)?|\b(?:get|gets|grate|grates) on my \w+|\bin (?:my|the) way\b"
            r"|\bmakes? (?:me|my \w+) (?:cringe|wary|suspicious|sceptical|skeptical|sick|angry|nervous|yawn|spin"
            r"|crawl|mad|tired|uneasy|impatient)\b"
            r"|\b(?:slow|slows|weigh|weighs|wear|wears|bring|brings) me (?:down|out)\b|\bleaves? me cold\b"
            r"|\b(?:mean|means|do|does|teach|teaches|say|says|add|adds|bring|brings|give|gives) (?:me )?(?:nothing"
            r"|little)(?: (?:to|for) me)?\b"
            r"|\bhard (?:for me )?to (?:read|follow|bear|take|digest)\b|\bare out\b",
            " AGAINST ",
        ),
        (r"\b(?:not )?get lost in\b", " FLIP "),
        # contrast
        (r"\b(?:rather|sooner) not\b", " FLIP "),
        (
            r"\b(?:rather than|instead of|as opposed to|in place of|in lieu of|not|never)\b(?=[^,;.]*$)(?<=, not)",
            " CONTRAST ",
        ),
        (
            r"\b(?:rather than|instead of|as opposed to|in place of|in lieu of|more than|better than|above|ahead of"
            r"|than|versus|vs)\b",
            " CONTRAST ",
        ),
        (r"(?<!glaze )(?<!go )(?<!talk )(?<!over and )\bover\b(?! and| again| the top| time| the years)", " CONTRAST "),
        (r"\bprefer (?!you |it |them |everything |things |answers |replies )([^.,;]{2,40}?) to ", r" FOR \1 CONTRAST "),
        (r"\bbig fans? of\b|\b(?:big|heavy|keen|hooked) on\b", " FOR "),
        (r"\bbeats?\b", " CONTRAST "),
        (r"\b(?:the )?(?:fewer|less)\b(.*)\bthe better\b", r" FLIP \1 "),
        (r"\b(?:only (?:if|when)|except (?:if|when|where)|apart from when)\b", " SKIP "),
        (r"\bexcept for\b|\bother than\b|\banything but\b|\bapart from\b", " FLIP "),
        (r"\bfeel free to\b|\bmake sure (?:to|that)\b", " FOR "),
        # a word of complaint is excess before its noun and against what it follows
        (
            rf"\b(?:{_any(', '.join(_COMPLAINTS))})\b(?= *(?:$|[.,;:!?]|and|or|but|to|for|when|in|on|without))",
            " AGAINST ",
        ),
        (rf"\b(?:{_any(', '.join(_COMPLAINTS))})\b", " EXCESS "),
        (r"AGAINST +without\b|\b(?:lost|stuck|helpless) without\b", " AGAINST CUT "),  # what is missing is wanted
        (r"\b(?:than (?:necessary|needed|required|usual))\b|CONTRAST *(?:necessary|needed|required)", " EXCESS "),
    )
)
"""Expression → what stands for it, applied in this order to the lower-case statement."""
