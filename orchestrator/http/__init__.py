"""The OpenAI-compatible HTTP service: from a client's request to the step loop, and back.

In reading order, the first seven as a request meets them:

- `middleware`: a request id, the key, errors as HTTP, a line in the log, other origins.
- `app`: the routes.
- `api`: the table of APIs: path, form of errors, headers.
- `apis`: one file an API: `chat`, `completions`, `responses`, `messages`.
- `ask`: the values between an API and the step loop: `Ask`, `Incoming`, `RequestPlan`, `Choice`.
- `service`: one replica's parts, what it shares through the store, how a request is admitted.
- `answering`: runs the step loop for a request and sends its answer.
- `body`: a body of bounded size, as JSON and as a request; unknown parameters are refused by name.
- `rendering`: what the answers of all APIs share: usage, the `baton` object.
- `records`: a request and its answer as the store keeps them.
- `tools`: the tools of a request, and their calls in an answer.
- `planning`: which policy answers a request.
- `settings`: what the deployment decides.
- `admission`: places for requests, shared fairly between keys, and when to try again.
- `errors`: every error with its status, and when to try again.
- `auth`: keys, and what each may do.
- `routes`: the other routes: traces, policies, experiments, the console.
"""
