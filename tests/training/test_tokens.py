"""Token files: whole or absent, and read as they were written."""

import hashlib
import json
import re

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError
from kareus.training import text
from kareus.training.text import tokenised
from kareus.training.tokenizers import ByteTokenizer, open_tokenizer
from kareus.training.tokens import open_tokens, read_ids, write_tokens


@given(
    documents=st.lists(st.lists(st.integers(0, 69_999), max_size=20), max_size=5).filter(any),
    wide=st.booleans(),
)
def test_ids_come_back_as_written_in_two_or_four_bytes(tmp_path_factory, documents, wide):
    vocab_size = 70_000 if wide else 60_000
    documents = [[i % vocab_size for i in document] for document in documents]
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    write_tokens(path, documents, vocab_size=vocab_size, tokenizer="x")
    file = open_tokens(path)
    everything = [i for document in documents for i in document]
    assert read_ids(file, 0, len(everything)).tolist() == everything
    assert path.stat().st_size == len(everything) * (4 if wide else 2)


def test_a_token_file_can_be_written_by_other_programs(tmp_path):
    ids = np.array([1, 2, 3], dtype="<u2").tobytes()
    (tmp_path / "t.bin").write_bytes(ids)
    header = {"schema_version": 2, "dtype": "uint16", "tokens": 3, "vocab_size": 4, "tokenizer": "mine"}
    header["sha256"] = hashlib.sha256(ids).hexdigest()
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":"))
    header["seal"] = hashlib.sha256(canonical.encode()).hexdigest()[:32]
    (tmp_path / "t.bin.json").write_text(json.dumps(header))
    assert read_ids(open_tokens(tmp_path / "t.bin"), 1, 3).tolist() == [2, 3]


def test_a_write_that_fails_leaves_nothing_to_open(tmp_path):
    path = tmp_path / "t.bin"
    write_tokens(path, [[1, 2]], vocab_size=4, tokenizer="x")

    def broken():
        yield [1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tokens(path, broken(), vocab_size=4, tokenizer="x")
    with pytest.raises(ArtifactError, match=r"t\.bin\.json: cannot be read"):
        open_tokens(path)


def reheaded(path, before, after):
    described = path.with_name("t.bin.json")
    described.write_text(described.read_text().replace(before, after))


def resealed(path, **changes):
    described = path.with_name("t.bin.json")
    described.write_text(json.dumps(sealed(unsealed(json.loads(described.read_text())) | changes)))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b"\0\0"), "has 2 bytes, t.bin.json says 6"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
            "its SHA-256 is not the one that t.bin.json says",
        ),
        (lambda path: path.unlink(), "t.bin: cannot be read (No such file or directory)"),
        (lambda path: reheaded(path, "seal", "sea"), "t.bin.json: has no seal"),
        (lambda path: path.with_name("t.bin.json").write_text("{}"), "has no seal"),
        (lambda path: reheaded(path, "uint16", "int8"), "was edited or damaged after it was written"),
        (lambda path: reheaded(path, '"vocab_size": 4', '"vocab_size": 5'), "was edited or damaged"),
        (lambda path: reheaded(path, '"schema_version": 2', '"schema_version": 1'), "version 1, this Kareus reads 2"),
        (lambda path: resealed(path, dtype="int8"), "version 2 of int8, this Kareus reads 2 of uint16 or uint32"),
        (lambda path: resealed(path, tokens=-1), "has 6 bytes, t.bin.json says -2"),
    ],
)
def test_a_spoilt_token_file_is_refused(tmp_path, spoil, said):
    path = tmp_path / "t.bin"
    write_tokens(path, [[1, 2, 3]], vocab_size=4, tokenizer="x")
    spoil(path)
    with pytest.raises(ArtifactError) as refused:
        open_tokens(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert re.fullmatch(r".*[^.;]; write the token file again\.", str(refused.value))


def test_only_one_rank_of_a_machine_hashes_a_token_file(tmp_path):
    path = tmp_path / "t.bin"
    write_tokens(path, [[1, 2, 3]], vocab_size=4, tokenizer="x")
    np.array([1, 2, 0], dtype="<u2").tofile(path)
    assert open_tokens(path, check_content=False).ids.tolist() == [1, 2, 0]


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_any_changed_byte_is_refused_or_makes_no_difference(tmp_path, suffix):
    path = tmp_path / "t.bin"
    write_tokens(path, [range(100)], vocab_size=300, tokenizer="x")
    whole, spoilt = open_tokens(path), tmp_path / f"t.bin{suffix}"
    content = spoilt.read_bytes()
    for bit in range(8 * len(content)):
        spoilt.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        try:
            found = open_tokens(path)
            assert (found.header, found.ids.tolist()) == (whole.header, whole.ids.tolist())
        except ArtifactError as error:
            assert "\n" not in str(error)


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path):
    path = tmp_path / "t.bin"
    with pytest.raises(ArtifactError, match="has the id 4, the vocabulary ends at 4"):
        write_tokens(path, [[4]], vocab_size=4, tokenizer="x")
    write_tokens(path, [[1, 3]], vocab_size=4, tokenizer="x")
    np.array([1, 9], dtype="<u2").tofile(path)
    with pytest.raises(ArtifactError, match="has the id 9"):
        read_ids(open_tokens(path, check_content=False), 0, 2)


def test_text_becomes_documents_that_end_and_is_tokenised_once(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_text("é")
    (tmp_path / "texts" / "a.txt").write_text("hi")
    file = tokenised([tmp_path / "texts"], "bytes", tmp_path / "cache")
    assert read_ids(file, 0, 6).tolist() == [104, 105, 256, 195, 169, 256]
    written = file.path.stat().st_mtime_ns
    assert tokenised([tmp_path / "texts"], "bytes", tmp_path / "cache").path.stat().st_mtime_ns == written
    (tmp_path / "texts" / "a.txt").write_text("ho!")
    assert tokenised([tmp_path / "texts"], "bytes", tmp_path / "cache").header.tokens == 7


@pytest.mark.parametrize(("path", "said"), [("empty", "no text files there"), ("gone.txt", "no such file")])
def test_text_that_is_not_there_is_refused(tmp_path, path, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=said):
        tokenised([tmp_path / path], "bytes", tmp_path / "cache")


def test_a_tokenizer_file_gives_the_ids_of_its_library(tmp_path):
    words = {"<unk>": 0, "<|endoftext|>": 1, "time": 2, "energy": 3}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    opened = open_tokenizer(str(tmp_path))
    assert opened.encode("time energy work") == [2, 3, 0]
    assert (opened.vocab_size, opened.end_of_text) == (4, 1)


def byte_level(folder, *special):
    """A tokenizer as GPT-2 has it, learnt from little; its tokens are runs of white space, too."""
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=320, special_tokens=list(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["def f(x):\n\n    return x\n\n\n"] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def sentences(folder, *special):
    """A tokenizer as Llama 2 has it, which marks the start of a text; lines are not split."""
    tokenizer = library.Tokenizer(library.models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = library.normalizers.Sequence(
        [library.normalizers.Prepend("▁"), library.normalizers.Replace(" ", "▁")]
    )
    alphabet = ["\n", *"abcdefghij▁"]
    trainer = library.trainers.BpeTrainer(special_tokens=["<unk>", *special], initial_alphabet=alphabet, vocab_size=40)
    tokenizer.train_from_iterator(["abc abc def def def ghi"] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentences])
@given(lines=st.lists(st.text("ab c\t", max_size=12), max_size=30))
def test_a_text_encoded_in_pieces_has_the_ids_of_the_whole(tmp_path_factory, make, lines):
    folder = tmp_path_factory.mktemp("pieces")
    whole = make(folder, "</s>")
    content = "\n".join(["begins", *lines, "ends"] * 5)
    (folder / "a.txt").write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_PIECE_CHARACTERS", 450)  # more than from one `begins` to the next
        file = tokenised([folder / "a.txt"], str(folder), folder / "cache")
    expected = whole.encode(content, add_special_tokens=False).ids
    assert read_ids(file, 0, file.header.tokens).tolist() == [*expected, whole.token_to_id("</s>")]


def test_a_file_is_never_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_PIECE_CHARACTERS", 100)
    lengths = []
    monkeypatch.setattr(
        ByteTokenizer, "encode", lambda _, piece, after: lengths.append(len(piece)) or [*piece.encode()]
    )
    for number, content in enumerate(("one line\n" * 200, "no line end" * 200)):
        (tmp_path / f"{number}.txt").write_text(content)
    file = tokenised([tmp_path], "bytes", tmp_path / "cache")
    assert max(lengths) < 200
    assert bytes(read_ids(file, 0, 1800).tolist()) == b"one line\n" * 200
    assert bytes(read_ids(file, 1801, 1801 + 2200).tolist()) == b"no line end" * 200


def test_text_that_is_not_text_is_refused_in_one_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match=r"a\.txt: cannot be read \(not UTF-8\); give a text file in UTF-8\.$"):
        tokenised([tmp_path], "bytes", tmp_path / "cache")


@pytest.mark.parametrize("named", ["<stop>", {"content": "<stop>", "lstrip": False}])
def test_a_model_says_which_token_ends_a_document(tmp_path, named):
    tokenizer = byte_level(tmp_path, "</s>", "<stop>")
    assert open_tokenizer(str(tmp_path)).end_of_text == tokenizer.token_to_id("</s>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert open_tokenizer(str(tmp_path)).end_of_text == tokenizer.token_to_id("<stop>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": None}))
    assert open_tokenizer(str(tmp_path)).end_of_text == tokenizer.token_to_id("</s>")


def test_another_end_of_text_makes_another_token_file(tmp_path):
    tokenizer = byte_level(tmp_path, "</s>", "<stop>")
    (tmp_path / "a.txt").write_text("x")
    ends = []
    for name in ("</s>", "<stop>"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": name}))
        ends.append(int(tokenised([tmp_path / "a.txt"], str(tmp_path), tmp_path / "cache").ids[-1]))
    assert ends == [tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<stop>")]


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path):
    byte_level(tmp_path)
    with pytest.raises(ConfigError, match="has no token that ends a document; name it as `eos_token`") as refused:
        open_tokenizer(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, said in ((str(tmp_path), "not a tokenizer"), ("byte", "perhaps you meant bytes")):
        with pytest.raises(ConfigError) as refused:
            open_tokenizer(name)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
