"""What somebody may say instead of a name."""

from __future__ import annotations

HOSTILE = [
    "",
    ".",
    "..",
    ".hidden",
    "../../etc/passwd",
    "..\\..\\windows",
    "/etc/passwd",
    "a/b",
    "a/../b",
    "a\\b",
    "a b",
    " a",
    "a ",
    "\t",
    "a\n",
    "\n",
    "a\r\nX-Evil: 1",
    "a\0b",
    "\0",
    "a\x1b[31mb",
    "a\x7f",
    "naïve",
    "nai\u0308ve",
    "\u202eevil",
    "a\u200bb",
    "\ufeffa",
    "\uff41",  # a full-width a
    "\u0661",  # an Arabic digit
    "\u2025",  # two dots in one
    "💥",
    "\U0010ffff",
    "__internal",
    "__",
    "x" * 201,
    "x" * 100_000,
    "ü" * 200,
    "a;drop table",
    "$(id)",
    "`id`",
    "%2e%2e",
    "%00",
    "..%2f..%2f",
    "a:b",
    "a:0:0",
    "*",
    "a*",
    "?x=1",
    "#x",
    "a,b",
    "'",
    '"',
    "<script>alert(1)</script>",
    "{topic}",
    "a=b",
    "~",
    "@",
]
# Text to Python, and to nobody else.
SURROGATES = ["\ud800", "a\udfffb"]
# None of these is text.
NOT_TEXT = [None, 7, 1.5, True, b"a", ["a"], {"a": 1}]
# Odd, and names all the same.
ALLOWED = ["-", "--help", "-rf", "_a", "a__b", "a..b", "a.", "0", "CON", "x" * 196, "a-b_c.d"]
