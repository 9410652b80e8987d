// Parts of the kernel that a confined run has no business with. Nothing here would do harm if it were let through: arguments
// are bad on purpose where a good one would change the machine, and then any other error than a refusal counts.
#include "escape.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sys/personality.h>
#include <sys/timex.h>

// Bad arguments: the kernel looked at them, so it was let through.
static void must_be_refused(const char *what, long result) {
    if (result >= 0 || (errno != EPERM && errno != EACCES && errno != ENOSYS)) printf("ESCAPED by %s: %s\n", what, strerrorname_np(errno));
    else tried(what, result);
}
static void i386(void) {
    // open("../secret/key") as the older architecture counts; the path must lie low.
    char *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    strcpy(low, "../secret/key");
    long fd = -1;
#if defined(__x86_64__)
    __asm__ volatile("int $0x80" : "=a"(fd) : "a"(5), "b"(low), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
#endif
    errno = fd < 0 ? -fd : 0;
    show(fd < 0 ? -1 : fd);
}
static void i386_socket(void) {
    long fd = -1;
#if defined(__x86_64__)
    __asm__ volatile("int $0x80" : "=a"(fd) : "a"(359), "b"(AF_INET), "c"(SOCK_DGRAM), "d"(0) : "memory", "r8", "r9", "r10", "r11");
#endif
    errno = fd < 0 ? -fd : 0;
    must_fail("int 0x80", fd < 0 ? -1 : fd);
}
static void x32(void) { show(syscall(0x40000000 | 2, "../secret/key", O_RDONLY, 0)); }
static void x32_exec(void) {
    char *argv[] = {"x", NULL};
    syscall(0x40000000 | 520, in("tools/witness"), argv, environ);
    tried("x32 execve", -1);
}
static void user_namespace(void) { must_fail("unshare", unshare(CLONE_NEWUSER)); }
static void mount_namespace(void) { must_fail("unshare", unshare(CLONE_NEWNS)); }
static void net_namespace(void) { must_fail("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNET)); }
static void pid_namespace(void) { must_fail("unshare", unshare(CLONE_NEWUSER | CLONE_NEWPID)); }
static void other_namespaces(void) { must_fail("unshare", unshare(CLONE_NEWUSER | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)); }
static void cloned_namespace(void) {
    long pid = tried("clone", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) { printf("ESCAPED by clone\n"); fflush(stdout); _exit(0); }
    wait(NULL);
}
static void cloned3_namespace(void) {
    uint64_t args[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    long pid = tried("clone3", syscall(SYS_clone3, args, sizeof args));
    if (pid == 0) { printf("ESCAPED by clone3\n"); fflush(stdout); _exit(0); }
    wait(NULL);
}
static void cloned_into_cgroup(void) {
    uint64_t args[11] = {0x200000000ULL /* CLONE_INTO_CGROUP */, 0, 0, 0, SIGCHLD};
    args[10] = open("/sys/fs/cgroup", O_PATH);
    long pid = tried("clone3", syscall(SYS_clone3, args, sizeof args));
    if (pid == 0) { printf("ESCAPED by clone3\n"); fflush(stdout); _exit(0); }
}
static void set_namespace(void) { must_fail("setns", setns(open(text("/proc/%d/ns/mnt", getpid()), O_RDONLY), 0)); }
static void set_namespace_of_victim(void) {
    must_fail("setns", setns(syscall(SYS_pidfd_open, victim, 0), CLONE_NEWNS | CLONE_NEWUSER));
}
static void mounting(void) { mkdir("m", 0755); must_fail("mount", mount("none", "m", "tmpfs", 0, NULL)); umount2("m", MNT_DETACH); }
static void mounting_anew(void) { must_fail("fsopen", syscall(SYS_fsopen, "tmpfs", 0)); }
static void unmounting(void) { must_be_refused("umount", umount2("/nonexistent", 0)); }
static void attributes_of_mount(void) {
    uint64_t attr[4] = {0};
    must_be_refused("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/nonexistent", 0, attr, sizeof attr));
}
static void pivoting(void) { must_be_refused("pivot_root", syscall(SYS_pivot_root, "/nonexistent", "/nonexistent")); }
static void changing_root(void) { must_be_refused("chroot", chroot("/nonexistent")); }
static void keys(void) { must_fail("keyctl", syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, -4, 1)); }
static void adding_key(void) { must_fail("add_key", syscall(SYS_add_key, "user", "invigil-escape", "x", 1, -2 /* process */)); }
static void asking_key(void) { must_be_refused("request_key", syscall(SYS_request_key, "user", "invigil-escape", NULL, 0)); }
static void programs_in_kernel(void) { char attr[128] = {0}; must_be_refused("bpf", syscall(SYS_bpf, 99, attr, sizeof attr)); }
static void performance(void) {
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .exclude_kernel = 1};
    must_fail("perf_event_open", syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0));
}
static void page_faults(void) { must_fail("userfaultfd", syscall(SYS_userfaultfd, 1 /* user mode only */)); }
static void new_kernel(void) { must_be_refused("kexec_load", syscall(SYS_kexec_load, 0, 1000, NULL, 0)); }
static void new_kernel_file(void) { must_be_refused("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, ~0UL)); }
static void module(void) { must_be_refused("init_module", syscall(SYS_init_module, NULL, 0, NULL)); }
static void module_file(void) { must_be_refused("finit_module", syscall(SYS_finit_module, -1, "", ~0)); }
static void module_gone(void) { must_be_refused("delete_module", syscall(SYS_delete_module, NULL, 0)); }
static void rebooting(void) { must_be_refused("reboot", syscall(SYS_reboot, 0, 0, 0, NULL)); }
static void swapping(void) { must_be_refused("swapon", syscall(SYS_swapon, "/nonexistent", 0)); }
static void unswapping(void) { must_be_refused("swapoff", syscall(SYS_swapoff, "/nonexistent")); }
static void accounting(void) { must_be_refused("acct", syscall(SYS_acct, "/nonexistent")); }
static void quotas(void) { must_be_refused("quotactl", syscall(SYS_quotactl, -1, "/nonexistent", 0, NULL)); }
static void kernel_log(void) { must_fail("syslog", syscall(SYS_syslog, 3, text(""), 100)); }
static void the_clock(void) {
    // To what it is anyway: bad values are refused by anybody.
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    must_be_refused("clock_settime", clock_settime(CLOCK_REALTIME, &now));
}
static void adjusted_clock(void) { struct timex t = {.modes = ADJ_TICK, .tick = 1}; must_be_refused("adjtimex", adjtimex(&t)); }
static void host_name(void) { must_be_refused("sethostname", syscall(SYS_sethostname, (char *)8, 4)); }
static void ports(void) { must_be_refused("ioperm", syscall(SYS_ioperm, 0x80, 1, 1)); }
static void device_node(void) { must_fail("mknod", mknod("mem", S_IFCHR | 0600, 0x101 /* /dev/mem */)); }
static void raw_memory(void) {
    must_fail("/proc/kcore", open("/proc/kcore", O_RDONLY));
    must_fail("/dev/mem", open("/dev/mem", O_RDONLY));
    must_fail("/dev/mem", open("/dev/mem", O_RDWR));
    must_fail("/dev/kmsg", open("/dev/kmsg", O_RDONLY | O_NONBLOCK));
}
static void watching_files(void) { must_fail("fanotify_init", syscall(SYS_fanotify_init, 0 /* content */, O_RDONLY)); }
static void terminal_input(void) {
    int ours, theirs;
    if (tried("openpty", openpty(&ours, &theirs, NULL, NULL, NULL)) < 0) return;
    if (fork() == 0) {
        setsid();
        ioctl(theirs, TIOCSCTTY, 0);
        must_fail("TIOCSTI", ioctl(theirs, TIOCSTI, "x"));
        _exit(0);
    }
    wait(NULL);
}
static void terminal_input_high_bits(void) {
    // The kernel looks at half of the register.
    int ours, theirs;
    if (tried("openpty", openpty(&ours, &theirs, NULL, NULL, NULL)) < 0) return;
    if (fork() == 0) {
        setsid();
        ioctl(theirs, TIOCSCTTY, 0);
        must_fail("TIOCSTI", syscall(SYS_ioctl, theirs, 0x100000000UL | TIOCSTI, "x"));
        _exit(0);
    }
    wait(NULL);
}
static void unshare_high_bits(void) { must_fail("unshare", syscall(SYS_unshare, 0x7f00000000UL | CLONE_NEWUSER)); }
static void open_high_bits(void) { show(syscall(SYS_openat, 0xdead00000000UL | (uint32_t)AT_FDCWD, "../secret/key", 0xbeef00000000UL, 0)); }
static void own_listener(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    must_fail("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}
static void own_filter_that_allows(void) {
    // A filter of its own that lets everything through does not outvote ours.
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    show(open("../secret/key", O_RDONLY));
}
static void own_landlock(void) {
    struct landlock_ruleset_attr attr = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_FIFO};
    int fd = syscall(SYS_landlock_create_ruleset, &attr, 8, 0);
    tried("landlock", syscall(SYS_landlock_restrict_self, fd, 0));
    show_path("../secret/key");
}
static void not_dumpable(void) { prctl(PR_SET_DUMPABLE, 0); show_path("../secret/key"); }
static void any_tracer(void) {
    prctl(PR_SET_PTRACER, -1);
    if (fork() == 0) _exit(ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0);
    wait(NULL);
    show_path("../secret/key");
}
static void traced_child(void) {
    // Whoever traces a child could rewrite its calls after they were judged.
    pid_t pid = fork();
    if (pid == 0) { must_fail("PTRACE_TRACEME", ptrace(PTRACE_TRACEME, 0, 0, 0)); fflush(stdout); _exit(0); }
    waitpid(pid, NULL, 0);
}
static void own_dispatch(void) {
    // System calls that a handler of the program's own takes first.
    static char selector = 0;
    prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector);
    show_path("../secret/key");
}
static void not_random(void) {
    char *argv[] = {"witness", NULL};
    execv(in("tools/witness"), argv);
    tried("exec", -1);
}
static void set_user_id(void) { char *argv[] = {"x", "rights", NULL}; execv(in("tools/suid"), argv); tried("exec", -1); }
static void regained(void) {
    // CAP_SYS_ADMIN and CAP_SYS_PTRACE, effective, permitted and inheritable.
    struct { uint32_t version; int pid; } head = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } data[2] = {{1 << 21 | 1 << 19, 1 << 21 | 1 << 19, 0}};
    must_fail("capset", syscall(SYS_capset, &head, data));
}
static void setuid_root(void) {
    // Whoever is root becomes somebody else first.
    if (geteuid() == 0) tried("setresuid", setresuid(1, 1, 1));
    must_fail("setuid", setuid(0));
}
static void other_personality(void) {
    // Addresses that can be known, and data that can be run.
    tried("personality", personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC));
    apart(not_random);
    show_path("../secret/key");
}

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(i386), WAY(i386_socket), WAY(x32), WAY(x32_exec), WAY(user_namespace), WAY(mount_namespace), WAY(net_namespace),
    WAY(pid_namespace), WAY(other_namespaces), WAY(cloned_namespace), WAY(cloned3_namespace), WAY(cloned_into_cgroup),
    WAY(set_namespace), WAY(set_namespace_of_victim), WAY(mounting), WAY(mounting_anew), WAY(unmounting),
    WAY(attributes_of_mount), WAY(pivoting), WAY(changing_root), WAY(keys), WAY(adding_key), WAY(asking_key),
    WAY(programs_in_kernel), WAY(performance), WAY(page_faults), WAY(new_kernel), WAY(new_kernel_file), WAY(module),
    WAY(module_file), WAY(module_gone), WAY(rebooting), WAY(swapping), WAY(unswapping), WAY(accounting), WAY(quotas),
    WAY(kernel_log), WAY(the_clock), WAY(adjusted_clock), WAY(host_name), WAY(ports), WAY(device_node), WAY(raw_memory),
    WAY(watching_files), WAY(terminal_input), WAY(terminal_input_high_bits), WAY(unshare_high_bits), WAY(open_high_bits),
    WAY(own_listener), WAY(own_filter_that_allows), WAY(own_landlock), WAY(not_dumpable), WAY(any_tracer), WAY(traced_child),
    WAY(own_dispatch), WAY(set_user_id), WAY(regained), WAY(setuid_root), WAY(other_personality), {NULL, NULL},
};
int main(int argc, char **argv) { return run_way(ways, argc, argv); }
