/* Forks as many children as it is told, each of which ends with another code; one in a hundred by a signal. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1, good = 0, alive = 0;
    for (int i = 0; i < count || alive > 0;) {
        if (i < count && alive < 32) {
            pid_t child = i % 2 ? vfork() : fork();
            if (child < 0) {
                perror("fork");
                return 1;
            }
            if (child == 0) {
                if (i % 100 == 0)
                    kill(getpid(), SIGKILL);
                _exit(i % 7);
            }
            i++;
            alive++;
            continue;
        }
        int status;
        if (wait(&status) > 0)
            good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        alive--;
    }
    printf("%d children, %d good\n", count, good);
    return 0;
}
