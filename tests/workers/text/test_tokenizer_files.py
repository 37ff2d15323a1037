"""Loading from files alone gives what transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer

from orchestrator.errors import ConfigError
from tests.workers.conftest import CONTROLS, TEMPLATE, make_tokenizer
from workers.embedded.checkpoints import MODELS
from workers.text.tokenizer_files import load_tokenizer

TEXTS = ("", "What is 12 + 34?", " a\n\n b", "é漢🙂", "<think>x</think><|im_end|>", "  two  ")
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def edit(file: Path, **entries: Any) -> None:
    data = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(data | entries))


def check(folder: Path) -> None:
    """The same ids, special tokens and chats as transformers' tokenizer of the folder."""
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert list(ours.encode_markup(text)) == expected
    assert list(ours.begin) == theirs("")["input_ids"]
    assert ours.eos_id == theirs.eos_token_id
    assert ours.controls >= set(theirs.all_special_ids)
    assert len(ours.pieces) == len(theirs)
    expected_text = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ours.chat_template.render(CHAT) == expected_text


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_embedded_pair(name: str) -> None:
    check(MODELS / name)


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE}]


@pytest.mark.parametrize("given", [TEMPLATE.replace("user", "person"), NAMED], ids=["one", "list"])
def test_templates_in_the_config(folder: Path, given: Any) -> None:
    check(folder)  # with its own file
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template=given)
    check(folder)


def test_templates_in_several_files(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("documents")
    edit(folder / "tokenizer_config.json", chat_template="not this one")
    check(folder)
    assert load_tokenizer(folder).chat_template.source == TEMPLATE


@pytest.mark.parametrize("form", ["list", "dict", "files"])
def test_a_template_for_conversations_with_tools(folder: Path, form: str) -> None:
    sources = {"default": TEMPLATE, "tool_use": "{{ tools[0].name }}: " + TEMPLATE}
    (folder / "chat_template.jinja").unlink()
    if form == "files":
        (folder / "chat_template.jinja").write_text(sources["default"])
        (folder / "additional_chat_templates").mkdir()
        file = folder / "additional_chat_templates" / "tool_use.jinja"
        file.write_text(sources["tool_use"])
    else:
        listed = [{"name": name, "template": source} for name, source in sources.items()]
        edit(folder / "tokenizer_config.json", chat_template=sources if form == "dict" else listed)
    check(folder)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder).chat_template
    tools = [{"name": "add"}]
    expected = theirs.apply_chat_template(CHAT, tools=tools, tokenize=False)
    written = ours.render(CHAT, {"tools": tools, "add_generation_prompt": False})
    assert written == expected
    assert written.startswith("add: ")


def test_a_template_in_the_processors_file(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "chat_template.json", chat_template=TEMPLATE)
    assert load_tokenizer(folder).chat_template.source == TEMPLATE


def test_special_tokens_that_only_the_config_has(folder: Path) -> None:
    pad = {"__type": "AddedToken", "content": "<pad>", "special": True}
    table = {"bos_token": "<s>", "extra_special_tokens": ["<extra>", CONTROLS[0]]}
    edit(folder / "tokenizer_config.json", **table, pad_token=pad)
    template = "{{ bos_token }}{{ pad_token }}{{ sep_token }}{{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(template)
    check(folder)
    assert load_tokenizer(folder).chat_template.render(CHAT) == "<s><pad>Hi"


def test_special_tokens_in_a_file_of_their_own(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    kept = {k: v for k, v in config.items() if k not in ("eos_token", "added_tokens_decoder")}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    edit(folder / "special_tokens_map.json", eos_token={"content": CONTROLS[0]}, cls_token="<cls>")
    check(folder)
    assert load_tokenizer(folder).eos_id == load_tokenizer(folder).encode_markup(CONTROLS[0])[0]


def test_a_table_of_added_tokens(folder: Path) -> None:
    size = len(load_tokenizer(folder).pieces)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "never read"}')
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    table = {
        str(size + 1): {"content": "<second>", "special": False, **flags},
        str(size): {"content": "<first>", "special": True, **flags},
    }
    edit(folder / "tokenizer_config.json", added_tokens_decoder=table)
    check(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode_markup("<first><second>") == (size, size + 1)
    assert [i in tokenizer.controls for i in (size, size + 1)] == [True, False]


def test_a_begin_token_padding_and_truncation(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    begin = (CONTROLS[1], backend.token_to_id(CONTROLS[1]))
    backend.post_processor = processors.TemplateProcessing(f"{begin[0]} $A", None, [begin])
    backend.enable_padding(length=9, pad_token=CONTROLS[0])
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.begin == (begin[1],)
    assert tokenizer.decode(tokenizer.encode("a long text " * 9)) == "a long text " * 9
    assert list(tokenizer.begin) == AutoTokenizer.from_pretrained(folder)("")["input_ids"]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "cannot be read"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", "{", "the tokenizer of"),
        ("chat_template.jinja", "{% if %}", "not valid Jinja"),
    ],
)
def test_files_that_cannot_be_used(folder: Path, file: str, content: str | None, says: str) -> None:
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=says):
        load_tokenizer(folder)


def test_a_name_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="neither a folder nor a model"):
        load_tokenizer("nobody/has-this-model")
    with pytest.raises(ConfigError, match="neither a folder nor a model"):
        load_tokenizer("not a name")


def test_a_name_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load_tokenizer("some/model").hash == load_tokenizer(folder).hash
    assert [name for name, _ in asked] == ["some/model"]
    assert "tokenizer.json" in asked[0][1]
    assert not any("safetensors" in pattern for pattern in asked[0][1])
