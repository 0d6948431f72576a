"""Follows the source of a layer's constructor, to see what it makes of a checkpoint's configuration.

No model is imported, because a model may need a device that this machine does not have. The source is followed as far
as it computes with the configuration and the number of the layer. All else is ``UNKNOWN``, and what depends on it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from posenc_runtime.vllm_adapter.checkpoint.model_code.definitions import Definition, names_in, with_bases

_LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_index")
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mod: operator.mod, ast.Is: operator.is_},
    **{ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.In: lambda item, group: item in group, ast.NotIn: lambda item, group: item not in group},
}


class _Unknown:
    """The one value that stands for all that the source does not tell."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclasses.dataclass(frozen=True)
class _Named:
    """A class or a function of another place; several where what chooses one of them is unknown."""

    names: frozenset[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """What a class of another place makes.

    Attributes:
        of: names that the class may have.
        arguments: those given by keyword; None where not all of their names are known.
    """

    of: frozenset[str]
    arguments: Mapping[str, Any] | None


class Layer:
    """One layer of a model, as far as the source of its class tells.

    Attributes:
        methods: its methods by name, those of base classes included.
    """

    def __init__(self, definition: Definition, among: tuple[Definition, ...], config: Any, number: int) -> None:
        """Follow the constructor.

        Args:
            definition: of the class.
            among: definitions of the model that has the layer.
            config: the configuration of the checkpoint's text.
            number: of the layer, from 0.
        """
        self._config, self._number = config, number
        classes = [each.node for each in with_bases(definition, among) if isinstance(each.node, ast.ClassDef)]
        own = [{node.name: node for node in each.body if isinstance(node, ast.FunctionDef)} for each in classes]
        self.methods = {name: node for methods in reversed(own) for name, node in methods.items()}
        self._constructors = [methods["__init__"] for methods in own if "__init__" in methods]
        others = [method for name, method in self.methods.items() if name != "__init__"]
        self._set_later = set(_set_by(others))
        self._members: dict[str, Any] = {}
        if not self._constructors or any(isinstance(each, ast.Return) for each in _parts(self._constructors)):
            return
        scope = {
            name: self._value(default, {}) if default and name in _left_to_defaults(definition, among) else UNKNOWN
            for name, default in _parameters(self._constructors[0]).items()
        }
        self._run(self._constructors[0].body, scope | {"config": config} | dict.fromkeys(_LAYER_NUMBERS, number))

    def members(self) -> Iterator[tuple[str, Any]]:
        """What the constructor sets, with the value: ``self.attn``."""
        return ((name, self._member(name)) for name in self._members)

    def value(self, expression: ast.expr, given: Mapping[str, Any] | None = None) -> Any:
        """The value of an expression in a method; ``UNKNOWN`` where the constructor does not tell.

        Args:
            given: arguments of the method that are known, by name.
        """
        return self._value(expression, None if given is None else dict(given))

    def value_after(self, statements: Sequence[ast.stmt], expression: ast.expr, variables: Mapping[str, Any]) -> Any:
        """The value of an expression in a method after some of its statements.

        Args:
            variables: those that are known before the statements, by name.
        """
        scope = dict(variables)
        self._run(statements, scope)
        return self._value(expression, scope)

    def _member(self, name: str) -> Any:
        return UNKNOWN if name in self._set_later else self._members.get(name, UNKNOWN)

    def _run(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    found = self._value(value, scope)
                    for target in targets:
                        self._assign(target, found, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, self._value(value, scope), scope)
                case ast.If(test=test, body=if_true, orelse=if_false):
                    holds = truth(self._value(test, scope))
                    if holds is UNKNOWN:
                        self._forget(statement, scope)
                    else:
                        self._run(if_true if holds else if_false, scope)
                case ast.Expr(value=ast.Call(func=function) as call) if ast.unparse(function) == "super().__init__":
                    self._run_base(call, scope)
                case _:
                    self._forget(statement, scope)

    def _run_base(self, call: ast.Call, scope: dict[str, Any]) -> None:
        """Run the constructor of the next base class that has one."""
        constructors, self._constructors = self._constructors, self._constructors[1:]
        if not self._constructors and any(self._value(each, scope) is self._config for each in call.args):
            self._members["self.config"] = self._config  # as transformers' PreTrainedModel keeps it
        if self._constructors:
            function = self._constructors[0]
            bound = {
                name: self._value(default, {}) if default else UNKNOWN
                for name, default in _parameters(function).items()
            }
            if _gives_by_name(call):
                names = [each.arg for each in function.args.args[1:]]
                bound |= {name: self._value(each, scope) for name, each in zip(names, call.args, strict=False)}
                bound |= {str(each.arg): self._value(each.value, scope) for each in call.keywords}
                self._run(function.body, bound)
            else:
                self._run(function.body, dict.fromkeys(bound, UNKNOWN))
        self._constructors = constructors

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=ast.Name(id="self")):
                self._members[ast.unparse(target)] = value
            case _:
                self._forget(target, scope)

    def _forget(self, code: ast.AST, scope: dict[str, Any]) -> None:
        """Make everything unknown that some code sets."""
        for name in _set_by([code]):
            (self._members if name.startswith("self.") else scope)[name] = UNKNOWN

    def _value(self, node: ast.expr, scope: dict[str, Any] | None) -> Any:
        """The value of an expression.

        Args:
            scope: the variables by name; without it, all are unknown.
        """
        try:
            return self._computed(node, scope)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return UNKNOWN  # the configuration does not have what the code reads

    def _computed(self, node: ast.expr, scope: dict[str, Any] | None) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return UNKNOWN if scope is None else scope.get(name, _Named(frozenset({name})))
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if scope is not None:
                return scope.setdefault(name, self._value(value, scope))
            case ast.Attribute(value=ast.Name(id="self")):
                return self._member(ast.unparse(node))
            case ast.Attribute(value=value, attr=name):
                return getattr(self._config, name) if self._value(value, scope) is self._config else UNKNOWN
            case ast.Subscript(value=value, slice=index):
                return self._of(operator.getitem, [value, index], scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                holds = truth(self._value(operand, scope))
                return UNKNOWN if holds is UNKNOWN else not holds
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._of(_OPERATORS[type(op)], [left, right], scope)
            case ast.BoolOp(op=op, values=values):
                return self._first(values, scope, that_holds=isinstance(op, ast.Or))
            case ast.IfExp(test=test, body=if_true, orelse=if_false):
                return self._chosen(truth(self._value(test, scope)), if_true, if_false, scope)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._of(lambda *each: each, elements, scope)
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                return dict(zip(names, (self._value(each, scope) for each in values), strict=True))
            case ast.Call():
                return self._called(node, scope)
        return UNKNOWN

    def _of(self, function: Callable[..., Any], nodes: Sequence[ast.expr], scope: dict[str, Any] | None) -> Any:
        """What a function makes of some values, if all of them are known."""
        values = [self._value(each, scope) for each in nodes]
        return UNKNOWN if any(isinstance(each, _Unknown | _Named) for each in values) else function(*values)

    def _first(self, nodes: Sequence[ast.expr], scope: dict[str, Any] | None, *, that_holds: bool) -> Any:
        """The first value that counts as true, or as false; otherwise the last one."""
        value = None
        for node in nodes:
            value = self._value(node, scope)
            if (holds := truth(value)) is UNKNOWN:
                return UNKNOWN
            if holds is that_holds:
                return value
        return value

    def _chosen(self, holds: Any, if_true: ast.expr, if_false: ast.expr, scope: dict[str, Any] | None) -> Any:
        if holds is not UNKNOWN:
            return self._value(if_true if holds else if_false, scope)
        match self._value(if_true, scope), self._value(if_false, scope):
            case _Named(names=names), _Named(names=others):
                return _Named(names | others)
        return UNKNOWN

    def _called(self, call: ast.Call, scope: dict[str, Any] | None) -> Any:
        match call:
            case ast.Call(func=ast.Name(id="extract_layer_index")):
                return self._number
            case ast.Call(func=ast.Name(id="bool"), args=[value]):
                return truth(self._value(value, scope))
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "isinstance" as name), args=[of, *others]):
                return self._asked(name, others, scope) if self._value(of, scope) is self._config else UNKNOWN
        made_by = self._value(call.func, scope)
        if not isinstance(made_by, _Named) or not all(map(_makes_something, made_by.names)):
            return UNKNOWN
        given = dict[str, Any]()
        for each in call.keywords:
            value = self._value(each.value, scope)
            if each.arg is None and not isinstance(value, dict):
                return Made(made_by.names, None)
            given |= value if each.arg is None else {each.arg: value}
        return Made(made_by.names, given)

    def _asked(self, how: str, others: Sequence[ast.expr], scope: dict[str, Any] | None) -> Any:
        """What ``getattr``, ``hasattr`` or ``isinstance`` say of the configuration."""
        if how == "isinstance":
            return ast.unparse(others[0]) in {each.__name__ for each in type(self._config).__mro__}
        function = getattr if how == "getattr" else hasattr
        return self._of(lambda *said: function(self._config, *said), others, scope)


def truth(value: Any) -> Any:
    """Whether a value counts as true; ``UNKNOWN`` where that is not known."""
    return UNKNOWN if isinstance(value, _Unknown | _Named) else bool(value)


def _makes_something(name: str) -> bool:
    """Whether a call cannot give None: that of a class, or of vLLM's function for rotary embeddings."""
    return name[0].isupper() or name == "get_rope"


def _parameters(function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    """A function's parameters, each with its default."""
    of = function.args
    positional = [*of.posonlyargs, *of.args]
    defaults = [*[None] * (len(positional) - len(of.defaults)), *of.defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    return {each.arg: default for each, default in pairs}


@functools.cache
def _left_to_defaults(definition: Definition, among: tuple[Definition, ...], depth: int = 4) -> frozenset[str]:
    """The parameters of a class's constructor that no code gives.

    Args:
        depth: how many classes up parameters are followed that a constructor only passes on.
    """
    function = _constructor(definition)
    calls = [
        (each, node)
        for each in among
        for node in ast.walk(each.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == definition.name
    ]
    # A class that is named without a call may be called elsewhere.
    num_named = sum(list(names_in(each.node)).count(definition.name) for each in among)
    if not (function and depth) or num_named > len(calls) or not all(_gives_by_name(call) for _, call in calls):
        return frozenset()
    left = set(_parameters(function)) - set(_set_by([function]))
    for caller, call in calls:
        passed_on = {each.arg for each in call.keywords if ast.unparse(each.value) == each.arg}
        left -= {each.arg for each in function.args.args[1 : len(call.args) + 1]}
        left -= {each.arg for each in call.keywords} - (passed_on & _left_to_defaults(caller, among, depth - 1))
    return frozenset(left)


def _constructor(definition: Definition) -> ast.FunctionDef | None:
    for node in definition.node.body if isinstance(definition.node, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return node
    return None


def _gives_by_name(call: ast.Call) -> bool:
    """Whether the names of all that a call gives are known."""
    return not any(isinstance(each, ast.Starred) for each in call.args) and all(each.arg for each in call.keywords)


def _parts(code: Sequence[ast.AST]) -> Iterator[ast.AST]:
    return (node for each in code for node in ast.walk(each))


def _set_by(code: Sequence[ast.AST]) -> Iterator[str]:
    """The variables and members that some code sets."""
    for node in _parts(code):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)
