// Ways to run WORLD/tools/witness, or to run it with `push`.
#include "escape.h"
#include <spawn.h>

static void run(const char *path, ...) {
    char *argv[8] = {NULL};
    va_list more;
    va_start(more, path);
    for (int i = 0; i < 7 && (argv[i] = va_arg(more, char *)); i++) {}
    va_end(more);
    fflush(stdout);
    execv(path, argv);
    tried("exec", -1);
}
static void file(const char *name, const char *content) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0755);
    write(fd, content, strlen(content));
    close(fd);
}
// Copies one file to a descriptor.
static int copy(const char *from, int to) {
    char buf[65536];
    ssize_t n;
    int fd = tried("open", open(from, O_RDONLY));
    if (fd < 0) return -1;
    while ((n = read(fd, buf, sizeof buf)) > 0) write(to, buf, n);
    close(fd);
    return 0;
}

static void plain(void) { run(in("tools/witness"), "witness", NULL); }
static void dotdot(void) { run("../work/../tools/witness", "x", NULL); }
static void argv0(void) { run(in("tools/witness"), "/bin/true", NULL); }
static void no_arguments(void) { execve(in("tools/witness"), NULL, NULL); tried("exec", -1); }
static void symbolic(void) { symlink(in("tools/witness"), "harmless"); run("harmless", "harmless", NULL); }
static void hard_link(void) { tried("link", link(in("tools/witness"), "harmless")); run("harmless", "harmless", NULL); }
static void hard_link_before(void) { run(in("tools/alias"), "alias", NULL); }
static void copy_before(void) { run(in("tools/twin"), "twin", NULL); }
static void renamed(void) { tried("rename", rename(in("tools/witness"), "harmless")); run("harmless", "harmless", NULL); }
static void copied(void) {
    int fd = open("harmless", O_CREAT | O_WRONLY, 0755);
    copy(in("tools/witness"), fd);
    close(fd);
    run("harmless", "harmless", NULL);
}
static void copied_alias(void) {
    int fd = open("harmless", O_CREAT | O_WRONLY, 0755);
    copy(in("tools/alias"), fd);
    close(fd);
    run("harmless", "harmless", NULL);
}
static void shell(void) { run("/bin/sh", "sh", "-c", in("tools/witness"), NULL); }
static void shell_words(void) { run("/bin/sh", "sh", "-c", text("a=%s; $(echo $a/tools/wit)ness & wait", world), NULL); }
static void env(void) { run("/usr/bin/env", "env", "A=1", in("tools/witness"), NULL); }
static void python(void) {
    run("/usr/bin/env", "env", "python3", "-c", text("import os; os.execv('%s', ['x'])", in("tools/witness")), NULL);
}
static void loader(void) { run("/lib64/ld-linux-x86-64.so.2", "ld.so", in("tools/witness"), NULL); }
static void loader_alias(void) { run("/lib64/ld-linux-x86-64.so.2", "ld.so", in("tools/alias"), NULL); }
static void loader_twin(void) { run("/lib64/ld-linux-x86-64.so.2", "ld.so", in("tools/twin"), NULL); }
static void preloaded(void) {
    // As a library it would run its constructors, were there any: it may not even be read.
    setenv("LD_PRELOAD", in("tools/witness"), 1);
    run("/bin/cat", "cat", in("tools/witness"), NULL);
}
static void memory_file(void) {
    int fd = memfd_create("x", 0);
    if (copy(in("tools/witness"), fd) == 0) fexecve(fd, (char *[]){"x", NULL}, environ);
}
static void path_descriptor(void) {
    int fd = open(in("tools/witness"), O_PATH);
    syscall(SYS_execveat, fd, "", (char *[]){"x", NULL}, environ, AT_EMPTY_PATH);
    tried("execveat", -1);
}
static void proc_descriptor(void) { run(text("/proc/self/fd/%d", open(in("tools/witness"), O_PATH)), "x", NULL); }
static void dirfd(void) {
    syscall(SYS_execveat, open(in("tools"), O_PATH), "witness", (char *[]){"x", NULL}, environ, 0);
    tried("execveat", -1);
}
static void shebang(void) { file("s", text("#!%s\n", in("tools/witness"))); run("./s", "s", NULL); }
static void shebang_arguments(void) { file("s", text("#! %s  push \n", in("tools/witness"))); run("./s", "s", NULL); }
static void shebang_chain(void) {
    file("s1", text("#!%s\n", in("tools/witness")));
    file("s2", text("#!%s\n", in("work/s1")));
    file("s3", text("#!%s\n", in("work/s2")));
    run("./s3", "s", NULL);
}
static void shebang_link(void) {
    symlink(in("tools/witness"), "i");
    file("s", text("#!%s\n", in("work/i")));
    run("./s", "s", NULL);
}
static void own_interpreter(const char *interpreter) {
    // A changed copy of our own file that names another ELF interpreter: the kernel loads that one too.
    char *at;
    int fd = open("evil", O_CREAT | O_RDWR, 0755);
    copy("/proc/self/exe", fd);
    off_t size = lseek(fd, 0, SEEK_END);
    char *image = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const char *ld = "/lib64/ld-linux-x86-64.so.2";
    if (!(at = memmem(image, size, ld, strlen(ld) + 1))) return;
    symlink(interpreter, "w");
    strcpy(at, "./w");
    munmap(image, size);
    close(fd);
    run("./evil", "evil", NULL);
}
static void bare_interpreter(void) { own_interpreter(in("tools/bare")); }
static void bare_interpreter_alias(void) { own_interpreter(in("tools/bare-alias")); }
static void *threaded_exec(void *arg) { plain(); return arg; }
static void thread(void) {
    pthread_t t;
    pthread_create(&t, NULL, threaded_exec, NULL);
    pthread_join(t, NULL);
}
static void by_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0) { execv(in("tools/witness"), (char *[]){"x", NULL}); _exit(1); }
    waitpid(pid, NULL, 0);
}
static void spawned(void) {
    pid_t pid;
    posix_spawn(&pid, in("tools/witness"), NULL, NULL, (char *[]){"x", NULL}, environ);
    waitpid(pid, NULL, 0);
}
static void mapped(void) {
    int fd = tried("open", open(in("tools/witness"), O_RDONLY));
    must_fail("mmap", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
}
static void changed_root(void) {
    if (geteuid() != 0) tried("unshare", unshare(CLONE_NEWUSER));
    tried("chroot", chroot(in("tools")));
    run("/witness", "x", NULL);
}

// For a policy that allows only some programs.
static void own_program(void) {
    int fd = open("mine", O_CREAT | O_WRONLY, 0755);
    copy(in("tools/witness"), fd);
    close(fd);
    run("./mine", "/bin/sh", NULL);
}
static void memory_program(void) { memory_file(); }
static void named_as_allowed(void) {
    mkdir("bin", 0755);
    int fd = open("bin/sh", O_CREAT | O_WRONLY, 0755);
    copy(in("tools/witness"), fd);
    close(fd);
    setenv("PATH", in("work/bin"), 1);
    run("bin/sh", "sh", NULL);
}
static void mounted_as_allowed(void) {
    unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS);
    tried("mount", mount(in("tools/witness"), "/bin/true", NULL, MS_BIND, NULL));
    run("/bin/true", "true", NULL);
}

// With arguments: `push` is denied, `pull` is not.
static void push(void) { run(in("tools/witness"), "witness", "push", NULL); }
static void push_behind_options(void) { run(in("tools/witness"), "witness", "-C", "x", "push", NULL); }
static void push_under_link(void) { symlink(in("tools/witness"), "g"); run("g", "g", "push", NULL); }
static void push_by_shell(void) { run("/bin/sh", "sh", "-c", text("$(echo %s/tools/witness) p\"us\"h", world), NULL); }
static void push_by_env(void) { run("/usr/bin/env", "env", in("tools/witness"), "push", NULL); }
static void push_in_shebang(void) { shebang_arguments(); }
static void push_by_xargs(void) { run("/bin/sh", "sh", "-c", text("echo push | xargs %s/tools/witness", world), NULL); }
static char argument[8];
static char program[512];
static volatile int over;
static void *flip_argument(void *none) {
    while (!over) { memcpy(argument, "pull", 5); memcpy(argument, "push", 5); }
    return none;
}
static void *flip_program(void *none) {
    // Both have the same length up to the last name.
    char good[512], evil[512];
    strcpy(good, in("tools/nothing"));
    strcpy(evil, in("tools/witness"));
    while (!over) { memcpy(program, good, strlen(good) + 1); memcpy(program, evil, strlen(evil) + 1); }
    return none;
}
// Each try is a program that is loaded, so there are fewer.
static void racing(void *(*flip)(void *), const char *path, char *const argv[]) {
    pthread_t t;
    pthread_create(&t, NULL, flip, NULL);
    for (long i = 0; i < tries / 40; i++) {
        // The child shares the memory in which the other thread writes.
        pid_t pid = vfork();
        if (pid == 0) { execv(path, argv); _exit(1); }
        waitpid(pid, NULL, 0);
    }
    over = 1;
    pthread_join(t, NULL);
}
static void race_argument(void) {
    strcpy(argument, "pull");
    char *path = strdup(in("tools/witness"));
    racing(flip_argument, path, (char *[]){"witness", argument, NULL});
}
static void race_program(void) {
    strcpy(program, in("tools/nothing"));
    racing(flip_program, program, (char *[]){"x", NULL});
}
static void race_link(void) {
    // The link that is loaded is exchanged all the time.
    symlink(in("tools/nothing"), "good");
    symlink(in("tools/witness"), "evil");
    pid_t pid = fork();
    if (pid == 0) for (;;) syscall(SYS_renameat2, AT_FDCWD, "good", AT_FDCWD, "evil", RENAME_EXCHANGE);
    for (long i = 0; i < tries / 40; i++) {
        pid_t child = vfork();
        if (child == 0) { execv("good", (char *[]){"x", NULL}); _exit(1); }
        waitpid(child, NULL, 0);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(plain), WAY(dotdot), WAY(argv0), WAY(no_arguments), WAY(symbolic), WAY(hard_link), WAY(hard_link_before),
    WAY(copy_before), WAY(renamed), WAY(copied), WAY(copied_alias), WAY(shell), WAY(shell_words),
    WAY(env), WAY(python), WAY(loader), WAY(loader_alias), WAY(loader_twin), WAY(preloaded), WAY(memory_file), WAY(path_descriptor),
    WAY(proc_descriptor), WAY(dirfd), WAY(shebang), WAY(shebang_arguments), WAY(shebang_chain), WAY(shebang_link),
    WAY(bare_interpreter), WAY(bare_interpreter_alias), WAY(thread), WAY(by_vfork), WAY(spawned), WAY(mapped), WAY(changed_root), WAY(own_program),
    WAY(memory_program), WAY(named_as_allowed), WAY(mounted_as_allowed), WAY(push), WAY(push_behind_options),
    WAY(push_under_link), WAY(push_by_shell), WAY(push_by_env), WAY(push_in_shebang), WAY(push_by_xargs),
    WAY(race_argument), WAY(race_program), WAY(race_link), {NULL, NULL},
};
int main(int argc, char **argv) { return run_way(ways, argc, argv); }
