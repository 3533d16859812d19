"""Guards of the source: conditionals that raise, return or skip, filters of comprehensions, and clamps."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

_R, _E, _I, _D = (
    "router/fitrouter/",
    "evaluators/fitrouter_evaluators/",
    "integrations/fitrouter_integrations/",
    "dashboards/fitrouter_dashboards/",
)
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "money": (f"{_R}serving/spending.py", f"{_R}state/budgets.py", f"{_R}state/accounts.py", f"{_R}providers/usage.py"),
    "rates": (f"{_I}gateway/_keys.py", f"{_I}gateway/asgi/_admission.py", f"{_R}serving/slots.py"),
    "tenants": (f"{_R}state/tenants.py", f"{_R}identity.py", f"{_R}state/added_models.py"),
    "rights": (f"{_I}gateway/_personal.py", f"{_I}gateway/console/_sessions.py", f"{_R}serving/tokens.py"),
    "erasure": (f"{_R}stores/erasure.py", f"{_R}stores/journal/_erase.py", f"{_R}stores/identities/_identities.py"),
    "propensities": (f"{_R}routing/decider.py", f"{_R}monitors/propensities.py", f"{_R}policies/_base.py"),
    "draws": (f"{_R}draw.py", f"{_R}routing/variants.py", f"{_R}posterior/draws.py"),
    "checksums": (f"{_R}stores/journal/_record.py", f"{_R}stores/signing.py", f"{_R}stores/journal/_salvage.py"),
    "finiteness": (f"{_R}stores/journal/_ranges.py", f"{_R}state/settings.py", f"{_R}state/quality_floor.py"),
    "redaction": (f"{_R}providers/_secret.py", f"{_R}providers/failures.py", f"{_R}stores/audit_log.py"),
    "sizes": (f"{_R}providers/_sse.py", f"{_R}providers/_openai_compatible.py", f"{_I}gateway/asgi/_limits.py"),
    "timers": (f"{_R}serving/attempts.py", f"{_R}state/sessions.py"),
    "breakers": (f"{_R}routing/breakers.py", f"{_R}routing/eligibility.py"),
    "certificates": tuple(f"{_E}personal/certificate/{name}.py" for name in ("certificate", "rows", "figures")),
    "claims": tuple(f"{_E}personal/{name}.py" for name in ("leaderboard", "report", "satisfaction", "exposure")),
}
"""Subject → its modules."""
_FUTURE = b"from __future__ import annotations\n"
_IMPORT = b"; from benchmarks.mutants.hits import clamped as _clamped, hit as _hit, passed as _passed\n"
_CLAMPS = frozenset({"min", "max", "clip", "minimum", "maximum"})

Kind = Literal["raise", "return", "skip", "filter", "clamp"]


class Guard(NamedTuple):
    """A guard and how it is removed."""

    subject: str
    file: str
    function: str
    kind: Kind
    line: int
    start: int
    end: int
    """Bytes of the condition, or of the clamp."""
    text: str
    kept: str
    """The expression that a clamp bounds; empty for conditions, which are evaluated still, but not obeyed."""
    number: int
    """Among equal texts of a function."""

    @property
    def name(self) -> str:
        """Identity that survives changes elsewhere in the file."""
        return f"{self.file}::{self.function}::{self.text}::{self.number}"

    @property
    def key(self) -> str:
        """Digest of the name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]


def guards(root: Path, subjects: Mapping[str, Sequence[str]] = SUBJECTS) -> list[Guard]:
    """All guards of the subjects' modules.

    Raises:
        FileNotFoundError: a module was moved; name its new place in `SUBJECTS`.
    """
    return [guard for subject, files in subjects.items() for file in files for guard in in_source(root, file, subject)]


def in_source(root: Path, file: str, subject: str = "") -> list[Guard]:
    """The guards of one module, in the order of its lines."""
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Guard] = []
    for function, node, kind in _walk(ast.parse(source), "<module>"):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text, kept = source[start:end].decode(), ""
        if isinstance(node, ast.Call) and kind == "clamp":
            bounded = next(each for each in node.args if not _is_bound(each))
            kept = ast.get_source_segment(source.decode(), bounded) or ""
        number = sum((each.function, each.text) == (function, text) for each in found)
        found.append(Guard(subject, file, function, kind, node.lineno, start, end, text, kept, number))
    return found


def draw(every: Sequence[Guard], count: int, seed: int) -> list[Guard]:
    """Draw guards, the subjects in turns, so that each has its part; a guard more or less moves no other one."""
    order = sorted(every, key=lambda guard: hashlib.sha256(f"{seed} {guard.name}".encode()).digest())
    piles = {
        name: [guard for guard in order if guard.subject == name] for name in dict.fromkeys(g.subject for g in every)
    }
    drawn: list[Guard] = []
    while len(drawn) < count and any(piles.values()):
        drawn += [pile.pop() for pile in piles.values() if pile]
    return drawn[:count]


def instrumented(source: bytes, every: Sequence[Guard]) -> bytes:
    """The source of a module whose guards tell when they act, and of which one can be removed; lines stay in place."""
    calls = {"filter": "_passed", "clamp": "_clamped"}
    edits: list[tuple[int, int, bytes]] = []  # insertions: place, rank among those of one place, what
    for guard in every:
        opening = f"{calls.get(guard.kind, '_hit')}({guard.key!r}, ("
        closing = f"), ({guard.kept}))" if guard.kind == "clamp" else "))"
        width = guard.end - guard.start  # of guards within guards, the outer one opens first and closes last
        edits += [(guard.start, -width, opening.encode()), (guard.end, -(10**9) + width, closing.encode())]
    for place, _, what in sorted(edits, reverse=True):
        source = source[:place] + what + source[place:]
    if _FUTURE not in source:
        raise ValueError(f"the module has no line {_FUTURE.decode()!r}, after which to import")
    return source.replace(_FUTURE, _FUTURE[:-1] + _IMPORT, 1)


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr, Kind]]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = child.name if function == "<module>" else f"{function}.{child.name}"
        elif isinstance(child, ast.If) and (kind := _ends(child.body)) is not None:
            yield function, child.test, kind
        elif isinstance(child, ast.comprehension):
            yield from ((function, test, "filter") for test in child.ifs)
        elif isinstance(child, ast.Call) and _clamps(child):
            yield function, child, "clamp"
        yield from _walk(child, inside)


def _ends(body: Sequence[ast.stmt]) -> Kind | None:
    match body[-1]:
        case ast.Raise():
            return "raise"
        case ast.Return():
            return "return"
        case ast.Continue() | ast.Break():
            return "skip"
    return None


def _clamps(call: ast.Call) -> bool:
    """Whether a call bounds one expression by constants."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    bounds = sum(map(_is_bound, call.args))
    known = name in _CLAMPS and not call.keywords and not any(isinstance(arg, ast.Starred) for arg in call.args)
    return known and 0 < bounds == len(call.args) - 1


def _is_bound(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_bound(node.operand)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())
