"""Types at the prompts of cfops on a pseudo-terminal: a key, an interruption, and the answer to a question."""

import os
import pty
import select
import signal
import sys
import termios
import time

URL, KEY = os.environ["TEST_URL"], os.environ["TEST_KEY"]


def start(*words):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(os.environ["CFOPS"], ["cfops", *words])
    return pid, terminal


def shown(terminal, until, limit=90):
    """What the terminal shows until some text of it, or its end."""
    text, deadline = "", time.monotonic() + limit
    while until not in text and time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            more = os.read(terminal, 4096)
        except OSError:
            break
        text += more.decode(errors="replace")
    return text


def echoes(terminal):
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def wait_for(condition, limit=90):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("a condition did not come true")
        time.sleep(0.02)


def login():
    pid, terminal = start("login", URL)
    text = shown(terminal, "Key")
    wait_for(lambda: not echoes(terminal))
    os.write(terminal, f"{KEY}\n".encode())
    text += shown(terminal, "no such text")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0 or KEY in text or "profile" not in text:
        sys.exit(f"status {status}: {text}")

    pid, terminal = start("login", URL)
    shown(terminal, "Key")
    wait_for(lambda: not echoes(terminal))
    os.kill(pid, signal.SIGINT)
    # The terminal of a session ends with its leader, so that its state is read while the leader is a zombie.
    wait_for(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z")
    is_shown = echoes(terminal)
    _, status = os.waitpid(pid, 0)
    if not is_shown:
        sys.exit("the terminal was left silent")
    print(
        "logged in without showing the key; "
        f"interrupted by {os.WTERMSIG(status)}, and the terminal shows what is typed"
    )


def approve():
    for answer, expected in [("n", 125), ("y", 0)]:
        pid, terminal = start("approve", os.environ["TEST_JOB"])
        text = shown(terminal, "[y/N]")
        if os.environ["TEST_MARK"] not in text or "exec" not in text:
            sys.exit(f"the call is not shown: {text}")
        os.write(terminal, f"{answer}\n".encode())
        text += shown(terminal, "no such text")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != expected:
            sys.exit(f"status {status}: {text}")
    print("shown and asked twice; no did nothing, yes approved")


{"login": login, "approve": approve}[sys.argv[1]]()
