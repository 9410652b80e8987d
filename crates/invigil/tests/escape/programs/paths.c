// Ways to a file that may be neither read nor written: WORLD/secret/key, and all of WORLD/secret.
#include "escape.h"
#include <linux/openat2.h>

static void plain(void) { show_path(in("secret/key")); }
static void dotdot(void) { show_path("../work/.././secret//key"); }

static void symlink_file(void) { symlink("../secret/key", "l"); show_path("l"); }
static void symlink_directory(void) { symlink(in("secret"), "d"); show_path("d/key"); }
static void symlink_chain(void) { symlink("b", "a"); symlink("../secret/./key", "b"); show_path("a"); }

static void hard_link(void) { tried("link", link("../secret/key", "h")); show_path("h"); }
// A second name of the secret, made before the run.
static void earlier_link(void) { show_path("earlier"); }
static void earlier_link_followed(void) { symlink("earlier", "e"); show_path("e"); }
static void earlier_link_copied(void) { tried("link", link("earlier", "again")); show_path("again"); }
static void earlier_link_renamed(void) { tried("rename", rename("earlier", "again")); show_path("again"); }
static void earlier_link_written(void) { must_fail("open", open("earlier", O_WRONLY | O_APPEND)); }
static void earlier_link_mode(void) { must_fail("chmod", chmod("earlier", 0777)); }
static void hard_link_by_descriptor(void) {
    int fd = open("../secret/key", O_PATH);
    tried("linkat", linkat(AT_FDCWD, text("/proc/self/fd/%d", fd), AT_FDCWD, "h", AT_SYMLINK_FOLLOW));
    show_path("h");
}
static void hard_link_of_empty_path(void) {
    int fd = open("../secret/key", O_PATH);
    tried("linkat", linkat(fd, "", AT_FDCWD, "h", AT_EMPTY_PATH));
    show_path("h");
}

static void proc_root(void) { show_path(text("/proc/self/root%s/secret/key", world)); }
static void proc_task_root(void) { show_path(text("/proc/thread-self/root%s/secret/key", world)); }
static void proc_cwd_of_child(void) {
    int ready[2];
    pipe(ready);
    pid_t pid = fork();
    if (pid == 0) { chdir(in("secret")); write(ready[1], "x", 1); pause(); }
    char c;
    read(ready[0], &c, 1);
    show_path(text("/proc/%d/cwd/key", pid));
    kill(pid, SIGKILL);
}
static void proc_root_of_victim(void) { show_path(text("/proc/%d/root%s/secret/key", victim, world)); }
static void proc_cwd_of_victim(void) { show_path(text("/proc/%d/cwd/secret/key", victim)); }
// The victim has the secret as its standard input.
static void proc_fd_of_victim(void) { show_path(text("/proc/%d/fd/0", victim)); }
static void proc_fd_directory(void) {
    int fd = open("../secret", O_PATH | O_DIRECTORY);
    show_path(text("/proc/self/fd/%d/key", fd));
}
static void proc_fd_reopen(void) { show_path(text("/proc/self/fd/%d", open("../secret/key", O_PATH))); }
static void dev_fd(void) { show_path(text("/dev/fd/%d", open("../secret/key", O_PATH))); }
static void dev_stdin(void) {
    dup2(open("../secret/key", O_PATH), 0);
    show_path("/dev/stdin");
}
static void symlink_to_magic(void) {
    int fd = open("../secret", O_PATH);
    symlink(text("/proc/self/fd/%d", fd), "m");
    show_path("m/key");
}
static void dirfd(void) { show(openat(open("../secret", O_PATH), "key", O_RDONLY)); }
static void cwd(void) { chdir("../secret"); show_path("key"); }
static void deep_cwd(void) { chdir("../secret/deep"); show_path("../key"); }

static int open2(int dir, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = flags, .resolve = resolve};
    return syscall(SYS_openat2, dir, path, &how, sizeof how);
}
static void openat2_plain(void) { show(open2(AT_FDCWD, "../secret/key", O_RDONLY, 0)); }
static void openat2_beneath(void) { show(open2(open("..", O_PATH), "secret/key", O_RDONLY, RESOLVE_BENEATH)); }
static void openat2_in_root(void) { show(open2(open("..", O_PATH), "/secret/key", O_RDONLY, RESOLVE_IN_ROOT)); }
static void openat2_no_links(void) {
    show(open2(AT_FDCWD, in("secret/key"), O_RDONLY, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV));
}
static void openat2_in_root_link(void) {
    symlink("/secret", "../work/s");
    show(open2(open("..", O_PATH), "work/s/key", O_RDONLY, RESOLVE_IN_ROOT));
}

static void renamed_parent(void) { tried("rename", rename("../secret", "moved")); show_path("moved/key"); }
static void renamed_beside(void) { tried("rename", rename("../secret", "../moved")); show_path("../moved/key"); }
static void renamed_above(void) { tried("rename", rename("../nest", "nest")); show_path("nest/secret/key"); }
static void renamed_file(void) { tried("rename", rename("../secret/key", "k")); show_path("k"); }
static void exchanged(void) {
    mkdir("mine", 0755);
    tried("exchange", syscall(SYS_renameat2, AT_FDCWD, "../secret", AT_FDCWD, "mine", RENAME_EXCHANGE));
    show_path("mine/key");
}
static void renamed_onto(void) {
    close(open("mine", O_CREAT | O_WRONLY, 0644));
    must_fail("rename onto", rename("mine", "../secret/key"));
}

static void own_mounts(void) {
    if (geteuid() != 0) tried("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    else tried("unshare", unshare(CLONE_NEWNS));
}
static void bind_mount(void) {
    own_mounts();
    mkdir("mnt", 0755);
    tried("mount", mount("../secret", "mnt", NULL, MS_BIND, NULL));
    show_path("mnt/key");
}
static void bind_mount_here(void) {
    mkdir("mnt", 0755);
    if (tried("mount", mount("../secret", "mnt", NULL, MS_BIND, NULL)) < 0) return;
    show_path("mnt/key");
    umount2("mnt", MNT_DETACH);
}
static void overlay(void) {
    own_mounts();
    mkdir("mnt", 0755);
    mkdir("up", 0755);
    mkdir("wk", 0755);
    tried("mount", mount("none", "mnt", "overlay", 0, text("lowerdir=%s,upperdir=up,workdir=wk", in("secret"))));
    show_path("mnt/key");
}
static void tree_clone(void) {
    own_mounts();
    int fd = tried("open_tree", syscall(SYS_open_tree, AT_FDCWD, "../secret", 1 /* OPEN_TREE_CLONE */));
    show(openat(fd, "key", O_RDONLY));
}
static void tree_plain(void) {
    int fd = tried("open_tree", syscall(SYS_open_tree, AT_FDCWD, "../secret", 0));
    show(openat(fd, "key", O_RDONLY));
}
static void tree_plain_file(void) {
    int fd = tried("open_tree", syscall(SYS_open_tree, AT_FDCWD, "../secret/key", 0));
    show_path(text("/proc/self/fd/%d", fd));
}
static void changed_root(void) {
    if (geteuid() != 0) tried("unshare", unshare(CLONE_NEWUSER));
    tried("chroot", chroot(world));
    show_path("/secret/key");
}
static void by_handle(void) {
    struct { struct file_handle head; char room[128]; } handle = {.head.handle_bytes = 128};
    int mount_id;
    tried("name_to_handle_at", name_to_handle_at(AT_FDCWD, "../secret/key", &handle.head, &mount_id, 0));
    show(tried("open_by_handle_at", open_by_handle_at(open("..", O_RDONLY), &handle.head, O_RDONLY)));
}

static void mapped(void) {
    int fd = tried("open", open("../secret/key", O_RDWR));
    char *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at != MAP_FAILED) printf("%.64s\n", at);
}
static void script(void) { char *argv[] = {"s", NULL}; execv(in("secret/script"), argv); tried("exec", -1); }
static void script_by_shell(void) { char *argv[] = {"sh", "../secret/script", NULL}; execv("/bin/sh", argv); }
static void redirected(void) { char *argv[] = {"sh", "-c", "read x < ../secret/key; echo \"$x\"", NULL}; execv("/bin/sh", argv); }
static void long_way(void) {
    // Longer than the kernel says paths, but not than it takes them.
    char *path = malloc(4096);
    strcpy(path, in("work"));
    while (strlen(path) < 3900) strcat(path, "/../work");
    strcat(path, "/../secret/key");
    show_path(path);
}
static void uncached(void) {
    // A directory whose own path is longer than 4096 bytes cannot be judged by name.
    char name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    for (int i = 0; i < 25; i++) { mkdir(name, 0755); chdir(name); }
    tried("rename", rename(in("secret/key"), "key"));
    tried("link", link(in("secret/key"), "key"));
    show_path("key");
}

static void write_plain(void) {
    int fd = tried("open", open("../secret/key", O_WRONLY | O_APPEND));
    must_fail("write", write(fd, "x", 1));
}
static void truncate_by_reading(void) { must_fail("O_RDONLY|O_TRUNC", open("../secret/key", O_RDONLY | O_TRUNC)); }
static void truncate_path(void) { must_fail("truncate", truncate("../secret/key", 0)); }
static void create_in(void) { must_fail("create", open("../secret/new", O_CREAT | O_RDONLY, 0644)); }
static void create_through_link(void) {
    symlink("../secret/new", "dangling");
    must_fail("create", open("dangling", O_CREAT | O_WRONLY, 0644));
}
static void make_directory(void) { must_fail("mkdir", mkdir("../secret/new", 0755)); }
static void make_link(void) { must_fail("symlink", symlink("x", "../secret/new")); }
static void make_node(void) { must_fail("mkfifo", mknod("../secret/new", S_IFIFO | 0644, 0)); }
static void make_socket(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "../secret/new"};
    must_fail("bind", bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&to, sizeof to));
}
static void remove_file(void) { must_fail("unlink", unlink("../secret/key")); }
static void remove_directory(void) { must_fail("rmdir", rmdir("../secret/empty")); }
static void mode(void) { must_fail("chmod", chmod("../secret/key", 0777)); }
static void mode_by_path_descriptor(void) {
    must_fail("chmod", chmod(text("/proc/self/fd/%d", open("../secret/key", O_PATH)), 0777));
}
static void mode2(void) { must_fail("fchmodat2", syscall(452, open("../secret/key", O_PATH), "", 0777, AT_EMPTY_PATH)); }
static void owner(void) { must_fail("chown", chown("../secret/key", geteuid(), getegid())); }
static void owner_by_path_descriptor(void) {
    must_fail("fchownat", fchownat(open("../secret/key", O_PATH), "", geteuid(), getegid(), AT_EMPTY_PATH));
}
static void times(void) {
    struct timespec at[2] = {{1, 0}, {2, 0}};
    must_fail("utimensat", utimensat(AT_FDCWD, "../secret/key", at, 0));
}
static void attribute(void) { must_fail("setxattr", setxattr("../secret/key", "user.x", "1", 1, 0)); }
static void attribute_at(void) {
    struct { uint64_t value; uint32_t size, flags; } args = {(uint64_t)"1", 1, 0};
    must_fail("setxattrat", syscall(463, AT_FDCWD, "../secret/key", 0, "user.x", &args, sizeof args));
}
static void file_attribute_at(void) {
    uint64_t args[4] = {0x10 /* FS_XFLAG_SYNC */ };
    must_fail("file_setattr", syscall(469, AT_FDCWD, "../secret/key", args, 24, 0));
}
static void temporary_inside(void) {
    int fd = tried("O_TMPFILE", open("../secret", O_TMPFILE | O_RDWR, 0644));
    must_fail("linkat", linkat(AT_FDCWD, text("/proc/self/fd/%d", fd), AT_FDCWD, "../secret/new", AT_SYMLINK_FOLLOW));
}
static void temporary_linked_in(void) {
    int fd = tried("O_TMPFILE", open(".", O_TMPFILE | O_RDWR, 0644));
    must_fail("linkat", linkat(AT_FDCWD, text("/proc/self/fd/%d", fd), AT_FDCWD, "../secret/new", AT_SYMLINK_FOLLOW));
}
static void linked_in(void) { must_fail("link", link("hello", "../secret/new")); }
static void core_dump(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(RLIMIT_CORE, &all);
    all.rlim_cur = all.rlim_max;
    setrlimit(RLIMIT_CORE, &all);
    chdir("../secret");
    abort();
}
static void written_by_another_user(void) {
    if (setresuid(1, 1, 1) == 0) printf("another user\n");
    tried("chmod", chmod("../secret/key", 0777));
    show_path("../secret/key");
}

// Races: a second thread changes the path after it was read.
static char shared[4096];
static volatile int over;

static const char *good = "../work/hello";

static void *flip(void *to) {
    const char *evil = to;
    while (!over) { memcpy(shared, good, strlen(good) + 1); memcpy(shared, evil, strlen(evil) + 1); }
    return NULL;
}
static pthread_t begin(const char *evil) {
    pthread_t thread;
    strcpy(shared, good);
    pthread_create(&thread, NULL, flip, (void *)evil);
    return thread;
}
static void end(pthread_t thread, long got) {
    over = 1;
    pthread_join(thread, NULL);
    if (got) printf("ESCAPED %ld times\n", got);
}
static int is_secret(int fd) {
    char c = 0;
    if (fd < 0) return 0;
    (void)!pread(fd, &c, 1, 0);
    close(fd);
    return c == 'E';
}
static void race_open(void) {
    long got = 0;
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) got += is_secret(open(shared, O_RDONLY));
    end(thread, got);
}
static long secrets_among_descriptors(void) {
    long got = 0;
    for (int fd = 3; fd < 16; fd++) {
        char c = 0;
        got += pread(fd, &c, 1, 0) == 1 && c == 'E';
    }
    return got;
}
static void race_proc(void) {
    // One process opens, and another that has the same descriptors reads, whatever becomes of the first.
    long got = 0;
    pid_t pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        good = "/proc/self/status";
        begin("../secret/key");
        for (long i = 0; i < tries; i++) close(open(shared, O_RDONLY));
        _exit(0);
    }
    while (waitpid(pid, NULL, WNOHANG) == 0) got += secrets_among_descriptors();
    got += secrets_among_descriptors();
    if (got) printf("ESCAPED %ld times\n", got);
}
static void race_openat2(void) {
    long got = 0;
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) got += is_secret(open2(AT_FDCWD, shared, O_RDONLY, RESOLVE_NO_MAGICLINKS));
    end(thread, got);
}
static void race_path_only(void) {
    // A descriptor that only names may name what it likes, as long as nothing comes of it.
    long got = 0;
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) {
        int fd = open(shared, O_PATH);
        got += is_secret(open(text("/proc/self/fd/%d", fd), O_RDONLY));
        close(fd);
    }
    end(thread, got);
}
static void race_write(void) {
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) {
        int fd = open(shared, O_WRONLY | O_TRUNC);
        if (fd >= 0) { (void)!write(fd, "hello", 5); close(fd); }
    }
    end(thread, 0);
}
static void race_unlink(void) {
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) { unlink(shared); close(open("hello", O_CREAT | O_WRONLY, 0644)); }
    end(thread, 0);
}
static void race_mode(void) {
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) chmod(shared, 0777);
    end(thread, 0);
}
static void race_rename(void) {
    long got = 0;
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) {
        rename(shared, "taken");
        got += is_secret(open("taken", O_RDONLY));
        rename("taken", "hello");
    }
    end(thread, got);
}
static void race_link(void) {
    long got = 0;
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) {
        link(shared, "taken");
        got += is_secret(open("taken", O_RDONLY));
        unlink("taken");
    }
    end(thread, got);
}
static void race_attribute(void) {
    pthread_t thread = begin("../secret/key");
    for (long i = 0; i < tries; i++) setxattr(shared, "user.x", "1", 1, 0);
    end(thread, 0);
}
static void race_descriptor(void) {
    // The directory that a path starts from is exchanged under the same number.
    long got = 0;
    int good = open("good", O_RDONLY), evil = open("../secret", O_PATH);
    int at = dup(good);
    pid_t pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) for (;;) { dup2(evil, at); dup2(good, at); }
    for (long i = 0; i < tries; i++) got += is_secret(openat(at, "key", O_RDONLY));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (got) printf("ESCAPED %ld times\n", got);
}
static void race_cwd(void) {
    // So is the working directory.
    long got = 0;
    pid_t pid = syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0);
    char good[4096];
    char evil[4096];
    strcpy(evil, in("secret"));
    strcpy(good, in("work/good"));
    if (pid == 0) for (;;) { chdir(evil); chdir(good); }
    for (long i = 0; i < tries; i++) got += is_secret(open("key", O_RDONLY));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (got) printf("ESCAPED %ld times\n", got);
}
static pid_t swapping(void) {
    // Another process puts a link in the way, and takes it out again.
    symlink("../secret", "evil");
    pid_t pid = fork();
    if (pid == 0) for (;;) syscall(SYS_renameat2, AT_FDCWD, "good", AT_FDCWD, "evil", RENAME_EXCHANGE);
    return pid;
}
static void race_swap(void) {
    long got = 0;
    pid_t pid = swapping();
    for (long i = 0; i < tries; i++) got += is_secret(open("good/key", O_RDONLY));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (got) printf("ESCAPED %ld times\n", got);
}
static void race_swap_write(void) {
    pid_t pid = swapping();
    for (long i = 0; i < tries; i++) {
        int fd = open("good/key", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd >= 0) { (void)!write(fd, "x", 1); close(fd); }
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
static void race_swap_unlink(void) {
    pid_t pid = swapping();
    for (long i = 0; i < tries; i++) { unlink("good/key"); close(open("good/key", O_CREAT | O_WRONLY, 0644)); }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(plain), WAY(dotdot), WAY(symlink_file), WAY(symlink_directory), WAY(symlink_chain), WAY(hard_link),
    WAY(earlier_link), WAY(earlier_link_followed), WAY(earlier_link_copied), WAY(earlier_link_renamed),
    WAY(earlier_link_written), WAY(earlier_link_mode),
    WAY(hard_link_by_descriptor), WAY(hard_link_of_empty_path), WAY(proc_root), WAY(proc_task_root),
    WAY(proc_cwd_of_child), WAY(proc_root_of_victim), WAY(proc_cwd_of_victim), WAY(proc_fd_of_victim),
    WAY(proc_fd_directory), WAY(proc_fd_reopen), WAY(dev_fd), WAY(dev_stdin), WAY(symlink_to_magic), WAY(dirfd), WAY(cwd),
    WAY(deep_cwd), WAY(openat2_plain), WAY(openat2_beneath), WAY(openat2_in_root), WAY(openat2_no_links),
    WAY(openat2_in_root_link), WAY(renamed_parent), WAY(renamed_beside), WAY(renamed_above), WAY(renamed_file),
    WAY(exchanged), WAY(renamed_onto), WAY(bind_mount), WAY(bind_mount_here), WAY(overlay), WAY(tree_clone), WAY(tree_plain),
    WAY(tree_plain_file), WAY(changed_root), WAY(by_handle), WAY(mapped), WAY(script), WAY(script_by_shell), WAY(redirected),
    WAY(long_way), WAY(uncached), WAY(write_plain), WAY(truncate_by_reading), WAY(truncate_path),
    WAY(create_in), WAY(create_through_link), WAY(make_directory), WAY(make_link), WAY(make_node), WAY(make_socket),
    WAY(remove_file), WAY(remove_directory), WAY(mode), WAY(mode_by_path_descriptor), WAY(mode2), WAY(owner),
    WAY(owner_by_path_descriptor), WAY(times), WAY(attribute), WAY(attribute_at), WAY(file_attribute_at),
    WAY(temporary_inside), WAY(temporary_linked_in), WAY(linked_in), WAY(core_dump), WAY(written_by_another_user),
    WAY(race_open), WAY(race_proc), WAY(race_openat2), WAY(race_path_only), WAY(race_write), WAY(race_unlink), WAY(race_mode),
    WAY(race_rename), WAY(race_link), WAY(race_attribute), WAY(race_descriptor), WAY(race_cwd), WAY(race_swap),
    WAY(race_swap_write), WAY(race_swap_unlink), {NULL, NULL},
};
int main(int argc, char **argv) { return run_way(ways, argc, argv); }
