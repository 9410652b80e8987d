// Ways to touch what Invigil keeps: WORLD/home is its store. WORLD/home/runs/before is a run that is over.
#include "escape.h"
#include <dirent.h>

#define JOURNAL "home/runs/before/journal.ndjson"

static void append(void) { must_fail("open", open(in(JOURNAL), O_WRONLY | O_APPEND)); }
static void append_to_own(void) { must_fail("open", open(in("home/runs/hostile/journal.ndjson"), O_WRONLY | O_APPEND)); }
static void by_link(void) { symlink(in("home"), "l"); must_fail("open", open("l/runs/before/journal.ndjson", O_WRONLY)); }
static void by_descriptor(void) {
    int fd = open(in(JOURNAL), O_PATH);
    must_fail("open", open(text("/proc/self/fd/%d", fd), O_WRONLY));
}
static void by_reading_descriptor(void) {
    int fd = open(in(JOURNAL), O_RDONLY);
    must_fail("open", open(text("/proc/self/fd/%d", fd), O_WRONLY));
}
static void by_supervisor_descriptor(void) {
    // Whatever the supervisor has open.
    for (int fd = 0; fd < 40; fd++) {
        int mine = open(text("/proc/%d/fd/%d", getppid(), fd), O_WRONLY | O_APPEND);
        struct stat st;
        if (mine >= 0 && fstat(mine, &st) == 0 && S_ISREG(st.st_mode)) must_fail("open", mine);
    }
    must_fail("readlink", readlink(text("/proc/%d/fd/0", getppid()), text(""), 100));
}
static void hard_link(void) {
    tried("link", link(in(JOURNAL), "j"));
    must_fail("open", open("j", O_WRONLY | O_APPEND));
}
static void truncated(void) { must_fail("truncate", truncate(in(JOURNAL), 10)); }
static void removed(void) { must_fail("unlink", unlink(in(JOURNAL))); }
static void renamed(void) { must_fail("rename", rename(in("home/runs/before"), in("home/runs/after"))); }
static void renamed_store(void) { must_fail("rename", rename(in("home"), "home")); }
static void replaced(void) {
    close(open("mine", O_CREAT | O_WRONLY, 0644));
    must_fail("rename", rename("mine", in(JOURNAL)));
}
static void exchanged(void) {
    mkdir("mine", 0755);
    must_fail("exchange", syscall(SYS_renameat2, AT_FDCWD, "mine", AT_FDCWD, in("home"), RENAME_EXCHANGE));
}
static void made(void) { must_fail("mkdir", mkdir(in("home/evil"), 0755)); }
static void mode(void) { must_fail("chmod", chmod(in("home/runs"), 0)); }
static void by_own_descriptor_mode(void) { must_fail("fchmod", fchmod(open(in(JOURNAL), O_RDONLY), 0)); }
static void locked(void) {
    // Whoever holds the lock of a run could make the supervisor wait.
    DIR *dir = opendir(in("home/runs/hostile"));
    struct dirent *entry;
    long got = -1;
    while (dir && (entry = readdir(dir))) {
        int fd = open(in(text("home/runs/hostile/%s", entry->d_name)), O_RDONLY);
        struct stat st;
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && syscall(SYS_flock, fd, 2 | 4) == 0) got = 0;
    }
    // Shared with the supervisor it is held for the rest of this life.
    printf("locks: %ld\n", got);
    sleep(1);
    close(open("still-recorded", O_CREAT | O_WRONLY, 0644));
}
static void leased(void) {
    int fd = open(in("home/runs/hostile/journal.ndjson"), O_RDONLY);
    must_fail("F_SETLEASE", fcntl(fd, F_SETLEASE, F_RDLCK));
}
static void index_written(void) { must_fail("open", open(in("home/index.sqlite"), O_WRONLY | O_CREAT, 0644)); }
static void mounted_over(void) {
    unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS);
    must_fail("mount", mount("none", in("home"), "tmpfs", 0, NULL));
}

// Approvals: the question is whether the witness may run. Half of the ways answer it, the other half waits.
static void asked(void) {
    if (fork() == 0) { char *argv[] = {"witness", NULL}; execv(in("tools/witness"), argv); tried("exec", -1); _exit(1); }
    usleep(400000);
}
static char *question(const char *suffix) {
    DIR *dir = opendir(in("home/approvals/hostile"));
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && strstr(entry->d_name, ".question")) {
            *strstr(entry->d_name, ".question") = 0;
            return text("%s/home/approvals/hostile/%s.%s", world, entry->d_name, suffix);
        }
    printf("no question\n");
    return text("%s/home/approvals/hostile/none.%s", world, suffix);
}
static void answer_file(void) {
    asked();
    must_fail("answer", open(question("answer"), O_CREAT | O_WRONLY, 0600));
    wait(NULL);
}
static void answer_linked(void) {
    asked();
    close(open("a", O_CREAT | O_WRONLY, 0600));
    must_fail("answer", link("a", question("answer")));
    wait(NULL);
}
static void answer_renamed(void) {
    asked();
    close(open("a", O_CREAT | O_WRONLY, 0600));
    must_fail("answer", rename("a", question("answer")));
    wait(NULL);
}
static void question_changed(void) {
    asked();
    must_fail("question", open(question("question"), O_WRONLY | O_TRUNC));
    wait(NULL);
}
static void user_policy(void) {
    // A rule in the user's own policy would answer every question.
    must_fail("policy", open(in("work/.config/invigil/policy.toml"), O_CREAT | O_WRONLY, 0600));
}

#define WAY(name) {#name, name}
static const struct way ways[] = {
    WAY(append), WAY(append_to_own), WAY(by_link), WAY(by_descriptor), WAY(by_reading_descriptor),
    WAY(by_supervisor_descriptor), WAY(hard_link), WAY(truncated), WAY(removed), WAY(renamed), WAY(renamed_store),
    WAY(replaced), WAY(exchanged), WAY(made), WAY(mode), WAY(by_own_descriptor_mode), WAY(locked), WAY(leased), 
    WAY(index_written), WAY(mounted_over), WAY(answer_file), WAY(answer_linked),
    WAY(answer_renamed), WAY(question_changed), WAY(user_policy), {NULL, NULL},
};
int main(int argc, char **argv) { return run_way(ways, argc, argv); }
