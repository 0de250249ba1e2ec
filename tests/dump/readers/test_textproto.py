"""The text format against protobuf's own parser, and against files that are none."""

import math
import sys

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from npucmp import Limits
from npucmp.dump.readers.textproto import LONGEST_TEXT, integers, messages, parse, texts
from npucmp.errors import DumpError

DEPTH = Limits().graph_depth

READ = [  # (text, tree)
    ("", {}),
    ("# only a comment", {}),
    ("a: 1", {"a": [1]}),
    ("a:1 a : 2\na:\t3", {"a": [1, 2, 3]}),
    ("a: 1, b: 2; c: 3", {"a": [1], "b": [2], "c": [3]}),
    ("a: -5 b: - 5 c: 0x1F d: 017 e: -0", {"a": [-5], "b": [-5], "c": [31], "d": [15], "e": [0]}),
    (
        "a: 1.5 b: 1e3 c: .5 d: 5. e: 1.5f f: -2E-2",
        {"a": [1.5], "b": [1e3], "c": [0.5], "d": [5.0], "e": [1.5], "f": [-0.02]},
    ),
    ("a: inf b: -inf c: -Infinity", {"a": [math.inf], "b": [-math.inf], "c": [-math.inf]}),
    ("a: true b: false c: DT_FLOAT16", {"a": [True], "b": [False], "c": ["DT_FLOAT16"]}),
    ("a { b: 1 } a: { b: 2 } a < b: 3 > a: < >", {"a": [{"b": [1]}, {"b": [2]}, {"b": [3]}, {}]}),
    ("a{b{c{}}}", {"a": [{"b": [{"c": [{}]}]}]}),
    ("a: [1, 2] a: [] a: [ x ]", {"a": [1, 2, "x"]}),
    ("a: [{ b: 1 }, < b: 2 >] c: 3", {"a": [{"b": [1]}, {"b": [2]}], "c": [3]}),
    ("a [{ b: ['x', 'y' 'z'] }] c { d: [1] }", {"a": [{"b": ["x", "yz"]}], "c": [{"d": [1]}]}),
    ("[a.b]: 1 [type.googleapis.com/c.D] { e: 2 }", {"[a.b]": [1], "[type.googleapis.com/c.D]": [{"e": [2]}]}),
    ("a # what\n : # why\n 1 # how\n b: 2", {"a": [1], "b": [2]}),
    ("a { # c\n } # d\n, b: 'x' # e", {"a": [{}], "b": ["x"]}),
    (r"""a: "x" 'y' "z" b: '"' c: "'" """, {"a": ["xyz"], "b": ['"'], "c": ["'"]}),
    ('a: "x" # comment\n "y"', {"a": ["xy"]}),
    (r'a: "\n\t\r\"\\\'\?" ', {"a": ["\n\t\r\"\\'?"]}),
    (
        r'a: "\303\251" b: "\xc3\xA9" c: "\u00e9\U0001F600" d: "\303" "\251"',
        {"a": ["é"], "b": ["é"], "c": ["é😀"], "d": ["é"]},
    ),
    (r'a: "\ud83d\ude00" b: "é"', {"a": ["😀"], "b": ["é"]}),
    (r'a: "\377\0001" b: "\xfz"', {"a": ["\\xff\0001"], "b": ["\x0fz"]}),
    ('a: "' + "\\\\" * 3 + '" b: 1', {"a": ["\\" * 3], "b": [1]}),
]
REFUSED = [  # (text, line, words)
    ("a", 1, "':' or '{' is expected, not the end"),
    ("a:", 1, "a value is expected"),
    ("a 1", 1, "':' or '{' is expected, not '1'"),
    ("a: 1\nb: @", 2, "a value is expected, not '@'"),
    ("a {\n  b: 1", 2, "'a' of line 1 is not closed"),
    ("a { b: 1 >", 1, "'>' closes nothing"),
    ("a: 1 }", 1, "'}' closes nothing"),
    ("a: 1x", 1, "not a value: '1x'"),
    ("a: 1..2", 1, "not a value"),
    ("a: - - 1", 1, "a number is expected"),
    ('a: "x', 1, "does not end"),
    ('a: "x\n"', 1, "does not end"),
    ('a: "x\\"', 1, "does not end"),
    (r'a: "\q"', 1, "not an escape"),
    (r'a: "\U00110000"', 1, "not a character"),
    ("a: [1 2]", 1, "',' or ']' is expected"),
    ("a: [1, [2]]", 1, "a value is expected"),
    ("a: [1, 2", 1, "is expected, not the end"),
    ("a: [{ b: 1 }", 1, "is expected, not the end"),
    ("{ a: 1 }", 1, "a field is expected"),
    ('"a": 1', 1, "a field is expected"),
    ("é: 1", 1, "a field is expected"),
    ("a: ٣", 1, "not a value"),
    ("[a b]: 1", 1, "a field is expected"),
    ("a{" * (DEPTH + 1), 1, "messages within messages, more than the limit graph_depth of 64;"),
    ("a:[{" * (DEPTH + 1), 1, "messages within messages, more than the limit graph_depth of 64;"),
]


@pytest.mark.parametrize("text, tree", READ, ids=range(len(READ)))
def test_reads(text, tree):
    assert parse(text, "p") == tree


@pytest.mark.parametrize("text, line, words", REFUSED, ids=range(len(REFUSED)))
def test_refuses_and_says_where(text, line, words):
    with pytest.raises(DumpError) as caught:
        parse(text, "dump/graph.txt")
    assert str(caught.value).startswith(f"dump/graph.txt: not protobuf text: line {line}: ")
    assert words in caught.value.because


def test_nan_is_a_number():
    assert all(math.isnan(value) for value in parse("a: nan a: -NaN", "p")["a"])


def test_a_weight_stays_as_the_file_spells_it():
    spelt = "\\003" * LONGEST_TEXT
    assert parse(f'a {{ t: "{spelt}" }} b: 1', "p") == {"a": [{"t": [spelt]}], "b": [1]}


def test_what_is_not_kept_does_not_count():
    limits = Limits(graph_values=12)
    text = "a { x: 1 y { z: 2 } } b: 3 " * 9
    assert parse(text, "p", lambda name, message: name != "a", limits) == {"b": [3] * 9}
    with pytest.raises(DumpError, match="values held at a time, more than the limit graph_values of 12;"):
        parse(text, "p", limits=limits)


def test_keep_sees_each_message_with_what_was_kept_in_it():
    seen = []
    parse("a { b { c: 1 } d { } }", "p", lambda name, message: seen.append((name, dict(message))) or name != "b")
    assert seen == [("b", {"c": [1]}), ("d", {}), ("a", {"d": [{}]})]


@pytest.mark.parametrize(
    "text", ["a" + " " * 10**6 + "!", "a:" + "\n" * 10**6, "#\n" * 10**5, "," * 10**6, "a" * 10**6]
)
@pytest.mark.parametrize("tail", ["", '"', "{"])
def test_long_runs_take_no_time(text, tail):  # a pattern that tries twice would need hours
    try:
        parse(text + tail, "p")
    except DumpError:
        pass


def test_typed_values():
    tree = parse("a { } b: 'x' b: Y c: 1 c: true d: 1.5", "p")
    assert (messages(tree, "a"), texts(tree, "b"), integers(tree, "c")) == ([{}], ["x", "Y"], [1, True])
    assert messages(tree, "none") == texts(tree, "none") == integers(tree, "none") == []
    for read, name in ((messages, "b"), (texts, "c"), (integers, "d"), (integers, "b"), (texts, "a")):
        with pytest.raises(ValueError, match=f"^{name} is not"):
            read(tree, name)


VALID = 'a { b: "x" c: [1, {d: -2}] < e: 1.5 > } f: "\\n" \'y\' # end'
VALID = VALID.replace("] <", "] g <")


@given(st.integers(0, len(VALID)), st.text("{}[]<>:,;#\"'\\ \nab1-.é", max_size=4))
def test_a_damaged_text_is_a_tree_or_a_dump_error(at, damage):
    for text in (VALID[:at], VALID[:at] + damage + VALID[at:], VALID[:at] + damage + VALID[at + len(damage) :]):
        try:
            assert isinstance(parse(text, "p"), dict)
        except DumpError:
            pass


def test_an_unclosed_message_is_an_error():
    last = VALID.rindex("}")
    for at in range(1, last + 1):
        with pytest.raises(DumpError):
            parse(VALID[:at], "p")


@given(st.text(st.one_of(st.characters(), st.sampled_from("{}[]<>:,;#\"'\\ \nab01-.x"))))
@example("a:[{}")
@example("a:[{}#")
@example("\\")
@example("a: '\ud800' '\\n'")
def test_garbage_is_a_tree_or_a_dump_error(text):
    try:
        assert isinstance(parse(text, "p"), dict)
    except DumpError:
        pass


def test_nesting_does_not_use_the_stack():
    tree = parse("a{" * DEPTH + "}" * DEPTH, "p")
    for _ in range(DEPTH):
        tree = tree["a"][0]
    assert tree == {} and sys.getrecursionlimit() > DEPTH


# Against protobuf's own text_format, with a schema made here.

_KINDS = {"i": "TYPE_INT64", "u": "TYPE_UINT32", "d": "TYPE_DOUBLE", "t": "TYPE_STRING", "r": "TYPE_BYTES"}
_KINDS.update(b="TYPE_BOOL", e="TYPE_ENUM", m="TYPE_MESSAGE")


@pytest.fixture(scope="module")
def schema():
    """A message class with one repeated field of each kind, and text_format."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="made.proto", package="made", syntax="proto2")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("DT_FLOAT", "DT_FLOAT16", "FORMAT_RESERVED")):
        kind.value.add(name=name, number=number)
    message = file.message_type.add(name="M")
    for number, (name, type_name) in enumerate(_KINDS.items(), 1):
        field = message.field.add(name=name, number=number, label="LABEL_REPEATED")
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, type_name)
        if name in "em":
            field.type_name = ".made.Kind" if name == "e" else ".made.M"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("made.M")), text_format


_LEAF = {
    "i": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    "u": st.lists(st.integers(0, 2**32 - 1), max_size=3),
    "d": st.lists(st.floats(allow_nan=False), max_size=3),
    "t": st.lists(st.text(), max_size=3),
    "r": st.lists(st.binary(), max_size=3),
    "b": st.lists(st.booleans(), max_size=3),
    "e": st.lists(st.integers(0, 2), max_size=3),
}
TREES = st.recursive(
    st.fixed_dictionaries({}, optional=_LEAF),
    lambda inner: st.fixed_dictionaries({"m": st.lists(inner, max_size=3)}, optional=_LEAF),
    max_leaves=6,
)


def as_tree(message):
    """What parse should make of a message of the schema."""
    found = {}
    for field, values in message.ListFields():
        if field.name == "e":
            values = [field.enum_type.values_by_number[value].name for value in values]
        elif field.name == "m":
            values = [as_tree(value) for value in values]
        elif field.name == "r":
            values = [value.decode("utf-8", "backslashreplace") for value in values]
        found[field.name] = list(values)
    return found


@settings(deadline=None)
@given(
    TREES,
    st.fixed_dictionaries(
        {},
        optional={
            name: st.booleans()
            for name in ("as_one_line", "pointy_brackets", "use_short_repeated_primitives", "as_utf8", "force_colon")
        },
    ),
)
def test_agrees_with_protobuf_on_what_it_prints(schema, tree, style):
    made, text_format = schema
    message = made(**tree)
    assert parse(text_format.MessageToString(message, **style), "p") == as_tree(message)


# Without \\?, which the parser in Python takes for two characters, unlike the one in C++ and the specification.
PIECES = st.sampled_from(
    [
        *"a1 é",
        *(f"\\{char}" for char in "nrtabfv\\'\""),
        "\\0",
        "\\12",
        "\\377",
        "\\xe",
        "\\xFF",
        "\\u00e9",
        "\\U0001f600",
    ]
)


@settings(deadline=None)
@given(st.lists(st.lists(PIECES).map("".join), min_size=1, max_size=3), st.sampled_from("\"'"))
def test_agrees_with_protobuf_on_escapes(schema, strings, quote):
    made, text_format = schema
    text = "r: " + " ".join(f"{quote}{string}{quote}" for string in strings)
    assert parse(text, "p") == as_tree(text_format.Parse(text, made()))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.sampled_from("m:|m|{|}|<|>|i:|-|1|0x1f|[|]|,|;|t:|'x'|\"y\"|# c\n|d:|1.5|inf|b:|true|e:|DT_FLOAT".split("|"))
    )
)
def test_reads_whatever_protobuf_reads(schema, tokens):
    made, text_format = schema
    said = [token for token in tokens if token != "# c\n"]
    assume(not any(pair in (("e:", "1"), ("e:", "0x1f")) for pair in zip(said, said[1:])))  # a name without a schema?
    text = " ".join(tokens)
    try:
        expected = as_tree(text_format.Parse(text, made()))
    except text_format.ParseError:
        return
    assert parse(text, "p") == expected
