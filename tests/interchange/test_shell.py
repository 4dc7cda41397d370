"""Arguments in shell scripts, followed without running anything, against bash where it decides."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.interchange.shell import read_arguments
from kareus.interchange.shell_words import script_words

BASH = shutil.which("bash")


def values(text):
    return read_arguments(text).values


def test_words_of_arrays_and_variables_are_put_in():
    text = 'TP=4\nARGS=(--tp $TP --name "a b")\nARGS+=(--swiglu)\ntorchrun train.py ${ARGS[@]} --pp=2 # --cp 8'
    assert values(text) == {"tp": ["4"], "name": ["a", "b"], "swiglu": [], "pp": ["2"]}


@given(st.text("ab=$-;&|()\n\t ", max_size=40))
def test_scripts_without_quotes_have_the_words_that_shlex_finds(text):
    """A quote anywhere leaves the splitting to shlex."""
    assert (*script_words(text).words, ";", "") == script_words(f"{text} ; ''").words


def test_options_go_on_after_a_continued_line():
    assert values("python train.py --tp 4 \\\n  --pp 2\necho --cp 8") == {"tp": ["4"], "pp": ["2"]}


def test_a_default_stands_for_a_variable_that_is_not_set():
    assert values("python t.py --tp ${TP:-8} --pp ${PP-2}") == {"tp": ["8"], "pp": ["2"]}


def test_a_variable_that_nothing_sets_is_told():
    found = read_arguments("python t.py --tp $TP --data $(ls | head -1) --n $((A + 1))")
    assert found.values == {"tp": [], "data": [], "n": []}
    assert set(found.unknown) >= {"$TP", "what `ls | head -1` prints"}


def test_a_branch_is_taken_by_its_condition():
    lines = [
        "D=fp8",
        'if [[ "$D" == "fp8" ]] || [ -z "$E" ]; then',
        'A="--fp8"',
        "elif [ 1 -gt 0 ]; then",
        "A=--one",
        "else",
        "A=--bf16",
        "fi",
        "python t.py $A",
    ]
    text = "\n".join(lines)
    assert values(text) == {"fp8": []}
    assert values(text.replace("D=fp8", "D=x E=y").replace('-z "$E"', '-z "$D"')) == {"one": []}


def test_a_condition_that_nothing_decides_is_told_and_not_taken():
    found = read_arguments('A=--two\nif [ -f "$1" ]; then A=--one; fi\npython t.py $A')
    assert found.values == {"two": []}
    assert any("condition" in text for text in found.unknown)


def test_comments_and_quotes_do_not_end_each_other():
    text = "X=1 # don't\nA='--x # 2'\npython t.py $A --tp \"$X\" '# none'"
    assert values(text)["tp"] == ["1", "#", "none"]


@pytest.mark.parametrize(
    "ending",
    ["2>&1 | tee log.txt", "> log.txt 2>&1 &", '>> "a b.log"', "&> log", "< in", "; echo --tp 9 t.py", "<<< x"],
)
def test_where_output_goes_is_no_argument(ending):
    assert values(f"python t.py --name a --tp 2 {ending}\nwait\n") == {"name": ["a"], "tp": ["2"]}


def test_lines_may_end_as_on_windows():
    assert values('A="--pp 2 \\\r\n  --cp 2"\r\npython t.py \\\r\n  --tp 4 $A\r\n') == {
        "tp": ["4"],
        "pp": ["2"],
        "cp": ["2"],
    }


def test_of_several_programs_the_one_with_most_options_is_read():
    found = read_arguments(
        "python prepare.py --tp 1\ntorchrun t.py --tp 4 --pp 2 --cp 1\npython convert.py --tp 8 --pp 8"
    )
    assert found.values == {"tp": ["4"], "pp": ["2"], "cp": ["1"]}
    assert found.unknown == ("a further program, convert.py", "a further program, prepare.py")


def test_options_of_what_starts_a_program_end_before_it():
    text = "srun --gpus-per-node 8 bash -c 'python -m torch.distributed.run --nproc_per_node 8 -m train --pp 2'"
    assert values(text) == {"gpus-per-node": ["8"], "nproc_per_node": ["8"], "pp": ["2"]}


def test_a_placeholder_of_a_template_is_told():
    found = read_arguments("python t.py --data-path <path/to data> --tp 2")
    assert found.values == {"data-path": [], "tp": ["2"]}
    assert found.unknown == ("$path_to_data",)


def test_texts_that_a_script_writes_elsewhere_are_no_arguments():
    assert values("cat <<EOF > x\n--tp 9\nEOF\npython t.py --tp 2") == {"tp": ["2"]}


def test_a_list_of_arguments_without_a_program_is_read():
    assert values("--tp 2 --swiglu") == {"tp": ["2"], "swiglu": []}


def test_a_batch_script_says_its_nodes():
    assert values("#SBATCH -N 2\npython t.py --tp 2") == {"nodes": ["2"], "tp": ["2"]}
    assert values("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node 8\nsrun python t.py --tp 2") == {
        "nodes": ["4"],
        "ntasks-per-node": ["8"],
        "tp": ["2"],
    }


def test_variables_that_slurm_sets_of_options_are_followed():
    """A range of nodes may become any of them."""
    text = "#SBATCH -N 4 --gpus-per-node=h100:8\nsrun python t.py --nnodes {} --gpus ${{SLURM_GPUS_ON_NODE:-1}}"
    for name in ("$SLURM_NNODES", "$SLURM_JOB_NUM_NODES"):
        read = read_arguments(text.format(name))
        assert (read.values["nnodes"], read.values["gpus"], read.unknown) == (["4"], ["8"], ())
    assert "$SLURM_NNODES" in read_arguments("#SBATCH --nodes=2-4\nsrun python t.py --nnodes $SLURM_NNODES").unknown


@pytest.mark.parametrize("option", ["--gres=gpu:8", "--gres gpu:h100:8", "--gpus-per-node=8", "--gpus-per-node=a100:8"])
def test_a_batch_script_says_its_gpus(option):
    assert values(f"#SBATCH {option}  # all\nsrun -N2 python t.py") == {"gpus-per-node": ["8"], "nodes": ["2"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A='1", "line"),
        ("A=$((1 + 2", "a bracket does not end"),
        ("A=`ls", "a backquote does not end"),
        ("A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 7 + "python t.py --x $A", "more than 1,000,000 characters"),
    ],
)
def test_what_cannot_be_followed_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        read_arguments(text)


def test_nothing_of_a_script_is_run(tmp_path):
    read_arguments(f"touch {tmp_path}/made\nX=$(touch {tmp_path}/made)\npython t.py --x `touch {tmp_path}/made`")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(BASH is None, reason="bash is the oracle")
@pytest.mark.parametrize(
    "script",
    [
        'case $M in\n8b) A="--l 32" ;;\n70b|big) A="--l 80";;\nesac',
        "case x$M in *b) A=--b; case y in y) A+=ob;; esac;; *) A=--c ;; esac",
        "case $M in (7*) A=--seven;; (*) A=--other; esac",
        "A=--x; [ $N -eq 1 ] && A=--one\n[[ $N == 2 && $M == 70b ]] && A+=' --two' || A=--none",
        "A=--x; [ -z $N ] && { A=--empty; M=1; } || A+=' --full'\nA+=\" --m $M\"",
        "A=--x; [[ -n $N ]] || A=--unset; false || A+=' --after'",
        "A=(--a 1 ${N:+--n $N} ${U:+--u 1} ${U:-none}); A+=(--last ${A[1]})",
        ": ${U:=--u}\nA=$U",
        "if [ $N = 2 ]; then\n  case $M in 70b) A=--in;; esac\n  { A+=' --group'; }\nelse A=--else; fi",
        "f() {\n A=--f\n}\nf\n[ $N = 1 ] || A+=' --g' && A+=' --h'",
    ],
)
def test_a_script_gives_what_bash_gives(script):
    script = f"M=70b\nN=2\n{script}\n"
    run = subprocess.run([BASH, "-c", f"{script}echo ${{A[@]}}"], capture_output=True, text=True, check=True)
    assert values(f"{script}python t.py ${{A[@]}}") == values(f"python t.py {run.stdout}")


NUMBERS = st.integers(1, 64)


@pytest.mark.skipif(BASH is None, reason="bash is the oracle")
@settings(max_examples=15, deadline=None)
@given(a=NUMBERS, b=NUMBERS, operator=st.sampled_from("+-*/%"), compare=st.sampled_from(["-lt", "-ge", "-eq", "-ne"]))
def test_sums_and_comparisons_are_those_of_bash(a, b, operator, compare):
    script = (
        f"A={a}\nB={b}\nif [ $A {compare} $B ]; then X=--yes; else X=--no; fi\n"
        f"ARGS=($X --sum $(($A {operator} B)) --both $((A * (B + 1))))\n"
    )
    run = subprocess.run([BASH, "-c", f"{script}echo ${{ARGS[@]}}"], capture_output=True, text=True, check=True)
    assert values(f"{script}python t.py ${{ARGS[@]}}") == values(f"python t.py {run.stdout}")


def test_commands_whose_output_is_not_followed_are_told_by_what_they_are():
    found = read_arguments(
        "A=`cat sizes`; python t.py --tp $(nvidia-smi -L | wc -l) --hidden-size $A --x $((2 + $(nproc)))"
    )
    assert found.values == {"tp": [], "hidden-size": [], "x": []}
    assert [text for text in found.unknown if "prints" in text] == [
        "what `cat sizes` prints",
        "what `nvidia-smi -L | wc -l` prints",
    ]
    (long,) = read_arguments(f"python t.py --tp $({'count ' * 99})").unknown
    assert len(long) < 80
    assert long.endswith(" ...` prints")
