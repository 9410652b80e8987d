/* Opens a file for reading as often as it is told. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    close(open("read.me", O_WRONLY | O_CREAT, 0644));
    for (int i = 0; i < count; i++) {
        int fd = open("read.me", O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            perror("opens");
            return 1;
        }
        close(fd);
    }
    return 0;
}
