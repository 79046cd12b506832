"""OpenAI's own client works against the server, and what it gets is what the engine says."""

# ruff: noqa: E402 - what may not be installed is asked for first

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import tiny
from served import LONG, Served, serving, until

openai = pytest.importorskip("openai", reason="needs openai")

from decodebench.decoding import Request
from decodebench.load.policies import Queue, Settings, Target
from decodebench.methods.ar import AR
from decodebench.methods.mars import MARS

NAME = "tiny-qwen2"
TURNS: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ann has 3 apples, 你好?"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving({"mars": MARS(tau=0.3), "ar": AR()}, rows=4) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def prompt(served: Served, turns: Any = TURNS) -> list[int]:
    return list(
        served.service.model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    )


@pytest.mark.parametrize("stop", [None, "e", ["zz", " a"]])
def test_chat_gets_what_the_engine_says_whole_and_in_pieces(served: Served, client: Any, stop: Any) -> None:
    expected = served.alone(prompt(served), 40, "mars", stop=[stop] if isinstance(stop, str) else stop or [])
    asked = {"model": NAME, "messages": TURNS, "max_completion_tokens": 40, "stop": stop}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in said) == expected
    assert said[0].delta.role == "assistant"
    assert said[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert len(said) > 3 or stop
    extra = said[-1].model_extra["decodebench"]
    assert (extra["method"], extra["tau"]) == ("mars", 0.3)
    assert extra["tokens_per_pass"] == pytest.approx(whole.usage.completion_tokens / extra["passes"])


def test_usage_finish_reasons_and_extras(served: Served, client: Any) -> None:
    tokens = [5, 6, 7]
    answer = client.completions.create(model=NAME, prompt=tokens, max_tokens=30, extra_body={"return_tokens": True})
    extra = answer.choices[0].model_extra["decodebench"]
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 30, 33)
    assert (len(extra["tokens"]), sum(extra["committed"])) == (30, 30)
    assert 1 < extra["tokens_per_pass"] == 30 / extra["passes"]
    first = answer.choices[0].text[0]
    cut = client.completions.create(model=NAME, prompt=tokens, max_tokens=30, stop=first)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("", "stop")


def test_tau_and_method_are_the_requests_own(served: Served, client: Any) -> None:
    def ask(**extra: Any) -> tuple[str, dict[str, Any]]:
        choice = client.completions.create(model=NAME, prompt="Ann", max_tokens=24, extra_body=extra).choices[0]
        return choice.text, choice.model_extra["decodebench"]

    plain, by_ar = ask(method="ar")
    assert (by_ar["method"], by_ar["tau"], by_ar["tokens_per_pass"]) == ("ar", None, 1)
    careful, at_one = ask(tau=1.0)
    assert (careful, at_one["passes"], at_one["tau"]) == (plain, 24, 1.0)
    assert ask(tau=0.0)[1]["passes"] < ask()[1]["passes"] < 24


def test_a_list_of_prompts_is_a_list_of_choices(served: Served, client: Any) -> None:
    prompts = ["Ann has", "So the answer", "7"]
    expected = [served.alone(served.service.model.tokenizer.encode(p), 12, "mars") for p in prompts]
    whole = client.completions.create(model=NAME, prompt=prompts, max_tokens=12)
    assert [choice.text for choice in whole.choices] == expected
    pieces = ["", "", ""]
    for chunk in client.completions.create(model=NAME, prompt=prompts, max_tokens=12, stream=True):
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
    assert pieces == expected


def test_methods_take_turns_and_harm_nobody(served: Served, client: Any) -> None:
    prompts = [[5 + n] * (1 + n % 7) for n in range(16)]
    methods = ["mars" if n % 3 else "ar" for n in range(16)]
    expected = [served.alone(p, 20, m) for p, m in zip(prompts, methods, strict=True)]
    answers: list[str] = [""] * 16

    def ask(worker: int) -> None:
        for n in range(worker, 16, 4):
            body = {"method": methods[n]}
            answer = client.completions.create(model=NAME, prompt=prompts[n], max_tokens=20, extra_body=body)
            answers[n] = answer.choices[0].text

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected


def test_sampling_follows_its_seed(client: Any) -> None:
    def ask(**how: Any) -> str:
        answer = client.completions.create(model=NAME, prompt="Ann", max_tokens=16, **how, extra_body={"tau": 1.0})
        return str(answer.choices[0].text)

    assert ask() == ask() == ask(temperature=0)
    assert ask(temperature=1.5, seed=-3, top_p=0.9) == ask(temperature=1.5, seed=-3, top_p=0.9)
    assert len({ask(temperature=1.5) for _ in range(4)}) > 1


def test_models_health_and_metrics(served: Served, client: Any) -> None:
    (listed,) = client.models.list().data
    assert (listed.id, listed.model_extra["methods"]) == (NAME, ["mars", "ar"])
    assert client.models.retrieve(NAME) == listed
    client.completions.create(model=NAME, prompt="Ann", max_tokens=3)
    assert client.get("/../healthz", cast_to=object) == {"status": "ok"}
    text = served.service.metrics.text().decode()
    for line in (
        'decodebench_rows_running{method="mars"} 0.0',
        'decodebench_http_responses_total{path="/v1/models",status="200"}',
        'decodebench_requests_total{finish="length",method="mars"}',
        'decodebench_tau{method="mars"} 0.3',
        'decodebench_first_token_seconds_count{method="mars"}',
        'decodebench_queue_waiting{method="ar"} 0.0',
    ):
        assert line in text
    assert 'decodebench_tau{method="ar"}' not in text


def test_errors_are_those_that_clients_know(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt' is not served here: choose tiny-qwen2"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="between 0 and 1") as refused:
        client.completions.create(model=NAME, prompt="a", extra_body={"tau": 2})
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="choose from mars, ar"):
        client.completions.create(model=NAME, prompt="a", extra_body={"method": "jacobi"})
    with pytest.raises(openai.BadRequestError, match="ar has no confidence threshold"):
        client.completions.create(model=NAME, prompt="a", extra_body={"method": "ar", "tau": 0.5})
    with pytest.raises(openai.BadRequestError, match="system comes first"):
        client.chat.completions.create(model=NAME, messages=TURNS[::-1])
    with pytest.raises(openai.BadRequestError, match="did you mean 'tau'") as unknown:
        client.completions.create(model=NAME, prompt="a", extra_body={"tua": 0.5})
    assert (unknown.value.param, unknown.value.code) == ("tua", "unknown_parameter")
    with pytest.raises(openai.BadRequestError, match="4101 tokens") as long:
        client.completions.create(model=NAME, prompt=[5] * (LONG + 101))
    assert long.value.code == "context_length_exceeded"


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving({"ar": AR()}, rows=1, queue=1) as server:
        handles = [openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) for _ in range(3)]
        streams = [one.completions.create(model=NAME, prompt="a", max_tokens=LONG, stream=True) for one in handles[:2]]
        with pytest.raises(openai.RateLimitError, match="queue is full") as full:
            handles[2].completions.create(model=NAME, prompt="a")
        assert 1 <= int(full.value.response.headers["retry-after"]) <= 60
        with pytest.raises(openai.BadRequestError, match="more than can ever wait"):
            handles[2].completions.create(model=NAME, prompt=["a"] * 3)
        for stream in streams:
            stream.close()
        again = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
        assert again.completions.create(model=NAME, prompt="a", max_tokens=2).usage.completion_tokens == 2
        assert 'refused_total{method="ar"}' in server.service.metrics.text().decode()


def test_a_key_opens_everything_and_health_needs_none() -> None:
    with serving({"ar": AR()}, api_key="sesame") as server:
        for key in ("wrong", "sesam", "Sesame"):
            with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
                openai.OpenAI(base_url=f"{server.url}/v1", api_key=key).models.list()
        right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0)
        assert right.completions.create(model=NAME, prompt="a", max_tokens=2).choices[0].text
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url, api_key="x").get("/metrics", cast_to=str)
        assert openai.OpenAI(base_url=server.url, api_key="x").get("/healthz", cast_to=object) == {"status": "ok"}


def test_the_model_is_left_as_it_was(served: Served) -> None:
    before = served.service.model.model.config._attn_implementation
    with serving({"mars": MARS(tau=0.3), "ar": AR()}, rows=1):
        pass
    assert served.service.model.model.config._attn_implementation == before
    assert tiny.run(served.service.model, AR(), []) == []


def test_a_policy_moves_tau_and_a_requests_own_tau_wins() -> None:
    policy = Queue(Settings(0.2, 0.9, Target(), 1))

    def shown(server: Served) -> float:
        lines = server.service.metrics.text().decode().splitlines()
        return float(next(line for line in lines if line.startswith('decodebench_tau{method="mars"}')).split()[-1])

    with serving({"mars": MARS(tau=0.5), "ar": AR()}, policies={"mars": policy}, rows=1, queue=3) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        asked: Any = {"model": NAME, "prompt": [5, 6], "stream": True}
        alone = tiny.run(server.service.model, MARS(tau=0.9), [Request([5, 6], 24)])[0]
        answer = client.completions.create(
            model=NAME, prompt=[5, 6], max_tokens=24, extra_body={"return_tokens": True}
        )  # fmt: skip
        extra = answer.choices[0].model_extra["decodebench"]
        assert (extra["tokens"], extra["committed"], extra["tau"]) == (alone.tokens, alone.committed, None)
        assert shown(server) == pytest.approx(0.9)

        streams = [client.completions.create(**asked, max_tokens=LONG)]  # it follows the policy
        assert shown(server) == pytest.approx(0.9)
        streams += [client.completions.create(**asked, max_tokens=LONG, extra_body={"tau": 1.0}) for _ in range(2)]
        until(lambda: shown(server) == pytest.approx(0.2))
        streams[0].close()  # the next one has a tau of its own, and one still waits
        streams += [client.completions.create(**asked, max_tokens=LONG)]
        until(lambda: shown(server) == 1.0)
        assert policy.tau(None) == pytest.approx(0.2)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError):
            streams += [client.completions.create(**asked, max_tokens=LONG) for _ in range(3)]
        for stream in streams:
            stream.close()
        until(server.idle)
        until(lambda: not server.service.ledgers["mars"].open)
        (listed,) = client.models.list().data
        assert listed.model_extra["max_rows"] == 1
