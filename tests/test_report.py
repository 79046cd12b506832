"""`decodebench report`: one file that is complete, safe, and usable with mouse and keyboard."""

import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tiny
from browser import Page, needs_browser
from fake_runs import write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from decodebench.analysis.load import load_runs
from decodebench.analysis.report import build_report
from decodebench.analysis.report.answers import collect_answers
from decodebench.analysis.report.settings import command
from decodebench.cli import build_app
from decodebench.errors import UserError
from decodebench.pieces import Decode, decoder, pieces
from decodebench.records import aggregate, read_samples

RESULTS = Path(__file__).parents[1] / "results"
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='hacked = 1'>\u2028<!-- {{table}} &amp; \"'"


def words(model: str) -> Decode:
    """A decoder that needs no tokenizer."""
    return lambda ids: "".join(f" w{token}" for token in ids)


def change_samples(folder: Path, change: Any) -> None:
    samples = [change(sample) or sample for sample in read_samples(folder)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for task in ("gsm8k", "stepmath"):
        for batch_size in (1, 4):
            write_run(folder, "ar", task=task, batch_size=batch_size, documents=12, repeats=2)
            for tau in (1.0, 0.9, 0.7):
                options: dict[str, Any] = {"documents": 12, "repeats": 2, "block_size": 4, "tau": tau}
                run = write_run(folder, "mars", task=task, batch_size=batch_size, **options)
                change_samples(run, lambda s: s.update(committed=_all(s), confidence=[0.75] * len(s["tokens"])))
    return folder


def _all(sample: dict[str, Any]) -> list[int]:
    """Passes that bring every token: the made-up ones leave out the last."""
    return [*sample["committed"], len(sample["tokens"]) - sum(sample["committed"])]


@pytest.fixture(scope="module")
def report(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(build_report(load_runs([results]), "ar", words), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page, report: Path) -> Iterator[Page]:
    browser.requests.clear()
    browser.open(report)
    yield browser
    assert browser.errors == []
    assert browser.requests == [report.as_uri()]


TABLE = "[...document.querySelectorAll('#comparison-table tbody tr')].filter((row) => !row.hidden)"
COLOURS = (
    "new Set([...document.querySelectorAll('.side:last-child .token')]"
    ".map((token) => getComputedStyle(token).backgroundColor)).size"
)


def change(page: Page, selector: str, value: object) -> None:
    """Give a form's element a value as a person would."""
    page.run(
        f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.value = {json.dumps(value)};"
        " for (const kind of ['input', 'change']) node.dispatchEvent(new Event(kind)); })()"
    )


class Outline(HTMLParser):
    """What a page consists of, and whether its elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in {"meta", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_is_whole_and_loads_nothing(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    outline = Outline(text)
    names = {name for name, _ in outline.attributes}
    assert not names & {"src", "srcset", "style", "onclick", "action"}
    assert all(value and value.startswith("#") for name, value in outline.attributes if name == "href")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    cells = [data for tag, data in outline.texts if tag == "td"]
    assert {"ar", "mars τ=1", "mars τ=0.9", "mars τ=0.7"} <= set(cells)
    assert "{{" not in text


def test_the_same_runs_give_the_same_bytes(results: Path, report: Path) -> None:
    assert build_report(load_runs([results]), "ar", words) == report.read_text(encoding="utf-8")


def test_answers_hold_tokens_passes_and_confidence(results: Path, report: Path) -> None:
    data = data_of(report.read_text(encoding="utf-8"))
    assert len(data["documents"]) == 24
    runs = {run.name: run for run in load_runs([results])}
    mars = next(place for place, row in enumerate(data["rows"]) if row["label"] == "mars τ=0.7")
    answer = data["documents"][3]["answers"][str(mars)]
    name = next(name for name in runs if name.startswith("gsm8k-mars-tau0.7-bs1"))
    sample = next(s for s in read_samples(runs[name].folder) if s["doc_id"] == 3)
    assert [data["pool"][token][0] for token in answer["tokens"]] == sample["tokens"]
    assert sum(answer["committed"]) == len(sample["tokens"])
    assert set(answer["confidence"]) == {0.75}
    assert data["pool"][answer["tokens"][0]] == [3, " w3"]


def test_documents_are_few_where_answers_are_many(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = load_runs([results])
    assert len(collect_answers(runs, words, 5)[0]) == 10
    assert collect_answers(runs, words, 0) == ([], [])
    monkeypatch.setattr("decodebench.analysis.report.answers.TOKENS_MOST", 8000)
    shown, _ = collect_answers(runs, words, 12)
    assert 0 < len(shown) < 24
    assert sum(len(answer["tokens"]) for doc in shown for answer in doc["answers"].values()) <= 8000


def test_without_a_tokenizer_ids_stand_for_text(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    def none(model: str) -> Decode:
        raise UserError(f"no model '{model}'")

    text = build_report(load_runs([results]), "ar", none, documents=1)
    data = data_of(text)
    assert data["pool"][0] == [0, "0 "]
    assert data["documents"][0]["answers"]["0"]["text"] == "…"
    assert "the tokenizer of smollm2-135m is not at hand" in caplog.text
    assert "the tokenizer of smollm2-135m is not at hand" in text


def test_records_that_lack_something(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, "jacobi", documents=3)  # and no baseline
    empty = write_run(tmp_path, "mars", documents=3, tau=0.9)
    change_samples(empty, lambda s: s.update(tokens=[], committed=[], latency=None, ttft=None, text="", scores=None))
    odd = write_run(tmp_path, "mars", documents=3, tau=0.8)
    change_samples(odd, lambda s: s.update(tokens=s["tokens"][:5], committed=[9], confidence=[None, 1.0]))
    with (odd / "samples.jsonl").open("a") as file:
        file.write('{"repeat": 0, "ta')
    broken = write_run(tmp_path, "mars", documents=3, tau=0.7)
    (broken / "samples.jsonl").write_text("nonsense\n")
    data = data_of(build_report(load_runs([tmp_path]), "ar", words))
    answers = {row["label"]: data["documents"][0]["answers"].get(str(at)) for at, row in enumerate(data["rows"])}
    assert answers["mars τ=0.9"]["tokens"] == []
    assert answers["mars τ=0.8"]["committed"] == []
    assert "confidence" not in answers["mars τ=0.8"]
    assert answers["mars τ=0.7"] is None
    assert "no run of the baseline 'ar' is here" in caplog.text


def test_what_confidence_was_worth(tmp_path: Path) -> None:
    write_run(tmp_path, "ar", documents=6, repeats=1, config={"trace": True})
    run = write_run(tmp_path, "mars", documents=6, repeats=1, tau=0.7, block_size=4, config={"trace": True})
    write_trace(run)
    data = data_of(build_report(load_runs([tmp_path]), "ar", words))
    bins = {row["label"]: row["calibration"] for row in data["rows"]}
    assert bins["ar"] == []
    shares = [one[1] for one in bins["mars τ=0.7"]]
    assert len(shares) == 10
    assert shares == sorted(shares)
    assert sum(shares) / 10 == pytest.approx(2 / 3, abs=0.01)
    mars = next(str(place) for place, row in enumerate(data["rows"]) if row["label"] == "mars τ=0.7")
    answer = data["documents"][0]["answers"][mars]
    assert answer["not_ar"] == list(range(0, len(answer["tokens"]), 2))


def write_trace(run: Path) -> None:
    """Let a method be unsure of every second token, and wrong there."""

    def add(sample: dict[str, Any]) -> None:
        right = [place % 2 for place in range(len(sample["tokens"]) // 4 * 4)]
        sample["tokens"] = sample["tokens"][: len(right)]
        # of each four one is wrong and two are right, besides the first of the pass, which does not count
        sample.update(committed=[4] * (len(right) // 4), ar_equal=right, ar_logprobs=[-0.5] * len(right))
        sample["confidence"] = [[0.5, 0.8, 0.2, 0.8][place % 4] for place in range(len(right))]

    change_samples(run, add)
    record = json.loads((run / "run.json").read_text())
    record["aggregates"] = aggregate(read_samples(run), record["timings"], record["task"]["headline"])
    (run / "run.json").write_text(json.dumps(record))


def test_the_command_makes_the_run_again(results: Path) -> None:
    run = next(run for run in load_runs([results]) if "mars-tau0.7-bs4" in run.name)
    written = command(run)
    assert written.startswith("decodebench run --method mars --block-size 4 --tau 0.7 --tasks ")
    assert "--batch-size 4 " in written
    assert written.endswith("--repeats 2")


def test_the_command_line(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.html"
    arguments = ["report", str(results), "--task", "gsm8k", "--documents", "0", "--title", "<T>", "--out", str(out)]
    outcome = CliRunner().invoke(build_app(arguments), arguments, catch_exceptions=False)
    assert outcome.stdout.strip() == str(out)
    text = out.read_text(encoding="utf-8")
    assert "<h1>&lt;T&gt;</h1>" in text
    assert "stepmath" not in text
    with pytest.raises(UserError, match="no runs in"):
        CliRunner().invoke(build_app([]), ["report", str(out.parent)], catch_exceptions=False)


@pytest.mark.parametrize("folder", sorted(path.name for path in RESULTS.iterdir() if path.is_dir()))
def test_results_of_the_repository_fit(folder: str) -> None:
    runs = [run for run in load_runs([RESULTS / folder], under_load=None) if not run.under_load]
    if not runs:
        pytest.skip("reports are not made of loads")
    text = build_report(runs, "ar", words)
    assert len(text.encode()) < 5_000_000
    assert data_of(text)["documents"]


@settings(max_examples=25)
@given(st.text(alphabet="ab 37→é你🙂\n", max_size=20))
def test_pieces_join_to_the_text(text: str) -> None:
    decode = decoder(tiny.tokenizer())
    ids = tiny.tokenizer().encode(text)
    for end in (len(ids), len(ids) // 2):  # also where a character is cut
        found = pieces(ids[:end], decode)
        assert len(found) == end
        assert "".join(found) == decode(ids[:end])


def test_pieces_of_a_tokenizer_that_drops_leading_spaces() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(f" w{token}" for token in ids).strip()

    assert pieces([1, 2, 3], decode) == ["w1", " w2", " w3"]


@needs_browser
def test_hostile_records_stay_text(browser: Page, tmp_path: Path) -> None:
    for method in ("ar", "mars"):
        run = write_run(
            tmp_path, method, documents=3, config={"model": HOSTILE}, environment={"cpu": HOSTILE, "packages": {}}
        )
        change_samples(run, lambda s: s.update(text=HOSTILE, finish=HOSTILE, category=HOSTILE))
        record = json.loads((run / "run.json").read_text())
        record["task"]["headline"] = record["aggregates"]["score"]["metric"] = HOSTILE
        (run / "run.json").write_text(json.dumps(record))
    file = tmp_path / "report.html"
    file.write_text(build_report(load_runs([tmp_path]), "ar", lambda _: lambda ids: HOSTILE * len(ids)), "utf-8")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(file)
    browser.hover(".side .token")
    assert browser.run("window.hacked === undefined && !document.querySelector('img')")
    assert browser.run("document.querySelector('#tip').textContent.includes('<script>')")
    assert browser.run("document.querySelector('.answer').textContent").startswith("</script><script>")
    assert browser.errors == []
    assert browser.requests == [file.as_uri()]


@needs_browser
def test_the_policy_refuses_other_scripts(browser: Page, report: Path, tmp_path: Path) -> None:
    file = tmp_path / "changed.html"
    text = report.read_text(encoding="utf-8").replace("<main>", "<main><script>window.hacked = 1</script>")
    file.write_text(text, encoding="utf-8")
    browser.open(file)
    assert browser.run("window.hacked === undefined")
    assert any("Content Security Policy" in error for error in browser.errors)
    browser.errors.clear()


@needs_browser
def test_sorting_and_columns(page: Page) -> None:
    column = f"{TABLE}.map((row) => row.cells[%d].textContent)"
    heads: list[str] = page.run("[...document.querySelectorAll('#comparison-table th')].map((th) => th.textContent)")
    speed = heads.index("tok/s")
    before = page.run(column % speed)
    page.run(f"document.querySelectorAll('#comparison-table th button')[{speed}].focus()")
    page.press("Enter")
    falling = [float(text.split()[0]) for text in page.run(column % speed)]
    assert falling == sorted(falling, reverse=True)
    assert page.run("document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "descending"
    page.press("Enter")
    assert [float(text.split()[0]) for text in page.run(column % speed)] == falling[::-1]
    page.press("Enter")
    assert page.run(column % speed) == before
    difference = heads.index("Δ")
    page.run(f"document.querySelectorAll('#comparison-table th button')[{difference}].click()")
    assert page.run(column % difference)[-1] == "–"  # what has no value stays last
    shown = "[...document.querySelectorAll('#comparison-table th')].filter((th) => th.offsetWidth).length"
    few = page.run(shown)
    page.run("document.querySelector('#all-columns').click()")
    assert few < page.run(shown) == len(heads)


@needs_browser
def test_filters(page: Page) -> None:
    assert page.run(f"{TABLE}.length") == 8  # sixteen would be many: one task at first
    change(page, "#task-filter select", "stepmath")
    change(page, "#batch-filter select", "4")
    assert page.run(f"{TABLE}.map((row) => row.dataset.task + row.dataset.batch)") == ["stepmath4"] * 4
    assert page.run("document.querySelectorAll('#plot-latency circle').length") == 4
    change(page, "#task-filter select", "")
    change(page, "#batch-filter select", "")
    assert page.run(f"{TABLE}.filter((row) => /^(gsm8k|stepmath)$/.test(row.dataset.task)).length") == 16


@needs_browser
def test_plots(page: Page) -> None:
    marks = "document.querySelectorAll('#plot-frontier circle')"
    assert page.run(f"{marks}.length") == 8
    before = page.run(f"[...{marks}].map((mark) => mark.getAttribute('cx'))")
    change(page, "#plot-frontier select[aria-label^=Horizontal]", "tokens_per_pass")
    assert page.run(f"[...{marks}].map((mark) => mark.getAttribute('cx'))") != before
    page.hover("#plot-frontier g:last-of-type circle:last-of-type")
    assert page.run("document.querySelector('#tip').textContent").startswith("mars τ=0.7")
    page.run(f"{marks}[0].focus()")
    page.press("ArrowRight")
    assert page.run(f"[...{marks}].indexOf(document.activeElement)") == 1
    assert "tokens per pass" in page.run("document.activeElement.getAttribute('aria-label')")
    page.press("Escape")
    assert page.run("document.querySelector('#tip').hidden")
    page.run("[...document.querySelectorAll('.legend button')].find((b) => b.textContent === 'τ=0.7').click()")
    assert page.run(f"{marks}.length") == 6
    for plot in ("batch", "acceptance", "latency"):
        assert page.run(f"document.querySelectorAll('#plot-{plot} [aria-label]').length") > 3


@needs_browser
def test_answers_token_by_token(page: Page) -> None:
    chosen = "[...document.querySelectorAll('.side select')].map((select) => select.selectedOptions[0].textContent)"
    assert page.run(chosen) == ["ar · batch 4", "mars τ=0.7 · batch 4"]
    for _ in range(12):  # some document has a difference
        verdict = page.run("document.querySelector('.verdict').textContent")
        if "First difference" in verdict:
            break
        page.run("document.querySelector('.answer').focus()")
        page.press("j")
    at = int(re.findall(r"\d+", verdict)[0])
    places = page.run("[...document.querySelectorAll('.token.first')].map((token) => Number(token.dataset.at))")
    assert set(places) == {at - 1}
    page.hover(".side:last-child .token:nth-of-type(3)")
    tip = page.run("document.querySelector('#tip').textContent")
    assert "token 3 of" in tip
    assert "position" in tip
    assert "confidence 0.750" in tip or "probability 0.750" in tip
    assert page.run("document.querySelectorAll('.side:last-child .token.same').length") >= 1
    page.run("document.querySelectorAll('.answer')[1].focus()")
    page.press("Home")
    page.press("ArrowRight")
    assert "token 2 of" in page.run("document.querySelector('#tip').textContent")
    assert page.run(COLOURS) > 5
    page.run("document.querySelector('[data-mode=confidence]').click()")
    assert page.run(COLOURS) == 1


@needs_browser
def test_passes_can_be_played(page: Page) -> None:
    change(page, ".tools input", 2)
    shown = "document.querySelectorAll('.side:last-child .token:not(.later)').length"
    assert 2 <= page.run(shown) < page.run("document.querySelectorAll('.side:last-child .token').length")
    page.run("[...document.querySelectorAll('.tools button')].find((b) => b.textContent.includes('Play')).click()")
    before = page.run(shown)
    page.run("new Promise((done) => setTimeout(done, 600))")
    assert page.run(shown) > before


@needs_browser
def test_light_and_dark(page: Page, tmp_path: Path, report: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = page.run(background)
    assert light != dark
    seen = []
    for _ in range(3):
        page.run("document.querySelector('#theme').click()")
        seen.append(page.run(background))
    assert seen == [light, dark, dark]  # light, dark, as the system has it
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


@needs_browser
def test_narrow_screens_need_no_sideways_scrolling(page: Page, report: Path) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=True)
    page.open(report)
    page.requests.pop()
    assert page.run("document.documentElement.scrollWidth") <= 380
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
