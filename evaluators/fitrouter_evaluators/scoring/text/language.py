"""Language of a text, by its script and its function words, as far as features and statements depend on it.

A text in letters of another script has its language from the script, and a text in Latin letters from counts of
function words (Grefenstette 1995, "Comparing two language identification schemes"). A Latin text is English unless
function words of another language outweigh the English ones, or it is a text of many words of which hardly any is an
English function word. So words alone, names, code and numbers are English: what is not known to differ is read.
"""

from __future__ import annotations

import re
from collections import Counter

from fitrouter_evaluators.scoring.text.lexicons import phrases
from fitrouter_evaluators.scoring.text.reading import SPACELESS, Reading
from fitrouter_evaluators.scoring.text.sound_words import FUNCTION_WORDS

ENGLISH = "English"
LEAST_WORDS = 30
"""Words of a Latin text from which a lack of English function words tells another language."""
LEAST_SHARE = 0.04
"""Share of English function words below which it does, and of those of another language from which it may be another;
    so 30 of 8,855 answers in English, all lists of names, pass for another language."""

_SCRIPTS = (
    ("Japanese", "\u3040-\u30ff\u31f0-\u31ff"),
    ("Chinese", "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003134f"),
    ("Korean", "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"),
    ("a language in Arabic letters", "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff"),
    ("Hebrew", "\u0590-\u05ff"),
    ("a language in Cyrillic letters", "\u0400-\u052f"),
    ("Greek", "\u0370-\u03ff\u1f00-\u1fff"),
    ("Thai", "\u0e00-\u0e7f"),
    ("a language of India", "\u0900-\u0dff"),
    ("a language of South-East Asia", "\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"),
)
"""Language or group → its letters; Japanese stands first, as it also has Chinese characters."""
_OF_SCRIPT = tuple((name, re.compile(f"[{letters}]")) for name, letters in _SCRIPTS)
OTHER = "another language than English"
CHARACTERS = frozenset(("Chinese", "Japanese"))
"""Written without spaces, one token a character (`Reading`)."""
UNCOUNTED = frozenset(("Thai", "a language of India", "a language of South-East Asia"))
"""Without spaces between words, or with vowel signs at which `Reading` splits: words cannot be counted."""

_WORDS = {
    "German": """
        ich, du, er, sie, wir, ihr, mich, mir, dich, dir, uns, euch, nicht, kein, keine, keinen, keiner, und, oder
        aber, der, das, den, dem, des, ein, eine, einen, einem, einer, ist, sind, sei, sein, bitte, mit, ohne, auf
        für, von, vom, zu, zum, zur, im, ins, auch, nur, sehr, mehr, weniger, viel, viele, wie, wenn, dass, weil, mag
        bin, hast, habe, hat, kann, kannst, soll, sollte, werden, wird, wurde, nach, bei, aus, lieber, gern, gerne
        immer, über, unter, zwischen, als, noch, schon, antworte, antworten, kurz, knapp, kürzer, länger, ausführlich
        lass, fasse, sprich, schreib, schreibe, gib, nenne, beispiele, quellen, listen, stichpunkte, zahlen, etwas
        keinesfalls, niemals, nie, weg, lange, langen, kurze, kurzen, einfache, deutsch, mach, zeig, belege
        aufzählungen""",
    "French": """
        je, tu, il, elle, nous, vous, ils, elles, ne, pas, le, la, les, un, une, des, du, de, et, ou, mais, est, sont
        avec, sans, pour, dans, sur, par, que, qui, ce, cette, ces, mon, ma, mes, vos, votre, veux, aime, j'aime
        n'aime, préfère, plus, moins, très, beaucoup, trop, peu, être, avoir, fait, faire, aux, au, comme, aussi, moi
        toujours, jamais, merci, réponses, réponse, réponds, répondez, soyez, sois, donne, donnez, évite, évitez
        listes, exemples, bref, brève, brèves, courtes, court, longues, n'est, n'utilise, c'est, d'exemples, l'on
        qu'il, vouvoie, s'il, d'une, d'un, plaît, puces""",
    "Spanish": """
        yo, odio, tú, él, ella, nosotros, ellos, no, el, la, los, las, un, una, unos, unas, y, o, pero, es, son, con
        sin, por, para, en, que, quien, este, esta, estos, estas, mi, mis, tu, tus, su, sus, quiero, gusta, gustan
        prefiero, más, menos, muy, mucho, muchas, muchos, demasiado, ser, estar, está, hay, del, al, lo, le, les, me
        te, se, como, también, siempre, nunca, gracias, respuestas, respuesta, responde, sé, dame, evita, listas
        ejemplos, breve, breves, cortas, corto, largas, usa, uses, favor, de, cuando, donde, porque, desde, hasta
        entre, sobre""",
    "Italian": """
        io, odio, tu, lui, lei, noi, voi, loro, non, il, lo, la, gli, le, un, uno, una, e, o, ma, è, sono, con, senza
        per, di, da, in, su, che, chi, questo, questa, questi, queste, mio, mia, miei, voglio, piace, piacciono
        preferisco, più, meno, molto, molti, molte, troppo, essere, avere, del, della, delle, dei, degli, al, alla
        alle, nel, nella, come, anche, sempre, mai, grazie, risposte, risposta, rispondi, sii, dammi, evita, evitare
        elenchi, elenco, esempi, breve, brevi, corte, lunghe, usa, usare, favore, mi, ti, si, ci, vi, ed, quando, dove
        perché, tra, fra, sui, sulle, dell'uso, c'è, l'uso, un'altra, puntati""",
    "Portuguese": """
        eu, tu, ele, ela, nós, eles, não, o, a, os, as, um, uma, uns, umas, e, ou, mas, é, são, com, sem, por, para
        em, de, que, quem, este, esta, isso, isto, meu, minha, meus, quero, gosto, prefiro, mais, menos, muito, muita
        muitas, muitos, demasiado, ser, estar, está, há, do, da, dos, das, no, na, nos, nas, ao, à, aos, às, como
        também, sempre, nunca, obrigado, obrigada, respostas, resposta, responda, responde, seja, dê, evite, listas
        exemplos, breve, breves, curtas, curto, longas, use, usar, favor, você, me, te, se, quando, onde, porque
        desde, até, entre, sobre, pelo, pela, num, numa""",
    "Dutch": """
        ik, jij, je, hij, zij, ze, wij, we, jullie, mij, me, niet, geen, de, het, een, en, of, maar, is, zijn, ben
        met, zonder, voor, van, in, op, aan, bij, naar, uit, dat, die, dit, deze, mijn, wil, wilt, graag, houd, hou
        liever, meer, minder, veel, weinig, te, om, uur, erg, heel, worden, wordt, werd, heb, heeft, hebben, kan, kunt
        moet, moeten, zou, ook, altijd, nooit, nog, alleen, als, dan, wat, wie, waar, alsjeblieft, bedankt, antwoord
        antwoorden, geef, gebruik, vermijd, lijstjes, lijsten, opsommingen, voorbeelden, kort, korte, lange, bronnen
        wees, tegen, over, tussen, omdat, toen, niets, iets, zulke, hun, haar, u, uw""",
    "Polish": """
        nie, i, w, z, na, do, się, że, jest, są, to, jak, ale, lub, oraz, dla, bez, proszę, lubię, chcę, wolę, mnie
        mi, mój, moje, więcej, mniej, bardzo, tylko, też, zawsze, nigdy, odpowiedzi, krótkie, krótko, przykłady, od
        po, przez""",
    "Swedish": """
        jag, du, inte, och, att, det, är, en, ett, som, för, med, utan, på, av, till, vill, gillar, mer, mindre
        mycket, men, eller, mig, mina, alltid, aldrig, svar, korta, kort, exempel, hellre, om, från, har, var, kan
        också""",
    "Danish or Norwegian": """
        jeg, du, ikke, og, at, det, er, en, et, som, for, med, uten, uden, på, av, af, til, vil, liker, mer, mere
        mindre, mye, meget, men, eller, meg, mig, alltid, altid, aldri, aldrig, svar, korte, kort, eksempler, har, kan
        også""",
    "Finnish": """
        minä, ei, en, ja, että, on, ovat, se, tämä, mutta, tai, kanssa, ilman, haluan, pidän, enemmän, vähemmän, hyvin
        aina, koskaan, vastauksia, vastaukset, lyhyitä, lyhyesti, ole, olen, mitä, kun, myös, älä, joka""",
    "Czech": """
        já, ne, a, v, z, na, do, se, že, je, jsou, to, jak, ale, nebo, pro, bez, prosím, chci, nechci, mám, rád, více
        méně, velmi, jen, také, vždy, nikdy, odpovědi, krátké, stručně, příklady, od, po, který, která""",
    "Turkish": """
        ben, ve, bir, bu, şu, için, ile, değil, ama, veya, çok, daha, az, istiyorum, istemiyorum, lütfen, var, yok
        gibi, her, hiç, kısa, cevaplar, yanıtlar, örnek, seviyorum, sevmiyorum, olarak, olan, da, de, ki""",
    "Romanian": """
        eu, nu, și, în, cu, fără, pentru, este, sunt, un, o, ale, al, mai, mult, puțin, vreau, prefer, rog, răspunsuri
        scurte, care, dar, sau, din, pe, la, să, că, foarte, îmi, place""",
    "Hungarian": """
        én, nem, és, hogy, az, egy, van, vagy, de, kérem, szeretem, szeretnék, több, kevesebb, nagyon, csak, is
        mindig, soha, válaszok, rövid, példák, ez, azt, nélkül""",
    "Indonesian": """
        saya, tidak, dan, yang, di, ke, dari, untuk, dengan, tanpa, ini, itu, adalah, lebih, kurang, sangat, suka, mau
        ingin, jangan, tolong, jawaban, singkat, contoh, atau, tetapi, juga, pada""",
}  # fmt: skip
_FURTHER = """
    i'm, i'd, i'll, i've, don't, doesn't, can't, won't, isn't, it's, let's, that's, me, him, us, them, please, this, use
    less, never, always, want, like, prefer, give, keep, avoid, answers, answer, short, long, lists, examples, too, very
    without, write, sure, here, and, of, be, let, get, make, need, stop, love, hate, dislike, responses, just, also
    much, many, must, may, might, shall, after, before, under, again, off, down, first, most, them, us, am, did
"""
_ENGLISH = frozenset((*FUNCTION_WORDS, *phrases(_FURTHER)))
_FOREIGN: dict[str, tuple[str, ...]] = {}
"""Word → the languages that it is a function word of; a word of English too tells nothing."""
for _name, _text in _WORDS.items():
    for _word in set(phrases(_text)) - _ENGLISH:
        _FOREIGN[_word] = (*_FOREIGN.get(_word, ()), _name)
_SHARED = frozenset(
    phrases("""
    de, da, la, le, el, en, del, al, un, der, den, des, di, du, si, te, ad, los, las, que
    sur, pro, ser, sol, con, com, son, se, mer, à, è, é, e, o
""")
)
"""Words of names and quotations in English text, as are other single letters: one alone does not tell anything."""
_NAMES = frozenset(phrases("de, da, di, du, der, del, la"))
"""The ones that names are made of."""

_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_HYPHEN = re.compile(r"-(?<=[^\W\d_]-)(?=[^\W\d_])")
_BEYOND_LATIN = re.compile("[\u0250-\U0010ffff]")
_MARKS = re.compile(r"[¿¡ßœñãõąęłżźśćğışțșőű]")
"""Letters and marks that no English word has, bar loanwords."""


def language_of(text: str | Reading) -> str:
    """The language of a text or of a reading's prose; English unless another is detected.

    >>> language_of("Ich mag keine Listen."), language_of("答えは短くしてください。")
    ('German', 'Japanese')
    >>> language_of("No lists, please."), language_of("Paris, 1889")
    ('English', 'English')
    """
    text, reading = (text, None) if isinstance(text, str) else (text.prose, text)
    if reading is not None and not _HYPHEN.search(text) and (text.isascii() or not SPACELESS.search(text)):
        words, counts = reading.words, reading.counts
    else:
        words = _WORD.findall(text.replace("’", "'").lower())
        counts = Counter(words)
    english = telling = 0
    if not text.isascii():
        letters = "".join(words)
        if 4 * len(_BEYOND_LATIN.findall(letters)) > len(letters) > 0:
            return _by_script(letters)
        telling = len(set(_MARKS.findall(text.lower())))
    votes: dict[str, int] = {}
    for word, n in counts.items():
        if word in _ENGLISH:
            english += n
        elif names := _FOREIGN.get(word):
            for name in names:
                votes[name] = votes.get(name, 0) + n
            telling += n * (word not in _SHARED and len(word) > 1)
    likely = max(votes, key=votes.__getitem__, default=OTHER)
    hints = frozenset() if english else counts.keys() & _SHARED
    if len(hints) > 1 and hints - _NAMES and 5 * len(hints) >= len(words):
        telling += 1
    if telling > 0 and telling >= max(english, LEAST_SHARE * len(words)):
        return likely
    if len(words) >= LEAST_WORDS and english < LEAST_SHARE * len(words):
        return likely if telling else OTHER
    return ENGLISH


def _by_script(letters: str) -> str:
    counts = {name: len(pattern.findall(letters)) for name, pattern in _OF_SCRIPT}
    if 10 * counts["Japanese"] >= counts["Chinese"] + counts["Japanese"] > 0:
        counts["Japanese"] += counts["Chinese"]
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else OTHER
