//! A program cannot tell that it is watched, whatever it does.

use crate::harness::{modes, same_as_bare, tools};

#[test]
fn a_thread_that_is_not_the_leader_loads_a_program() {
    same_as_bare(&["threaded_exec"], |run| {
        let execs = run.of("process_exec");
        assert_eq!(execs.len(), 2, "{execs:?}");
        assert_eq!(execs[0]["process"], execs[1]["process"]);
        assert!(
            execs[1]["executable"].as_str().unwrap().contains("true"),
            "{execs:?}"
        );
    });
}

#[test]
fn vfork_and_posix_spawn() {
    same_as_bare(&["spawns"], |run| {
        assert_eq!(run.of("process_exec").len(), 3);
        let failed = run.of("exec_failed");
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0]["path"], "/nonexistent/true");
        assert_eq!(failed[0]["error"], "ENOENT");
    });
}

#[test]
fn clone3() {
    same_as_bare(&["clone3"], |run| {
        let [op] = run.on("by-clone3")[..] else {
            panic!()
        };
        let child = run.of("process_forked")[1];
        assert_eq!(op["process"], child["process"]);
    });
}

#[test]
fn descriptors_links_and_everything_with_files() {
    same_as_bare(&["descriptors"], |run| {
        let mode = run.mode;
        assert_eq!(
            run.on("held")
                .iter()
                .filter(|op| op["op"] == "open" && op["result"] == "ok")
                .count(),
            3,
            "{mode:?}"
        );
        assert_eq!(run.on("made-through-link")[0]["op"], "create", "{mode:?}");
        let link = run.on("link");
        assert!(
            link.iter().any(|op| op["result"] == "ELOOP"),
            "{mode:?} {link:?}"
        );
        assert!(
            link.iter().any(|op| op["result"] == "EEXIST"),
            "{mode:?} {link:?}"
        );
        let tmp = run
            .of("file_op")
            .into_iter()
            .find(|op| op["op"] == "link")
            .unwrap();
        assert_eq!(tmp["to"], run.work().join("named").to_str().unwrap());
    });
}

#[test]
fn a_deleted_working_directory() {
    same_as_bare(&["deleted_cwd"], |run| {
        let paths: Vec<_> = run
            .of("file_op")
            .iter()
            .filter(|op| op["result"] == "ENOENT")
            .map(|op| op["path"].as_str().unwrap().to_owned())
            .collect();
        let gone = format!("(deleted){}/doomed", run.work().display());
        assert_eq!(paths, [format!("{gone}/x"), format!("{gone}/y")]);
        // This one is there, and only called so.
        let named = run.on("named (deleted)/z");
        assert_eq!(named.len(), 1, "{:?}", run.mode);
    });
}

#[test]
fn very_long_paths_are_whole() {
    same_as_bare(&["long_paths"], |run| {
        let made = run
            .of("file_op")
            .into_iter()
            .find(|op| op["op"] == "create")
            .unwrap();
        let path = made["path"].as_str().unwrap();
        // The kernel itself cannot name a path of more than a page; what it can name is whole.
        assert!(path.ends_with("/deep"), "{path}");
        let too_long = run
            .of("file_op")
            .into_iter()
            .filter(|op| op["result"] == "ENAMETOOLONG");
        let mut lengths: Vec<_> = too_long
            .map(|op| op["path"].as_str().unwrap().len())
            .collect();
        lengths.sort_unstable();
        assert_eq!(lengths.len(), 3);
        assert!(lengths[1] > 6000 && lengths[2] > 60_000, "{lengths:?}");
        let cut = run
            .of("file_op")
            .into_iter()
            .filter(|op| op["path"].as_str().unwrap().ends_with(" (cut)"));
        assert_eq!(cut.count(), 1);
    });
}

#[test]
fn links_on_the_way_are_resolved_for_every_call() {
    same_as_bare(&["through_links"], |run| {
        let mode = run.mode;
        let count = |kind: &str, name: &str| {
            let ops = run.on(name).into_iter().filter(|op| op["op"] == kind);
            ops.count()
        };
        assert_eq!(count("set_xattr", "real/file"), 1, "{mode:?}");
        assert_eq!(count("remove_xattr", "real/file"), 1, "{mode:?}");
        assert_eq!(count("set_xattr", "real/soft"), 1, "{mode:?}");
        assert_eq!(count("chown", "real/soft"), 1, "{mode:?}");
        assert_eq!(count("utimes", "real/soft"), 1, "{mode:?}");
        assert_eq!(count("utimes", "real/file"), 1, "{mode:?}");
        let renamed = run.on("real/file");
        let renamed = renamed.iter().find(|op| op["op"] == "rename").unwrap();
        let to = run.work().join("none/file");
        assert_eq!(renamed["to"], to.to_str().unwrap(), "{mode:?}");
        let bound = run.of("net_op")[0]["address"].to_string();
        assert!(bound.contains("/real/sock"), "{mode:?} {bound}");
    });
}

#[test]
fn names_that_are_not_text_keep_their_bytes() {
    same_as_bare(&["not_utf8"], |run| {
        let made = run
            .of("file_op")
            .into_iter()
            .find(|op| op["op"] == "create")
            .unwrap();
        assert!(made["path"]["base64"].is_string(), "{made}");
    });
}

#[test]
fn descriptors_that_travel_between_processes() {
    same_as_bare(&["passing"], |run| assert_eq!(run.on("passed").len(), 1));
}

#[test]
fn openat2_and_its_restrictions() {
    same_as_bare(&["beneath"], |run| {
        let results: Vec<_> = run
            .of("file_op")
            .iter()
            .map(|op| op["result"].clone())
            .collect();
        assert!(results.contains(&"EXDEV".into()), "{results:?}");
        assert_eq!(run.on("jail/new").len(), 1);
    });
}

#[test]
fn a_storm_of_signals_interrupts_nothing() {
    same_as_bare(&["interrupted"], |run| {
        assert_eq!(run.of("file_op").len(), 6000, "{:?}", run.mode);
    });
}

#[test]
fn stopping_and_continuing() {
    same_as_bare(&["stopped"], |run| assert_eq!(run.on("s").len(), 100));
}

#[test]
fn fifos_and_the_terminal_that_is_not_there() {
    same_as_bare(&["fifo"], |run| {
        assert!(
            run.of("file_op")
                .iter()
                .any(|op| op["path"] == "/dev/tty" && op["result"] == "ENXIO")
        );
        let opened: Vec<_> = run
            .on("pipe")
            .into_iter()
            .filter(|op| op["op"] == "open")
            .map(|op| op["result"].as_str().unwrap())
            .collect();
        assert_eq!(opened, ["ok", "ok", "ENXIO", "ok"], "{:?}", run.mode);
    });
}

#[test]
fn waiting_for_a_partner_that_signals_interrupt() {
    same_as_bare(&["waiting"], |run| {
        let opened: Vec<_> = run
            .on("pipe")
            .into_iter()
            .filter(|op| op["op"] == "open")
            .map(|op| op["result"].as_str().unwrap())
            .collect();
        // One that a signal ends, one that a signal only delays, and one that nobody ends.
        assert_eq!(opened[0], "EINTR", "{:?}", run.mode);
        assert!(opened.contains(&"ok"), "{:?} {opened:?}", run.mode);
        assert_eq!(opened.last(), Some(&"unknown"), "{:?}", run.mode);
    });
}

#[test]
fn every_umask() {
    same_as_bare(&["masks"], |_| {});
}

#[test]
fn another_user_inside_keeps_its_rights_and_no_more() {
    same_as_bare(&["become"], |_| {});
}

#[test]
fn many_at_once() {
    same_as_bare(&["crowd"], |run| assert_eq!(run.on("crowd").len(), 32));
}

#[test]
fn callers_that_die_while_they_connect() {
    same_as_bare(&["killed_connecting"], |_| {});
}

#[test]
fn ten_thousand_processes() {
    same_as_bare(&["storm", "10000"], |run| {
        assert_eq!(run.of("process_exited").len(), 10_001)
    });
}

/// The file that was opened and the file that is reported are one, though another thread changes the name all the time.
#[test]
fn a_race_for_the_name_is_lost() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes().into_iter().filter(|mode| mode.tier == "notify") {
        let run = mode.run(&[], &[traps.to_str().unwrap(), "racing"]);
        assert_eq!(run.code, 0);
        // Mixed names such as "gvil" can be read; each must then exist.
        for op in run.of("file_op") {
            if op["result"] == "ok" {
                assert!(
                    std::path::Path::new(op["path"].as_str().unwrap()).exists(),
                    "{op}"
                );
            }
        }
        let made = std::fs::read_dir(run.work()).unwrap().count();
        let created = run
            .of("file_op")
            .iter()
            .filter(|op| op["op"] == "create")
            .count();
        assert_eq!(made, created);
    }
}

#[test]
fn user_namespaces_and_other_roots() {
    for mode in modes() {
        let script = "mkdir in-namespace && : > in-namespace/file";
        let program = ["unshare", "-Urm", "sh", "-c", script];
        let (code, _) = mode.bare(&program);
        if code != 0 {
            eprintln!("skipped: there are no user namespaces here");
            return;
        }
        let run = mode.run(&[], &program);
        assert_eq!(run.code, 0, "{mode:?} {}", run.output);
        run.complete();
        assert_eq!(run.on("in-namespace").len(), 1, "{mode:?}");
        assert_eq!(run.on("in-namespace/file").len(), 1, "{mode:?}");
    }
}

#[test]
fn a_sandbox_inside_can_mount() {
    for mode in modes() {
        let script = "mount -t tmpfs none /mnt && touch /mnt/x && ls /mnt && mount --bind . /mnt";
        let program = ["unshare", "-Urm", "sh", "-c", script];
        let (code, _) = mode.bare(&program);
        if code != 0 {
            eprintln!("skipped: there are no user namespaces here");
            return;
        }
        // The store lies below what is mounted over.
        let run = mode.run(&["--protect", "/mnt"], &program);
        assert_eq!((run.code, run.output.as_str()), (0, "x\n"), "{mode:?}");
        run.complete();
        let on = |kind: &str, path: &str| {
            let ops = run.of("file_op");
            let mut ops = ops
                .iter()
                .filter(|op| op["op"] == kind && op["path"] == path);
            ops.any(|op| op["result"] == "ok")
        };
        assert!(on("mount", "/"), "{mode:?}");
        assert!(on("mount", "/mnt"), "{mode:?}");
        assert!(on("create", "/mnt/x"), "{mode:?}");
        assert!(run.of("access_denied").is_empty(), "{mode:?}");
    }
}

#[test]
fn a_supervisor_without_descriptors_to_spare() {
    for mode in modes() {
        let dir = crate::harness::open_dir();
        let work = mode.watch(dir.path(), &[]);
        let script = "ulimit -n 13; exec \"$@\"";
        let mut command = mode.command("sh");
        command.args(["-c", script, "sh"]);
        // The options of `watch`, behind the limit.
        let arguments: Vec<_> = work.get_args().collect();
        let watch = if mode.root || !crate::harness::is_root() {
            command.arg(work.get_program());
            &arguments[..]
        } else {
            let at = arguments.iter().position(|a| *a == "--").unwrap();
            &arguments[at + 1..]
        };
        command.args(watch).args([
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do : > f$i; mv f$i g$i; rm g$i; done",
        ]);
        command.current_dir(dir.path());
        let (code, output) = crate::harness::finish(command);
        assert_eq!(code, 0, "{mode:?} {output}");
        let facts = crate::harness::read_facts(dir.path());
        let ops = facts
            .iter()
            .filter(|f| f["kind"] == "file_op" && f["data"]["result"] == "ok")
            .count();
        assert_eq!(ops, 15, "{mode:?}");
    }
}
