"""What people type first and is not there: the answer names what they mean."""

import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.errors import refused_by_system

ADVISE = ("advise", "model=llama3.2-3b", "--global-batch", "8")


GPU = "--gpu: unknown argument; gpu=NAME, such as gpu=h100-sxm5-80gb, says which GPU it is, and {} how many there are"
PLAIN = "unknown argument; it is given without dashes:"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*ADVISE, "--gpu", "32"), GPU.format("--gpus N")),
        (("plan", "--gpu", "32"), GPU.format("gpus=N")),
        (("plan", "--gpus", "32"), f"--gpus: {PLAIN} gpus=32"),
        (("plan", "--gpus=32"), f"--gpus=32: {PLAIN} gpus=32"),
        (("predict", "--model"), f"--model: {PLAIN} model=VALUE"),
        (("predict", "--tp", "4"), f"--tp: {PLAIN} parallelism.tp=4"),
        (("calibrate", "--from", "x"), "--from: unknown argument; kareus from FILE prints what to give here of a file"),
        ((*ADVISE, "--sequence_length"), "--sequence_length: unknown argument; perhaps you meant --sequence-length"),
        (("verify", "--gpus", "8"), "--gpus: unknown argument"),
        (("export", "plan.json"), "--format: missing"),
        (
            ("export", "plan.json", "--format", "megatron-arg"),
            "--format: 'megatron-arg': not known; perhaps you meant megatron-args",
        ),
        (("clocks", "shw"), "action: 'shw': not known; perhaps you meant show"),
        (("train", "--clocks", "dryy"), "--clocks: 'dryy': not known; perhaps you meant dry"),
        ((*ADVISE, "--least", "speed"), "--least: 'speed': not known; allowed: cost, edp, energy, time"),
        ((*ADVISE, "--tokens", "1T"), "--tokens: '1T' is not a number; write one such as 1e12"),
        (("train", "--clip", "small"), "--clip: 'small' is not a number; write one such as 2.5"),
    ],
)
def test_a_wrong_argument_is_answered_by_what_is_meant(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err == f"kareus {arguments[0]}: {said}; see kareus {arguments[0]} --help.\n"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("gpu=h100", "h100-96gb-hbm2e or h100-sxm5-80gb"),
        ("gpu=H100", "h100-96gb-hbm2e or h100-sxm5-80gb"),
        ("gpu=a100", "a100-sxm4-40gb or a100-sxm4-80gb"),
        ("gpu=a100-80gb", "a100-sxm4-80gb"),
        ("gpu=gb", "gb200 or gb300"),
        ("model=llama3", "llama3.1-405b or llama3.1-8b or llama3.2-3b or llama3.3-70b"),
        ("model=Qwen3", "qwen3-1.7b or qwen3-235b-a22b or qwen3-30b-a3b"),
    ],
)
def test_a_short_name_is_answered_by_the_names_that_it_may_be(override, meant, capsys):
    assert main(["predict", override, "--config-dir", str(CONFIG)]) == 2
    assert f"{override}: unknown option; perhaps you meant {meant}; allowed: " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "resolve"])
def test_the_gpu_that_is_taken_for_a_file_without_one_is_told(command, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    script, config = tmp_path / "train.sh", ["--config-dir", str(CONFIG)]
    script.write_text("torchrun t.py --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8\n")
    words = [command, "--from", str(script), "model=llama3.2-3b", "gpus=2", *config]
    said = "not said: which GPU it is: a100-sxm4-40gb is taken; give gpu=NAME, such as gpu=h200"
    for further, count in (["gpu=h200"], 0), ([], 1):
        assert main([*words, *further]) == 0
        assert (capsys.readouterr().out + caplog.text).count(said) == count


def test_plan_names_the_command_of_another_plan_unless_this_one_makes_it(tmp_path, caplog):
    caplog.set_level("INFO")
    layout = ["parallelism.pp=1", "parallelism.tp=1", "parallelism.dp=8", "microbatch_size=1"]
    words = ["plan", "gpu=h200", *layout, "--config-dir", str(CONFIG), "--method", "sequential+perseus"]
    for asked, said in (["fastest"], "typed"), (["fastest", "straggler=1.05x"], "this command plans it, too"):
        caplog.clear()
        assert main([*words, *(word for text in asked for word in ("--select", text))]) == 0
        (line,) = [message for message in caplog.messages if message.startswith("at full speed there is ")]
        typed = f"kareus {' '.join(words[:-2])} --select straggler=1.05x --method sequential+perseus"
        assert line.endswith(f" of energy: {typed if said == 'typed' else said}")
    assert any("(within 1.05 times its method's least time)" in message for message in caplog.messages)


@pytest.mark.parametrize("error", [FileExistsError(17, "File exists", "a/data"), NotADirectoryError(20, "x", "a/data")])
def test_a_file_in_the_place_of_a_folder_is_to_be_moved_away(error):
    assert refused_by_system(error) == f"a/data: {error.strerror}; move what is there away, or give another path."
