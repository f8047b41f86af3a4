"""An order of the queue in one line: a formula whose lowest value is served first, equal ones in order of submission.

It may use ``wait``, ``estimate``, ``request`` and ``submit`` (seconds; ``submit`` since the first submission),
``width`` (processors), numbers, ``+ - * / **``, and ``log``, ``log2``, ``log10``, ``sqrt``, ``min`` and ``max``. What
is not a number comes last. The native scheduler works it out (``csrc/orders/score.h``): once per job, or, if ``wait``
is in it, for all waiting jobs in each pass that could start somebody.
"""

from __future__ import annotations

import ast
from typing import Final, NamedTuple

import msgspec

LONGEST: Final = 400
"""Characters of a formula."""
DEEPEST: Final = 16
"""Numbers on the stack (``SCORE_DEPTH``)."""

NAMES: Final = ("wait", "estimate", "request", "width", "submit")
OF_ONE: Final = ("log", "log2", "log10", "sqrt")
OF_TWO: Final = {"min": "least", "max": "greatest"}
_BETWEEN: Final = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
_POWERS: Final = {2.0: "square", 3.0: "cube"}


class Step(NamedTuple):
    """What is done to the stack (``score_step_t``): a number or one of ``NAMES`` is put on it, or the topmost one or
    two become one."""

    op: str
    number: float = 0.0


class Score(msgspec.Struct, frozen=True):
    """A formula, as it was written and as steps for a stack of numbers."""

    text: str
    steps: tuple[Step, ...]

    @property
    def follows_time(self) -> bool:
        """Whether the order of two waiting jobs can change while they wait."""
        return any(step.op == "wait" for step in self.steps)


def score(text: str) -> Score:
    """The formula ``text``; ``ValueError`` says what of it cannot be used."""
    if len(text) > LONGEST:
        raise ValueError(f"the score has {len(text)} characters, more than {LONGEST}")
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):  # ValueError: a NUL
        raise ValueError(f"the score {text!r} is no formula") from None
    steps = tuple(_steps(parsed))
    if _depth(steps) > DEEPEST:
        raise ValueError(f"the score {text!r} is nested too deeply")
    return Score(text, steps)


def _steps(node: ast.expr) -> list[Step]:
    """Those of the operands, then its own."""
    found = _operand(node) or _operation(node) or _function(node)
    if found is None:
        functions = ", ".join([f"{name}(a)" for name in OF_ONE] + [f"{name}(a, b)" for name in OF_TWO])
        raise ValueError(f"the score has {ast.unparse(node)!r}: it takes + - * / **, numbers, {functions}")
    return found


def _operand(node: ast.expr) -> list[Step] | None:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return [Step("number", _finite(number))]
        case ast.Name(id=name):
            if name not in NAMES:
                raise ValueError(f"the score has {name!r}, and knows only {', '.join(NAMES)}")
            return [Step(name)]
    return None


def _operation(node: ast.expr) -> list[Step] | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [*_steps(operand), Step("negate")]
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() | float() as power)) if power in _POWERS:
            return [*_steps(left), Step(_POWERS[float(power)])]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BETWEEN:
            return [*_steps(left), *_steps(right), Step(_BETWEEN[type(op)])]
    return None


def _function(node: ast.expr) -> list[Step] | None:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if name in OF_ONE:
            return [*_steps(one), Step(name)]
        case ast.Call(func=ast.Name(id=name), args=[one, other], keywords=[]) if name in OF_TWO:
            return [*_steps(one), *_steps(other), Step(OF_TWO[name])]
    return None


def _finite(number: float) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = float("inf")
    if value == float("inf"):
        raise ValueError("the score has a number that is too large")
    return value


def _depth(steps: tuple[Step, ...]) -> int:
    depth = deepest = 0
    for step in steps:
        depth += (step.op in ("number", *NAMES)) - (step.op in (*_BETWEEN.values(), *OF_TWO.values()))
        deepest = max(deepest, depth)
    return deepest
