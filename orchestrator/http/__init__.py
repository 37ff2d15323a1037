"""The OpenAI-compatible HTTP service: what stands between a client and the step loop.

In reading order, the first six as a request meets them:

- `middleware`: a request id, the key, errors as HTTP, a line in the log.
- `app`: the routes.
- `schemas`: what every request for a text may say; everything else is refused by name.
- `context`: `RequestContext`, one request from its headers to its answer.
- `service`: one replica's parts, and how a request gets its place and its policy.
- `chat_response`: runs the step loop for one request and sends what it gives.
- `choice`: one of the answers to a request, by itself.
- `chat_format`: an answer in the form of a chat completion, and what every form has.
- `body`: a request's body, of bounded size, as JSON.
- `chat_schema`: what a request for a chat completion may say.
- `structured_outputs`: what a request says of its answer's form.
- `tools`: what a request says of tools.
- `scores`: log-probabilities of an answer's tokens.
- `completion_schema`: what a request to continue a text may say.
- `completion_format`: an answer in the form of a text completion.
- `responses_schema`: what a request for a response may say.
- `responses_input`: the items of its input, as turns of a conversation.
- `responses_format`: an answer in the form of a response, with its stream of events.
- `openapi`: the service's own description, made of what checks its requests.
- `docs_page`: that description as a page for people.
- `stream_events`: what a running request does, for a stream that asked for it.
- `call_reader`: text and calls of tools, told apart in an answer as it comes.
- `tagged_arguments`: the arguments of a call that stand in tags, one by one.
- `rendering`: a request and its response as JSON.
- `errors`: every error as an HTTP response.
- `admission`: places for requests, shared fairly between keys, and when to try again.
- `auth`: keys, and what each may do.
- `cors`: which pages of other origins may ask.
- `limits`: what one replica takes on.
- `feedback`: rewards for answers.
- `trace_routes`: the routes of what is on record about requests.
- `policy_routes`: the routes of published policies.
- `experiment_routes`: the routes of experiments.
- `console_routes`: the page for people, whose files are in `console/`.
"""
