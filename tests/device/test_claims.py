"""Claims: who has a GPU's clock, and what is known of it, whatever becomes of the claim's file."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice, kill, start
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kareus.device import claims
from kareus.device.claims import FOLDER_VARIABLE, UNREADABLE, claim, setting_of
from kareus.device.controller import controlled_clocks
from kareus.errors import DeviceError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the claim of GPU-fake is; its folder is there."""
    folder = tmp_path / "claims"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder / "GPU-fake.claim"


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    return FakeDevice(tmp_path)


def damage(path: Path, how: str) -> None:
    """What may become of a claim's file while its owner is at work."""
    match how:
        case "deleted":
            path.unlink()
        case "moved":
            path.rename(path.with_suffix(".old"))
        case "replaced":
            path.with_suffix(".new").touch()
            path.with_suffix(".new").chmod(0o666)
            path.with_suffix(".new").rename(path)
        case "emptied":
            os.truncate(path, 0)
        case "folder deleted":
            path.unlink()
            path.parent.rmdir()


DAMAGES = ["deleted", "moved", "replaced", "emptied", "folder deleted"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_set_clock_is_found_without_its_claim_file(path, device, how):
    holder = start(device, "python")
    try:
        damage(path, how)
        with pytest.raises(DeviceError, match="GPU-fake: in use"), claim("GPU-fake"):
            pass
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("how", DAMAGES)
def test_the_next_request_restores_a_lost_claim(path, device, how):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        before = setting_of("GPU-fake")
        damage(path, how)
        clocks.request(1200).result()
        assert setting_of("GPU-fake") == before
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert device.calls() == ["lock 1200", "reset"]
    assert setting_of("GPU-fake") is None


@pytest.mark.parametrize("how", DAMAGES)
def test_the_next_clock_is_noted_where_others_look(path, device, how):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        damage(path, how)
        clocks.request(900).result()
        assert setting_of("GPU-fake").frequency_mhz == 900
        with pytest.raises(DeviceError, match="is locked to 900 MHz"), claim("GPU-fake"):
            pass


def test_an_emptied_claim_is_restored_in_the_end(path, device):
    with controlled_clocks(device) as clocks:
        clocks.request(1200).result()
        damage(path, "emptied")
    assert device.calls() == ["lock 1200", "reset"]


def no_name(uuid, taken):
    """As between containers, which may share the folder and share no sockets."""
    return True


def test_a_waiter_for_a_deleted_file_takes_the_present_one(path, monkeypatch):
    """The owner goes away and a third process makes the file anew while the second waits for the old one."""
    monkeypatch.setattr(claims, "_bind_name", no_name)
    opened = threading.Event()
    taken = []
    try_lock = claims._try_lock

    def slow_try_lock(descriptor: int) -> bool:
        if threading.current_thread() is waiting and not opened.is_set():
            opened.set()
            deleted.wait()
        return try_lock(descriptor)

    def wait() -> None:
        try:
            with claim("GPU-fake"):
                taken.append("waiting")
        except DeviceError as error:
            taken.append(str(error))

    deleted = threading.Event()
    monkeypatch.setattr(claims, "_try_lock", slow_try_lock)
    waiting = threading.Thread(target=wait)
    waiting.start()
    opened.wait()
    path.unlink()
    with claim("GPU-fake"):
        deleted.set()
        waiting.join()
    assert len(taken) == 1
    assert taken[0].startswith("GPU-fake: in use")


def test_owners_of_a_deleted_claim_are_distinguished_by_file(path, monkeypatch):
    monkeypatch.setattr(claims, "_bind_name", no_name)
    with claim("GPU-fake") as first:
        first.note(900)
        path.unlink()
        with claim("GPU-fake") as second:
            second.note(1200)
            with pytest.raises(DeviceError, match="was deleted and another process has taken the GPU"):
                first.put_back()
            with pytest.raises(DeviceError, match="was deleted and another process has taken the GPU"):
                first.note(1410)
            assert setting_of("GPU-fake").frequency_mhz == 1200


SETTING = '{"process": 1, "frequency_mhz": 900, "since": "%s"}'


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=600))
@example(b" " * 256)
@example(b"\0" * 256)
@example(b"[" * 100_000)
@example(b"9" * 10_000)
@example(b'{"process": 1e400, "frequency_mhz": 900, "since": "2026-01-01"}')
@example(b'{"process": 99999999999999999999, "frequency_mhz": 900, "since": "2026-01-01"}')
@example(b'{"process": -1, "frequency_mhz": 900, "since": "2026-01-01"}')
@example(b'{"process": true, "frequency_mhz": 900, "since": "2026-01-01"}')
@example((SETTING % r"\u001b[2J\nnothing is set").encode())
@example((SETTING % r"\ud800").encode())
@example(b"null")
def test_a_damaged_claim_says_that_some_clock_is_set(path, content):
    path.write_bytes(content)
    assert setting_of("GPU-fake") == UNREADABLE
    assert str(UNREADABLE) == "? MHz by process ? since an unknown time"


def test_a_time_is_shown_in_one_line_however_it_is_written(path):
    path.write_text(SETTING % r"2026-01-02\n03:04:05")
    assert setting_of("GPU-fake").since == "2026-01-02T03:04:05"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("link", "a symbolic link"),
        ("dangling link", "a symbolic link"),
        ("hard link", "a hard link"),
        ("pipe", "not a regular file"),
        ("folder", "Is a directory"),
    ],
)
def test_a_claim_that_is_no_plain_file_is_refused(path, tmp_path, kind, reason):
    victim = tmp_path / "victim"
    victim.write_text("content")
    match kind:
        case "link":
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "hard link":
            path.hardlink_to(victim)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    for use in (lambda: setting_of("GPU-fake"), lambda: claim("GPU-fake").__enter__()):
        with pytest.raises(DeviceError) as refused:
            use()
        assert str(refused.value) == (
            f"{path}: cannot be used ({reason}); remove it, or name a folder of this machine that all its users can "
            "write in KAREUS_CLAIMS."
        )
    assert victim.read_text() == "content"
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Folders in the place of /run/lock and /tmp, as Linux has them."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    run, tmp = tmp_path / "run", tmp_path / "tmp"
    for folder in (run, tmp):
        folder.mkdir()
        folder.chmod(0o1777)
    monkeypatch.setattr(claims, "DEFAULT_FOLDERS", (run / "kareus", tmp / "kareus-claims"))
    return run, tmp


def test_claims_are_in_a_folder_that_only_a_reboot_empties(places):
    run, tmp = places
    with claim("GPU-1") as claimed:
        claimed.note(900)
    assert (run / "kareus/GPU-1.claim").is_file()
    assert stat.S_IMODE((run / "kareus").stat().st_mode) == 0o1777
    assert list(tmp.iterdir()) == []


def test_a_folder_that_only_root_can_write_is_not_used(places):
    run, tmp = places
    run.chmod(0o755)
    with claim("GPU-1"):
        assert (tmp / "kareus-claims/GPU-1.claim").is_file()
    assert list(run.iterdir()) == []


def test_a_folder_that_an_administrator_made_for_all_is_used(places):
    run, _ = places
    (run / "kareus").mkdir()
    (run / "kareus").chmod(0o1777)
    run.chmod(0o755)
    with claim("GPU-1"):
        assert (run / "kareus/GPU-1.claim").is_file()


def test_a_link_in_place_of_a_default_folder_is_not_followed(places, tmp_path):
    run, _ = places
    victim = tmp_path / "victim"
    victim.mkdir()
    (run / "kareus").symlink_to(victim)
    with pytest.raises(DeviceError, match=r"kareus/GPU-1.claim: cannot be used"), claim("GPU-1"):
        pass
    assert list(victim.iterdir()) == []


def test_a_default_folder_without_sticky_bit_is_refused(places):
    run, _ = places
    (run / "kareus").mkdir()
    (run / "kareus").chmod(0o777)
    with pytest.raises(DeviceError, match="its sticky bit is not set"), claim("GPU-1"):
        pass


def test_a_machine_has_the_default_folders_that_are_documented():
    text = (Path(__file__).parents[2] / "docs/real_gpus.md").read_text()
    for folder in claims.DEFAULT_FOLDERS:
        assert f"`{folder}`" in text


def test_a_killed_runs_clock_is_known_after_claim_damage(path, device):
    kill(device)
    path.write_bytes(b"\xff" * 40)
    with controlled_clocks(device):
        assert device.calls() == ["lock 1200", "reset"]


def test_a_claim_ends_with_its_process_under_a_reused_name(path, device):
    holder = start(device, "python")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with claim("GPU-fake") as claimed:
        assert claimed.setting().frequency_mhz == 1200


def test_children_do_not_keep_their_parents_claim(path):
    with claim("GPU-fake"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with claim("GPU-fake"):
        assert child.poll() is None
    child.communicate()


def test_waiting_ends_when_patience_does(path):
    with claim("GPU-fake"):
        began_s = time.monotonic()
        with pytest.raises(DeviceError, match="in use"), claim("GPU-fake", patience_s=0.3):
            pass
        assert time.monotonic() - began_s >= 0.3
