"""What servers are sent, and what their answers mean, token by token."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from orchestrator.types import Sampling
from workers.remote.dialects.llama_cpp import LLAMA_CPP
from workers.remote.dialects.openai import OPENAI
from workers.remote.dialects.vllm import VLLM
from workers.remote.protocol import Vocabulary, distribution, logprob_of
from workers.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """A vocabulary as Llama 2's, Mistral's and Gemma's: bytes first, then characters."""
    texts = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"0123456789a▁"]
    backend = Backend(
        models.BPE(
            vocab={text: i for i, text in enumerate(texts)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(backend, {"eos_token": "</s>"})


def test_a_text_is_not_the_byte_that_spells_it(sentencepiece: Tokenizer) -> None:
    """A digit is a token of its own and a byte's; judges are asked for the first."""
    vocabulary = Vocabulary(sentencepiece)
    labels = {digit: sentencepiece.encode(digit)[0] for digit in "0123456789"}
    assert {digit: vocabulary.id(digit) for digit in labels} == labels
    assert vocabulary.id("</s>") == sentencepiece.eos_id
    assert vocabulary.id("\n") == sentencepiece.encode("\n")[0]  # which has no other
    assert vocabulary.id("<0x0A>") is None  # a text of six tokens
    top = {"7": -0.1, "8": -2.5}
    answer = {"choices": [{"text": "7", "logprobs": {"tokens": ["7"], "top_logprobs": [top]}}]}
    shown = OPENAI.first_logprobs(answer, vocabulary)
    assert shown == {labels["7"]: -0.1, labels["8"]: -2.5}


def test_half_a_character_names_no_token(sentencepiece: Tokenizer) -> None:
    """Servers show any byte of one as a replacement character."""
    assert Vocabulary(sentencepiece).id("\ufffd") is None


def test_a_server_keeps_none_of_its_own_sampling() -> None:
    """vLLM takes what a request does not say from the checkpoint's generation_config.json."""
    sent = VLLM.sampling_fields(Sampling(0.7, 0.9))
    cuts = {"top_p": 0.9, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert sent == {"temperature": 0.7, "presence_penalty": 0.0, "frequency_penalty": 0.0} | cuts
    # 0 is off for servers, too, but smg 1.13.0 before them refuses it.
    assert LLAMA_CPP.sampling_fields(Sampling(0.7))["top_k"] == -1


def test_log_probabilities_of_bfloat16_are_rounded() -> None:
    """mlx-lm computes them in steps of 0.125: together they may be more than 1."""
    rounded = {1: 0.0, 2: -2.5}  # 1.08 together
    assert distribution(rounded.items()) == rounded
    assert logprob_of(0.125) == 0.0
    with pytest.raises(ValueError, match="above 0"):
        logprob_of(0.2)
    with pytest.raises(ValueError, match=r"add up to 1\.38, not to 1"):
        distribution([(1, -0.125), (2, -0.7)])
