"""Deployment files over servers: real ones of llama.cpp, and others by what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deploy.lab.peers.llama_cpp import embedded_gguf, serving_gguf
from deploy.launch.deployment_file import load_args
from deploy.launch.plan import READING_DRAFTS, VERIFYING
from deploy.launch.source import Source
from orchestrator.errors import ConfigError
from policies import POLICIES
from tests.workers.remote.vllm_like import MODEL, PAIR, ServerBehavior, VllmLike, serving
from workers.embedded.checkpoints import resolve
from workers.engine.loading import load as load_engine
from workers.remote.listing import model_name, tokenizer_sources
from workers.remote.server import Server
from workers.worker import EngineWorker


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return {name: embedded_gguf(name, folder) for name in PAIR}


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[str, EngineWorker]]:
    workers = {name: load_engine(f"embedded:{name}", rows=4) for name in PAIR}
    yield workers
    for worker in workers.values():
        worker.close()


class Shaped(VllmLike):
    """A server whose list of models, and whose own pages, are those of some program."""

    def __init__(
        self,
        worker: EngineWorker,
        behavior: ServerBehavior | None = None,
        *,
        listed: tuple[dict[str, Any], ...] = ({"id": MODEL},),
        pages: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(worker, behavior)
        self.listed = listed
        for path, page in (pages or {}).items():
            methods = ["POST"] if path == "/api/show" else ["GET"]
            self.app.routes.append(
                Route(path, lambda _, page=page: JSONResponse(page), methods=methods)
            )

    async def models(self, request: Request) -> Response:
        self.check_key(request)
        return JSONResponse({"object": "list", "data": list(self.listed)})


def planned(baton: Any, folder: Path, small: str, large: str) -> tuple[Any, str]:
    """The args of the file that `--dry-run` prints, and its comments."""
    ran = baton("serve", "--small", small, "--large", large, "--dry-run")
    assert ran.status == 0, ran.err
    file = folder / "planned.yaml"
    file.write_text(ran.out)
    load_args(file)  # as `baton serve` checks it
    args = yaml.safe_load(ran.out)["applications"][0]["args"]
    return args, "".join(line for line in ran.out.splitlines(True) if line.startswith("#"))


async def test_llama_cpp_says_which_file_it_serves(files: dict[str, Path]) -> None:
    with serving_gguf(files["small"], 1024) as url:
        server = Server(url)
        name = await model_name(server, None)
        assert str(files["small"]) in await tokenizer_sources(server, name)
        await server.aclose()


def test_two_llama_cpp_servers(files: dict[str, Path], tmp_path: Path, baton: Any) -> None:
    """These files' vocabularies are filled up, and not read as tokenizers."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving_gguf(file, 1024)) for file in files.values()]
        named = [f"{url},tokenizer=embedded:{name}" for name, url in zip(PAIR, urls, strict=True)]
        args, why = planned(baton, tmp_path, *named)
    assert [args["workers"][name]["url"] for name in PAIR] == urls
    assert args["policy"] == {"default": "large-only"}
    assert "llama.cpp's API, token ids, 1,024 tokens; it lacks log-probabilities of a prompt" in why
    assert "Not for this pair: bild, learned-gate (the large model's" in why
    assert "cascade" not in why


def test_servers_that_verify_share_tokens(
    pair: dict[str, EngineWorker], tmp_path: Path, baton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's `root` is the checkpoint, of which the tokenizer is read."""
    monkeypatch.setenv("LARGE_KEY", "k")
    roots = {name: str(resolve(f"embedded:{name}")) for name in PAIR}
    apps = {
        name: Shaped(
            worker,
            ServerBehavior(key="k" if name == "large" else None),
            listed=({"id": MODEL, "root": roots[name], "max_model_len": 777}, {"id": "adapter"}),
        )
        for name, worker in pair.items()
    }
    with serving(apps["small"].app) as small, serving(apps["large"].app) as large:
        named = f"{MODEL}@{large},api_key_env=LARGE_KEY,silence_s=99"
        args, why = planned(baton, tmp_path, f"{MODEL}@{small}", named)
        ran = baton("serve", "--small", small, "--large", named, "--dry-run")
        assert ran.status == 1
        assert f"serves 2 models ({MODEL}, adapter): name one, as {MODEL}@{small}" in ran.err
        ran = baton("serve", "--small", f"{MODEL}@{small}", "--large", large, "--dry-run")
        assert (ran.status, "is the key right?" in ran.err) == (1, True)
    assert args["policy"] == {"default": "bild", "params": {"bild": {"rollback": 1.5}}}
    assert args["workers"]["large"] == {
        "url": large, "model": MODEL, "tokenizer": roots["large"], "api_key_env": "LARGE_KEY",
        "silence_s": 99,
    }  # fmt: skip
    assert "vLLM's API, token ids, 777 tokens" in why
    assert "reads the whole prompt for each check of these policies" in why
    assert "Not for this pair" not in why


def test_a_model_here_and_one_on_a_server(
    pair: dict[str, EngineWorker], tmp_path: Path, baton: Any
) -> None:
    with serving(Shaped(pair["large"]).app) as url:
        server = f"{url},tokenizer=embedded:large"
        args, why = planned(baton, tmp_path, "embedded:small,threads=1", server)
    small, large = args["workers"]["small"], args["workers"]["large"]
    assert (small["model"], small["threads"], large["url"]) == ("embedded:small", 1, url)
    assert "The lines above leave out what you named: small.threads." in why
    assert args["policy"]["default"] == "bild"
    assert "Our own engine" in why


@pytest.mark.parametrize("modelfile", ["FROM {}\nTEMPLATE x", "# of ollama\nFROM {}"])
async def test_ollama_says_which_file_it_serves(
    modelfile: str, pair: dict[str, EngineWorker]
) -> None:
    pages = {"/api/show": {"modelfile": modelfile.format("/blobs/sha256-0a")}}
    with serving(Shaped(pair["large"], pages=pages).app) as url:
        server = Server(url)
        assert await tokenizer_sources(server, MODEL) == ["/blobs/sha256-0a", MODEL]
        await server.aclose()


def test_a_server_shaped_like_ollama(
    pair: dict[str, EngineWorker], tmp_path: Path, baton: Any
) -> None:
    """Texts get a template, chats are continued."""
    behavior = ServerBehavior(wraps=True, prompt_ids=False, token_ids=False, named_ids=False)
    with serving(Shaped(pair["large"], behavior).app) as url:
        server = f"{MODEL}@{url},tokenizer=embedded:large"
        args, why = planned(baton, tmp_path, "embedded:small", server)
    assert args["policy"]["default"] == "large-only"
    assert "OpenAI's API, a chat" in why


def test_a_server_shaped_like_lm_studio(pair: dict[str, EngineWorker], baton: Any) -> None:
    """It says nothing of files, and does not continue a chat."""
    behavior = ServerBehavior(wraps=True, prompt_ids=False, continues=False)
    with serving(Shaped(pair["large"], behavior).app) as url:
        ran = baton("serve", "--small", "embedded:small", "--large", url, "--dry-run")
        assert ran.status == 1
        assert f"the tokenizer of {MODEL} is missing here" in ran.err
        assert f"{MODEL}@{url},tokenizer=WHAT" in ran.err
        named = f"{url},tokenizer=embedded:large"
        ran = baton("serve", "--small", "embedded:small", "--large", named, "--dry-run")
        assert (ran.status, "llama-server -m FILE" in ran.err) == (1, True)


def test_no_server_there_is_an_error_with_its_address(baton: Any) -> None:
    pair = ("--small", "http://127.0.0.1:9/v1", "--large", "embedded:large")
    ran = baton("serve", *pair, "--dry-run")
    assert ran.status == 1
    assert "http://127.0.0.1:9/v1" in ran.err
    assert "is the server up" in ran.err


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Qwen/Qwen3-8B", Source("Qwen/Qwen3-8B", None, {})),
        ("/m/a,b.gguf", Source("/m/a,b.gguf", None, {})),
        ("m,dtype=int8,rows=4", Source("m", None, {"dtype": "int8", "rows": 4})),
        ("http://h:1/v1", Source(None, "http://h:1/v1", {})),
        ("qwen3:4b@http://h:1/v1", Source("qwen3:4b", "http://h:1/v1", {})),
        ("a@b@https://h", Source("a@b", "https://h", {})),
        ("m@http://h,thinking=none", Source("m", "http://h", {"thinking": "none"})),
    ],
)
def test_what_a_model_is_called(text: str, source: Source) -> None:
    assert Source.parse(text) == source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a Hugging Face id"),
        ("@http://h:1", "expected a Hugging Face id"),
        ("m,typo=1", "typo: unknown setting"),
        ("m,max_le=1", "did you mean max_len"),
        ("m,url=http://h", "url: unknown setting"),
    ],
)
def test_what_names_no_model_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Source.parse(text)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("http://me:secret@h:1/v1", "--small or --large, url: scheme, host"),
        ("http://h:1/v1?x=1", "scheme, host, port and path alone"),
        ("http://h:1/v1,dtype=int8", "dtype: is the server's own if a url is given"),
        ("http://h:1/v1,api_key_env=NO_SUCH_KEY", "NO_SUCH_KEY holds no key"),
        ("embedded:large,api_key_env=K", "api_key_env: goes with url"),
        ("embedded:large,rows=none", "rows"),
    ],
)
def test_settings_are_those_of_a_worker(what: str, said: str, baton: Any) -> None:
    ran = baton("serve", "--small", "embedded:small", "--large", what, "--dry-run")
    assert (ran.status, said in ran.err) == (1, True), ran.err
    assert "secret" not in ran.err


def test_policies_that_verify_need_one_vocabulary() -> None:
    assert {name for name, one in POLICIES.items() if one().one_vocabulary} == set(VERIFYING)
    assert set(READING_DRAFTS) < set(POLICIES)
