# TCP, UDP and Unix sockets, between two processes, waiting and not waiting, and to nobody.
import os
import socket

LOCAL = "127.0.0.1"


def attempt(name, what, *arguments):
    try:
        what(*arguments)
        print(name, "ok")
    except OSError as error:
        print(name, error.errno)


def serve(server, times):
    child = os.fork()
    if child == 0:
        for _ in range(times):
            connection, _ = server.accept()
            connection.sendall(connection.recv(100).upper())
            connection.close()
        os._exit(0)
    return child


def exchange(family, address):
    client = socket.socket(family)
    client.connect(address)
    client.sendall(b"hello")
    assert client.recv(100) == b"HELLO"
    client.close()


os.mkdir("sockets")
os.symlink("sockets", "link")
servers = []
for family, address in [
    (socket.AF_INET, (LOCAL, 0)),
    (socket.AF_INET6, ("::1", 0)),
    (socket.AF_UNIX, "link/stream"),
    (socket.AF_UNIX, b"\0invigil-agree"),
]:
    server = socket.socket(family)
    try:
        server.bind(address)
    except OSError as error:
        print("bind", error.errno)
        continue
    server.listen(8)
    child = serve(server, 3)
    address = server.getsockname()
    for _ in range(3):
        exchange(family, address[:2] if family == socket.AF_INET6 else address)
    os.waitpid(child, 0)
    servers.append(server)

# Not waiting.
client = socket.socket()
client.setblocking(False)
attempt("not waiting", client.connect, servers[0].getsockname())
# Nobody is there.
attempt("refused", socket.socket().connect, (LOCAL, 1))
attempt("no socket file", socket.socket(socket.AF_UNIX).connect, "sockets/none")
attempt("bind twice", socket.socket(socket.AF_UNIX).bind, "link/stream")
attempt("not ours", socket.socket().bind, ("192.0.2.1", 0))
attempt("no address", servers[0].connect, (LOCAL, 9))
# Datagrams, connected and not.
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind((LOCAL, 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for text in [b"a", b"b"]:
    sender.sendto(text, receiver.getsockname())
sender.sendmsg([b"c"], [], 0, receiver.getsockname())
sender.connect(receiver.getsockname())
sender.send(b"d")
print([receiver.recv(10) for _ in range(4)])
local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
local.bind("sockets/datagrams")
other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other.sendto(b"e", "link/datagrams")
print(local.recv(10))
# Descriptors travel between processes.
one, two = socket.socketpair()
socket.send_fds(one, [b"x"], [receiver.fileno()])
_, descriptors, _, _ = socket.recv_fds(two, 10, 1)
print(len(descriptors))
