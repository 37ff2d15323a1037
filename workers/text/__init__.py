"""Between text and token ids: what every worker shares, whatever runs its model. It needs no torch.

- `tokenizer_files`: a checkpoint's tokenizer from its files, in a folder or on the hub.
- `generation_config`: how a checkpoint wants tokens to be drawn.
- `gguf_tokenizer`: the tokenizer of a GGUF file, written as such files.
- `thinking`: how families of models mark their thought, as a table.
- `boundaries`: where a step ends.
- `tokenizer`: text to ids and back, with control tokens out of reach of any text.
- `chat_template`: Jinja chat templates, rendered as transformers renders them.
- `traced`: contents that a template reads, and that stay contents in what it writes.
- `conversation`: forms of a conversation, for templates that are strict about roles.
- `prompt`: a transcript or a side conversation as token ids.
- `tool_calls`: how a family writes calls of tools, read from its chat template.
- `checks`: what is checked of every call: sampling, labels, length.
- `second_close`: where a thought that went on after a forced close ends.
- `detokenizer`: ids to text as they are made: whole characters, delimiters, stop strings.
- `origins`: where a generation's tokens came from, under speculative decoding.
- `continuation`: one generation's text as its tokens come: where it ends, and why.
- `grammar`: which tokens may come next where a text must match a grammar.
- `retokenizer`: text to ids as it comes, for servers that return no ids.
- `verification`: log-likelihoods and choices as a `Verification`.
"""
