/* The floor: `floor reads|writes COMMAND` traps the same usual calls as Invigil, and lets each go on without a look.
   Nothing is read, recorded or decided; nobody who uses this mechanism can cost less. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif

#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)

static const unsigned CALLS[] = {
    __NR_execve,   __NR_connect, __NR_bind,  __NR_listen,   __NR_rename,  __NR_renameat,   __NR_renameat2, __NR_unlink,
    __NR_unlinkat, __NR_mkdir,   __NR_mkdirat, __NR_rmdir,  __NR_link,    __NR_linkat,     __NR_symlink,   __NR_symlinkat,
    __NR_chmod,    __NR_fchmod,  __NR_fchmodat, __NR_chown, __NR_fchownat, __NR_truncate, __NR_utimensat, __NR_chdir,
};

int main(int argc, char **argv) {
    if (argc < 3) return 125;
    int reads = !strcmp(argv[1], "reads");
    argv += 2;
    struct sock_filter code[sizeof CALLS / sizeof *CALLS + 6];
    struct sock_filter *at = code, *end = code + sizeof code / sizeof *code;
    *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < sizeof CALLS / sizeof *CALLS; i++, at++)
        *at = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i], end - at - 2, 0);
    *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 2);
    *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]));
    *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | (reads ? BPF_JGE : BPF_JSET) | BPF_K, reads ? 0 : WRITES, 1, 0);
    *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {at - code, code};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 125;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
        char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
        struct iovec data = {&byte, 1};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &listener, sizeof listener);
        if (sendmsg(pair[1], &message, 0) < 0) _exit(125);
        close(listener);
        close(pair[0]);
        close(pair[1]);
        execvp(*argv, argv);
        _exit(127);
    }
    char space[CMSG_SPACE(sizeof(int))], byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(pair[0], &message, 0) != 1) return 125;
    int listener;
    memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof listener);
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, 1UL);
    for (;;) {
        struct pollfd waiting = {listener, POLLIN, 0};
        poll(&waiting, 1, -1);
        if (!(waiting.revents & POLLIN)) break;
        struct seccomp_notif call = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) continue;
        struct seccomp_notif_resp answer = {call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
