"""What LiteLLM's routes are asked for alike."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import probe

litellm.telemetry = False

ASKED = [{"role": "user", "content": probe.QUESTION}]


class Route:
    """The capabilities over one route: a provider of LiteLLM's at an address."""

    def __init__(self, provider, url):
        self._model, self._url = f"{provider}/{probe.MODEL}", url

    def _ask(self, messages, **more):
        return litellm.completion(
            model=self._model,
            api_base=self._url,
            api_key=probe.KEY,
            messages=messages,
            num_retries=0,
            **more,
        )

    def chat(self):
        return self._ask(ASKED).choices[0].message.content

    def stream(self):
        return [chunk.choices[0].delta.content or "" for chunk in self._ask(ASKED, stream=True)]

    def reasoning(self):
        return self._ask(ASKED).choices[0].message.reasoning_content

    def structured(self):
        reply = self._ask(ASKED, response_format=probe.FORM)
        return json.loads(reply.choices[0].message.content)

    def tools(self):
        asked = [{"role": "user", "content": probe.TOOL_QUESTION}]
        reply = self._ask(asked, tools=[probe.TOOL])
        made = reply.choices[0].message.tool_calls[0].function
        return made.name, made.arguments

    def history(self):
        turns = [{"role": "user", "content": probe.EARLIER}]
        turns.append(self._ask(turns).choices[0].message.model_dump())
        turns.append({"role": "user", "content": probe.LATER})
        return self._ask(turns).choices[0].message.content

    def run(self):
        """Try each capability."""
        probe.run({name: getattr(self, name) for name in probe.CHECKS})
