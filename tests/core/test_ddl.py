"""Spark's DDL strings: each type, each odd name, and where each mistake is."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from engine.core.ddl import parse_ddl
from engine.core.schema_rules import SchemaError

UTC_MICROS = pa.timestamp("us", tz="UTC")

SPARK_TYPES = st.recursive(
    st.sampled_from(
        [
            spark.BooleanType(),
            spark.ByteType(),
            spark.ShortType(),
            spark.IntegerType(),
            spark.LongType(),
            spark.FloatType(),
            spark.DoubleType(),
            spark.StringType(),
            spark.BinaryType(),
            spark.DateType(),
            spark.TimestampType(),
            spark.TimestampNTZType(),
            spark.DecimalType(10, 2),
            spark.DecimalType(38, 38),
        ]
    ),
    lambda inner: (
        inner.map(spark.ArrayType)
        | st.builds(spark.MapType, inner, inner)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda types: spark.StructType([spark.StructField(f"f{i}", t) for i, t in enumerate(types)])
        )
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(SPARK_TYPES, st.booleans()), min_size=1, max_size=5))
def test_a_ddl_string_gives_what_spark_s_own_arrow_conversion_gives(columns: list[tuple[spark.DataType, bool]]) -> None:
    fields = [spark.StructField(f"c{i}", data_type, nullable) for i, (data_type, nullable) in enumerate(columns)]
    ddl = ", ".join(f"{f.name} {f.dataType.simpleString()}{'' if f.nullable else ' NOT NULL'}" for f in fields)
    expected = to_arrow_schema(spark.StructType(fields), timezone="UTC")
    # Equality of Arrow types overlooks the names of list elements and map entries; their text does not.
    assert parse_ddl(ddl) == expected
    assert str(parse_ddl(ddl)) == str(expected)


def test_the_types_of_spark_ddl_become_their_arrow_types() -> None:
    ddl = """app_id string, user_id long, bytes bigint, ts timestamp, tags array<string>, m map<string,int>,
             s struct<a:int,b:string>, d decimal(10,2), `odd name` double NOT NULL"""
    assert parse_ddl(ddl) == pa.schema(
        [
            ("app_id", pa.string()),
            ("user_id", pa.int64()),
            ("bytes", pa.int64()),
            ("ts", UTC_MICROS),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("m", pa.map_(pa.string(), pa.int32())),
            ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
            ("d", pa.decimal128(10, 2)),
            pa.field("odd name", pa.float64(), nullable=False),
        ]
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("boolean", pa.bool_()),
        ("byte", pa.int8()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", UTC_MICROS),
        ("timestamp_ltz", UTC_MICROS),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric(38, 38)", pa.decimal128(38, 38)),
        ("struct<>", pa.struct([])),
    ],
)
def test_type_names_are_known_in_any_case(name: str, expected: pa.DataType) -> None:
    assert parse_ddl(f"c {name}").field("c").type == expected
    assert parse_ddl(f"c {name.upper()}").field("c").type == expected


def test_a_colon_may_stand_between_name_and_type() -> None:
    assert parse_ddl("a: int, b:string, s: struct<x: int, y int>") == parse_ddl(
        "a int, b string, s struct<x:int,y:int>"
    )


def test_comments_are_read_over() -> None:
    ddl = """a int COMMENT 'it''s, or ''int''', b struct<x: int not null comment "a \\" b">, c long comment '\\''"""
    assert parse_ddl(ddl) == parse_ddl("a int, b struct<x: int not null>, c long")


def test_nested_types_close_without_spaces() -> None:
    found = parse_ddl("a array<map<string,array<struct<b:array<int>>>>>").field("a").type
    assert found.value_type.item_type.value_type.field("b").type.value_type == pa.int32()


def test_backquotes_hold_any_name_and_a_doubled_one_stands_for_itself() -> None:
    assert parse_ddl("`a b` int, `c``d` int, `ä, int` int, `not` int").names == ["a b", "c`d", "ä, int", "not"]


def test_type_names_and_keywords_can_be_column_names() -> None:
    assert parse_ddl(
        "int int, comment string comment 'c', not long not null, struct struct<map: map<int,int>>"
    ).names == [
        "int",
        "comment",
        "not",
        "struct",
    ]


@pytest.mark.parametrize(
    ("ddl", "position", "problem"),
    [
        ("", 1, "no columns"),
        ("  ", 3, "no columns"),
        ("a", 2, "expected a type, found the end; the types are boolean, byte"),
        ("a strng, b int", 3, "unknown type 'strng'; the types are boolean, byte"),
        ("a `int`", 4, "expected a type, found 'int'"),
        ("a int b int", 7, "expected ',', NOT NULL, COMMENT or the end, found 'b'"),
        ("a int,", 7, "expected a column name (in `backquotes` if it is not a plain word), found the end"),
        ("a int, , b int", 8, "expected a column name"),
        ("1 int", 1, "expected a column name"),
        ("a-b int", 2, "cannot read '-' here; write such a name in `backquotes`"),
        ("é int", 1, "cannot read 'é' here; write such a name in `backquotes`"),
        ("a int, b c.d", 11, "cannot read '.' here"),
        ("a array<int", 12, "expected '>', found the end"),
        ("a array int", 9, "expected '<', found 'int'"),
        ("a map<int>", 10, "expected ',', found '>'"),
        ("a decimal(39)", 11, "the decimal's precision, a number from 1 to 38, found '39'"),
        ("a decimal(3,4)", 13, "the decimal's scale, a number from 0 to 3, found '4'"),
        ("a decimal(x)", 11, "the decimal's precision"),
        ("a int NOT", 10, "expected NULL after NOT, found the end"),
        ("a int NOT nil", 11, "expected NULL after NOT, found 'nil'"),
        ("a int COMMENT x", 15, "expected a quoted text after COMMENT, found 'x'"),
        ("a int COMMENT 'x", 15, 'cannot read "\'" here'),
        ("a int, a long", 8, "column 'a' occurs more than once"),
        ("s struct<x:int, x:int>", 17, "column 'x' occurs more than once"),
        ("a int, _event_time long", 8, "column name '_event_time' is reserved"),
        ("`_event_time_ms` long", 2, "choose one that does not start with '_event_time'"),
    ],
)
def test_an_error_is_one_line_that_says_where_and_what_is_allowed(ddl: str, position: int, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_ddl(ddl)
    assert str(caught.value).startswith(f"schema {ddl!r}, character {position}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="ab1_ `'\"<>(),:;intNOLarymp\\\n", max_size=40))
def test_any_text_is_either_a_schema_or_a_schema_error(text: str) -> None:
    try:
        schema = parse_ddl(text)
    except SchemaError:
        return
    assert schema.names


def test_nested_fields_may_use_the_reserved_name() -> None:
    assert parse_ddl("s struct<_event_time: long>").names == ["s"]
