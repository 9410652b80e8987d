// Ways to harm a process that is not of the run: VICTIM has the same user, or is the supervisor (the same ways with `boss_`
// in front). And ways to outlive the run, or to use more than it may.
#include "escape.h"
#include <time.h>

static void by_kill(void) { must_fail("kill", kill(victim, SIGKILL)); }
static void stop(void) { must_fail("kill", kill(victim, SIGSTOP)); }
static void by_tgkill(void) { must_fail("tgkill", syscall(SYS_tgkill, victim, victim, SIGKILL)); }
static void by_tkill(void) { must_fail("tkill", syscall(SYS_tkill, victim, SIGKILL)); }
static void by_group(void) { must_fail("killpg", kill(-getpgid(victim), SIGKILL)); }
static void queued(void) {
    union sigval value = {0};
    must_fail("sigqueue", sigqueue(victim, SIGTERM, value));
}
static void queued_to_thread(void) {
    siginfo_t info = {.si_signo = SIGTERM, .si_code = SI_QUEUE};
    must_fail("rt_tgsigqueueinfo", syscall(SYS_rt_tgsigqueueinfo, victim, victim, SIGTERM, &info));
}
static void by_descriptor(void) {
    int fd = syscall(SYS_pidfd_open, victim, 0);
    must_fail("pidfd_send_signal", syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0));
}
static void by_directory(void) {
    int fd = open(text("/proc/%d", victim), O_RDONLY | O_DIRECTORY);
    must_fail("pidfd_send_signal", syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0));
}
static void owned_descriptor(void) {
    // Whoever owns an open file gets a signal of the sender's choice when something happens to it.
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    tried("F_SETOWN", fcntl(pair[0], F_SETOWN, victim));
    fcntl(pair[0], F_SETSIG, SIGKILL);
    fcntl(pair[0], F_SETFL, O_ASYNC);
    write(pair[1], "x", 1);
}
static void owned_descriptor_by_thread(void) {
    int pair[2];
    struct f_owner_ex owner = {F_OWNER_TID, victim};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    tried("F_SETOWN_EX", fcntl(pair[0], F_SETOWN_EX, &owner));
    fcntl(pair[0], F_SETSIG, SIGKILL);
    fcntl(pair[0], F_SETFL, O_ASYNC);
    write(pair[1], "x", 1);
}
static void owned_socket(void) {
    int pair[2], on = 1;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    tried("FIOSETOWN", ioctl(pair[0], 0x8901 /* FIOSETOWN */, &victim));
    fcntl(pair[0], F_SETSIG, SIGKILL);
    ioctl(pair[0], 0x5452 /* FIOASYNC */, &on);
    write(pair[1], "x", 1);
}
static void owned_socket_old(void) {
    int pair[2], on = 1;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    tried("SIOCSPGRP", ioctl(pair[0], 0x8902 /* SIOCSPGRP */, &victim));
    fcntl(pair[0], F_SETSIG, SIGKILL);
    ioctl(pair[0], 0x5452 /* FIOASYNC */, &on);
    write(pair[1], "x", 1);
}
static void attached(void) { must_fail("ptrace", ptrace(PTRACE_ATTACH, victim, 0, 0)); }
static void seized(void) { must_fail("ptrace", ptrace(PTRACE_SEIZE, victim, 0, 0)); }
static void memory(void) { must_fail("mem", open(text("/proc/%d/mem", victim), O_RDWR)); }
static void memory_read(void) { must_fail("mem", open(text("/proc/%d/mem", victim), O_RDONLY)); }
static void environment(void) {
    char c;
    int fd = open(text("/proc/%d/environ", victim), O_RDONLY);
    must_fail("environ", read(fd, &c, 1) == 1 ? 0 : -1);
}
static void maps(void) {
    char c;
    int fd = open(text("/proc/%d/maps", victim), O_RDONLY);
    must_fail("maps", read(fd, &c, 1) == 1 ? 0 : -1);
}
static void read_memory(void) {
    char c;
    struct iovec here = {&c, 1}, there = {(void *)0x400000, 1};
    long r = process_vm_readv(victim, &here, 1, &there, 1, 0);
    must_fail("process_vm_readv", r < 0 && errno == EFAULT ? 0 : r);
}
static void write_memory(void) {
    char c = 0;
    struct iovec here = {&c, 1}, there = {(void *)0x400000, 1};
    long r = process_vm_writev(victim, &here, 1, &there, 1, 0);
    must_fail("process_vm_writev", r < 0 && errno == EFAULT ? 0 : r);
}
static void advise_memory(void) {
    int fd = syscall(SYS_pidfd_open, victim, 0);
    struct iovec there = {(void *)0x400000, 4096};
    long r = syscall(SYS_process_madvise, fd, &there, 1, MADV_COLD, 0);
    must_fail("process_madvise", r < 0 && (errno == EFAULT || errno == ENOMEM) ? 0 : r);
}
static void stolen_descriptor(void) {
    int fd = syscall(SYS_pidfd_open, victim, 0);
    show(tried("pidfd_getfd", syscall(SYS_pidfd_getfd, fd, 0, 0)));
}
static void limited(void) {
    struct rlimit few = {3, 3};
    must_fail("prlimit", prlimit(victim, RLIMIT_NOFILE, &few, NULL));
}
static void nice_process(void) { must_fail("setpriority", setpriority(PRIO_PROCESS, victim, 19)); }
static void nice_group(void) { must_fail("setpriority", setpriority(PRIO_PGRP, getpgid(victim), 19)); }
static void nice_user(void) { must_fail("setpriority", setpriority(PRIO_USER, 0, 0)); }
static void processors(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    must_fail("sched_setaffinity", sched_setaffinity(victim, sizeof one, &one));
}
static void scheduled(void) {
    struct sched_param none = {0};
    must_fail("sched_setscheduler", sched_setscheduler(victim, 5 /* SCHED_IDLE */, &none));
}
static void scheduled_attributes(void) {
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t more[3]; } idle = {48, 5};
    must_fail("sched_setattr", syscall(SYS_sched_setattr, victim, &idle, 0));
}
static void io_class(void) { must_fail("ioprio_set", syscall(SYS_ioprio_set, 1, victim, 3 << 13)); }
static void first_to_die(void) {
    int fd = tried("oom_score_adj", open(text("/proc/%d/oom_score_adj", victim), O_WRONLY));
    must_fail("oom_score_adj", write(fd, "1000", 4));
}
static void renamed_thread(void) {
    int fd = tried("comm", open(text("/proc/%d/comm", victim), O_WRONLY));
    must_fail("comm", write(fd, "evil", 4));
}
static void moved_pages(void) {
    unsigned long from = 1, to = 1;
    tried("migrate_pages", syscall(SYS_migrate_pages, victim, 8, &from, &to));
}
static void other_group(void) { must_fail("setpgid", setpgid(victim, getpgid(0))); }
static void much_memory(void);
// The run's own cgroup and everybody else's.
static void moved_cgroup(void) {
    const char *roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/cpu"};
    for (int i = 0; i < 4; i++) {
        char *mine = text("%s/invigil-escape-%d", roots[i], getpid());
        if (tried("mkdir", mkdir(mine, 0755)) < 0) continue;
        int fd = tried("cgroup.procs", open(text("%s/cgroup.procs", mine), O_WRONLY));
        char *pid = text("%d", victim);
        if (tried("move", write(fd, pid, strlen(pid))) > 0) printf("ESCAPED by a cgroup\n");
        rmdir(mine);
    }
}

// Every directory that the run's own processes are counted in, and what could be done to it.
static void each_own_cgroup(void (*way)(const char *)) {
    static const char *mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char line[4096], *names, *path;
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!(names = strchr(line, ':')) || !(path = strchr(names + 1, ':'))) continue;
        *path++ = 0;
        names++;
        if (*names) way(text("/sys/fs/cgroup/%s%s", names, path));
        else for (int i = 0; i < 2; i++) way(text("%s%s", mounts[i], path));
    }
}
static void widen(const char *group) {
    static const char *files[] = {"memory.max", "memory.limit_in_bytes", "pids.max", "cgroup.procs"};
    for (int i = 0; i < 4; i++) {
        int fd = open(text("%s/%s", group, files[i]), O_WRONLY);
        if (fd >= 0 && write(fd, i == 1 ? "-1" : i == 3 ? "0" : "max", i == 1 ? 2 : i == 3 ? 1 : 3) > 0) printf("ESCAPED by %s\n", files[i]);
    }
}
static void take_away(const char *group) {
    if (rmdir(group) == 0) printf("ESCAPED by rmdir\n");
    if (rename(group, text("%s-gone", group)) == 0) printf("ESCAPED by rename\n");
    tried("chmod", chmod(group, 0));
}
static void widened_cgroup(void) { each_own_cgroup(widen); }
static void removed_cgroup(void) { each_own_cgroup(take_away); }
static void left_cgroup(void) {
    char *pid = text("%d", getpid());
    static const char *roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"};
    for (int i = 0; i < 4; i++) {
        int fd = open(text("%s/cgroup.procs", roots[i]), O_WRONLY);
        if (fd >= 0 && write(fd, pid, strlen(pid)) > 0) printf("ESCAPED by %s\n", roots[i]);
    }
    much_memory();
}

static void as_boss(void (*way)(void)) { victim = getppid(); way(); }
#define BOSS(name) static void boss_##name(void) { as_boss(name); }
BOSS(by_kill) BOSS(stop) BOSS(by_tgkill) BOSS(by_tkill) BOSS(queued) BOSS(queued_to_thread) BOSS(by_descriptor)
BOSS(by_directory) BOSS(owned_descriptor) BOSS(owned_descriptor_by_thread) BOSS(owned_socket) BOSS(owned_socket_old)
BOSS(attached) BOSS(seized) BOSS(memory) BOSS(memory_read) BOSS(environment) BOSS(read_memory) BOSS(write_memory)
BOSS(stolen_descriptor) BOSS(limited) BOSS(nice_process) BOSS(processors) BOSS(scheduled) BOSS(scheduled_attributes)
BOSS(io_class) BOSS(first_to_die) BOSS(moved_cgroup) BOSS(by_group)
// A thread of the supervisor has a number of its own.
static void boss_thread(void) {
    for (pid_t pid = getppid() + 1; pid < getppid() + 40; pid++)
        if (access(text("/proc/%d/task/%d", getppid(), pid), F_OK) == 0) {
            must_fail("tkill", syscall(SYS_tkill, pid, SIGKILL));
            return;
        }
}
static void boss_stopped_by_terminal(void) { must_fail("killpg", kill(0, SIGSTOP)); }

// Outliving.
static void stay(void) {
    for (int fd = 0; fd < 64; fd++) close(fd);
    for (int i = 0; i < 100; i++) usleep(100000);
    int fd = open(in("outside/outlived"), O_CREAT | O_WRONLY, 0644);
    close(fd);
    _exit(0);
}
static void daemon_twice(void) { if (fork() == 0) { setsid(); if (fork() == 0) stay(); _exit(0); } wait(NULL); }
static void daemon_subreaper(void) {
    if (fork() == 0) { prctl(PR_SET_CHILD_SUBREAPER, 1); setsid(); if (fork() == 0) { if (fork() == 0) stay(); _exit(0); } stay(); }
}
static void untraced(void) {
    pid_t pid = tried("clone", syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) { printf("ESCAPED the tracer\n"); fflush(stdout); stay(); }
}
static void stopped_child(void) { if (fork() == 0) { setsid(); raise(SIGSTOP); stay(); } usleep(100000); }
static void ignoring(void) {
    for (int i = 1; i < 64; i++) signal(i, SIG_IGN);
    if (fork() == 0) { setsid(); stay(); }
}
static void *stay_thread(void *none) { stay(); return none; }
static void leader_gone(void) {
    // The first thread ends, the process does not.
    pthread_t t;
    pthread_create(&t, NULL, stay_thread, NULL);
    syscall(SYS_exit, 0);
}

// Using too much. Each stops by itself, not far behind what it may.
static void many_processes(void) {
    for (int i = 0; i < 90; i++) if (fork() == 0) { usleep(1500000); _exit(0); }
    printf("ESCAPED with 90 processes\n");
    fflush(stdout);
    while (wait(NULL) > 0) {}
}
static void many_generations(void) {
    for (int depth = 0; depth < 90; depth++) if (fork() > 0) { usleep(1500000); _exit(0); }
    printf("ESCAPED with 90 processes\n");
}
static void big_file(void) {
    signal(SIGXFSZ, SIG_IGN);
    char block[65536] = {1};
    int fd = open("big", O_CREAT | O_WRONLY, 0644);
    for (int i = 0; i < 64; i++) (void)!write(fd, block, sizeof block);
    if (lseek(fd, 0, SEEK_CUR) > 1 << 20) printf("ESCAPED with a big file\n");
}
static void big_file_allocated(void) {
    signal(SIGXFSZ, SIG_IGN);
    must_fail("fallocate", fallocate(open("big", O_CREAT | O_WRONLY, 0644), 0, 0, 4 << 20));
}
static void big_file_truncated(void) {
    signal(SIGXFSZ, SIG_IGN);
    must_fail("truncate", (close(open("big", O_CREAT | O_WRONLY, 0644)), truncate("big", 4 << 20)));
}
static void big_file_after_raising(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    tried("setrlimit", setrlimit(RLIMIT_FSIZE, &all));
    big_file();
}
static void much_memory(void) {
    for (int i = 0; i < 60; i++) {
        char *at = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at != MAP_FAILED) memset(at, 1, 5 << 20);
        usleep(20000);
    }
    printf("ESCAPED with 300 MB\n");
}
static void shared_memory(void) {
    char *at = mmap(NULL, 300 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (long n = 0; n < 300 << 20; n += 4096) { at[n] = 1; if (n % (5 << 20) == 0) usleep(20000); }
    printf("ESCAPED with 300 MB\n");
}
static void memory_in_children(void) {
    for (int child = 0; child < 10; child++)
        if (fork() == 0) { volatile char *at = malloc(30 << 20); for (long n = 0; n < 30 << 20; n += 4096) at[n] = 1; sleep(2); _exit(0); }
    sleep(2);
    printf("ESCAPED with 300 MB\n");
}
static void much_time(void) {
    volatile unsigned long n = 0;
    time_t end = time(NULL) + 6;
    while (time(NULL) < end) n++;
    printf("ESCAPED with six seconds\n");
}
static void time_in_children(void) {
    // Each child dies before it has used much.
    time_t end = time(NULL) + 8;
    while (time(NULL) < end) {
        if (fork() == 0) { for (volatile long n = 0; n < 20000000; n++) {} _exit(0); }
        wait(NULL);
    }
    printf("ESCAPED with eight seconds\n");
}
static void much_output(void) {
    char line[1024];
    memset(line, 'x', sizeof line);
    line[1023] = '\n';
    for (int i = 0; i < 4096; i++) (void)!write(1, line, sizeof line);
    int fd = open(in("secret/printed"), O_CREAT | O_WRONLY, 0644);
    close(fd);
}
static void waiting(void) { sleep(8); printf("ESCAPED with eight seconds\n"); }

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(by_kill), WAY(stop), WAY(by_tgkill), WAY(by_tkill), WAY(by_group), WAY(queued), WAY(queued_to_thread),
    WAY(by_descriptor), WAY(by_directory), WAY(owned_descriptor), WAY(owned_descriptor_by_thread), WAY(owned_socket),
    WAY(owned_socket_old), WAY(attached), WAY(seized), WAY(memory), WAY(memory_read), WAY(environment), WAY(maps),
    WAY(read_memory), WAY(write_memory), WAY(advise_memory), WAY(stolen_descriptor), WAY(limited), WAY(nice_process),
    WAY(nice_group), WAY(nice_user), WAY(processors), WAY(scheduled), WAY(scheduled_attributes), WAY(io_class),
    WAY(first_to_die), WAY(renamed_thread), WAY(moved_pages), WAY(other_group), WAY(moved_cgroup), WAY(widened_cgroup),
    WAY(removed_cgroup), WAY(left_cgroup), WAY(boss_by_kill), WAY(boss_stop),
    WAY(boss_by_tgkill), WAY(boss_by_tkill), WAY(boss_queued), WAY(boss_queued_to_thread), WAY(boss_by_descriptor),
    WAY(boss_by_directory), WAY(boss_owned_descriptor), WAY(boss_owned_descriptor_by_thread), WAY(boss_owned_socket),
    WAY(boss_owned_socket_old), WAY(boss_attached), WAY(boss_seized), WAY(boss_memory), WAY(boss_memory_read),
    WAY(boss_environment), WAY(boss_read_memory), WAY(boss_write_memory), WAY(boss_stolen_descriptor), WAY(boss_limited),
    WAY(boss_nice_process), WAY(boss_processors), WAY(boss_scheduled), WAY(boss_scheduled_attributes), WAY(boss_io_class),
    WAY(boss_first_to_die), WAY(boss_moved_cgroup), WAY(boss_by_group), WAY(boss_thread), WAY(boss_stopped_by_terminal),
    WAY(daemon_twice), WAY(daemon_subreaper), WAY(untraced), WAY(stopped_child), WAY(ignoring), WAY(leader_gone),
    WAY(many_processes), WAY(many_generations), WAY(big_file), WAY(big_file_allocated), WAY(big_file_truncated),
    WAY(big_file_after_raising), WAY(much_memory), WAY(shared_memory), WAY(memory_in_children), WAY(much_time),
    WAY(time_in_children), WAY(much_output), WAY(waiting), {NULL, NULL},
};
int main(int argc, char **argv) {
    // Whatever becomes of the sandbox, the machine survives the test.
    struct rlimit few = {2000, 2000};
    setrlimit(RLIMIT_NPROC, &few);
    alarm(20);
    return run_way(ways, argc, argv);
}
