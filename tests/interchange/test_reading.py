"""What is said of the settings of a file: understood, lost, no matter, not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import to_plain
from kareus.artifacts.shipped import config_folder
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.interchange.reading import override, read_training
from kareus.interchange.syntax import parse_settings, scalar
from kareus.interchange.table import model_names, trainer_named, trainers
from kareus.model.parameters import total_parameters
from kareus.workload.compose import compose
from kareus.workload.overrides import expand, options, replaced

MINIMAL = "torchrun t.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --micro-batch-size 1 --bf16 "


@pytest.fixture
def read(tmp_path):
    def _read(text, name="train.sh", **options):
        path = tmp_path / name
        path.write_text(text)
        return read_training([path], **options)

    return _read


def overrides(training):
    return dict(text.split("=", 1) for text in training.overrides)


@pytest.mark.parametrize("name", trainers())
def test_what_a_table_writes_always_it_reads_without_loss(name):
    table = trainer_named(name)
    for key, value in table.always.items():
        row = table.row(key)
        assert row is not None or table.ignores(key), key
        if row is not None and row.term is None:
            assert value in row.unless, key


@pytest.mark.parametrize("name", trainers())
def test_a_key_is_written_by_one_row_of_a_table(name):
    rows = [row for row in trainer_named(name).rows.values() if row.term is not None and not row.alias]
    for row in rows:
        for one, other in row.words:
            if one != "*" and other is not None:
                assert row.value(row.said(other)) == other, (row.key, other)


SIZES = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512}
FLAGS = MINIMAL + " ".join(f"--{key.replace('_', '-')} {value}" for key, value in SIZES.items())
FLAGS += " --position-embedding-type rope --attention-dropout 0 "
RECIPE = "train: {global_batch_size: 8}\nmodel:\n  tensor_model_parallel_size: 2\n  position_embedding_type: rope\n"
RECIPE += "".join(f"  {key}: {value}\n" for key, value in SIZES.items())


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        (FLAGS, None),
        (FLAGS + "--use-rope-scaling", 8.0),
        (FLAGS + "--use-rope-scaling --rope-scaling-factor 32", 32),
        (FLAGS + "--rope-scaling-factor 32 --use-rope-scaling", 32),
        (FLAGS + "--rope-scaling-factor 32", None),
        (RECIPE + "  rope_scaling: true\n", 8.0),
        (RECIPE + "  rope_scaling: true\n  rope_scaling_factor: 32.0\n", 32.0),
        (RECIPE + "  rope_scaling: false\n  rope_scaling_factor: 1.0\n", None),
    ],
)
def test_angles_stretched_as_llamas_are_read(read, text, factor):
    said = read(text, "t.yaml" if text.startswith(RECIPE) else "train.sh")
    (composition,) = compose(said.overrides, config_folder())
    angles = composition.workload.model.rotary_scaling
    usual = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_sequence_length": 8192}
    assert to_plain(angles) == (None if factor is None else {"factor": factor, **usual})
    assert not [setting for setting in said.lost if "angles" in setting.words]


@pytest.mark.parametrize("flag", ["--position-embedding-type yarn", "--rotary-seq-len-interpolation-factor 4"])
def test_angles_that_are_stretched_otherwise_are_lost(read, flag):
    assert [setting.words for setting in read(FLAGS + flag).lost if "angles" in setting.words] == [
        "angles of positions that are stretched: taken as plain, which costs the same; exports leave them out"
    ]


HF = "model_name_or_path: a/b\nbf16: true\n"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (HF + "fsdp: hybrid_shard auto_wrap", "t.yaml", "parallelism.sharding=hybrid"),
        (HF + "fsdp_config: {fsdp_sharding_strategy: 4}", "t.yaml", "parallelism.sharding=hybrid"),
        (HF + "zero_optimization: {stage: 3, mics_shard_size: 8}", "t.yaml", "parallelism.shards=8"),
        ("base_model: a/b\nfsdp: [hybrid_shard_zero2, auto_wrap]\n", "t.yaml", "parallelism.sharding=hybrid"),
        ("max_seq_len: 8\nfsdp_config: {sharding_strategy: HYBRID_SHARD}", "t.yaml", "parallelism.sharding=hybrid"),
        (
            MINIMAL.replace("torchrun", "torchrun --nnodes 4 --nproc-per-node 8")
            + "--use-distributed-optimizer --num-distributed-optimizer-instances 4",
            "t.sh",
            "parallelism.shards=4",
        ),
    ],
)
def test_groups_of_replicas_that_share_weights_are_read(read, text, name, said):
    assert said in read(text, name).overrides


def test_names_of_models_stand_for_options():
    assert set(model_names().values()) <= set(options("model", config_folder()))


def test_a_key_that_no_table_has_is_named(read):
    assert read(MINIMAL + "--new-thing 3").unread == ("new_thing",)


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--micro-batchsize 2", "micro_batch_size"),
        ("--global-batchsize 2", "global_batch_size"),
        ("--num-layer 2", "num_layers"),
        ("--context-paralel-size 2", "context_parallel_size"),
    ],
)
def test_a_key_that_is_nearly_one_that_matters_is_lost_unless_that_is_said_too(read, flag, near):
    alone = MINIMAL.replace("--micro-batch-size 1 ", "")
    key = flag.split()[0].strip("-").replace("-", "_")
    said = [setting.lost_words for setting in read(alone + flag).lost]
    assert f"{key}=2: not known; perhaps {near} was meant" in said
    both = read(f"{alone}{flag} --{near.replace('_', '-')} 2")
    assert both.unread == (key,)
    assert not [setting for setting in both.lost if setting.key == key]


def test_every_command_names_a_key_that_is_nearly_one_that_matters(tmp_path, capsys):
    path = tmp_path / "job.sh"
    path.write_text(FLAGS.replace("--micro-batch-size 1 ", "--micro-batchsize 1 ") + "--global-batch-size 8\n")
    assert main(["predict", "--from", str(path), "gpu=h100-sxm5-80gb"]) == 0
    printed = capsys.readouterr()
    assert f"{path}: micro_batchsize=1: not known; perhaps micro_batch_size was meant\n" in printed.out + printed.err


def test_a_value_that_a_table_has_not_is_lost(read):
    training = read(MINIMAL + "--attention-dropout 0 --position-embedding-type relative")
    assert [(one.key, one.value) for one in training.lost][-1] == ("position_embedding_type", "relative")


MIXTURE = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 50257 --position-embedding-type rope "
    "--swiglu --ffn-hidden-size 1024 --num-experts 8 --expert-model-parallel-size 4 --hidden-dropout 0 "
    "--attention-dropout 0 "
)


def experts_of(training):
    (composed,) = compose([*training.overrides, "gpu=h100-sxm5-80gb"], config_folder())
    return composed.workload.model.experts


def test_experts_are_read_with_the_usual_ones_of_megatron_core(read):
    training = read(MINIMAL + MIXTURE)
    assert not training.lost
    experts = experts_of(training)
    assert (experts.count, experts.per_token, experts.width, experts.shared_width) == (8, 2, 1024, 0)
    said = overrides(training)
    assert (said["parallelism.ep"], said["parallelism.etp"]) == ("4", said["parallelism.tp"])
    more = "--moe-router-topk 3 --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 128 "
    own = read(MINIMAL + MIXTURE + more + "--expert-tensor-parallel-size 1 --moe-token-dispatcher-type flex")
    experts = experts_of(own)
    assert (experts.per_token, experts.width, experts.shared_width) == (3, 256, 128)
    assert (overrides(own)["parallelism.etp"], overrides(own)["software.dispatcher"]) == ("1", "flex")


@pytest.mark.parametrize(
    ("text", "dense"), [("2", (1, 3)), ("'([0]*1+[1]*3)'", (0,)), ("'[0,1,1,0]'", (0, 3)), ("1", ())]
)
def test_blocks_without_experts_are_read(read, text, dense):
    training = read(MINIMAL + MIXTURE + f"--num-layers 4 --moe-ffn-hidden-size 256 --moe-layer-freq {text}")
    assert not training.lost
    assert experts_of(training).dense_layers == dense


def test_latent_attention_and_further_tokens_are_read(read):
    training = read(
        MINIMAL + MIXTURE + "--multi-latent-attention --q-lora-rank 96 --kv-lora-rank 64 --qk-head-dim 48 "
        "--qk-pos-emb-head-dim 16 --v-head-dim 32 --mtp-num-layers 1"
    )
    (composed,) = compose(["gpu=h100-sxm5-80gb", *training.overrides, "parallelism.dp=4"], config_folder())
    model = composed.workload.model
    assert not training.lost
    assert (model.head_dim, model.mtp_layers) == (64, 1)
    latent = model.latent_attention
    assert (latent.query_rank, latent.key_value_rank, latent.rotary_dim, latent.value_dim) == (96, 64, 16, 32)


LATENT = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --vocab-size 129280 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --qk-layernorm "
    "--position-embedding-type rope --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
    "--qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256 --moe-layer-freq '([0]*3+[1]*58)' "
    "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 "
    "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-score-function sigmoid --hidden-dropout 0 "
    "--attention-dropout 0 "
)


def test_latent_attention_is_read_as_deepseek_has_it(read):
    training = read(MINIMAL + LATENT)
    assert not training.lost
    read_model, ours = (
        compose([*texts, "gpu=h100-sxm5-80gb"], config_folder())[0].workload.model
        for texts in (training.overrides, ["model=deepseek-v3"])
    )
    assert total_parameters(read_model) == total_parameters(ours)
    assert (read_model.latent_attention, read_model.experts.dense_layers) == (ours.latent_attention, (0, 1, 2))


AXOLOTL = "base_model: a/b\nsequence_len: 8\nmicro_batch_size: 1\n"


@pytest.mark.parametrize(
    ("text", "name", "rank"),
    [
        ("python t.py --model_name_or_path a --use_peft --lora_r 32 --bf16", "t.sh", 32),
        ("python t.py --model_name_or_path a --lora_r 32 --use_peft --bf16", "t.sh", 32),
        ("python t.py --model_name_or_path a --use_peft --bf16", "t.sh", 16),
        (AXOLOTL + "adapter: lora\nlora_r: 64\nlora_target_modules: [q_proj, w1]", "t.yaml", 64),
        (AXOLOTL + "adapter: qlora", "t.yaml", 8),
    ],
)
def test_a_rank_that_is_said_counts_and_is_told_once(read, text, name, rank):
    training = read(text, name)
    told_of = [one.words for one in training.understood if "lora_rank" in one.words]
    assert told_of == [f"training.lora_rank={rank}"]
    assert overrides(training)["training.lora_rank"] == str(rank)
    assert not any("w1" in one.words for one in training.understood)


def test_two_keys_of_one_thing_that_differ_are_told(read):
    (one,) = [one for one in read(MINIMAL + "--seq-length 8 --encoder-seq-length 4").lost if one.key]
    assert one.lost_words == "encoder_seq_length=4: another key gives sequence_length, and 8 is taken"


@pytest.mark.parametrize(
    ("text", "name", "trainer", "said"),
    [
        ("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}", "t.yaml", "Trainer", "gpus=8"),
        (
            "num_processes: 8\nfsdp_config: {fsdp_version: 2}\n"
            "parallelism_config: {parallelism_config_dp_shard_size: 2, parallelism_config_dp_replicate_size: 4}",
            "t.yaml",
            "Trainer",
            "parallelism.shards=2",
        ),
        (
            "trainer: {devices: 8}\nmodel: {tensor_model_parallel_size: 1, optim: {grad_sync_dtype: bf16}}",
            "t.yaml",
            "NeMo",
            "training.gradients=bf16",
        ),
        (
            "[training]\nseq_len=8\n[parallelism]\nexpert_parallel_degree=8\n",
            "t.toml",
            "torchtitan",
            "parallelism.ep=8",
        ),
    ],
)
def test_files_are_known_by_keys_of_their_trainer(read, text, name, trainer, said):
    training = read(text, name)
    assert trainer in training.says
    assert said in training.overrides


def test_exchanges_beside_other_passes_are_an_execution_of_the_software(read):
    said = overrides(read(MINIMAL + MIXTURE + "--overlap-moe-expert-parallel-comm"))
    assert said["software.hidden_exchange"] == "1.0"
    assert "software.hidden_exchange" not in overrides(read(MINIMAL + MIXTURE))


def test_delayed_weight_gradients_and_sms_of_a_dispatcher_are_read(read):
    text = MINIMAL + MIXTURE + "--delay-wgrad-compute --moe-token-dispatcher-type flex --moe-deepep-num-sms 24"
    said = overrides(read(text))
    assert (said["software.delayed_weight_gradients"], said["software.dispatch_sms"]) == ("true", "24")
    assert overrides(read(text + " --moe-flex-dispatcher-num-sms 32"))["software.dispatch_sms"] == "32"
    assert "software.dispatch_sms" not in overrides(read(text.replace("flex", "alltoall")))


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        ("--moe-router-enable-expert-bias", 0.001),  # the rate that Megatron-LM takes by itself
        ("--moe-router-bias-update-rate 0.01 --moe-router-enable-expert-bias", 0.01),
        ("--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.0", 0),
        ("--moe-router-bias-update-rate 0.01", 0),
    ],
)
def test_the_step_of_a_routers_bias_counts_where_there_is_a_bias(read, flags, step):
    training = read(MINIMAL + MIXTURE + f"--moe-router-score-function sigmoid {flags}")
    assert not training.lost
    model = compose([*training.overrides, "gpu=h100-sxm5-80gb"], config_folder())[0].workload.model
    assert model.experts.bias_step == step


@pytest.mark.parametrize(
    ("flags", "kernels"),
    [
        ("", "separate"),
        ("--cross-entropy-loss-fusion", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "transformer-engine"),
        ("--cross-entropy-fusion-impl te", "separate"),  # which Megatron-LM does not ask for without a fusion
    ],
)
def test_the_loss_is_fused_where_a_script_says_so(read, flags, kernels):
    assert overrides(read(MINIMAL + flags))["software.loss_kernels"] == kernels


def test_an_option_without_its_value_is_not_taken_as_one(read):
    training = read(MINIMAL + "--context-parallel-size $CP")
    assert overrides(training)["parallelism.cp"] == "1"
    assert "$CP" in training.unknown
    assert training.lost[0].key == "context_parallel_size"


def test_sizes_of_a_model_that_are_missing_are_asked_for(read):
    training = read(MINIMAL + "--num-layers 4 --hidden-size 512 --num-attention-heads 8")
    assert training.missing[0].words == "the model's vocab_size; give model.vocab_size=N"
    given = read(
        MINIMAL + "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 2048",
        given={"model.vocab_size": 32000},
    )
    assert "vocab_size:32000" in overrides(given)["model"]


def test_a_model_beside_the_file_is_found(read, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    training = read("base_model: mine\nsequence_len: 512\nmicro_batch_size: 1\n", "a.yaml")
    assert overrides(training)["model"] == str(tmp_path / "mine/config.json")


def test_a_later_file_replaces_what_an_earlier_one_says_but_not_by_auto(tmp_path):
    for name, text in {
        "a.json": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}',
        "b.json": '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}',
    }.items():
        (tmp_path / name).write_text(text)
    found = overrides(read_training([tmp_path / "a.json", tmp_path / "b.json"]))
    assert (found["parallelism.sharding"], found["microbatch_size"]) == ("full", "4")


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ("--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 3", "[5,4,4,3]"),
        ("--decoder-last-pipeline-num-layers 1", "[5,5,5,1]"),
        ("--num-layers 14 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", "[3,4,4,3]"),
        ("--num-layers 15 --account-for-loss-in-pipeline-split", "[4,4,4,3]"),
        ("", "[4,4,4,4]"),
    ],
)
def test_stages_of_megatron_are_even_but_for_what_the_ends_are_told(read, arguments, layers):
    text = "python t.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers 16 "
    assert overrides(read(text + arguments))["parallelism.layers_per_stage"] == layers


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("nothing: here\n", "a.yaml", r"not known as a file of any trainer, since none of its keys \(nothing\) is"),
        ("Notes of mine.\n", "notes.md", "since it sets nothing; read are scripts with arguments, and files"),
        ("It's mine.\n", "notes.md", "it is read as shell because its name ends in none of .json, .toml, .yaml, .yml"),
        ("It's mine.\n", "notes", "it is read as shell because its name ends in none of .json, .toml, .yaml, .yml"),
        (
            '{"model_type": "llama", "vocab_size": 32000, "hidden_size": 64, "num_attention_heads": 4}',
            "config.json",
            "describes a model, not how it is trained; give model=",
        ),
        ("cfg.model.tensor_model_parallel_size = 2\n", "a.py", "give the configuration that a run writes"),
        ("a: [1\n", "a.yaml", "a.yaml"),
        ("- 1\n", "a.yaml", "no keys and values"),
        ("a = \n", "a.toml", "not valid TOML"),
        ('{"a": 1', "a.json", "a.json"),
        ("workloads: [a, b]\n", "a.yaml", "a list of one text"),
        ('workloads: ["a \'b"]\n', "a.yaml", "write overrides as on a command line"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(read, text, name, said):
    with pytest.raises(ConfigError, match=said) as raised:
        read(text, name)
    assert "\n" not in str(raised.value)


def test_a_trainer_that_is_not_known_is_refused(read):
    with pytest.raises(ConfigError, match=r"trainer megatron: not known; .*megatron-lm"):
        read(MINIMAL, trainer="megatron")


def test_keys_of_another_place_are_followed():
    found = parse_settings("v: {seq: 512}\nmax: ${v.seq}\nmodel:\n  a: ${.b}\n  b: 3\n  c: ${oc.env:HOME}\n", "yaml")
    assert found.values == {"v.seq": 512, "max": 512, "model.a": 3, "model.b": 3, "model.c": None}
    assert len(found.unknown) == 1


@given(
    st.one_of(
        st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()
    )
)
def test_a_scalar_is_read_from_its_text(value):
    read = scalar(str(value))
    assert read == value
    assert (type(read) is bool) is (type(value) is bool)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-999, 999), st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.one_of(LEAVES, st.lists(st.integers(0, 9)))))
def test_hydra_reads_an_override_as_it_was_meant(fields):
    (((setting,),)) = expand([override("model", {"name": "a", **fields})], config_folder())
    assert setting.value == {"name": "a", **fields}


def test_what_is_given_replaces_what_decides_it():
    own = [
        "gpus=64",
        "pipeline=interleaved",
        "pipeline.chunks=2",
        "parallelism.layers_per_stage=[1,1]",
        "parallelism.pp=2",
    ]
    assert replaced(own, ["pipeline=1f1b"]) == ["gpus=64", own[3], "parallelism.pp=2", "pipeline=1f1b"]
    assert replaced(own, ["parallelism.pp=4"]) == ["gpus=64", *own[1:3], "parallelism.pp=4"]
    assert replaced(own, ["parallelism=tp8"]) == [*own[1:3], "parallelism=tp8"]


LAUNCH = "torchrun t.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --attention-dropout 0 "


def told(training):
    return " ".join(one.lost_words for one in training.lost)


def unsaid(training):
    return " ".join(one.words for one in training.missing)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (LAUNCH, "t.sh", "fp32: taken as bf16"),
        (LAUNCH + "--fp16", "t.sh", "fp16: taken as bf16"),
        (LAUNCH.replace("--attention-dropout 0", "--bf16"), "t.sh", "dropout inside attention"),
        (LAUNCH + "--bf16 --optimizer sgd", "t.sh", "another optimizer"),
        (LAUNCH + "--bf16 --fp8-format e4m3 --fp8-recipe custom", "t.sh", "scales of fp8"),
        ("trainer: {precision: 32, devices: 8}\nmodel: {tensor_model_parallel_size: 1}", "t.yaml", "fp16 or fp32"),
        ("base_model: a/b\nsequence_len: 8\nmicro_batch_size: 1\nbf16: false\n", "t.yaml", "fp32: taken as bf16"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}', "t.json", "fp32: taken as bf16"),
        ("model_name_or_path: a/b\nfsdp: full_shard offload\nbf16: true\n", "t.yaml", "offloading"),
        ("[training]\nlocal_batch_size = 1\n[model]\nflavor='8B'\n", "t.toml", "no mode of activation_checkpoint"),
        ("[training]\nlocal_batch_size = 1\n[model]\nflavor='8B'\nconverters=['lora']\n", "t.toml", "adapters"),
        ("parallelism: {tp: 1, tp_mode: ALL_REDUCE}\nmodel: {dtype: float32}", "t.yaml", "fp16 or fp32"),
        ("model: {d_model: 8}\nmax_seq_len: 8\nprecision: fp32\n", "t.yaml", "fp16 or fp32"),
    ],
)
def test_what_changes_numbers_is_not_passed_over(read, text, name, words):
    assert words in told(read(text, name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LAUNCH + "--bf16 --optimizer adam", "t.sh"),
        ("trainer: {precision: bf16-mixed, devices: 8}\nmodel: {tensor_model_parallel_size: 1}", "t.yaml"),
        (
            "[training]\nlocal_batch_size = 1\n[activation_checkpoint]\nmode='none'\n[optimizer]\nname='AdamW'\n",
            "t.toml",
        ),
    ],
)
def test_what_is_as_usual_loses_nothing(read, text, name):
    assert told(read(text, name)) == ""


@pytest.mark.parametrize(
    ("text", "name", "key", "value"),
    [
        ("base_model: a/b\nsequence_len: 8\nmicro_batch_size: 1\nfsdp:\nfsdp_config:\n", "t.yaml", "sharding", "none"),
        ("base_model: a/b\nsequence_len: 8\nmicro_batch_size: 1\nfsdp: []\n", "t.yaml", "sharding", "none"),
        (
            "base_model: a/b\nsequence_len: 1\ndeepspeed: x/zero3_bf16_offload.json\n",
            "t.yaml",
            "sharding",
            "full",
        ),
        ("model_name_or_path: a/b\nmax_length: 8\nfsdp: ''\n", "t.yaml", "sharding", "none"),
        ("model_name_or_path: a/b\nmax_length: 8\nfsdp: shard_grad_op auto_wrap\n", "t.yaml", "sharding", "gradients"),
        ("torchrun t.py --model_name_or_path a/b --fsdp 'full_shard auto_wrap'", "t.sh", "sharding", "full"),
        (
            "num_processes: 8\ndeepspeed_config: {zero_stage: 2}\nmodel_name_or_path: a\n",
            "t.yaml",
            "sharding",
            "gradients",
        ),
        (
            "num_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\nmodel_name_or_path: a\n",
            "t.yaml",
            "sharding",
            "full",
        ),
    ],
)
def test_weights_are_shared_out_as_the_file_says(read, text, name, key, value):
    assert overrides(read(text, name))[f"parallelism.{key}"] == value


@pytest.mark.parametrize(
    ("converters", "precision"),
    [
        ("['float8']", "fp8"),
        ("['quantize.linear.float8']", "fp8"),
        ("['mx']", "mxfp8"),
        ("['quantize.linear.mx']", "mxfp8"),
        ("[]", "bf16"),
        ("['x']", "bf16"),
    ],
)
def test_numbers_of_8_bits_are_read_by_what_converts_layers(read, converters, precision):
    text = f"[training]\nlocal_batch_size = 1\n[model]\nflavor='8B'\nconverters={converters}\n"
    assert overrides(read(text, "t.toml"))["precision"] == precision


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8-current"),
        ("--fp8-recipe blockwise --fp8-format e4m3", "fp8-blockwise"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4"),
        ("--fp8-recipe mxfp8", "bf16"),
    ],
)
def test_formats_of_megatron_are_read_with_their_recipes(read, arguments, precision):
    assert overrides(read(f"{LAUNCH} --bf16 {arguments}", "t.sh"))["precision"] == precision


def test_the_recipe_of_fp8_alone_does_not_switch_it_on(read):
    text = "trainer: {devices: 8}\nmodel: {tensor_model_parallel_size: 1, fp8: SWITCH, fp8_hybrid: true}"
    assert overrides(read(text.replace("SWITCH", "false"), "t.yaml"))["precision"] == "bf16"
    assert overrides(read(text.replace("SWITCH", "true"), "t.yaml"))["precision"] == "fp8"


def test_a_key_further_down_does_not_replace_the_one_above(read):
    text = (
        "trainer: {devices: 8}\nmodel:\n  tensor_model_parallel_size: 1\n  global_batch_size: 256\n"
        "  data: {validation_ds: {global_batch_size: 8}}\n"
    )
    training = read(text, "t.yaml")
    assert overrides(training)["global_batch_size"] == "256"
    assert training.unread == ("model.data.validation_ds.global_batch_size",)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\nsrun " + LAUNCH, "32"),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun " + LAUNCH, "32"),
        (LAUNCH + "--nnodes $NODES --nproc_per_node 8", None),
        (LAUNCH + "--nnodes 2 --nproc_per_node $GPUS", None),
        (LAUNCH + "--nnodes 1:4 --nproc_per_node 8", None),
    ],
)
def test_gpus_are_counted_only_where_all_of_the_job_is_said(read, text, gpus):
    training = read(text)
    assert overrides(training).get("gpus") == gpus
    assert ("how many GPUs" in unsaid(training)) is (gpus is None)


def test_a_file_that_settings_name_is_read_and_told_where_it_is_not_there(read, tmp_path):
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}')
    text = "deepspeed t.py --model_name_or_path a/b --per_device_train_batch_size 2 --bf16 --deepspeed NAME.json"
    training = read(text.replace("NAME", "z3"))
    assert overrides(training)["parallelism.sharding"] == "full"
    assert overrides(training)["microbatch_size"] == "2"
    assert "not there" not in told(training)
    assert "deepspeed=z2.json: names a file that is not there" in told(read(text.replace("NAME", "z2")))


def test_what_a_batch_lacks_is_told(read):
    training = read("base_model: a/b\nsequence_len: 8\nfsdp_version: 2\n", "t.yaml")
    assert "how many sequences a microbatch has" in unsaid(training)
    assert "how long sequences are" in unsaid(read("python t.py --model_name_or_path a --train_batch_size 2"))


def test_accumulation_follows_from_the_whole_batch(read):
    keys = overrides(read('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}', "t.json"))
    assert keys["global_batch_size"] == "64"
    assert "num_microbatches" not in keys


def test_queries_share_one_head_of_keys_where_the_kind_of_attention_says_so(read):
    text = (
        "max_seq_len: 64\nmodel: {d_model: 64, n_heads: 8, n_layers: 2, vocab_size: 64, attn_config: {attn_type: KIND}}"
    )
    for kind, heads in (("multiquery_attention", 1), ("multihead_attention", 8)):
        assert f"num_key_value_heads:{heads}" in overrides(read(text.replace("KIND", kind), "t.yaml"))["model"]


OPTIONS_OF_TRAINERS = {
    "train.sh": (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 "
        "--recompute-granularity selective "
        "--recompute-modules core_attn layernorm moe_act mla_up_proj shared_experts --use-precision-aware-optimizer "
        "--exp-avg-dtype bf16 --main-grads-dtype bf16 --optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
        "--cpu-offloading --cpu-offloading-num-layers 3 --rampup-batch-size 16 16 5000 --num-layers 4",
        {
            "recomputation=selective",
            "training.recompute_modules=[layernorm,moe_act,mla_up_proj]",
            "training.master_weights=remainder",
            "training.moments=bf16",
            "training.gradients=bf16",
            "training.offload_optimizer=0.5",
            "training.offload_blocks=3",
            "training.batch_ramp=[16,16,5000]",
        },
        ["shared_experts"],
    ),
    "block.sh": (
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 --micro-batch-size 1 --recompute-granularity full "
        "--recompute-method block --recompute-num-layers 3 --num-layers 8 --exp-avg-dtype bf16 "
        "--data-parallel-sharding-strategy optim_grads_params",
        {"recomputation=full", "training.recompute_blocks=3", "parallelism.sharding=none"},
        [],
    ),
    "t.toml": (
        "[training]\nlocal_batch_size = 1\ndtype = 'bfloat16'\n[model]\nflavor='8B'\n[loss]\nnum_chunks = 4\n"
        "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = '2'\n",
        {
            "recomputation=full",
            "training.recompute_every=2",
            "training.loss_chunks=4",
            "training.master_weights=none",
            "training.moments=bf16",
        },
        [],
    ),
    "lora.yaml": (
        "base_model: a/b\nsequence_len: 1\nmicro_batch_size: 1\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\n"
        "lora_target_modules: [q_proj, v_proj, lm_head]\noptimizer: paged_adamw_8bit\nsample_packing: true\n"
        "fsdp: [shard_grad_op, auto_wrap]\nbf16: true\n",
        {
            "training.lora_rank=32",
            "training.lora_targets=[q_proj,v_proj]",
            "training.frozen_weights=nf4",
            "training.moments=8bit",
            "parallelism.sharding=gradients",
        },
        ["lm_head", "training.document_tokens", "paged"],
    ),
    "zero.json": (
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "offload_optimizer": '
        '{"device": "cpu"}}, "bf16": {"enabled": true}, "use_lora": true, "lora_rank": 64}',
        {"training.offload_optimizer=1.0", "training.lora_rank=64", "parallelism.sharding=gradients"},
        [],
    ),
    "foundry.yaml": (
        "global_train_batch_size: 8\ndevice_train_microbatch_size: 1\nmax_seq_len: 2048\nfsdp_config:\n"
        "  mixed_precision: DEFAULT\nmodel:\n  d_model: 8\n  attn_config:\n    attn_uses_sequence_id: true\n"
        "  peft_config: {r: 8, target_modules: [Wqkv]}\nprecision: amp_bf16\n",
        {"training.gradients=fp32", "training.lora_rank=8"},
        ["training.document_tokens", "Wqkv"],
    ),
}


@pytest.mark.parametrize("name", OPTIONS_OF_TRAINERS)
def test_options_of_trainings_are_keys(tmp_path, name):
    text, expected, lost = OPTIONS_OF_TRAINERS[name]
    (tmp_path / name).write_text(text)
    training = read_training([tmp_path / name])
    assert expected <= set(training.overrides)
    words = " ".join(one.lost_words for one in training.lost)
    assert all(text in words for text in lost)


@pytest.mark.parametrize("dtypes", ["", "--use-precision-aware-optimizer "])
def test_formats_of_states_count_with_the_optimizer_that_has_them(tmp_path, dtypes):
    (tmp_path / "a.sh").write_text(
        f"torchrun a.py {dtypes}--exp-avg-dtype fp8 --tensor-model-parallel-size 1 --micro-batch-size 1"
    )
    said = set(read_training([tmp_path / "a.sh"]).overrides)
    assert ("training.moments=8bit" in said) == bool(dtypes)


def test_switches_of_megatron_that_change_no_kernel_do_not_matter_and_others_are_named(read):
    harmless = ["no_masked_softmax_fusion", "async_save", "no_check_for_nan_in_loss_and_grad", "loss_scale"]
    lost = ["use_checkpoint_args", "no_bias_swiglu_fusion", "deterministic_mode"]
    training = read(
        MINIMAL + " ".join(f"--{key.replace('_', '-')}" for key in (*harmless[:3], *lost)) + " --loss-scale 1"
    )
    assert set(harmless) <= set(training.ignored) and not training.unread
    assert [setting.key for setting in training.lost if setting.key in lost] == lost
