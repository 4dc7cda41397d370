"""What users write that ends in a path, a comment, a terminal or a page."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.builders import CONFIG, a100, protocol, read_model, simulated, small_model
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.layout import WorkloadFolder, campaign_table
from kareus.artifacts.names import below, check_name, check_path, check_product
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import main
from kareus.emulate.resolve import expand_fleets
from kareus.errors import MOST_CHARACTERS, ArtifactError, ConfigError, one_line, printable
from kareus.plans.selectors import parse_selector
from kareus.profile.bench import Bench
from kareus.profile.config import ProfileSlice
from kareus.testbed.protocol import open_testbed
from kareus.workload.compose import compose
from kareus.workload.resolve import resolve
from kareus.workload.slices import cut

HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    ".hidden",
    "-option",
    "~root",
    "a b ",
    "a  b",
    "a\nimport os",
    "a\r\nb",
    "a\tb",
    "a\x00b",
    "a\x1b[31m",
    "a\x07",
    "a\x7f",
    "a\x9b31m",
    "a\u202eb",
    "a\u2066b",
    "a\u200bb",
    "a\u2028b",
    "a\ufeff",
    "\u0430100",  # a Cyrillic letter that looks like a Latin one
    "{x}",
    "a{0}",
    "{{}}",
    "$(reboot)",
    "`reboot`",
    "a;b",
    "a|b",
    "a'b",
    'a"b',
    "<script>",
    "a&b",
    "a*",
    "a?b",
    "a%b",
    "a:b",
    "a=b",
    "x" * 81,
    "x" * 100_000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_a_hostile_name_is_refused_in_one_line(name, tmp_path):
    for build in (
        lambda: check_name(name, "campaign"),
        lambda: check_product(name, "name"),
        lambda: a100(name=name),
        lambda: small_model(name=name),
        lambda: resolve_campaign(name, [], CONFIG),
        lambda: parse_selector(name),
    ):
        with pytest.raises(ConfigError) as raised:
            build()
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < MOST_CHARACTERS + 100


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "A100-SXM4-40GB", "llama3.2-3b", "x", "Tesla V100+"])
def test_names_of_products_have_single_spaces_inside(name):
    check_product(name, "name")


@pytest.mark.parametrize("path", ["", "a\nb.csv", "a\x1b.csv", "{x}/prices.csv", "a\u202e.csv", "x" * 1025])
def test_a_configured_path_is_printable_and_without_braces(path):
    with pytest.raises(ConfigError, match=r"series='.*': must be a path of 1 to 1,024 characters"):
        check_path(path, "series")


@pytest.fixture
def config(tmp_path) -> Path:
    return Path(shutil.copytree(CONFIG, tmp_path / "config"))


@pytest.mark.parametrize(
    ("group", "resolving"),
    [("gpu", resolve), ("model", resolve), ("parallelism", resolve), ("emulation", expand_fleets)],
)
@pytest.mark.parametrize("stem", ["..", "a b", "{x}"])
def test_an_option_whose_file_has_no_name_is_refused(config, group, resolving, stem):
    source = next((config / group).glob("*.yaml"))
    (config / group / f"{stem}.yaml").write_text(source.read_text())
    with pytest.raises(ConfigError) as raised:
        resolving([f"{group}='{stem}'"], config)
    assert str(raised.value).isprintable()


def test_a_primary_file_with_an_option_without_name_is_refused(config):
    shutil.copy(config / "gpu/h200.yaml", config / "gpu/a b.yaml")
    primary = config / "config.yaml"
    primary.write_text(primary.read_text().replace("gpu: a100-sxm4-40gb", "gpu: a b"))
    with pytest.raises(ConfigError, match="option of gpu 'a b': a name has letters"):
        resolve([], config)


@pytest.mark.parametrize(
    "override", ["gpu.name=../../x", "model.name='{x}'", "model.name='a\nb'", "gpu.name='\x1b[2J'"]
)
def test_a_hostile_override_never_reaches_a_terminal_raw(override, capsys):
    assert main(["resolve", override, "--config-dir", str(CONFIG)]) == 2
    said = capsys.readouterr().err
    assert said.removesuffix("\n").isprintable()


@pytest.mark.parametrize("argument", ["\x1b[2Jx=1", "a=\u202e", "model=x/\x1b]0;title\x07.json", "=" * 50_000])
def test_arguments_are_echoed_escaped_and_bounded(argument, capsys):
    assert main(["resolve", argument, "--config-dir", str(CONFIG)]) == 2
    said = capsys.readouterr().err
    assert said.removesuffix("\n").isprintable()
    assert len(said) < MOST_CHARACTERS + 100


@pytest.mark.parametrize(
    "arguments", [["\x1b[2J"], ["resolve", "--\x1b[2J"], ["resolve", "--output", "/dev/null/\x07"]]
)
def test_commands_options_and_paths_are_echoed_escaped(arguments):
    done = subprocess.run([sys.executable, "-m", "kareus", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines())


def test_what_stages_log_is_escaped(tmp_path):
    output = tmp_path / "re\x1b[31msults"
    command = ["resolve", "--config-dir", str(CONFIG), "--output", str(output)]
    assert main(command) == 0
    (edited,) = output.glob("*/config/workload.yaml")
    edited.write_text("seed: 1\n")
    done = subprocess.run([sys.executable, "-m", "kareus", *command], capture_output=True, text=True, check=False)
    assert "re\\x1b[31msults" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@given(text=st.text())
def test_printable_text_is_bounded_and_idempotent(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert len(one_line(text * 1000)) <= MOST_CHARACTERS + 60


def test_a_long_message_keeps_its_beginning_and_its_end():
    error = ConfigError(f"key='{'x' * 1_000_000}': must be short; shorten it.")
    assert str(error).startswith("key='xxx")
    assert "characters left out" in str(error)
    assert str(error).endswith("x': must be short; shorten it.")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "../x"])
def test_no_path_leaves_its_folder(name, tmp_path):
    for place in (
        lambda: below(tmp_path, name),
        lambda: below(tmp_path, "a", name),
        lambda: WorkloadFolder(tmp_path).fleet(name),
        lambda: campaign_table(tmp_path, name),
    ):
        with pytest.raises(ArtifactError, match="is not the name of a file or folder in it"):
            place()


def test_the_store_refuses_paths_outside_of_it(tmp_path):
    (composition,) = compose([], CONFIG)
    config: ProfileSlice = cut(composition.workload, "profile")
    bench = Bench(config, open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0))
    object.__setattr__(config.gpu, "name", "../../x")  # as if no record had checked it
    with pytest.raises(ArtifactError, match=r"'\.\./\.\./x_simulated' is not the name"):
        bench.shelf(tmp_path, "attention", "content")
    object.__setattr__(config.gpu, "name", "x")
    with pytest.raises(ArtifactError):
        bench.shelf(tmp_path, "../attention", "content")


@pytest.mark.parametrize("said", [*HOSTILE, "org/Model-7B", "\u30e2\u30c7\u30eb"])
def test_a_hugging_face_model_gets_a_name_fit_for_a_path(said, tmp_path):
    path = tmp_path / "config.json"
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    path.write_text(json.dumps({**config, "num_attention_heads": 4, "vocab_size": 100, "_name_or_path": said}))
    check_name(read_model(path).name, "model")


def test_a_name_of_many_parts_stays_short_enough_for_a_folder():
    layers = [2, *[1] * 78]
    text = f"parallelism.layers_per_stage={layers},{layers[::-1]}"
    first, second = resolve(["model=llama3.3-70b", "parallelism.pp=79", text.replace(" ", "")], CONFIG)
    assert first.name != second.name
    assert max(len(first.name), len(second.name)) <= 160
