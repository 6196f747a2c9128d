"""Parses Spark's DDL strings, such as `"app_id string, ts timestamp"`, into Arrow schemas, without Spark.

Invariant: a DDL string gives the Arrow schema that Spark's own Arrow conversion gives for it, so that a stream, the
table it is written to and a DataFrame read back from that table agree on every type.

    columns := column ("," column)*
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" text]
    type    := "decimal" ["(" precision ["," scale] ")"] | "array<" type ">" | "map<" type "," type ">"
             | "struct<" [columns] ">" | one of the plain names below
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from engine.core.schema_rules import SchemaError, fault_of_name

_PLAIN_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_WORDS = {kind: word for word, kind in reversed(_PLAIN_TYPES.items())}
_DECIMAL_NAMES = ("decimal", "dec", "numeric")
_ALLOWED_TYPES = ", ".join((*_PLAIN_TYPES, "decimal(p,s)", "array<…>", "map<…,…>", "struct<…>"))
_MAX_PRECISION = 38

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>\w+)
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<text>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
      | (?P<mark>[<>(),:])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def parse_ddl(ddl: str) -> pa.Schema:
    """Returns the Arrow schema that a DDL string describes; raises a `SchemaError` that says where it is wrong."""
    return _Parser(ddl).schema()


def ddl_of(schema: pa.Schema) -> str:
    """Writes a schema as an author would declare it, as in `"id long, name string"`."""
    return ", ".join(f"{field.name} {_type_ddl(field.type)}{_not_null(field)}" for field in schema)


def _type_ddl(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{_type_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_ddl(kind.key_type)},{_type_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{ddl_of(pa.schema(list(kind)))}>"
    return _WORDS.get(kind, str(kind))


def _not_null(field: pa.Field) -> str:
    return "" if field.nullable else " not null"


def parse_type(given: pa.DataType | str, what: str) -> pa.DataType:
    """Returns an Arrow type that is given as itself or as a DDL type such as `"long"`. `what` begins the message."""
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, str):
        return _Parser(given, f"{what}, type").single_type()
    raise SchemaError(f"{what}: a type is a pyarrow type or a Spark DDL type such as 'long', not {given!r}")


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind` is the group of `_TOKEN` that matched: word, quoted, text, mark or end."""

    kind: str
    text: str
    start: int

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


class _Parser:
    """Parses by recursive descent over the grammar above. Keywords and type names may be in any case."""

    def __init__(self, ddl: str, what: str = "schema") -> None:
        self._ddl = ddl
        self._what = what
        self._tokens = self._tokenize()
        self._next = 0

    def schema(self) -> pa.Schema:
        if self._peek().kind == "end":
            self._fail(self._peek(), "the schema has no columns; a stream needs at least one, as in 'id long'")
        fields = self._columns(top=True)
        if self._peek().kind != "end":
            self._fail(self._peek(), f"expected ',', NOT NULL, COMMENT or the end, found {self._peek()}")
        return pa.schema(fields)

    def single_type(self) -> pa.DataType:
        found = self._type()
        if self._peek().kind != "end":
            self._fail(self._peek(), f"expected the end, found {self._peek()}")
        return found

    def _columns(self, *, top: bool) -> list[pa.Field]:
        fields: list[pa.Field] = []
        seen: set[str] = set()
        while True:
            name = self._name()
            if name.text in seen:
                self._fail(name, f"column {name.text!r} occurs more than once; names must be unique")
            if top and (fault := fault_of_name(name.text)):
                self._fail(name, fault)
            seen.add(name.text)
            self._skip_mark(":")
            fields.append(self._column(name.text))
            if not self._skip_mark(","):
                return fields

    def _column(self, name: str) -> pa.Field:
        data_type = self._type()
        nullable = True
        if self._peek().is_word("not"):
            self._take()
            token = self._take()
            if not token.is_word("null"):
                self._fail(token, f"expected NULL after NOT, found {token}")
            nullable = False
        if self._peek().is_word("comment"):
            self._take()
            token = self._take()
            if token.kind != "text":
                self._fail(token, f"expected a quoted text after COMMENT, found {token}")
        return pa.field(name, data_type, nullable=nullable)

    def _name(self) -> _Token:
        token = self._take()
        if token.kind == "quoted" or (token.kind == "word" and not token.text.isdigit()):
            return token
        self._fail(token, f"expected a column name (in `backquotes` if it is not a plain word), found {token}")

    def _type(self) -> pa.DataType:
        token = self._take()
        name = token.text.lower() if token.kind == "word" else None
        if name in _PLAIN_TYPES:
            return _PLAIN_TYPES[name]
        if name in _DECIMAL_NAMES:
            return self._decimal()
        if name == "array":
            self._expect_mark("<")
            element = pa.field("element", self._type())
            self._expect_mark(">")
            return pa.list_(element)
        if name == "map":
            self._expect_mark("<")
            key = pa.field("key", self._type(), nullable=False)
            self._expect_mark(",")
            value = pa.field("value", self._type())
            self._expect_mark(">")
            return pa.map_(key, value)
        if name == "struct":
            self._expect_mark("<")
            if self._skip_mark(">"):
                return pa.struct([])
            fields = self._columns(top=False)
            self._expect_mark(">")
            return pa.struct(fields)
        found = f"unknown type {token}" if name else f"expected a type, found {token}"
        self._fail(token, f"{found}; the types are {_ALLOWED_TYPES}")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._skip_mark("("):
            precision = self._number(1, _MAX_PRECISION, "precision")
            if self._skip_mark(","):
                scale = self._number(0, precision, "scale")
            self._expect_mark(")")
        return pa.decimal128(precision, scale)

    def _number(self, low: int, high: int, what: str) -> int:
        token = self._take()
        if token.kind != "word" or not token.text.isdecimal() or not low <= int(token.text) <= high:
            self._fail(token, f"expected the decimal's {what}, a number from {low} to {high}, found {token}")
        return int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        if token.kind != "end":
            self._next += 1
        return token

    def _skip_mark(self, mark: str) -> bool:
        if self._peek().kind == "mark" and self._peek().text == mark:
            self._next += 1
            return True
        return False

    def _expect_mark(self, mark: str) -> None:
        if not self._skip_mark(mark):
            self._fail(self._peek(), f"expected {mark!r}, found {self._peek()}")

    def _tokenize(self) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(self._ddl, position)
            if match is None or match.lastgroup is None:
                start = position + len(self._ddl[position:]) - len(self._ddl[position:].lstrip())
                self._fail_at(start, f"cannot read {self._ddl[start]!r} here; write such a name in `backquotes`")
            text = match[match.lastgroup]
            if match.lastgroup == "quoted":
                text = text.replace("``", "`")
            tokens.append(_Token(match.lastgroup, text, match.start(match.lastgroup)))
            position = match.end()
        return tokens

    def _fail(self, token: _Token, problem: str) -> NoReturn:
        self._fail_at(token.start, problem)

    def _fail_at(self, start: int, problem: str) -> NoReturn:
        raise SchemaError(f"{self._what} {self._ddl!r}, character {start + 1}: {problem}")
