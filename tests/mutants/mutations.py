"""The mutations: cosmic-ray's operators where they mean something in this code, and one of our own that deletes calls.

Changes that are equivalent by construction are left out: annotations, and the options of classes in `NO_BEHAVIOUR`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from parso.python.tree import Keyword

NO_BEHAVIOUR = ("frozen", "kw_only", "slots", "array_like", "maxsize")
"""Options of dataclasses, structs and caches: mypy refuses code that would see a difference, or there is none."""

ROOMS = ("protocol", "runtime", "snapshot", "jobmaster")

_COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")
_COMPARISONS += ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt")
_BINARY = ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_FloorDiv", "Div_Mul", "BitOr_BitAnd")
OPERATORS = (
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceUnaryOperator_USub_UAdd",
    "core/ZeroIterationForLoop",
    *(f"core/ReplaceComparisonOperator_{name}" for name in _COMPARISONS),
    *(f"core/ReplaceBinaryOperator_{name}" for name in _BINARY),
)


class DeleteCall(Operator):
    """Replaces a statement that only calls something by `pass`."""

    @staticmethod
    def _is_call(node: Any) -> bool:
        if node.type != "simple_stmt" or node.children[0].type not in ("atom_expr", "power"):
            return False
        last = node.children[0].children[-1]
        return last.type == "trailer" and last.children[0].value == "("

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if self._is_call(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        call = node.children[0]
        node.children[0] = Keyword("pass", call.start_pos, call.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True)
class Mutation:
    module: str
    """The path of the module from the root of the repository."""
    operator: str
    occurrence: int

    def operator_object(self) -> Operator:
        if self.operator == DeleteCall.__name__:
            return DeleteCall()
        made: Operator = cosmic_ray.plugins.get_operator(self.operator)()
        return made


@dataclass(frozen=True)
class Mutant:
    """A mutation with the text that it makes. Its id changes with the module, so old results do not count for it."""

    mutation: Mutation
    original: str
    text: str

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.mutation.module}\n{self.text}".encode()).hexdigest()[:16]

    @cached_property
    def function(self) -> str | None:
        """Returns the qualified name of the changed function; None if the change is outside of functions."""
        outside, functions = _split(_plain(self.original))
        changed_outside, changed = _split(_plain(self.text))
        if outside != changed_outside:
            return None
        return next(was[0] for was, becomes in zip(functions, changed, strict=True) if was != becomes)

    @property
    def changed(self) -> str:
        """Returns the changed lines, as a diff without context."""
        lines = unified_diff(self.original.split("\n"), self.text.split("\n"), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def modules(root: Path) -> list[Path]:
    found = (path for room in ROOMS for path in (root / "engine" / room).rglob("*.py"))
    return sorted(path for path in found if path.name != "__init__.py")


def all_mutations(root: Path) -> list[Mutation]:
    result = []
    for path in modules(root):
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name in (*OPERATORS, DeleteCall.__name__):
            operator = Mutation("", name, 0).operator_object()
            count = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            result += [Mutation(str(path.relative_to(root)), name, number) for number in range(count)]
    return result


def sample(root: Path, count: int, seed: int) -> Iterator[Mutant]:
    """Returns `count` mutants. A larger count with the same seed begins with the same mutants."""
    mutations = all_mutations(root)
    Random(seed).shuffle(mutations)
    made = 0
    for mutation in mutations:
        if made == count:
            return
        original = (root / mutation.module).read_text()
        text = mutate_code(original, mutation.operator_object(), mutation.occurrence)
        if text is not None and _behaviour(text) != _behaviour(original):
            made += 1
            yield Mutant(mutation, original, text)


def _behaviour(text: str) -> str | None:
    """Returns the syntax tree without what changes nothing that runs; None if the text is no Python."""
    try:
        return ast.dump(_plain(text))
    except SyntaxError:
        return None


class _Plain(ast.NodeTransformer):
    """Leaves out annotations and `NO_BEHAVIOUR`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg in NO_BEHAVIOUR else self.generic_visit(node)


def _plain(text: str) -> ast.Module:
    tree: ast.Module = _Plain().visit(ast.parse(text))
    return tree


def _split(tree: ast.AST, prefix: str = "") -> tuple[str, list[tuple[str, str]]]:
    """Returns what runs at import, and each function of module and classes by its qualified name."""
    outside: list[str] = []
    functions: list[tuple[str, str]] = []
    for node in tree.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef):
            functions.append((prefix + node.name, ast.dump(ast.Module(node.body, []))))
            node.body = []
        elif isinstance(node, ast.ClassDef):
            inner, methods = _split(node, f"{prefix}{node.name}.")
            functions += methods
            node.body = []
            outside.append(inner)
        outside.append(ast.dump(node))
    return "\n".join(outside), functions
