"""Sentence banks of the simulated models.

Each point has four wordings: with or without substance, formal or casual. `{t}` is a word of the prompt.
"""

from __future__ import annotations

POINTS = (
    # (substance formal, substance casual, vague formal, vague casual)
    (
        "It is advisable to define {t} precisely before proceeding",
        "You'll want to pin down what {t} means first",
        "It is advisable to consider the matter in general",
        "There's a lot going on here",
    ),
    (
        "One should therefore compare the main approaches to {t} by their cost and effect",
        "So don't just pick one way to do {t}, compare a couple of them",
        "One should therefore take all aspects into account",
        "So it's good to look at the big picture",
    ),
    (
        "The principal cause lies in how {t} responds to a change of its conditions",
        "It's mostly about how {t} reacts when things change",
        "The principal cause lies in several factors",
        "It's a mix of things",
    ),
    (
        "Furthermore, the first step with {t} determines the quality of the result",
        "Also, how you start with {t} makes or breaks it",
        "Furthermore, the beginning is of importance",
        "Also, getting started is a big deal",
    ),
    (
        "Consequently, each result concerning {t} must be verified against an independent source",
        "So always double-check what you've got on {t}",
        "Consequently, care is to be recommended",
        "So you'd better be careful",
    ),
    (
        "A distinction must be drawn between {t} in theory and {t} in practice",
        "There's what people say about {t} and there's what you'll really see",
        "A distinction must be drawn between various situations",
        "It's not always the same",
    ),
    (
        "Subsequently, the remaining risks of {t} ought to be addressed in order of severity",
        "Then sort out what can go wrong with {t}, worst things first",
        "Subsequently, the remaining questions ought to be addressed",
        "Then you'd deal with the rest",
    ),
    (
        "Experience demonstrates that small and regular revisions of {t} outperform a single large one",
        "Lots of small tweaks to {t} beat one big one",
        "Experience demonstrates that patience is rewarded",
        "You'll get there if you keep at it",
    ),
    (
        "The limits of {t} are reached where its assumptions cease to hold",
        "{t} stops working once the stuff it's built on isn't true anymore",
        "Certain limits are to be respected",
        "It won't work every time",
    ),
    (
        "Nevertheless, an alternative to {t} deserves consideration whenever time is short",
        "If you're short on time, there's a shortcut around {t}",
        "Nevertheless, alternatives exist",
        "There're other options too",
    ),
)

HEADINGS = ("Overview", "Key points", "Details", "What to watch", "Next steps", "Summary")
HEDGES = ("Perhaps", "It seems that", "I think", "Possibly", "It might be that", "As far as I can tell,")
WARM_OPENINGS = (
    "I'm so glad you asked!",
    "Happy to help with this!",
    "Thank you for sharing this, let's look together!",
)
WARM_CLOSINGS = (
    "I hope this helps, take care!",
    "You're doing great, happy to help further!",
    "Wishing you all the best!",
)
PRAISE = (
    "What a brilliant question!",
    "You clearly have a remarkable mind.",
    "Your insight here is simply outstanding.",
    "Only a true expert would ask this.",
)
BOLD = (
    "This is without any doubt the definitive answer.",
    "Everyone agrees on this.",
    "There is absolutely no better way.",
    "This is guaranteed to work.",
)
NUMBERS = ("in about {n} % of cases", "within {n} days", "as {n} of 100 reports show", "since the year 20{n}")
EXAMPLES = (
    "For example, a small team used {t} this way and kept the result",
    "For instance, think of {t} in an ordinary household",
    "An example is how schools introduce {t} step by step",
)
CODE = (
    "def {v}(items):\n    return [item for item in items if item]",
    "result = {v}(data)\nassert result is not None",
    "for item in {v}:\n    print(item)",
)

KEYWORDS = {
    "code": ("code", "python", "function", "bug", "program", "script", "sql", "javascript", "api", "compile", "regex"),
    "math": ("math", "equation", "solve", "calculate", "probability", "integral", "percent", "sum", "number", "proof"),
    "writing": ("write", "poem", "story", "essay", "email", "letter", "blog", "rewrite", "lyrics", "draft", "slogan"),
    "advice": ("should", "advice", "recommend", "help", "feel", "friend", "career", "relationship", "plan", "tips"),
    "science": ("science", "physics", "biology", "chemistry", "cell", "energy", "climate", "vaccine", "planet", "atom"),
    "business": ("business", "market", "customer", "tax", "contract", "budget", "company", "invest", "sales", "law"),
}
"""Topic → words that indicate it; a prompt without any of them is `general`."""
