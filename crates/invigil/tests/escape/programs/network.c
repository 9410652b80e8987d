// Ways to reach somebody: everything but 127.0.0.1:ALLOWED is forbidden. Servers listen at PORT, at WORLD/outside/docker.sock
// and at the abstract name `invigil-escape-PORT`, and know if anybody came.
#include "escape.h"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/vm_sockets.h>
#include <netinet/tcp.h>

static struct sockaddr_in v4(int at) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(at), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
static struct sockaddr_in6 v6(const char *ip, int at) {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(at)};
    inet_pton(AF_INET6, ip, &to.sin6_addr);
    return to;
}
static void reach(int family, int type, void *to, socklen_t size) {
    int s = tried("socket", socket(family, type, 0));
    if (tried("connect", connect(s, to, size)) == 0) must_fail("send", send(s, "x", 1, 0));
}
static void tcp4(void) { struct sockaddr_in to = v4(port); reach(AF_INET, SOCK_STREAM, &to, sizeof to); }
static void tcp4_nonblocking(void) {
    struct sockaddr_in to = v4(port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tried("connect", connect(s, (void *)&to, sizeof to));
    usleep(50000);
    must_fail("send", send(s, "x", 1, MSG_NOSIGNAL));
}
static void tcp6(void) { struct sockaddr_in6 to = v6("::1", port); reach(AF_INET6, SOCK_STREAM, &to, sizeof to); }
static void mapped(void) { struct sockaddr_in6 to = v6("::ffff:127.0.0.1", port); reach(AF_INET6, SOCK_STREAM, &to, sizeof to); }
static void any4(void) { struct sockaddr_in to = v4(port); to.sin_addr.s_addr = 0; reach(AF_INET, SOCK_STREAM, &to, sizeof to); }
static void any6(void) { struct sockaddr_in6 to = v6("::", port); reach(AF_INET6, SOCK_STREAM, &to, sizeof to); }
static void other_loopback(void) {
    struct sockaddr_in to = v4(port);
    to.sin_addr.s_addr = htonl(0x7f000002);
    reach(AF_INET, SOCK_STREAM, &to, sizeof to);
}
static void four_on_six(void) {
    // A socket of one family with an address of the other.
    struct sockaddr_in to = v4(port);
    int s = socket(AF_INET6, SOCK_DGRAM, 0);
    must_fail("sendto", sendto(s, "x", 1, 0, (void *)&to, sizeof to));
}
static void long_address(void) {
    struct { struct sockaddr_in to; char more[64]; } big = {v4(port)};
    reach(AF_INET, SOCK_STREAM, &big, sizeof big);
}
static void udp_connected(void) { struct sockaddr_in to = v4(port); reach(AF_INET, SOCK_DGRAM, &to, sizeof to); }
static void udp_sendto(void) {
    struct sockaddr_in to = v4(port);
    must_fail("sendto", sendto(tried("socket", socket(AF_INET, SOCK_DGRAM, 0)), "x", 1, 0, (void *)&to, sizeof to));
}
static void udp_unspecified(void) {
    // For IPv4 datagrams the kernel takes this family for its own.
    struct sockaddr_in to = v4(port);
    to.sin_family = AF_UNSPEC;
    must_fail("sendto", sendto(tried("socket", socket(AF_INET, SOCK_DGRAM, 0)), "x", 1, 0, (void *)&to, sizeof to));
}
static void udp6(void) { struct sockaddr_in6 to = v6("::1", port); reach(AF_INET6, SOCK_DGRAM, &to, sizeof to); }
static void message(int s, void *to, socklen_t size) {
    struct iovec part = {"x", 1};
    struct msghdr m = {.msg_name = to, .msg_namelen = size, .msg_iov = &part, .msg_iovlen = 1};
    must_fail("sendmsg", sendmsg(s, &m, MSG_NOSIGNAL));
}
static void udp_sendmsg(void) { struct sockaddr_in to = v4(port); message(socket(AF_INET, SOCK_DGRAM, 0), &to, sizeof to); }
static void udp_sendmmsg(void) {
    // The first goes where it may.
    struct sockaddr_in to[2] = {v4(allowed), v4(port)};
    struct iovec part = {"x", 1};
    struct mmsghdr m[2] = {0};
    for (int i = 0; i < 2; i++)
        m[i].msg_hdr = (struct msghdr){.msg_name = &to[i], .msg_namelen = sizeof to[i], .msg_iov = &part, .msg_iovlen = 1};
    int s = socket(AF_INET, SOCK_DGRAM, 0), sent = tried("sendmmsg", sendmmsg(s, m, 2, 0));
    // Fewer than asked for is an answer, and one goes on with the rest.
    must_fail("sendmmsg", sent == 1 ? sendmmsg(s, m + 1, 1, 0) : sent == 2 ? 0 : -1);
}
static void fast_open(void) {
    struct sockaddr_in to = v4(port);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    must_fail("sendto", sendto(s, "x", 1, MSG_FASTOPEN | MSG_NOSIGNAL, (void *)&to, sizeof to));
}
static void fast_open_message(void) {
    struct sockaddr_in to = v4(port);
    struct iovec part = {"x", 1};
    struct msghdr m = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &part, .msg_iovlen = 1};
    must_fail("sendmsg", sendmsg(socket(AF_INET, SOCK_STREAM, 0), &m, MSG_FASTOPEN | MSG_NOSIGNAL));
}
static void fast_open_option(void) {
    struct sockaddr_in to = v4(port);
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(s, IPPROTO_TCP, 30 /* TCP_FASTOPEN_CONNECT */, &one, sizeof one);
    if (tried("connect", connect(s, (void *)&to, sizeof to)) == 0) must_fail("send", send(s, "x", 1, MSG_NOSIGNAL));
}
static void raw(void) {
    struct sockaddr_in to = v4(port);
    to.sin_port = 0;
    must_fail("raw", sendto(tried("socket", socket(AF_INET, SOCK_RAW, IPPROTO_UDP)), "\0\1\0\1\0\x08\0\0", 8, 0, (void *)&to, sizeof to));
}
static void ping(void) { must_fail("ping", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)); }
static void packet(void) { must_fail("packet", socket(AF_PACKET, SOCK_RAW, htons(3))); }
static void vsock(void) {
    struct sockaddr_vm to = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_LOCAL, .svm_port = 1};
    int s = tried("socket", socket(AF_VSOCK, SOCK_STREAM, 0));
    int r = tried("connect", connect(s, (void *)&to, sizeof to));
    // Whoever is told that nobody listens has asked.
    if (r == 0 || errno == ECONNRESET || errno == ECONNREFUSED) must_fail("vsock", 0);
}
static void sctp(void) { must_fail("sctp", socket(AF_INET, SOCK_STREAM, 132)); }
static void multipath(void) {
    struct sockaddr_in to = v4(port);
    int s = tried("socket", socket(AF_INET, SOCK_STREAM, 262));
    if (tried("connect", connect(s, (void *)&to, sizeof to)) == 0) must_fail("send", send(s, "x", 1, 0));
}
static void crypto(void) { must_fail("af_alg", socket(AF_ALG, SOCK_SEQPACKET, 0)); }

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    return to;
}
static void unix_at(const char *path) { struct sockaddr_un to = at(path); reach(AF_UNIX, SOCK_STREAM, &to, sizeof to); }
static void docker(void) { unix_at("../outside/docker.sock"); }
static void docker_by_link(void) { symlink("../outside/docker.sock", "s"); unix_at("s"); }
static void docker_by_descriptor(void) { unix_at(text("/proc/self/fd/%d/docker.sock", open("../outside", O_PATH))); }
static void docker_by_socket_descriptor(void) { unix_at(text("/proc/self/fd/%d", open("../outside/docker.sock", O_PATH))); }
static void docker_hard_link(void) { tried("link", link("../outside/docker.sock", "s")); unix_at("s"); }
static void docker_renamed(void) { tried("rename", rename("../outside", "o")); unix_at("o/docker.sock"); }
static void bus_datagram(void) {
    struct sockaddr_un to = at("../outside/bus.sock");
    must_fail("sendto", sendto(socket(AF_UNIX, SOCK_DGRAM, 0), "x", 1, 0, (void *)&to, sizeof to));
}
static void bus_message(void) {
    struct sockaddr_un to = at("../outside/bus.sock");
    message(socket(AF_UNIX, SOCK_DGRAM, 0), &to, sizeof to);
}
static struct sockaddr_un abstract(socklen_t *size) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    *size = 3 + sprintf(to.sun_path + 1, "invigil-escape-%d", port);
    return to;
}
static void abstract_name(void) { socklen_t n; struct sockaddr_un to = abstract(&n); reach(AF_UNIX, SOCK_STREAM, &to, n); }
static void listening(void) {
    struct sockaddr_in to = v4(0);
    to.sin_addr.s_addr = 0;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (tried("bind", bind(s, (void *)&to, sizeof to)) == 0) must_fail("listen", listen(s, 1));
}
static void listening_unbound(void) { must_fail("listen", listen(tried("socket", socket(AF_INET, SOCK_STREAM, 0)), 1)); }
static void bound_unspecified(void) {
    // Binding takes this family for IPv4 too.
    struct sockaddr_in to = {.sin_family = AF_UNSPEC, .sin_port = htons(0)};
    must_fail("bind", bind(tried("socket", socket(AF_INET, SOCK_DGRAM, 0)), (void *)&to, sizeof to));
}
static void passed(void) {
    // Who makes a socket and who connects it are two processes.
    struct sockaddr_in to = v4(port);
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char room[CMSG_SPACE(sizeof(int))] = {0}, c = 'x';
    struct iovec part = {&c, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (fork() == 0) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof s);
        memcpy(CMSG_DATA(h), &s, sizeof s);
        tried("sendmsg", sendmsg(pair[0], &m, 0));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    tried("recvmsg", recvmsg(pair[1], &m, MSG_DONTWAIT));
    int s = -1;
    if (CMSG_FIRSTHDR(&m)) memcpy(&s, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof s);
    if (tried("connect", connect(s, (void *)&to, sizeof to)) == 0) must_fail("send", send(s, "x", 1, 0));
}
// Somebody outside hands over what it has open: a directory, a file by its name only, a file that can be read.
static int given(const char *by, int which) {
    struct sockaddr_un to = at(by);
    int s = socket(AF_UNIX, SOCK_STREAM, 0), fds[3] = {-1, -1, -1};
    if (tried("connect", connect(s, (void *)&to, sizeof to)) < 0) return -1;
    char room[CMSG_SPACE(sizeof fds)] = {0}, c;
    struct iovec part = {&c, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    tried("recvmsg", recvmsg(s, &m, 0));
    if (CMSG_FIRSTHDR(&m)) memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fds);
    return fds[which];
}
static void given_directory(void) { show(openat(given("../outside/giver.sock", 0), "key", O_RDONLY)); }
static void given_parent(void) { show(openat(given("../outside/giver.sock", 0), "../secret/key", O_RDONLY)); }
static void given_name(void) { show(open(text("/proc/self/fd/%d", given("../outside/giver.sock", 1)), O_RDONLY)); }
static void given_name_by_process(void) {
    show(open(text("/proc/%d/fd/%d", getpid(), given("../outside/giver.sock", 1)), O_RDONLY));
}
static void given_by_stranger(void) { show(given("../outside/stranger.sock", 2)); }
static void messages_to_processes(void) {
    // A family of the kernel's own sockets by which processes talk to each other.
    must_fail("netlink", socket(AF_NETLINK, SOCK_RAW, 2 /* NETLINK_USERSOCK */));
}
static void ring(void) {
    struct io_uring_params params = {0};
    must_fail("io_uring_setup", syscall(SYS_io_uring_setup, 8, &params));
}

// Races: a second thread changes the address after it was read.
static struct sockaddr_in shared;
static volatile int over;
static void *flip(void *none) {
    volatile uint16_t *at = &shared.sin_port;
    while (!over) { *at = htons(allowed); *at = htons(port); }
    return none;
}
static pthread_t begin(void) {
    pthread_t thread;
    shared = v4(allowed);
    pthread_create(&thread, NULL, flip, NULL);
    return thread;
}
static void end(pthread_t thread) { over = 1; pthread_join(thread, NULL); }
static void race_connect(void) {
    // Only whoever asks for a connection to the wrong port is seen there, so every connection counts.
    pthread_t thread = begin();
    struct linger now = {1, 0};
    for (long i = 0; i < tries; i++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        struct sockaddr_in peer;
        socklen_t n = sizeof peer;
        int lost = connect(s, (void *)&shared, sizeof shared) == 0 && getpeername(s, (void *)&peer, &n) == 0 && ntohs(peer.sin_port) == port;
        close(s);
        // Nobody takes those who come there, so that more would wait for ever.
        if (lost) { must_fail("connect", 0); break; }
    }
    end(thread);
}
static void race_sendto(void) {
    pthread_t thread = begin();
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    for (long i = 0; i < tries; i++) sendto(s, "x", 1, MSG_DONTWAIT, (void *)&shared, sizeof shared);
    end(thread);
}
static void race_sendmsg(void) {
    pthread_t thread = begin();
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct iovec part = {"x", 1};
    struct msghdr m = {.msg_name = &shared, .msg_namelen = sizeof shared, .msg_iov = &part, .msg_iovlen = 1};
    for (long i = 0; i < tries; i++) sendmsg(s, &m, MSG_DONTWAIT);
    end(thread);
}
static struct sockaddr_un name;
static void *flip_name(void *none) {
    while (!over) { memcpy(name.sun_path, "../outside/allowed.sock", 24); memcpy(name.sun_path, "../outside/docker.sock\0", 24); }
    return none;
}
static void race_unix(void) {
    pthread_t thread;
    name = at("../outside/allowed.sock");
    pthread_create(&thread, NULL, flip_name, NULL);
    for (long i = 0; i < tries; i++) {
        int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(s, (void *)&name, sizeof name);
        close(s);
    }
    end(thread);
}
static void race_socket(void) {
    // The socket under a number is exchanged: what may be said to one may not be said to the other.
    struct sockaddr_in to = v4(port);
    int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0), at = dup(udp);
    pid_t pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) for (;;) { dup2(udp, at); dup2(tcp, at); }
    for (long i = 0; i < tries; i++) sendto(at, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (void *)&to, sizeof to);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(tcp4), WAY(tcp4_nonblocking), WAY(tcp6), WAY(mapped), WAY(any4), WAY(any6), WAY(other_loopback), WAY(four_on_six),
    WAY(long_address), WAY(udp_connected), WAY(udp_sendto), WAY(udp_unspecified), WAY(udp6), WAY(udp_sendmsg),
    WAY(udp_sendmmsg), WAY(fast_open), WAY(fast_open_message), WAY(fast_open_option), WAY(raw), WAY(ping), WAY(packet),
    WAY(vsock), WAY(sctp), WAY(multipath), WAY(crypto),
    WAY(docker), WAY(docker_by_link), WAY(docker_by_descriptor), WAY(docker_by_socket_descriptor), WAY(docker_hard_link),
    WAY(docker_renamed), WAY(bus_datagram), WAY(bus_message), WAY(abstract_name), WAY(listening), WAY(listening_unbound),
    WAY(bound_unspecified), WAY(passed), WAY(given_directory), WAY(given_parent), WAY(given_name),
    WAY(given_name_by_process), WAY(given_by_stranger), WAY(messages_to_processes), WAY(ring), WAY(race_connect), WAY(race_sendto), WAY(race_sendmsg), WAY(race_unix),
    WAY(race_socket), {NULL, NULL},
};
int main(int argc, char **argv) { return run_way(ways, argc, argv); }
