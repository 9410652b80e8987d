/* Makes, writes, renames and unlinks as many files as it is told: three calls each that Invigil traps. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    for (int i = 0; i < count; i++) {
        char before[32], after[32];
        snprintf(before, sizeof before, "new.%d", i);
        snprintf(after, sizeof after, "old.%d", i);
        int fd = open(before, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || write(fd, "some text\n", 10) != 10 || close(fd) || rename(before, after) || unlink(after)) {
            perror("files");
            return 1;
        }
    }
    return 0;
}
