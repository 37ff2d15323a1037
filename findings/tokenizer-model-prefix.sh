#!/usr/bin/env bash
# A SentencePiece model (BPE, `tokenizer.model`) that adds a space before each text (`add_dummy_prefix`, the default),
# in a folder with a config.json, opened by transformers' AutoTokenizer.
#
# Expected: the ids that SentencePiece gives for the same file.
# What happens (transformers 5.23.0, sentencepiece 0.2.1, tokenizers 0.23.3): the file's setting is not read.
# - With `model_type: mistral` or `llama` and no tokenizer_config.json the generic `TokenizersBackend` is made, which
#   adds no space: the first word of every text has other ids.
# - With `tokenizer_class: LlamaTokenizer` the space is added, but not before a text that begins with spaces itself,
#   where SentencePiece adds one more.
# In the middle of a text both give the same ids, also for runs of spaces. There is no warning.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet transformers==5.23.0 sentencepiece==0.2.1 tokenizers==0.23.3 protobuf==7.36.2
cd "$work"
cat > look.py <<'PY'
import json
import sys
from pathlib import Path

import sentencepiece
import tokenizers
import transformers

print(f"{transformers.__version__=} {sentencepiece.__version__=} {tokenizers.__version__=}")
Path("corpus.txt").write_text("the sum of two and three is five\n  so we add one more line\n    return value\n" * 500)
folder = Path("model")
folder.mkdir()
sentencepiece.SentencePieceTrainer.train(
    input="corpus.txt", model_prefix="model/tokenizer", model_type="bpe", vocab_size=340, byte_fallback=True,
    remove_extra_whitespaces=False, normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2,
    allow_whitespace_only_pieces=True, num_threads=1,
)
right = sentencepiece.SentencePieceProcessor(model_file="model/tokenizer.model")
texts = ("sum of two", "  sum of two", "of    two   and  one")


def compare(model_type: str, settings: dict | None) -> list[bool]:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = transformers.AutoTokenizer.from_pretrained(folder)
    same = []
    for text in texts:
        theirs, ours = right.encode(text), made(text, add_special_tokens=False)["input_ids"]
        same.append(theirs == ours)
        print(model_type, type(made).__name__, repr(text), "same" if same[-1] else "different")
        print("   ", [right.id_to_piece(i) for i in theirs], made.convert_ids_to_tokens(ours))
    return same


found = [compare("mistral", None), compare("llama", None)]
found.append(compare("llama", {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": False}))
expected = [[False, False, False], [False, False, False], [True, False, True]]
sys.exit(found != expected)
PY
"$work/venv/bin/python" look.py
