// What the hostile programs share. Each is called as `PROGRAM WAY WORLD VICTIM PORT ALLOWED TRIES`, in WORLD/work, and tries
// one way. Whoever gets through says ESCAPED; what is forbidden to be read or run says it by itself.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;

static const char *world;
static pid_t victim;
static int port, allowed;
static long tries;

struct way { const char *name; void (*go)(void); };

// A path in the world; good until the eighth next one.
static char *in(const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, 4096, "%s/%s", world, name);
    return path;
}

static char *text(const char *format, ...) {
    static char texts[8][4096];
    static int next;
    char *to = texts[next++ % 8];
    va_list more;
    va_start(more, format);
    vsnprintf(to, 4096, format, more);
    va_end(more);
    return to;
}

// Says how a call ended, and passes its result on.
static long tried(const char *what, long result) {
    if (result < 0) printf("%s: %s\n", what, strerrorname_np(errno));
    fflush(stdout);
    return result;
}

// For calls whose success is the effect.
static void must_fail(const char *what, long result) {
    if (tried(what, result) >= 0) printf("ESCAPED by %s\n", what);
    fflush(stdout);
}

// Shows what can be read from a descriptor.
static void show(int fd) {
    char buf[4096];
    ssize_t n;
    if (tried("open", fd) < 0) return;
    if ((n = tried("read", read(fd, buf, sizeof buf))) > 0) fwrite(buf, 1, n, stdout);
    fflush(stdout);
    close(fd);
}

static void show_path(const char *path) { show(open(path, O_RDONLY)); }

// Runs something in a child and waits for it.
static int apart(void (*what)(void)) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { what(); fflush(stdout); _exit(0); }
    waitpid(pid, &status, 0);
    return status;
}

static int run_way(const struct way *ways, int argc, char **argv) {
    if (argc < 7) return 125;
    world = argv[2];
    victim = atoi(argv[3]);
    port = atoi(argv[4]);
    allowed = atoi(argv[5]);
    tries = atol(argv[6]);
    for (; ways->name; ways++)
        if (!strcmp(ways->name, argv[1])) { ways->go(); fflush(stdout); return 0; }
    fprintf(stderr, "no way %s\n", argv[1]);
    return 125;
}
