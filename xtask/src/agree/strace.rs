//! The facts of an `strace -f -yy`: its lines, put together, and what the calls in them mean.

use std::collections::HashMap;

use super::fact::{self, Facts, File};
use super::line::{self, Line, Return};
use super::mask::Masks;
use super::resolve::{Follow, join, resolve, script};

/// What strace is asked for: the calls that are facts, and those that say where relative paths begin.
pub(super) const CALLS: &str = "execve,execveat,?open,openat,openat2,?creat,truncate,?rename,?renameat,renameat2,?link,\
linkat,?unlink,unlinkat,?mkdir,mkdirat,?rmdir,?chmod,fchmod,fchmodat,?fchmodat2,?chown,fchown,?lchown,fchownat,?symlink,\
symlinkat,?utime,?utimes,?futimesat,utimensat,setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,fremovexattr,?mknod,\
mknodat,connect,bind,listen,sendto,sendmsg,sendmmsg,chdir,fchdir,?fork,?vfork,clone,clone3,rt_sigreturn";

/// The facts that a log of strace holds. `cwd` is where the first process began.
pub(super) fn read(log: &str, cwd: &str, masks: &Masks, reads: bool) -> Facts {
    let lines = line::join(log);
    let mut reader = Reader {
        begin: cwd,
        makers: makers(&lines),
        cwds: HashMap::new(),
        facts: Facts::new(),
        masks,
        reads,
    };
    // Calls that a signal broke off. Whether the kernel makes them again shows when the signal's handler is left.
    let mut broken: HashMap<u32, &Line> = HashMap::new();
    for line in &lines {
        match line {
            Line::Call {
                task,
                result: Return::Restarted,
                ..
            } => {
                broken.insert(*task, line);
            }
            Line::Call {
                task, name, result, ..
            } if name == "rt_sigreturn" => {
                let broken = broken.remove(task);
                if let (
                    Some(Line::Call {
                        name, arguments, ..
                    }),
                    Return::Error(_),
                ) = (broken, result)
                {
                    reader.call(&Call {
                        task: *task,
                        name,
                        arguments,
                        result,
                    });
                }
            }
            Line::Call {
                task,
                name,
                arguments,
                result,
            } => {
                broken.remove(task);
                reader.call(&Call {
                    task: *task,
                    name,
                    arguments,
                    result,
                });
            }
            Line::Exit { task, how } => reader.exit(*task, how),
        }
    }
    reader.facts
}

/// Who made each task, and whether it is a thread that shares its maker's directory.
fn makers(lines: &[Line]) -> HashMap<u32, (u32, bool)> {
    let made = lines.iter().filter_map(|line| {
        let Line::Call {
            task,
            name,
            arguments,
            result,
        } = line
        else {
            return None;
        };
        let Return::Number(child, _) = result else {
            return None;
        };
        let makes = ["fork", "vfork", "clone", "clone3"].contains(&name.as_str());
        let thread = arguments.iter().any(|word| word.contains("CLONE_THREAD"));
        makes.then_some((*child as u32, (*task, thread)))
    });
    made.collect()
}

struct Reader<'a> {
    begin: &'a str,
    makers: HashMap<u32, (u32, bool)>,
    cwds: HashMap<u32, String>,
    facts: Facts,
    masks: &'a Masks,
    /// Whether opens for reading are facts.
    reads: bool,
}

impl Reader<'_> {
    fn exit(&mut self, task: u32, how: &str) {
        // Threads are not processes; their ends are no facts.
        if !self.makers.get(&task).is_some_and(|(_, thread)| *thread) {
            self.add(fact::exit(how));
        }
    }

    fn add(&mut self, fact: String) {
        fact::add(&mut self.facts, self.masks.apply(&fact));
    }

    /// The task whose directory a task uses.
    fn holder(&self, mut task: u32) -> u32 {
        while let Some((maker, true)) = self.makers.get(&task) {
            task = *maker;
        }
        task
    }

    fn cwd(&mut self, task: u32) -> String {
        let holder = self.holder(task);
        if let Some(cwd) = self.cwds.get(&holder) {
            return cwd.clone();
        }
        let cwd = match self.makers.get(&holder) {
            Some((maker, _)) => self.cwd(*maker),
            None => self.begin.to_owned(),
        };
        self.cwds.insert(holder, cwd.clone());
        cwd
    }

    /// A path as it was written, made absolute.
    fn absolute(&mut self, call: &Call<'_>, dir: Option<usize>, path: usize) -> String {
        // No pointer to a path: strace shows the pointer.
        if !call.argument(path).starts_with('"') {
            return "(unreadable)".into();
        }
        let path = line::string(call.argument(path));
        let dir = match dir.map(|dir| line::file_of(call.argument(dir))) {
            Some(Some(dir)) => dir,
            _ => self.cwd(call.task),
        };
        join(&dir, &path)
    }

    fn path(&mut self, call: &Call<'_>, dir: Option<usize>, path: usize, follow: Follow) -> String {
        let path = self.absolute(call, dir, path);
        if path.starts_with('/') {
            resolve(&path, follow)
        } else {
            path
        }
    }

    fn call(&mut self, call: &Call<'_>) {
        match call.name {
            "fork" | "vfork" | "clone" | "clone3" => self.made(call),
            "chdir" | "fchdir" => self.moved(call),
            "execve" | "execveat" => self.exec(call),
            "open" | "openat" | "openat2" | "creat" => self.open(call),
            "connect" | "bind" | "listen" | "sendto" | "sendmsg" | "sendmmsg" => self.net(call),
            _ => {
                if let Some(file) = self.file(call) {
                    let result = call.result.text();
                    self.add(fact::file(File { result, ..file }));
                }
            }
        }
    }

    fn made(&mut self, call: &Call<'_>) {
        let Return::Number(child, _) = call.result else {
            return;
        };
        // The maker waits inside of the call: the directory that it has now is the one that the child began with,
        // unless the child was faster than its maker's line.
        self.cwd(*child as u32);
        let thread = self.makers.get(&(*child as u32));
        if !thread.is_some_and(|(_, thread)| *thread) {
            self.add(fact::fork());
        }
    }

    fn moved(&mut self, call: &Call<'_>) {
        if !matches!(call.result, Return::Number(..)) {
            return;
        }
        let to = match call.name {
            "fchdir" => line::file_of(call.argument(0)).unwrap_or_default(),
            _ => self.path(call, None, 0, Follow::Yes),
        };
        let holder = self.holder(call.task);
        self.cwds.insert(holder, to);
    }

    fn exec(&mut self, call: &Call<'_>) {
        let (dir, path, argv) = match call.name {
            "execve" => (None, 0, 1),
            _ => (Some(0), 1, 2),
        };
        let mut asked = self.absolute(call, dir, path);
        let text = line::string(call.argument(path));
        if text.is_empty() && call.name == "execveat" {
            asked = line::file_of(call.argument(0)).unwrap_or_default();
        }
        let fact = match call.result {
            Return::Number(..) => {
                let argv = line::strings(call.argument(argv));
                fact::exec(&asked, &script(&asked, &text, argv))
            }
            result => fact::exec_failed(&asked, &result.text()),
        };
        self.add(fact);
    }

    fn open(&mut self, call: &Call<'_>) {
        let (dir, path) = match call.name {
            "open" | "creat" => (None, 0),
            _ => (Some(0), 1),
        };
        let (words, mode) = match call.name {
            "creat" => ("O_WRONLY|O_CREAT|O_TRUNC".to_owned(), call.argument(1)),
            "open" => (call.argument(1).to_owned(), call.argument(2)),
            "openat" => (call.argument(2).to_owned(), call.argument(3)),
            _ => {
                let how = call.argument(2);
                (
                    line::field(how, "flags").to_owned(),
                    line::field(how, "mode"),
                )
            }
        };
        let mut flags = open_flags(&words);
        if !line::field(call.argument(2), "resolve").is_empty() && call.name == "openat2" {
            flags.push("restricted");
        }
        if !self.reads && !fact::changes(&flags) {
            return;
        }
        let makes = flags.contains(&"create") || flags.contains(&"temporary");
        let follow = if flags.contains(&"no_follow") || flags.contains(&"exclusive") {
            Follow::No
        } else {
            Follow::Yes
        };
        let path = match call.result {
            Return::Number(_, Some(opened)) => opened.clone(),
            _ => self.path(call, dir, path, follow),
        };
        self.add(fact::file(File {
            op: "open",
            path,
            flags,
            mode: makes.then(|| line::octal(mode)),
            result: call.result.text(),
            ..File::default()
        }));
    }

    fn file<'a>(&mut self, call: &Call<'a>) -> Option<File<'a>> {
        let (follow, keep) = (Follow::Yes, Follow::No);
        let of = |op, path| File {
            op,
            path,
            ..File::default()
        };
        let with_mode = |op, path, mode: &str| File {
            mode: Some(line::octal(mode) & 0o7777),
            ..of(op, path)
        };
        let followed = |flags: &str| {
            if flags.contains("AT_SYMLINK_NOFOLLOW") {
                keep
            } else {
                follow
            }
        };
        let a = |at| call.argument(at);
        Some(match call.name {
            "truncate" => File {
                detail: Some(a(1).to_owned()),
                ..of("truncate", self.path(call, None, 0, follow))
            },
            "rename" | "renameat" | "renameat2" => {
                let (old, new) = pair(call.name == "rename");
                let exchange = a(4).contains("RENAME_EXCHANGE");
                File {
                    to: Some(self.path(call, new.0, new.1, keep)),
                    ..of(
                        if exchange { "exchange" } else { "rename" },
                        self.path(call, old.0, old.1, keep),
                    )
                }
            }
            "link" | "linkat" => {
                let (old, new) = pair(call.name == "link");
                let follow = if a(4).contains("AT_SYMLINK_FOLLOW") {
                    follow
                } else {
                    keep
                };
                File {
                    to: Some(self.path(call, new.0, new.1, keep)),
                    ..of("link", self.path(call, old.0, old.1, follow))
                }
            }
            "symlink" | "symlinkat" => {
                let (dir, path) = if call.name == "symlink" {
                    (None, 1)
                } else {
                    (Some(1), 2)
                };
                File {
                    to: Some(line::string(a(0))),
                    ..of("symlink", self.path(call, dir, path, keep))
                }
            }
            "unlink" => of("unlink", self.path(call, None, 0, keep)),
            "rmdir" => of("rmdir", self.path(call, None, 0, keep)),
            "unlinkat" => {
                let directory = a(2).contains("AT_REMOVEDIR");
                let op = if directory { "rmdir" } else { "unlink" };
                of(op, self.path(call, Some(0), 1, keep))
            }
            "mkdir" => with_mode("mkdir", self.path(call, None, 0, keep), a(1)),
            "mkdirat" => with_mode("mkdir", self.path(call, Some(0), 1, keep), a(2)),
            "mknod" => with_mode("mknod", self.path(call, None, 0, keep), a(1)),
            "mknodat" => with_mode("mknod", self.path(call, Some(0), 1, keep), a(2)),
            "chmod" => with_mode("chmod", self.path(call, None, 0, follow), a(1)),
            "fchmod" => with_mode("chmod", line::file_of(a(0))?, a(1)),
            "fchmodat" | "fchmodat2" => {
                with_mode("chmod", self.path(call, Some(0), 1, followed(a(3))), a(2))
            }
            "chown" => owned(of("chown", self.path(call, None, 0, follow)), a(1), a(2)),
            "lchown" => owned(of("chown", self.path(call, None, 0, keep)), a(1), a(2)),
            "fchown" => owned(of("chown", line::file_of(a(0))?), a(1), a(2)),
            "fchownat" => {
                let path = self.path(call, Some(0), 1, followed(a(4)));
                owned(of("chown", path), a(2), a(3))
            }
            "utime" | "utimes" => of("utimes", self.path(call, None, 0, follow)),
            "futimesat" => of("utimes", self.path(call, Some(0), 1, follow)),
            "utimensat" if a(1) == "NULL" => of("utimes", line::file_of(a(0))?),
            "utimensat" => of("utimes", self.path(call, Some(0), 1, followed(a(3)))),
            "setxattr" | "lsetxattr" | "fsetxattr" | "removexattr" | "lremovexattr"
            | "fremovexattr" => self.xattr(call)?,
            _ => return None,
        })
    }

    fn xattr<'a>(&mut self, call: &Call<'a>) -> Option<File<'a>> {
        let path = match call.name.as_bytes()[0] {
            b'f' => line::file_of(call.argument(0))?,
            b'l' => self.path(call, None, 0, Follow::No),
            _ => self.path(call, None, 0, Follow::Yes),
        };
        let removes = call.name.contains("remove");
        Some(File {
            op: if removes { "remove_xattr" } else { "set_xattr" },
            path,
            detail: Some(line::string(call.argument(1))),
            ..File::default()
        })
    }

    fn net(&mut self, call: &Call<'_>) {
        let result = call.result.text();
        let op = match call.name {
            "sendto" | "sendmsg" | "sendmmsg" => "send",
            name => name,
        };
        let cwd = self.cwd(call.task);
        let mut addresses = match call.name {
            "connect" | "bind" => vec![line::address(call.argument(1), &cwd)],
            "listen" => vec![line::own_address(call.argument(0), &cwd)],
            "sendto" => vec![line::address(call.argument(4), &cwd)],
            "sendmsg" => vec![line::address(
                line::field(call.argument(1), "msg_name"),
                &cwd,
            )],
            _ => line::addresses(call.argument(1), &cwd),
        };
        // One call that sends to one address many times is one fact.
        addresses.dedup();
        let socket = line::file_of(call.argument(0)).unwrap_or_default();
        for address in addresses.into_iter().flatten() {
            // A socket in the file system is named by where it is, like every other file.
            let address = match address.strip_prefix("unix /") {
                Some(path) => format!("unix {}", resolve(&format!("/{path}"), Follow::Yes)),
                None => address,
            };
            // A stream is connected and ignores the address; netlink speaks to the kernel.
            let sends_nothing = socket.starts_with("TCP")
                || socket.contains("-STREAM")
                || address.starts_with("family 16");
            if op != "send" || !sends_nothing {
                self.add(fact::net(op, &address, &result));
            }
        }
    }
}

/// The places of the two paths of a call.
fn pair(short: bool) -> ((Option<usize>, usize), (Option<usize>, usize)) {
    if short {
        ((None, 0), (None, 1))
    } else {
        ((Some(0), 1), (Some(2), 3))
    }
}

fn owned<'a>(file: File<'a>, owner: &str, group: &str) -> File<'a> {
    let name = |id: &str| {
        if id == "-1" {
            "-".to_owned()
        } else {
            id.to_owned()
        }
    };
    File {
        detail: Some(format!("{}:{}", name(owner), name(group))),
        ..file
    }
}

/// A call, with its arguments as strace writes them.
struct Call<'a> {
    task: u32,
    name: &'a str,
    arguments: &'a [String],
    result: &'a Return,
}

impl<'a> Call<'a> {
    fn argument(&self, at: usize) -> &'a str {
        self.arguments.get(at).map_or("", String::as_str)
    }
}

/// The names that Invigil has for the flags of `open`.
fn open_flags(words: &str) -> Vec<&'static str> {
    let words: Vec<&str> = words.split('|').collect();
    let mut flags = Vec::new();
    for word in &words {
        flags.extend_from_slice(match *word {
            "O_PATH" => &["path"],
            "O_RDONLY" if words.contains(&"O_PATH") => &[],
            "O_RDONLY" => &["read"],
            "O_WRONLY" => &["write"],
            "O_RDWR" => &["read", "write"],
            "O_APPEND" => &["append"],
            "O_CREAT" => &["create"],
            "O_EXCL" => &["exclusive"],
            "O_TRUNC" => &["truncate"],
            "O_DIRECTORY" => &["directory"],
            "O_NOFOLLOW" => &["no_follow"],
            "O_TMPFILE" => &["temporary"],
            "O_SYNC" => &["sync"],
            "O_DSYNC" => &["data_sync"],
            "O_DIRECT" => &["direct"],
            "O_NONBLOCK" => &["nonblocking"],
            "O_CLOEXEC" => &["close_on_exec"],
            "O_NOATIME" => &["no_atime"],
            _ => &[],
        });
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(log: &str) -> Vec<String> {
        let facts = read(log, "/nowhere/work", &Masks::new(&[]), false);
        let counted = facts.iter().map(|(fact, count)| format!("{count} {fact}"));
        counted.collect()
    }

    #[test]
    fn relative_paths_begin_where_their_process_is() {
        let log = "\
7 chdir(\"sub\") = 0
7 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>
8 mkdir(\"a\", 0755) = 0
7 <... clone resumed>, child_tidptr=0x7f) = 8
7 chdir(\"/\") = 0
8 rename(\"a\", \"../b\") = -1 EACCES (Permission denied)
8 +++ exited with 3 +++
7 +++ killed by SIGKILL +++
";
        assert_eq!(
            facts(log),
            [
                "1 exit 3",
                "1 exit signal 9",
                "1 fork",
                "1 mkdir /nowhere/work/sub/a 0755 = ok",
                "1 rename /nowhere/work/sub/a -> /nowhere/work/b = EACCES",
            ]
        );
    }

    #[test]
    fn threads_are_no_processes() {
        let log = "\
7 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_THREAD) = 8
8 chdir(\"/nowhere/else\") = 0
8 +++ exited with 0 +++
7 rmdir(\"x\") = 0
";
        assert_eq!(facts(log), ["1 rmdir /nowhere/else/x = ok"]);
    }

    #[test]
    fn a_call_that_a_signal_breaks_off_counts_once() {
        let log = "\
7 openat(AT_FDCWD</nowhere/work>, \"f\", O_WRONLY) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
7 rt_sigreturn({mask=[]}) = 257
7 openat(AT_FDCWD</nowhere/work>, \"f\", O_WRONLY) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
7 rt_sigreturn({mask=[]}) = -1 EINTR (Interrupted system call)
7 openat(AT_FDCWD</nowhere/work>, \"f\", O_WRONLY) = 3</nowhere/work/f>
7 openat(AT_FDCWD</nowhere/work>, \"g\", O_RDONLY) = 4</nowhere/work/g>
";
        assert_eq!(
            facts(log),
            [
                "1 open /nowhere/work/f [write] = EINTR",
                "1 open /nowhere/work/f [write] = ok",
            ]
        );
    }
}
