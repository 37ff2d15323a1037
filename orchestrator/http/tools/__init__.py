"""Calls of tools.

- `offered`: the tools that a request offers, and the form of an answer that may call them.
- `call_reader`: separates text and calls in an answer as it comes.
- `tagged_arguments`: reads arguments that are in tags, one by one.
"""
