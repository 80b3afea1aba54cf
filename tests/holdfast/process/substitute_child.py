"""A child process of the supervisor that serves nothing: it sends back how each connection was given to it.

``python substitute_child.py -m holdfast.process.child NAME``, as a child is started.
"""

import socket
import sys

from holdfast.process.child import DRAIN, IN_PLACE, LOAD, MESSAGE_BYTES_MAX, READY, decode


def main() -> int:
    orders = decode(sys.stdin.buffer.read())
    line = socket.socket(fileno=orders.line)
    line.send(READY)
    line.send(IN_PLACE)
    taken: list[socket.socket] = []
    while True:
        message, files, _, _ = socket.recv_fds(line, MESSAGE_BYTES_MAX, 1)
        if files:
            taken.append(socket.socket(fileno=files[0]))
            taken[-1].sendall(orders.name.encode() + b": " + message + b"\n")
            line.send(LOAD + str(len(taken)).encode())
        elif message == DRAIN or not message:
            return 0


if __name__ == "__main__":
    sys.exit(main())
