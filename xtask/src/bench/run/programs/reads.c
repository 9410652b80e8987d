/* Reads small files whole, as often as it is told: open, look at the size, read, close. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 200

int main(int argc, char **argv) {
    static char bytes[16384];
    int count = atoi(argv[1]);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "source/file.%d", i % FILES);
        struct stat about;
        int fd = open(name, O_RDONLY);
        if (fd < 0 || fstat(fd, &about) || read(fd, bytes, sizeof bytes) != about.st_size ||
            read(fd, bytes, sizeof bytes) || close(fd)) {
            perror("reads");
            return 1;
        }
    }
    return 0;
}
