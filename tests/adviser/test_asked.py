"""Questions as a campaign holds them."""

import re

import pytest
from helpers.builders import CONFIG

from kareus.adviser.goals import goals_of
from kareus.adviser.question import ask, question_of
from kareus.errors import ConfigError

SMALL = ["model=qwen3-1.7b", "gpu=h100-sxm5-80gb"]


def test_texts_ask_what_the_options_of_the_command_ask():
    texts = [*SMALL, "gpus=4..16", "global_batch=64", "sequence_length=2048", "tokens=1e11", "deadline=30d", "tp=1,2"]
    expected = ask(
        [*SMALL, "tp=1,2"],
        gpus="4..16",
        global_batch=64,
        sequence_length=2048,
        goals=goals_of(tokens=1e11, deadline="30d"),
        config_dir=CONFIG,
    )
    assert question_of(texts, CONFIG) == expected


def test_prices_are_those_of_the_command():
    texts = [*SMALL, "gpus=8", "global_batch=64", "price=0.12perkWh", "gpu_price=2.5perGPUh", "least=cost"]
    expected = goals_of(price_of_energy="0.12perkWh", gpu_price="2.5perGPUh", least="cost")
    assert question_of(texts, CONFIG).goals == expected


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["global_batch=8"], "gpus is missing"),
        (["gpus=8"], "global_batch is missing"),
        (["gpus=8", "gpus=16", "global_batch=8"], "gpus=16: gpus is given twice"),
        (["gpus=8", "global_batch=many"], "global_batch=many: must be a whole number"),
        (["gpus=8", "global_batch=8", "tokens=lots"], "tokens=lots: must be a number"),
        (["gpus=8", "global_batch=8", "max_power=9kw"], "perhaps you meant 9kW"),
        (["gpus=8", "global_batch=8", "tpp=8"], "perhaps you meant tp="),
    ],
)
def test_a_question_with_a_slip_is_refused_in_one_line(texts, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        question_of([*SMALL, *texts], CONFIG)
    assert "\n" not in str(refused.value)
