"""The connection to a worker."""

import socket
import subprocess
import sys
import threading

import pytest

from kareus.errors import ConfigError
from kareus.testbed.cuda import channel
from kareus.testbed.cuda.channel import Channel

HANGING = """
import socket, sys, time
from kareus.testbed.cuda.channel import Channel, exit_after_hangup
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
exit_after_hangup(channel, 0.1)
channel.send("hanging")
time.sleep(60)
"""


def test_what_is_sent_is_received_until_the_other_end_hangs_up():
    ours, theirs = map(Channel, socket.socketpair())
    for value in ({"a": [1, 2.5, None]}, ["execute", 3]):
        ours.send(value)
        assert theirs.receive() == value
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()


@pytest.mark.parametrize("line", [b"[" * 200_000 + b"\n", b"\xff\n", b"NaN\n", b"no JSON\n", b"x" * 2000])
def test_what_is_no_message_is_one_error(line, monkeypatch):
    monkeypatch.setattr(channel, "_MOST_BYTES", 1000 if line.startswith(b"x") else 2**28)
    ours, theirs = socket.socketpair()
    receiver = Channel(theirs)
    sending = threading.Thread(target=ours.sendall, args=(line,))
    sending.start()
    with pytest.raises(ConfigError):
        receiver.receive()
    sending.join()
    ours.close()
    receiver.close()


def test_a_hanging_worker_does_not_outlive_its_parent():
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", HANGING, str(theirs.fileno())]
        worker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    parent = Channel(ours)
    assert parent.receive() == "hanging"
    assert worker.poll() is None
    parent.close()
    assert worker.wait(timeout=30) == 1
