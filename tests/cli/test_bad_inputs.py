"""A sample of what people may type wrong: each ends in one clear line and exit code 2.

All commands, groups of the configuration and keys of `--config` are in it. `{folder}` stands for the results of a small
planned workload, `{file}` for a text that is none of Kareus's files, `{empty}` for an empty folder, `{half}` for
results with half a table, `{cut}` for half a plan, `{unknown}` for the config.json of a network that is not supported,
and `{network}` for one with a negative size.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.planned import planned_folder

from kareus.campaign.command_line import missing_profile, workflow_config
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import EVERY, main
from kareus.errors import KareusError
from kareus.plans.selectors import check_selectors

NOISE = re.compile(
    r"Traceback|object_type|full_key|KeyError|ValueError|Errno|<class|DictConfig"
    r"|invalid \w+ value|unrecognized arguments"
)
"""What a line for people does not have."""

OVERRIDES = """
gpu=b400 | gpu=h1000 | gpu= | gpu=3 | gpu=../gpu/h200 | gpu.foo=3 | gpu.power_limit_w=-1 | gpu.power_limit_w=much
model=train.sh | gpu.memory_gib=0 | gpu.search_frequencies.stride_mhz=31 | gpu.search_frequencies.maximum_mhz=9999
gpu=a100-sxm4-40gb,h400 | model=llama | model=llama3.2-3 | model=/no/where/config.json | model={file} | model={empty}
model.num_layers=??? | model.num_layers=0 | model.hiden_size=3 | model.vocab_size=many | model=qwen3-1.7b,llama4
parallelism.tp=7 | parallelism.tp=0 | parallelism.foo=3 | parallelism=tp9 | parallelism=8 | parallelism.pp=99
parallelism.layers_per_stage=[1,2] | parallelism.tp=5,7 | parallelism.dp=x | testbed=gpu | testbed.cuda.clocks=maybe
testbed.kind=cuda | testbed.time_noise=2 | testbed=cuda,simulate | protocol.window_s=0 | protocol.windows_s=1
protocol=fast | space.sm_max=0 | space.smmax=3 | space=large | search=greedy | search.most=-1 | search.foo=1
pipeline=2f2b | pipeline.chunks=3 | pipeline.deadlines=0 | microbatch_size=??? | microbatch_size=
microbatch_size=eight | microbatch_size=8.5 | microbatch_size=0 | microbatch_size=${x}
microbatch_size=range(1,100000) | microbatch_size=interval(1,2) | microbatch_size=glob(*) | microbatch_size=64
num_microbatches=-3 | sequence_length=1e99 | seed=-1 | seed=1,1.5 | recomputation=perhaps | campaign=paper
emulation=1280gpus | select=fastest | hydra.run.dir=x | +foo=1 | ~gpu=h200 | gpu@x=h200 | tp8 | =3 | seed=0 seed=1
foo.bar=3 | microbatch-size=8 | memory_reserve_gib=lots
"""
"""Of a workload, one or several, for `resolve`; a bar separates them."""

SELECTORS = """
deadline=5.2 | deadline | deadline= | deadline=5,2s | deadline=5S | deadline=-1s | deadline=0s | deadline=1e99s
deadline=1us | energy=20 | energy=20kWh | energy=1J | power=3 | power=4KW | straggler=1.2 | straggler=0.5x | cost=1
cost=1perkWh+ | cost=-1perkWh | fastest=1 | fast | Fastest | quickest | min_energy | edp=1 | deadline=0.001ms | ""
deadline=5.2s,6s
"""
"""For `select`."""

COMMANDS = """
advise | advise --gpus 8 | advise --from {file} | advise --from README.md
advise --gpus 0 --global-batch 8 | advise --gpus 16..8 --global-batch 8
advise tp=3 --gpus 8 --global-batch 8 | advise tpp=8 --gpus 8 --global-batch 8
advise recompute=no --gpus 8 --global-batch 8
advise --gpus 8 --global-batch 8 --max-power 9kw | advise --gpus 8 --global-batch 8 --max-power 90W
advise --gpus 8 --global-batch 8 --deadline 30 --tokens 1e9 | advise --gpus 8 --global-batch 8 --price 0.1
advise --gpus 8 --global-batch 8 --carbon {file} | advise --gpus 8 --global-batch 8 --least money
advise gpu=b900 --gpus 8 --global-batch 8 | advise --gpus 8 --global-batch 8 --output results/x
advise --gpus 8 --global-batch 8 --output {file} | advise --gpus 8 --global-batch 8 --max-gpu-power -500W
advise --gpus 8 --global-batch 8 --max-gpu-power 50W | advise --gpus 8 --global-batch 8 --least cost
advise model={unknown} --gpus 8 --global-batch 8 | advise model={network} --gpus 8 --global-batch 8
advise --gpus 8 --global-batch 8 --price {empty} | advise --gpus 3.5 --global-batch 8
advise --gpus 7 --global-batch 8 tp=2 | advise --gpus 8 --global-batch 8 --max-power 35
advise sequence_length=4096 --gpus 8 --global-batch 8 --sequence-length 8192
from | from {file} | from {empty} | from /no/where.sh | from gpu=h200 | from {network} | from {cut}
from {file} --trainer titan | from {folder}/pipeline/iteration.parquet | from {network} --output {file}
predict --from {file} | predict --from {empty} | predict --trainer nemo | plan --from /no/where.yaml | resolve --from
predict pipeline=dualpipe | resolve recomputation=offload | predict gpu=b200,gb400 | advise gpu=gb400 --gpus 8
explain | explain {file} | explain {empty} | explain /no/where.log | explain gpu=h200 | explain {file} --from {empty}
doctor --jsn | doctor now | stage report-advice tp=3 --output {file}
slect fastest {folder} | search | stage | stage serch | stage search | stage report-campaign nope --results {folder}
select | select fastest {empty} | select fastest /no/where | select fastest {folder} --method best
select fastest {file} | select fastest {folder} --tokens 0 | select fastest {folder} --tokens many
select fastest {folder} --output /no/where/x | select fastest {folder} --output {file}
select fastest {folder} --outptu x | select fastest {folder} extra | check-plan | check-plan /no/where.json
check-plan {file} | check-plan {empty} | check-plan {folder}/plan/fastest.json --folder {empty}
check-plan {cut} | export {cut} --format trace | export {folder}/plan/fastest.json --format trace --output {empty}
select fastest {half} | select fastest {folder} --tokens 1T | plan --measured {empty} | plan --measured /no/where
predict --frequency 1200.5 | predict --frequency -1 | predict model={unknown} | predict parallelism.tp=32
train {folder} --iterations 1 --output {file} | train {folder} --iterations 1 --output {empty} --comunicator gloo
train {folder} --workload {folder} --iterations 1 --output {empty} | plan --output {file}
fit --gpu h200 --reference {cut} | compare | compare {folder} | compare {folder} {cut} | compare {file} {empty}
compare {folder} {folder} --output {file} | compare {folder} {moved} | compare {folder} {folder} --output /no/where/x
check-plan {folder}/pipeline/iteration.parquet | export {folder} | export {folder} --format pdf
export {file} --format trace | export {empty} --format zeus | export {folder} --format megatron --output {file}
export {moved} --format torchtitan | train | train {folder} --iterations 0 --output {empty}
train {folder} --iterations two --output {empty} | train {file} --iterations 1 --output {empty}
train {folder} --iterations 1 --output /no/where/at/all
train {folder} --iterations 1 --output {empty} --learning-rate -1
train {folder} --iterations 1 --output {empty} --clip x | train {moved} --iterations 1 --output {empty}
train --workload {empty} --iterations 1 --output {empty} --communicator gloo | plan gpu=b900 | plan --select soon
plan --output results/x | plan --output /no/where/look | plan testbed=cuda | plan --method best | plan --tokens -1
plan parallelism.tp=7 | predict gpu=b900 | predict --method kareus | predict --frequency 3 | predict --frequency fast
predict microbatch_size=64 | resolve --config-dir {empty} | resolve --output /no/where/results | resolve --config-dir
campaign papers | campaign ../paper | campaign paper gpu=b900 | campaign paper --output /no/where/x
campaign quickstart parallelism.tp=7 | emulate 3gpus | emulate 10240gpus --results {empty}
emulate 10240gpus emulation.stragglers=[0] | verify /no/where | verify {file} | results /no/where | results {empty}
results {folder} --newest 0 | results {results} --campaign nope | results {results} --match nope
results {results} --newest few | clocks | clocks shwo | clocks show --dry | validate --reference
validate --reference /no/where.csv | validate --reference {file} | fit | fit --reference {file} --gpu h200
calibrate --output /no/where/x.yaml | calibrate --minutes ten
fit --reference {file} --gpu b900 --output {empty}/x.yaml | fit --measurements {empty} | calibrate --minutes 0.5
fit --measurements {results} --tables {file}
calibrate gpu=b900 | calibrate gpu=h200,b200 | calibrate testbed=cuda --output {empty}/x.yaml
init | init {file} | init /no/where/plans | help slect | completion | completion tcsh | --nope
stage schedule --config {file} --partitions {file} --space {empty}/x
stage frontier --config {file} --segments {file} --components {file} --instructions {file} --microbatch {empty}/x
stage pipeline --config {file} --microbatch {file} --iteration {empty}/x --instructions {empty}/y | stage profile
stage partition --config /no/where --segments {empty}/a --partitions {empty}/b | stage sweep
stage end-to-end {empty} | stage report --title x | stage report-fleets
"""
"""For the command line as it is."""

CONFIGS = """
foo=3 | campain=paper | seed=3 | gpu=h200 | campaign=papers | campaign=3 | campaign= | campaign=../x | select=
select=[] | select=5.2s | select=deadline=5.2 | select=[fastest,fastest] | select=[1] | select='fastest | overrides=3
overrides=gpu | overrides=[gpu=b900] | overrides=[[]] | overrides=[seed=0,seed=1] | overrides=[emulation.pipelines=0]
overrides='seed=1
"""
"""For `--config` of the workflow."""


def sampled(text: str) -> list[str]:
    """The inputs of a sample."""
    return [item.strip() for line in text.strip().splitlines() for item in line.split(" | ")]


def test_the_sample_has_150_inputs_and_all_commands():
    inputs = [*sampled(OVERRIDES), *sampled(SELECTORS), *sampled(COMMANDS), *sampled(CONFIGS)]
    assert len(inputs) >= 150
    assert len(set(inputs)) == len(inputs)
    typed = sampled(COMMANDS)
    assert [name for name in EVERY if not any(line == name or line.startswith(f"{name} ") for line in typed)] == []


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    """What the sample names."""
    top = tmp_path_factory.mktemp("bad")
    folder = planned_folder(top / "results")
    moved = top / "elsewhere/there/fastest.json"
    moved.parent.mkdir(parents=True)
    moved.write_bytes((folder / "plan/fastest.json").read_bytes())
    (top / "notes.txt").write_text("somebody's notes: [\n")
    (top / "empty").mkdir()
    half = shutil.copytree(folder, top / "half")
    for path in (half / "pipeline/iteration.parquet", half / "plan/fastest.json"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    known = {"model_type": "llama", "hidden_size": -64, "intermediate_size": 64, "num_attention_heads": 8,
             "num_hidden_layers": 4, "vocab_size": 512}  # fmt: skip
    for name, network in (("unknown", {"model_type": "mixtral"}), ("network", known)):
        (top / f"{name}.json").write_text(json.dumps(network))
    return {
        "folder": folder, "results": folder.parent, "file": top / "notes.txt", "empty": top / "empty", "moved": moved,
        "half": half, "cut": half / "plan/fastest.json", "unknown": top / "unknown.json",
        "network": top / "network.json",
    }  # fmt: skip


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line with which a command refuses its arguments."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert code == 2, said
    (line,) = said.err.splitlines() or [said.out.splitlines()[0]]  # of no words at all: the help
    return line


def check(line: str) -> None:
    """Check that a line is for people."""
    assert line.isprintable()
    assert len(line) < 1000
    assert not NOISE.search(line)


@pytest.mark.parametrize("text", sampled(OVERRIDES))
def test_bad_overrides_end_in_one_line(text, places, capsys):
    words = [word.format(**places) if "{" in word and "$" not in word else word for word in text.split(" ")]
    line = refusal(["resolve", *words, "--config-dir", str(CONFIG)], capsys)
    check(line)
    assert line.startswith("kareus resolve: ")


@pytest.mark.parametrize("text", sampled(SELECTORS))
def test_bad_selectors_end_in_one_line(text, places, capsys):
    line = refusal(["select", text.strip('"'), str(places["folder"])], capsys)
    check(line)
    assert line.startswith("kareus select: ")


@pytest.mark.parametrize("text", sampled(COMMANDS))
def test_bad_commands_end_in_one_line(text, places, capsys, monkeypatch):
    monkeypatch.chdir(CONFIG.parent)
    line = refusal([word.format(**places) for word in text.split(" ")], capsys)
    check(line)
    assert line.startswith(("kareus", "usage: kareus"))
    assert list(places["empty"].iterdir()) == []


@pytest.mark.parametrize("text", sampled(CONFIGS))
def test_bad_keys_of_the_workflow_end_in_one_line(text):
    key, _, value = text.partition("=")
    given = {"campaign": "quickstart", "overrides": [], "select": ["fastest"], key: parsed(value)}
    with pytest.raises(KareusError) as refused:  # as workflow/rules/common.smk does
        config = workflow_config(given)
        resolve_campaign(config["campaign"], config["overrides"], CONFIG)
        check_selectors(config["select"])
    check(str(refused.value))


def parsed(value: str) -> object:
    """A value as Snakemake reads it: lists of texts or lists, numbers, nothing, or texts."""
    if value.startswith("["):
        return [
            [] if item == "[]" else int(item) if item.isdigit() else item for item in value[1:-1].split(",") if item
        ]
    return None if not value else int(value) if value.isdigit() else value


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--workflow-profile", "profiles/nope"], "profiles/nope"),
        (["-n", "--workflow-profile=nope"], "nope"),
        (["--workflow-profile", "none"], None),
        (["--workflow-profile", "slurm"], None),
        (["--workflow-profile", "profiles/default", "-n"], None),
        ([], None),
    ],
)
def test_a_profile_that_is_not_there_is_noticed(arguments, missing):
    assert missing_profile(arguments, CONFIG.parent) == missing
