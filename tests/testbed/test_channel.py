"""The connection to a worker."""

import socket
import subprocess
import sys

import pytest

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


def test_a_hanging_worker_does_not_outlive_its_parent():
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", HANGING, str(theirs.fileno())]
        worker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    channel = Channel(ours)
    assert channel.receive() == "hanging"
    assert worker.poll() is None
    channel.close()
    assert worker.wait(timeout=30) == 1
