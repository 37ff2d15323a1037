"""Which family of thought is found in chat templates: a table, for a folder of them.

    python -m tests.house.families FOLDER

llama.cpp's repository collects public templates in `models/templates`. Beside each file stands the
family that the template alone shows, and the one that it shows together with a vocabulary that has
`<think>` and `</think>` as tokens, where that differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.errors import ConfigError
from workers.text.chat_template import ChatTemplate
from workers.text.thinking import ThinkingFormat, find_format


def name_of(found: ThinkingFormat | None) -> str:
    return "none" if found is None else found.name


def main(folder: Path) -> None:
    for file in sorted(folder.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        try:
            template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
        except ConfigError as error:
            print(f"{file.stem:56} refused: {error}")
            continue
        alone = name_of(find_format(template, ()))
        known = name_of(find_format(template, ("<think>", "</think>")))
        print(f"{file.stem:56} {alone:18}", "" if known == alone else f"with the tokens: {known}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
