"""Calls of tools.

- `offered`: the tools that a request offers, and the form of an answer that may call them.
- `answer_reader`: reads an answer's thought, text and calls as it comes.
- `call_reader`: separates text and calls.
- `tagged_arguments`: reads arguments that are in tags, one by one.
"""
