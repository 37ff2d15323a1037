"""Text to token ids and back; no text can become a control token.

One tokenizer.json makes two encoders: `encode_markup` knows the added tokens, and encodes only what
the chat template itself wrote; `encode` has none of them. (`split_special_tokens` is not enough:
Qwen3's `<think>` is an added token that is not "special".)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import takewhile
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Backend

from orchestrator.errors import ConfigError
from workers.memo import remembered
from workers.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from workers.text.ends import Stop
from workers.text.thinking import AUTO, NONE, ThinkingFormat, find_format

_SHORT = 8192  # most characters of a text that is cached, and encoded without releasing the GIL
_COMPOSED = 4  # most characters that Unicode's normal forms compose to one
_REMEMBERED_BYTES = 8 << 20  # size of the cache of short texts
_ID_BYTES = 48  # estimated size of an id in a tuple, with its text


class Tokenizer:
    """Encoders, bytes of every id, and the ids that are structure rather than text.

    Args:
        backend: with all added tokens; it is changed here.
        special_tokens: texts by name ("bos_token", "eos_token", ...).
        chat_template: Jinja's source; None is `PLAIN_TEMPLATE`.
        thinking: how the model marks its thought; `AUTO` finds it out, `NONE` means that the model
            has none, or that it is switched off.
        tool_use: a separate chat template for conversations with tools.

    Raises:
        ConfigError: a plain text would be read as a control token, or tokens of this kind of
            vocabulary have no bytes.
    """

    pieces: list[bytes]  # bytes of each id
    hash: str  # equal for equal vocabularies, so that workers can exchange ids
    format: ThinkingFormat | None  # how the model marks a thought, if it does
    thinks: bool  # whether it is to think
    close_id: int | None  # the token that ends its thought; None if text does
    controls: frozenset[int]  # ids to which no user's or model's text is encoded
    ends: frozenset[int]  # those that end any text, without those that only mark a thought
    added: frozenset[int]  # ids of the added tokens that no user's text becomes
    eos_id: int | None  # the end of a turn, if the checkpoint names one
    begin: tuple[int, ...]  # ids that servers put before any text
    token_chars: float  # the most characters of a text that one token may represent

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        chat_template: str | None = None,
        thinking: ThinkingFormat | str = AUTO,
        tool_use: str | None = None,
    ) -> None:
        source = chat_template or PLAIN_TEMPLATE
        self.chat_template = ChatTemplate(source, special_tokens, tool_use)
        eos = special_tokens.get("eos_token")
        self.eos_id = None if eos is None else backend.token_to_id(eos)
        backend.no_padding()
        backend.no_truncation()
        framed = backend.encode("0")  # with special tokens before and after
        marked = zip(framed.ids, framed.special_tokens_mask, strict=True)
        self.begin = tuple(i for i, _ in takewhile(itemgetter(1), marked))
        spec = json.loads(backend.to_str())
        added = {token["id"]: token["content"] for token in spec["added_tokens"]}
        self.hash = _hash(spec["model"], added)
        # Added tokens of white space are text.
        hidden = {
            token["id"]: token["content"]
            for token in spec["added_tokens"]
            if token["special"] or not token["content"].replace("▁", " ").isspace()
        }
        spec = _continuing(spec)
        self._markup = Backend.from_str(json.dumps(spec))
        self._plain = Backend.from_str(json.dumps(_without(spec, set(hidden.values()))))
        self.pieces = _pieces(self._markup, spec)
        if isinstance(thinking, ThinkingFormat):
            self.format = thinking
        else:
            template = self.chat_template if chat_template else None
            self.format = find_format(template, added.values())
        self.thinks = self.format is not None and thinking != NONE
        markers, named = _markers(self.format, hidden)
        special = {token["id"] for token in spec["added_tokens"] if token["special"]}
        self.controls = frozenset(special | markers)
        self.ends = self.controls - (named - {self.eos_id})
        self.added = frozenset(hidden)
        self.token_chars = _token_chars(spec, max(map(len, self.pieces)))
        self._encode_short = remembered(
            self._encode, _REMEMBERED_BYTES, lambda ids: _ID_BYTES * len(ids)
        )
        for content in added.values():
            if self.controls.intersection(self.encode(content)):
                raise ConfigError(f"the tokenizer reads the plain text {content!r} as a control")
        closing = () if self.format is None else self.encode_markup(self.format.close)
        self.close_id = closing[0] if closing and closing[0] in self.controls else None

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a text; no id is a control. Short texts are cached."""
        return self._encode_short(text) if len(text) <= _SHORT else self.encode_uncached(text)

    def encode_uncached(self, text: str) -> tuple[int, ...]:
        """Encode a client's text without the cache, whose speed would show what others sent."""
        # Unlike the library's `encode`, this releases the GIL.
        (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoding.ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> tuple[int, ...]:
        """Encode a piece of the chat template, control tokens included."""
        return tuple(self._markup.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Any) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    def stops(self, thinking: bool) -> list[Stop]:
        """Return the texts that end a thought, or an answer, if no token does."""
        if self.format is None:
            return []
        if thinking:
            stop = self.format.close.strip() if self.thinks and self.close_id is None else ""
            return [(stop, "think_end")] if stop else []
        stop = self.format.end.strip()
        is_token = self.controls.intersection(self.encode_markup(stop))
        return [(stop, "eos")] if stop and not is_token else []


def _markers(family: ThinkingFormat | None, added: Mapping[int, str]) -> tuple[set[int], set[int]]:
    """Return the ids of the added tokens in a family's markup around a thought, and those among
    them that mark only the thought, not the answer or the end of a message."""
    if family is None:
        return set(), set()

    def held(markup: str) -> set[int]:
        return {i for i, content in added.items() if len(content) > 2 and content in markup}

    around = family.open + family.closing
    other = family.answer + family.end + family.direct
    if family.direct:  # then any message ends with `close`
        other += family.close
    return held(around), held(around) - held(other)


def _hash(model: dict[str, Any], added: dict[int, str]) -> str:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):  # some files list added tokens here too, others do not
        rows = sorted((text, token) for text, token in vocabulary.items() if token not in added)
    else:
        rows = vocabulary
    parts = [model.get("type"), rows, model.get("merges"), sorted(added.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _token_chars(spec: dict[str, Any], longest: int) -> float:
    """Return the most characters of a text that a token of at most `longest` bytes represents."""
    normalizer, model = spec["normalizer"], spec["model"]
    if model.get("fuse_unk") and not model.get("byte_fallback"):
        return inf
    if normalizer is None:
        return longest
    for part in normalizer.get("normalizers", [normalizer]):
        replaced = part.get("pattern", {}).get("String")
        if replaced is not None and len(part["content"]) >= len(replaced):
            continue
        if part["type"] not in ("NFC", "NFD", "NFKC", "NFKD"):
            return inf
    return _COMPOSED * longest


def _continuing(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that puts no begin token and no space before a text."""

    def clean(part: dict[str, Any] | None) -> dict[str, Any] | None:
        if part is None or part["type"] == "Prepend":
            return None
        if part["type"] == "Metaspace":
            return part | {"prepend_scheme": "never", "add_prefix_space": False}
        if part["type"] == "ByteLevel":
            return part | {"add_prefix_space": False}
        for key in ("normalizers", "pretokenizers"):
            if key in part:
                part = part | {key: [kept for p in part[key] if (kept := clean(p)) is not None]}
        return part

    return spec | {
        "normalizer": clean(spec.get("normalizer")),
        "pre_tokenizer": clean(spec.get("pre_tokenizer")),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _without(spec: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    """Return the tokenizer without the added tokens in `hidden`."""
    model, kept = dict(spec["model"]), list[dict[str, Any]]()
    if isinstance(model["vocab"], dict):
        kept = [token for token in spec["added_tokens"] if token["content"] not in hidden]
        # An added token that the model's vocabulary lacks would get another id.
        vocabulary = model["vocab"] | {token["content"]: token["id"] for token in kept}
        gone = hidden - {model.get("unk_token")}
        model["vocab"] = {text: i for text, i in vocabulary.items() if text not in gone}
        if "merges" in model:
            pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
            model["merges"] = [
                pair for pair in pairs if not gone.intersection((*pair, "".join(pair)))
            ]
    return spec | {"model": model, "added_tokens": kept}


def _pieces(backend: Backend, spec: dict[str, Any]) -> list[bytes]:
    """Return the bytes of every id, for byte-level and sentencepiece vocabularies."""
    kinds = json.dumps(spec.get("decoder"))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values()) + 1)
    if '"ByteLevel"' in kinds:
        alphabet = _byte_alphabet()
        for text, i in vocabulary.items():
            pieces[i] = bytes(alphabet[c] for c in text if c in alphabet)
    elif '"Metaspace"' in kinds or '"ByteFallback"' in kinds:
        for text, i in vocabulary.items():
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", text)
            pieces[i] = bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
    else:
        raise ConfigError(f"a tokenizer with the decoder {kinds} is not supported")
    for token in spec["added_tokens"]:
        if token["special"] or '"ByteLevel"' in kinds:
            pieces[token["id"]] = token["content"].encode()
    return pieces


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's map from printable characters to the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
