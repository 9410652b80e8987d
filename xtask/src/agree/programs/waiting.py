# Calls that end only when somebody else does something: opening a pipe, connecting and sending to one who is slow.
import os
import signal
import socket
import time


def child(what):
    pid = os.fork()
    if pid == 0:
        what()
        os._exit(0)
    return pid


def fifo():
    with open("fifo", "w") as file:
        file.write("through the pipe\n")


def send():
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for _ in range(600):
        sender.sendto(b"x", "datagrams")


def connect():
    clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for client in clients:
        client.connect("stream")


def interrupted():
    # A handler runs in the middle of the open, which goes on afterwards.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    fifo()


for writer in [fifo, interrupted]:
    os.mkfifo("fifo")
    pid = child(writer)
    time.sleep(0.3)
    with open("fifo") as file:
        print(file.read())
    print(os.waitpid(pid, 0)[1])
    os.unlink("fifo")
receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
receiver.bind("datagrams")
pid = child(send)
time.sleep(0.3)
for _ in range(600):
    receiver.recv(10)
print(os.waitpid(pid, 0)[1])
server = socket.socket(socket.AF_UNIX)
server.bind("stream")
server.listen(0)
pid = child(connect)
time.sleep(0.3)
for _ in range(4):
    server.accept()
    time.sleep(0.05)
print(os.waitpid(pid, 0)[1])
