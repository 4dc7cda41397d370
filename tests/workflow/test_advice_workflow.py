"""A campaign that asks for a layout: its answer, what asks again, and what does not."""

import os
from pathlib import Path

import pytest
from helpers.breaking import other_version
from helpers.preloaded import snakemake, would_run

import kareus
from kareus.cli import main
from runs.checkout import checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION = (
    "question: model=qwen3-1.7b model.num_layers=4 gpu=h100-sxm5-80gb gpus=1,2 global_batch=4 sequence_length=1024 "
    "microbatch_size=2 recompute=none tp=1 cp=1 pp=1 sharding=optimizer\n"
)
CONFIG = "--config", "campaign=mine"
ADVICE = "results/campaigns/mine/advise"


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[Path, str]:
    """A checkout in which a question was answered, and what the run ended with."""
    folder = tmp_path_factory.mktemp("advice")
    checkout(folder)
    (folder / "config/campaign/mine.yaml").write_text(QUESTION)
    done = snakemake(folder, *CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_a_run_ends_with_the_layout_and_what_to_type_next(asked):
    folder, said = asked
    summary = (folder / ADVICE / "summary.txt").read_text().splitlines()
    assert summary[0].startswith("Qwen3 1.7B on 2 H100-SXM5-80GB, 4 sequences of 1,024 tokens: train ")
    (error,) = [line for line in summary if line.startswith("[predicted by the GPU model")]
    for line in (summary[0], error, f"page  {ADVICE}/page.html", *summary[-2:]):
        assert line in said


def test_the_answer_is_opened_with_the_other_results(asked):
    tables = kareus.open_results(asked[0] / "results")
    chosen = tables["advised_plans"].filter("is_chosen").select("campaign", "gpus").collect().rows()
    assert chosen == [("mine", 2)]
    assert set(tables["advised_layouts"].collect()["gpus"]) == {1, 2}


def test_answers_are_listed_with_what_was_planned(asked, caplog):
    caplog.set_level("INFO")
    results = asked[0] / "results"
    assert main(["results", str(results)]) == 0
    assert caplog.messages == [f"campaign mine: {results}/campaigns/mine/advise/page.html"]


def test_every_file_of_an_answer_is_sealed(asked, caplog):
    caplog.set_level("INFO")
    folder = asked[0] / ADVICE
    assert main(["verify", str(folder)]) == 0
    page = folder / "page.html"
    whole = page.read_text()
    page.write_text(whole + " ")
    assert main(["verify", str(folder)]) == 1
    page.write_text(whole)
    assert "page.html: damaged" in caplog.text


def test_an_answered_question_is_not_asked_again(asked):
    assert would_run(asked[0], *CONFIG) == {}


def test_another_question_is_answered_anew(asked):
    campaign = asked[0] / "config/campaign/mine.yaml"
    campaign.write_text(QUESTION.replace("global_batch=4", "global_batch=8"))
    assert would_run(asked[0], *CONFIG) == {"all": 1, "answer_question": 1}
    campaign.write_text(QUESTION)


def test_editing_the_adviser_asks_again(asked, tmp_path):
    environment = os.environ | other_version(tmp_path / "other", "adviser/bounds.py")
    assert would_run(asked[0], *CONFIG, env=environment) == {"all": 1, "answer_question": 1}
