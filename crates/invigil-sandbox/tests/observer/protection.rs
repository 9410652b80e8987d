//! Invigil against the agent that it runs, which has the same user id.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{Mode, Run, modes, open_dir, tools};

fn attack(mode: Mode, landlock: bool) -> Option<Run> {
    let traps = tools().traps.as_ref()?;
    let dir = open_dir();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    std::fs::write(store.join("journal"), "facts").unwrap();
    for path in [&store, &store.join("journal")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let store = store.to_str().unwrap().to_owned();
    let mut protect = vec!["--protect", &store];
    if landlock {
        protect.push("--landlock");
    }
    Some(mode.run_in(dir, &protect, &[traps.to_str().unwrap(), "attack", &store]))
}

#[test]
fn the_store_and_the_supervisor_are_out_of_reach() {
    let both = [true, false];
    for (mode, landlock) in modes().into_iter().flat_map(|mode| both.map(|b| (mode, b))) {
        let Some(run) = attack(mode, landlock) else {
            return;
        };
        assert_eq!(run.code, 0, "{mode:?} {}", run.output);
        for line in run.output.lines() {
            assert!(
                line.ends_with("EACCES") || line.ends_with("EPERM"),
                "{mode:?} {line}"
            );
        }
        run.complete();
        let store = run.dir.path().join("store");
        assert_eq!(
            std::fs::read_to_string(store.join("journal")).unwrap(),
            "facts"
        );
        assert_eq!(std::fs::read_dir(&store).unwrap().count(), 1);
        let denied = run.of("access_denied");
        assert!(denied.len() >= 22, "{mode:?} {}", denied.len());
        assert!(
            denied
                .iter()
                .all(|d| d["rule"] == "invigil protects itself")
        );
    }
}

#[test]
fn the_store_in_another_namespace() {
    for mode in modes() {
        let dir = open_dir();
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o777)).unwrap();
        let path = store.to_str().unwrap().to_owned();
        let script = format!(
            "mkdir m && mount --bind {} m && : > m/store/inside; : > {path}/plain",
            dir.path().display()
        );
        let run = mode.run_in(
            dir,
            &["--protect", &path],
            &["unshare", "-Urm", "sh", "-c", &script],
        );
        assert_eq!(
            std::fs::read_dir(&store).unwrap().count(),
            0,
            "{mode:?} {}",
            run.output
        );
    }
}

/// Whatever is mounted where, the store cannot be changed through it.
#[test]
fn mounts_of_the_store_are_refused() {
    for mode in modes() {
        if mode.bare(&["unshare", "-Urm", "true"]).0 != 0 {
            eprintln!("skipped: there are no user namespaces here");
            return;
        }
        let dir = open_dir();
        let store = dir.path().join("store");
        std::fs::create_dir_all(store.join("runs")).unwrap();
        std::fs::write(store.join("runs/journal"), "facts").unwrap();
        for path in [&store, &store.join("runs"), &store.join("runs/journal")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let path = store.to_str().unwrap().to_owned();
        let script = format!(
            "mkdir whole inside above upper work merged && : > file
             mount --bind {path} whole && echo whole
             mount --bind {path}/runs inside && echo inside
             mount --bind {path}/runs/journal file && echo file
             (cd {path}/runs && mount --bind . $OLDPWD/inside) && echo relative
             mount -t overlay -o lowerdir=upper,upperdir={path}/runs,workdir={path} o merged && echo overlay
             mount --bind {above} above && echo above
             for f in above/store/runs/journal {path}/runs/journal; do
                 (: > $f) 2> /dev/null && echo truncated
                 chmod 0 $f 2> /dev/null && echo changed
                 exec 5< $f; (: > /proc/self/fd/5) 2> /dev/null && echo reopened
             done
             mv above/store above/away 2> /dev/null && echo moved
             mount -t tmpfs none {path} && : > {path}/mine && echo own",
            above = dir.path().display()
        );
        let program = ["unshare", "-Urm", "bash", "-c", &script];
        let run = mode.run_in(dir, &["--protect", &path], &program);
        let said: Vec<_> = run
            .output
            .lines()
            .filter(|line| !line.contains(' '))
            .collect();
        assert_eq!(said, ["above", "own"], "{mode:?} {}", run.output);
        assert_eq!(
            std::fs::read_to_string(store.join("runs/journal")).unwrap(),
            "facts"
        );
        assert_eq!(std::fs::read_dir(store.join("runs")).unwrap().count(), 1);
        let denied = run.of("access_denied");
        assert!(denied.len() >= 11, "{mode:?} {}", denied.len());
        run.complete();
    }
}

#[test]
fn nobody_escapes_the_tracer() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let run = mode.run(&[], &[traps.to_str().unwrap(), "untraced"]);
        assert_eq!(run.output, "untraced EPERM\n", "{mode:?}");
        assert_eq!(run.of("access_denied").len(), 1);
    }
}

#[test]
fn a_listener_a_ring_and_a_debugger_inside_are_told_and_noted() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let run = mode.run(&[], &[traps.to_str().unwrap(), "listener"]);
        assert_eq!(
            run.output, "listener EBUSY\nio_uring EPERM\ntraceme EPERM\n",
            "{mode:?}"
        );
        assert_eq!(
            run.notes(),
            ["foreign_listener", "io_uring_denied", "debugger_inside"]
        );
        run.complete();
    }
}

#[test]
fn a_process_that_hides_is_seen() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let run = mode.run(&[], &[traps.to_str().unwrap(), "not_dumpable"]);
        assert_eq!(run.output, "prctl ok\ncreate ok\n", "{mode:?}");
        assert_eq!(run.on("secretive").len(), 1, "{mode:?}");
    }
}

#[test]
fn a_signal_to_the_whole_group_spares_the_supervisor() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        for options in [&[][..], &["--landlock"]] {
            let run = mode.run(options, &[traps.to_str().unwrap(), "group"]);
            assert_eq!(run.code, 0, "{mode:?} {}", run.output);
            assert_eq!(run.on("still-here").len(), 1, "{mode:?}");
            run.complete();
        }
    }
}

#[test]
fn strace_inside_gives_an_error_and_no_hang() {
    if !std::path::Path::new("/usr/bin/strace").exists() {
        eprintln!("skipped: there is no strace");
        return;
    }
    for mode in modes() {
        let run = mode.run(&[], &["strace", "-f", "-o", "/dev/null", "true"]);
        assert!(
            run.output.contains("Operation not permitted"),
            "{mode:?} {}",
            run.output
        );
        assert!(run.notes().contains(&"debugger_inside"), "{mode:?}");
        run.complete();
    }
}

#[test]
fn leak_checking_inside_does_not_hang() {
    let dir = open_dir();
    let source = dir.path().join("leak.c");
    std::fs::write(
        &source,
        "#include <stdlib.h>\nint main(void) { return malloc(3) == 0; }\n",
    )
    .unwrap();
    let program = dir.path().join("leak");
    let compiled = std::process::Command::new("gcc")
        .args(["-fsanitize=leak", "-w", "-o"])
        .args([&program, &source])
        .output()
        .is_ok_and(|output| output.status.success());
    if !compiled {
        eprintln!("skipped: there is no leak sanitizer");
        return;
    }
    for mode in modes() {
        // It cannot trace its own process, says so, and ends.
        let run = mode.run(&[], &[program.to_str().unwrap()]);
        assert_ne!(run.code, 124, "{mode:?}");
        run.complete();
    }
}

#[test]
fn a_supervisor_inside_a_supervisor_is_told_that_it_cannot() {
    for mode in modes() {
        let dir = open_dir();
        let inner: Vec<String> = mode
            .watch(dir.path(), &[])
            .get_args()
            .map(|a| a.to_str().unwrap().to_owned())
            .collect();
        let program = inner
            .iter()
            .position(|a| a.ends_with("/watch"))
            .map_or(0, |at| at + 1);
        let watch = mode.watch(dir.path(), &[]);
        let watch = if program == 0 {
            watch.get_program().to_str().unwrap().to_owned()
        } else {
            inner[program - 1].clone()
        };
        let mut command = vec![watch.as_str()];
        command.extend(inner[program..].iter().map(String::as_str));
        command.push("true");
        let run = mode.run(&[], &command);
        assert_eq!(run.code, 125, "{mode:?} {}", run.output);
        assert!(
            run.output.contains("cannot be had here"),
            "{mode:?} {}",
            run.output
        );
        run.complete();
    }
}

#[test]
fn programs_with_the_set_user_id_bit_get_nothing_from_it() {
    if !crate::harness::is_root() {
        eprintln!("skipped: only root can make such a program");
        return;
    }
    let dir = open_dir();
    let program = dir.path().join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    for mode in modes().into_iter().filter(|mode| !mode.root) {
        let run = mode.run(&[], &[program.to_str().unwrap(), "-u"]);
        assert_eq!((run.code, run.output.trim()), (0, "65534"), "{mode:?}");
    }
}
