#!/usr/bin/env bash
# llguidance 1.7.6: a token that a terminal with `& ~/.../` refuses spoils the matcher's copies.
#
# `try_consume_tokens` says how many tokens were taken; one that does not fit is refused, and changes
# nothing: `get_error()` stays empty, and another token may come instead. So one would expect that a
# matcher can be kept, and a copy of it (`deep_copy`) used for each text. Where the grammar has a
# lazy rule over a terminal that excludes texts (`V: /.../ & ~/.../`), that is so until a copy
# refuses a byte because the excluded text would be complete. From then on every further copy refuses
# even the first byte of the text that the first copy took whole; `is_error()` stays False and
# `get_error()` empty. A matcher that is made anew from the same grammar takes the text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.7.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

GRAMMAR = r"""
start: "<l>" value "e"
value[lazy]: V "\n</p>\n"
V: /(.|\n)*/ & ~/(.|\n)*(<\/p>\s{0,64}(?:<p|<\/f>)|\n[ \t]{0,64}<p)(.|\n)*/
"""
GOOD, EXCLUDED = "<l>ab\n</p>\ne", "<l>a</p></f>x\n</p>\ne"
tokenizer = LLTokenizer("byte")


def taken(matcher, text):
    """How many bytes of a text a copy takes, one after the other, and its error."""
    copy = matcher.deep_copy()
    count = 0
    for byte in text.encode():
        if copy.try_consume_tokens([byte]) != 1:
            break
        count += 1
    return count, copy.is_error(), copy.get_error()


print("Python", sys.version.split()[0], "llguidance", version("llguidance"))
kept = LLMatcher(tokenizer, GRAMMAR, log_level=0)
first, refused, again = (taken(kept, text) for text in (GOOD, EXCLUDED, GOOD))
fresh = taken(LLMatcher(tokenizer, GRAMMAR, log_level=0), GOOD)
print(f"a copy takes {first[0]} of {len(GOOD)} bytes of a text that fits")
print(f"a copy takes {refused[0]} of {len(EXCLUDED)} bytes of a text that is excluded")
print(f"a further copy takes {again[0]} of {len(GOOD)} bytes of the first text, error: {again[1:]}")
print(f"a copy of a new matcher takes {fresh[0]} of {len(GOOD)}")
whole = (len(GOOD), False, "")
sys.exit(0 if (first, again, fresh) == (whole, (0, False, ""), whole) else 1)
PYTHON
