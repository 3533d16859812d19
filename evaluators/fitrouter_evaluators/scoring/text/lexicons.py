"""Words and phrases that the style dimensions count, lower case, English.

Each entry matches whole words only. Texts in other languages lack the lexical dimensions (`style.unknown_in`).
"""

from __future__ import annotations


def phrases(text: str) -> tuple[str, ...]:
    """Split a list of phrases at commas and line ends."""
    return tuple(part.strip() for part in text.replace("\n", ",").split(",") if part.strip())


HEDGES = phrases("""
    may, might, could, perhaps, possibly, probably, likely, generally, often, sometimes, maybe, however, potentially
    seems, appears, tends, somewhat, arguably, it depends, in some cases, not necessarily, i think, i believe
""")

WARM = phrases("""
    you, your, yours, you're, you'll, you've, you'd, let's, glad, happy, welcome, thanks, dear, wonderful
    i hope, feel free, happy to, hope this, hope that, good luck, take care, best of luck, enjoy
""")

FORMAL = phrases("""
    therefore, furthermore, moreover, thus, hence, consequently, nevertheless, nonetheless, whereas, thereby
    regarding, pursuant, herein, shall, upon, sincerely, respectively, accordingly, notwithstanding
    in addition, in accordance, with respect to, with regard to
""")

CASUAL = phrases("""
    hey, hi, yeah, yep, nope, okay, ok, cool, awesome, gonna, wanna, kinda, stuff, guys, wow, lol, super, pretty much
    a lot, kind of, sort of, no worries, i'm, i'll, i've, i'd, you're, you'll, you've, you'd, we're, we'll, we've
    it's, that's, there's, here's, what's, let's, don't, doesn't, didn't, can't, couldn't, won't, wouldn't, isn't
    aren't, wasn't, weren't, haven't, hasn't, shouldn't, they're, they'll, they've, he's, she's, who's
""")

EXAMPLES = phrases("""
    for example, for instance, e g, such as, to illustrate, as an example, examples include
""")

REFUSAL = phrases("""
    i can't, i cannot, i can not, i won't, i will not, i'm sorry, i am sorry, i apologize, as an ai, unable to
    i'm unable, not able to, i'm not able, can't help, cannot help, can't assist, cannot assist, can't provide
    cannot provide, must decline, have to decline, not comfortable, against my guidelines, inappropriate to
""")

ASSERTIVE = phrases("""
    definitely, certainly, clearly, obviously, undoubtedly, absolutely, always, never, must, surely, precisely
    guaranteed, proven, essential, crucial, simply, undeniably, unquestionably, without doubt, without a doubt
    no doubt, of course, in fact, the best, the only, there is no
""")

FLATTERY = phrases("""
    great question, good question, excellent question, fantastic question, wonderful question, brilliant question
    interesting question, thoughtful question, insightful question, great point, good point, excellent point
    great idea, brilliant idea, fantastic idea, excellent idea, what a great, what a wonderful, what a fantastic
    you're right, you are right, you're absolutely right, you are absolutely right, well done, good job, great job
    brilliant, genius, insightful, impressive, amazing, fantastic, your intelligence, so smart, so thoughtful, bravo
    love that, love your, love this
""")

EVIDENCE = phrases("""
    according to, study, studies, research, researchers, survey, evidence, published, journal, source, sources
    references, reference, statistics, data show, data shows, data from, experiment, experiments, et al, university
    found that, report, reports, cited, analysis of, peer reviewed
""")

PERSONAL = phrases("i, i'm, i've, i'd, i'll, me, my, mine, myself")
