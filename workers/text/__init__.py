"""Text to token ids and back, the same for every backend. Needs no torch.

- `tokenizer_files`: a checkpoint's tokenizer from its files, in a folder or on the hub.
- `generation_config`: a checkpoint's default sampling.
- `gguf_tokenizer`: the tokenizer of a GGUF file, written as such files.
- `thinking`: how families of models mark their thought, as a table.
- `boundaries`: where a step ends.
- `tokenizer`: text to ids and back; no text can become a control token.
- `chat_template`: Jinja chat templates, rendered as transformers renders them.
- `traced`: marks each character of a content, so that it stays content in a template's output.
- `conversation`: forms of a conversation, for templates that are strict about roles.
- `efforts`: the levels of effort that a chat template has.
- `tool_calls`: how a family writes calls of tools, read from its chat template.
- `rendering`: a conversation as the template writes it.
- `checks`: checks of every call's sampling, labels and length.
- `second_close`: where a thought that continued after a forced close ends.
- `prompt`: a transcript or a side conversation as token ids.
- `ends`: stop strings, and other ends that are cut off.
- `detokenizer`: ids to text as they are made: whole characters.
- `origins`: which tokens of a generation were drafted, under speculative decoding.
- `continuation`: one generation's text as its tokens come: where it ends, and why.
- `grammar`: which tokens may come next if a text must match a grammar.
- `retokenizer`: text to ids as it comes, for servers that return no ids.
- `verification`: log-likelihoods and choices as a `Verification`.
"""
