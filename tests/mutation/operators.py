"""The mutants of a Python module: mutmut's operators, and a few of ours in the same form.

mutmut changes numbers, strings, comparisons, arithmetic, boolean words, keywords, arguments and assigned values. It
leaves out what the safety parts consist of, so ``OURS`` adds: a statement that is there for its effect is removed (an
fsync, a commit, a changed field), the condition of an ``if`` is negated, ``min``/``max`` and ``any``/``all`` are
exchanged.

Left out by rule, since nothing but a reader can tell:

- docstrings, type annotations, type variables and aliases, decorators, keywords of a class (``frozen=True``);
- wording: literal text, and what is formatted into it, in a ``raise`` or a line for people (``WORDING``), and any of
  three words or more (an SQL statement is one too: changed as mutmut does it, it is none and fails at once);
- ``assert``, which says to the type checker what is known, ``strict=`` of ``zip``, which is one, the type in ``cast``;
- all but the first of mutmut's changes of the same string, ``None`` for ``False``, which is as false, and a change that
  another operator makes too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

from tests.mutation.results import Mutation, numbered, squeeze

WORDING: Final = ("say", "_say", "warn")
"""Calls whose text is for people."""

SWAPPED: Final = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module. ``line``: where the change begins in the original."""

    mutation: Mutation
    source: str
    line: int


def swap_extremes(node: cst.Call) -> Iterable[cst.CSTNode]:
    """min for max, any for all, and the reverse; of numpy too."""
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    if isinstance(name, cst.Name) and name.value in SWAPPED:
        yield node.with_deep_changes(name, value=SWAPPED[name.value])


def remove_statement(node: cst.BaseSmallStatement) -> Iterable[cst.CSTNode]:
    """A call for its effect, a raise, or a change of a field or an item."""
    targets: list[cst.CSTNode] = []
    if isinstance(node, cst.Assign):
        targets = [one.target for one in node.targets]
    elif isinstance(node, cst.AugAssign | cst.AnnAssign) and node.value:
        targets = [node.target]
    is_change = any(m.findall(target, m.Attribute() | m.Subscript()) for target in targets)
    if is_change or m.matches(node, m.Expr(m.Call()) | m.Raise()):
        yield cst.Pass()


def negate(test: cst.BaseExpression) -> cst.CSTNode:
    """``a`` as ``not (a)``."""
    return cst.UnaryOperation(cst.Not(), test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))


OURS: Final = ((cst.Call, swap_extremes), (cst.BaseSmallStatement, remove_statement))


class _Changes(cst.CSTVisitor):
    """Every node that is changed, what it becomes, and the function that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, str]] = []
        self._where: list[str] = []
        self._left_out: set[cst.CSTNode] = set()
        self._wording_depth = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        is_text = self._wording_depth > 0 and isinstance(node, cst.BaseString)
        if is_text or _is_prose(node) or node in self._left_out or m.matches(node, _LEFT_OUT):
            self._left_out.add(node)
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self._where.append(node.name.value)
        if isinstance(node, cst.ClassDef):
            self._left_out.update(node.keywords)
        if isinstance(node, cst.Call):
            self._left_out.update(argument for argument in node.args if _is_for_the_type_checker(node, argument))
        self._wording_depth += _is_wording(node)
        where = ".".join(self._where)
        for kind, operator in (*mutation_operators, *OURS):
            if isinstance(node, kind):
                changed: list[Any] = list(operator(node))  # type: ignore[operator]  # of this kind, as was looked at
                kept = changed[:1] if isinstance(node, cst.SimpleString) else changed
                self.found += ((node, one, where) for one in kept if not self._is_noise(node, one))
        if isinstance(node, cst.If) and not m.matches(node.test, _ALREADY_NEGATED):
            self.found.append((node.test, negate(node.test), where))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if original_node in self._left_out:
            return
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self._where.pop()
        self._wording_depth -= _is_wording(original_node)

    def _is_noise(self, before: cst.CSTNode, after: cst.CSTNode) -> bool:
        """Whether a call only loses an argument that is left out, or wording, or can only fail, as ``len(None)``; or
        what was false stays false."""
        if m.matches(before, _assigned("False")) and m.matches(after, _assigned("None")):
            return True
        if not isinstance(before, cst.Call) or not isinstance(after, cst.Call):
            return False
        kept = {id(argument.value) for argument in after.args}
        gone = [argument for argument in before.args if id(argument.value) not in kept]
        is_wording = self._wording_depth > 0 and all(isinstance(one.value, cst.BaseString) for one in gone)
        is_sure_to_fail = m.matches(before.func, m.Name("len") | m.Name("isinstance"))
        return bool(gone) and (is_wording or is_sure_to_fail or all(one in self._left_out for one in gone))


_ALREADY_NEGATED: Final = m.UnaryOperation(m.Not()) | m.Comparison(
    comparisons=[m.ComparisonTarget(m.Equal() | m.NotEqual() | m.In() | m.NotIn() | m.Is() | m.IsNot())]
)
"""mutmut has the opposite of these."""

_LEFT_OUT: Final = (
    m.Annotation()
    | m.Decorator()
    | m.Assert()
    | m.AnnAssign(annotation=m.Annotation(m.Name("TypeAlias")))
    | m.Assign(value=m.Call(func=m.Name("TypeVar")))
)


def _is_wording(node: cst.CSTNode) -> bool:
    name = node.func.attr if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None
    name = node.func if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else name
    return isinstance(node, cst.Raise) or (name is not None and name.value in WORDING)


def _assigned(word: str) -> m.OneOf[m.Assign | m.AnnAssign]:
    return m.Assign(value=m.Name(word)) | m.AnnAssign(value=m.Name(word))


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and len(node.value.split()) >= 3


def _is_for_the_type_checker(call: cst.Call, argument: cst.Arg) -> bool:
    is_strict = m.matches(call.func, m.Name("zip")) and m.matches(argument, m.Arg(keyword=m.Name("strict")))
    return is_strict or (m.matches(call.func, m.Name("cast")) and argument is call.args[0])


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text. Those that Python refuses are none."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    changes = _Changes()
    wrapper.visit(changes)
    made: list[Mutant] = []
    seen: set[tuple[int, str]] = set()
    for node, changed, where in changes.found:
        if isinstance(node, cst.BaseCompoundStatement):
            text = cst.ensure_type(wrapper.module.deep_replace(node, changed), cst.Module).code
        else:
            text = _spliced(source, spans[node], wrapper.module.code_for_node(changed))
        line, before, after = _changed_lines(source, text)
        if (line, after) not in seen and _compiles(text):
            seen.add((line, after))
            made.append(Mutant(Mutation(file, where, before, after), text, line))
    made.sort(key=lambda one: one.line)
    names = numbered([one.mutation for one in made])
    return [Mutant(name, one.source, one.line) for name, one in zip(names, made, strict=True)]


def _compiles(text: str) -> bool:
    try:
        compile(text, "", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _spliced(source: str, span: CodeRange, text: str) -> str:
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    first, last = (starts[at.line - 1] + at.column for at in (span.start, span.end))
    return source[:first] + text + source[last:]


def _changed_lines(source: str, mutated: str) -> tuple[int, str, str]:
    """The number of the first line that differs, and the lines that do, before and after."""
    before, after = ([line.strip() for line in text.splitlines()] for text in (source, mutated))
    first = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
    shorter = min(len(before), len(after)) - first
    last = next((n for n in range(shorter) if before[-1 - n] != after[-1 - n]), shorter)
    old, new = (squeeze(" ".join(lines[first : len(lines) - last])) for lines in (before, after))
    return first + 1, old, new
