/* Connects to a process of its own as often as it is told. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&address, length) || listen(server, 128) || getsockname(server, (void *)&address, &length)) {
        perror("server");
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < count; i++)
            close(accept(server, NULL, NULL));
        _exit(0);
    }
    for (int i = 0; i < count; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        char byte;
        if (connect(client, (void *)&address, length) || read(client, &byte, 1) != 0) {
            perror("client");
            return 1;
        }
        close(client);
    }
    waitpid(child, NULL, 0);
    return 0;
}
