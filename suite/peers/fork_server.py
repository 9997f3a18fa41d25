"""Serves ranks to Lockstep: a process that has loaded its framework forks them (protocol.md).

serve() returns at once where LS_FORK_SERVER is not set. Else it returns in every rank that was asked
for, with that rank's arguments, environment, log and limits, and never in the server. What a
program loads before that call is loaded once; it must not have started threads.
"""
import array
import ctypes
import gc
import os
import random
import resource
import signal
import socket
import struct
import sys
import time

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def serve(load):
    """`load`: called in the server before the first rank."""
    if os.environ.get("LS_FORK_SERVER") is None:
        return
    requests = socket.socket(fileno=os.dup(0))
    load()
    gc.collect()
    gc.freeze()  # the collector's marks would copy pages
    while True:
        asked = receive(requests)
        if asked is None:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                break
            os._exit(0)  # its child becomes that of the program that asked
        os.waitpid(between, 0)
        os.close(asked[0])
    become(requests, *asked)


def receive(requests):
    """The descriptor of a log, and the words of a request; None: there are no more."""
    given = array.array("i")
    head, extra, _, _ = requests.recvmsg(4, socket.CMSG_LEN(given.itemsize))
    if len(head) < 4 or not extra:
        return None
    given.frombytes(extra[0][2][:given.itemsize])
    text, (length,) = b"", struct.unpack("=i", head)
    while len(text) < length:
        part = requests.recv(length - len(text))
        if not part:
            return None
        text += part
    return given[0], [os.fsdecode(word) for word in text.split(b"\0")[:-1]]


def become(requests, log, words):
    """Makes this process the rank: a child of the program that asked, in a group of its own."""
    parent, limit, count = (int(word) for word in words[:3])
    deadline = time.monotonic() + 10
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(127)
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, to in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(given, to)
    os.close(nothing)
    os.close(log)
    if limit > 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv += words[3:3 + count]  # behind those of the command itself
    os.environ.clear()
    os.environ.update(word.partition("=")[::2] for word in words[3 + count:])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    requests.send(struct.pack("=i", os.getpid()))
    requests.close()
