//! Hostile programs in a confined run: what they may not reach stays as it is, and the attempt is on record.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Mode, Run, modes, open_dir, tools};

/// A directory with `inside`, which may be changed, and `outside` with a victim.
fn arena() -> (tempfile::TempDir, [String; 2]) {
    use std::os::unix::fs::PermissionsExt;
    let dir = open_dir();
    let root = dir.path().canonicalize().unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let paths = ["inside", "outside"].map(|name| {
        let path = root.join(name);
        std::fs::create_dir(&path).unwrap();
        open(&path, 0o777);
        path.to_str().unwrap().to_owned()
    });
    let victim = root.join("outside/victim");
    std::fs::write(&victim, "whole").unwrap();
    open(&victim, 0o666);
    (dir, paths)
}

fn fixture() -> Option<&'static str> {
    tools().confined.as_deref().and_then(Path::to_str)
}

fn rules(run: &Run) -> Vec<&str> {
    let denied = run.of("access_denied").into_iter();
    denied.map(|d| d["rule"].as_str().unwrap()).collect()
}

fn untouched(mode: Mode, outside: &str) {
    let names: Vec<_> = std::fs::read_dir(outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["victim"], "{mode:?}");
    let victim = Path::new(outside).join("victim");
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "whole");
}

#[test]
fn refused_by_their_number() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let run = mode.run(&["--confine"], &[fixture, "calls"]);
        let lines: Vec<_> = run.output.lines().collect();
        assert!(lines.len() > 35, "{mode:?} {}", run.output);
        assert!(
            lines.iter().all(|line| line.ends_with("EPERM")),
            "{mode:?} {}",
            run.output
        );
        // io_uring is a note in every mode.
        let rules = rules(&run);
        assert_eq!(rules.len(), lines.len() - 1, "{mode:?} {rules:?}");
        let named = [
            "confined:mount",
            "confined:namespace",
            "confined:keyctl",
            "confined:bpf",
            "confined:open_by_handle_at",
        ];
        assert!(named.iter().all(|rule| rules.contains(rule)), "{rules:?}");
        run.complete();
    }
}

#[test]
fn files_outside_stay_as_they_are() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let (dir, [inside, outside]) = arena();
        let bounds = ["--may-write", &inside, "--may-write", "/dev/null"];
        let run = mode.run_in(dir, &bounds, &[fixture, "files", &inside, &outside]);
        assert_eq!(run.code, 0, "{mode:?} {}", run.output);
        untouched(mode, &outside);
        for line in run.output.lines() {
            // A device cannot be made anywhere.
            let well = line.starts_with("in ") && !line.starts_with("in device");
            let refused = ["EACCES", "EPERM", "EXDEV"]
                .iter()
                .any(|e| line.ends_with(e));
            assert!(
                if well { line.ends_with("ok") } else { refused },
                "{mode:?} {line}"
            );
        }
        let refused = run.output.lines().filter(|l| l.ends_with("EACCES")).count();
        let recorded = rules(&run)
            .iter()
            .filter(|r| **r == "confined:write")
            .count();
        // In the ptrace tier the kernel makes the calls, and refuses the device by itself.
        assert!(recorded + 1 >= refused && recorded > 20, "{mode:?}");
        run.complete();
    }
}

/// Whatever another thread does to the path: once for us, and once for a caller that acts for itself.
#[test]
fn paths_that_change_after_the_check() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        for how in ["race", "race_as_other"] {
            let (dir, [inside, outside]) = arena();
            let program = [fixture, how, &inside, &outside, "2000"];
            let run = mode.run_in(dir, &["--may-write", &inside], &program);
            assert!(run.output.ends_with("raced\n"), "{mode:?} {}", run.output);
            untouched(mode, &outside);
            assert!(rules(&run).contains(&"confined:write"), "{mode:?} {how}");
        }
    }
}

#[test]
fn programs_and_reads() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let dir = open_dir();
        let program = dir.path().canonicalize().unwrap().join("true");
        std::fs::copy("/bin/true", &program).unwrap();
        let program = program.to_str().unwrap().to_owned();
        let mut bounds = Vec::new();
        for root in [
            "/usr",
            "/lib",
            "/lib64",
            "/bin",
            "/etc",
            "/dev",
            "/not/there",
            fixture,
        ] {
            bounds.extend(["--may-read", root, "--may-execute", root]);
        }
        let run = mode.run_in(dir, &bounds, &[fixture, "programs", "/bin/true", &program]);
        let expected = [
            "read EACCES",
            "exec EACCES",
            "fexecve EACCES",
            "memfd EACCES",
            "memfd by name EACCES",
            "self ok",
            "symlink ok",
        ];
        assert_eq!(run.output.lines().collect::<Vec<_>>(), expected, "{mode:?}");
        let refused = rules(&run);
        let refused = refused.iter().filter(|rule| **rule == "confined:execute");
        assert_eq!(refused.count(), 4, "{mode:?}");
        let started = run.of("observer_started")[0];
        let floor = &started["floor"];
        assert_eq!(floor["skipped_roots"][0], "/not/there");
        assert_eq!(floor["landlock_abi"], started["landlock_abi"]);
        if floor["landlock_abi"].is_u64() {
            let handled = floor["handled"].as_array().unwrap();
            assert!(handled.contains(&"fs.execute".into()), "{floor}");
        }
    }
}

fn listener() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port.to_string())
}

#[test]
fn no_network() {
    let Some(fixture) = fixture() else { return };
    let (_listener, port) = listener();
    for mode in modes() {
        let run = mode.run(&["--no-network"], &[fixture, "network", &port]);
        for line in run.output.lines() {
            let expected = match line.rsplit_once(' ').unwrap().0 {
                "routing" | "unix" => "ok",
                "fastopen" | "fastopen message" => "EOPNOTSUPP",
                _ => "EACCES",
            };
            assert!(line.ends_with(expected), "{mode:?} {line}");
        }
        let refused = run.output.lines().filter(|l| !l.ends_with("ok")).count();
        assert_eq!(rules(&run).len(), refused, "{mode:?}");
        run.complete();
    }
}

#[test]
fn only_some_ports() {
    let Some(fixture) = fixture() else { return };
    let (_listener, port) = listener();
    for mode in modes() {
        let said = |allowed: &str| {
            let run = mode.run(&["--may-connect", allowed], &[fixture, "network", &port]);
            let line = |name: &str| {
                let name = format!("{name} ");
                let line = run.output.lines().find(|line| line.starts_with(&name));
                line.unwrap()[name.len()..].to_owned()
            };
            ["tcp", "udp", "mptcp"].map(line)
        };
        assert_eq!(said(&port), ["ok", "ok", "EACCES"], "{mode:?}");
        assert_eq!(said("1"), ["EACCES", "ok", "EACCES"], "{mode:?}");
    }
}

#[test]
fn processes_outside_are_out_of_reach() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let mut outsider = mode.command("sleep");
        let mut outsider = outsider.arg("60").process_group(0).spawn().unwrap();
        let pid = outsider.id().to_string();
        let run = mode.run(&["--confine"], &[fixture, "outsider", &pid]);
        assert!(outsider.try_wait().unwrap().is_none(), "{mode:?}");
        outsider.kill().unwrap();
        outsider.wait().unwrap();
        for line in run.output.lines() {
            let own = line.starts_with("own ");
            let refused = line.ends_with("EPERM") || line.ends_with("EACCES");
            assert!(
                if own { line.ends_with("ok") } else { refused },
                "{mode:?} {line}"
            );
        }
        for rule in ["trace", "signal", "descriptor", "schedule"] {
            let rule = format!("confined:{rule}");
            assert!(rules(&run).contains(&rule.as_str()), "{mode:?} {rule}");
        }
    }
}

/// In every run, confined or not.
#[test]
fn the_share_of_the_supervisor_and_its_terminal() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let run = mode.run(&[], &[fixture, "schedule"]);
        for line in run.output.lines() {
            let own = line.starts_with("own ");
            assert!(
                line.ends_with(if own { "ok" } else { "EPERM" }),
                "{mode:?} {line}"
            );
        }
        assert_eq!(rules(&run).len(), 13, "{mode:?} {}", run.output);
        assert!(rules(&run).iter().all(|r| *r == "invigil protects itself"));
    }
}

#[test]
fn root_keeps_what_a_build_needs() {
    let Some(fixture) = fixture() else { return };
    for mode in modes().into_iter().filter(|mode| mode.root) {
        let (dir, [inside, _]) = arena();
        let run = mode.run_in(dir, &["--may-write", &inside], &[fixture, "root", &inside]);
        let refused = ["hostname", "file capability", "limit", "back"];
        for line in run.output.lines() {
            let (name, result) = line.rsplit_once(' ').unwrap();
            let expected = if refused.contains(&name) {
                "EPERM"
            } else {
                "ok"
            };
            assert_eq!(result, expected, "{mode:?} {line}");
        }
        let started = run.of("observer_started")[0];
        let kept = started["floor"]["capabilities"].as_array().unwrap();
        assert!(kept.contains(&"cap_chown".into()), "{kept:?}");
        assert!(!kept.contains(&"cap_sys_admin".into()), "{kept:?}");
        assert_eq!(started["privileged"], false);
        run.complete();
    }
}

#[test]
fn flags_of_files_are_facts() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let (dir, [_, outside]) = arena();
        let victim = PathBuf::from(outside).join("victim");
        let victim = victim.to_str().unwrap().to_owned();
        let run = mode.run_in(dir, &[], &[fixture, "flags", &victim]);
        let ops = run.of("file_op");
        let set = ops
            .iter()
            .any(|op| op["op"] == "set_xattr" && op["path"] == *victim);
        assert!(set, "{mode:?} {ops:?}");
    }
}

/// Ordinary work within the bound is not slowed down to the way back, and comes out the same.
#[test]
fn ordinary_work_is_done_on_behalf() {
    for mode in modes().into_iter().filter(|mode| mode.tier == "notify") {
        let (dir, [inside, outside]) = arena();
        let script = "for i in 1 2 3; do mkdir d$i && echo $i > d$i/f && mv d$i/f d$i/g; done
             ln d1/g hard; ln -s d1/g soft; chmod 600 soft; cp -r d2 d4; tar cf t.tar d4; tar xf t.tar; rm -r d3; ls";
        let bounds = ["--may-write", &inside, "--may-write", "/dev/null"];
        let script = format!("cd {inside} && {script}");
        let run = mode.run_in(dir, &bounds, &["sh", "-c", &script]);
        assert_eq!(run.output, "d1\nd2\nd4\nhard\nsoft\nt.tar\n", "{mode:?}");
        assert_eq!(rules(&run), [""; 0], "{mode:?}");
        untouched(mode, &outside);
        run.complete();
    }
}

/// A supervisor without an observer cannot confine.
#[test]
fn the_least_tier_does_not_pretend() {
    let mode = Mode {
        root: false,
        tier: "contract_only",
    };
    let run = mode.run(&["--confine"], &["true"]);
    assert_eq!(run.code, 125);
    assert!(run.output.contains("confinement"), "{}", run.output);
}

/// Somebody's own Landlock, inside ours, is still theirs.
#[test]
fn a_domain_inside() {
    let Some(fixture) = fixture() else { return };
    let has = Command::new(fixture)
        .args(["race_as_other", "/tmp", "/tmp", "0"])
        .stdout(Stdio::null())
        .status();
    if !has.unwrap().success() {
        eprintln!("skipped: there is no Landlock here");
        return;
    }
    for mode in modes() {
        let (dir, [inside, outside]) = arena();
        let program = [fixture, "race_as_other", &inside, &outside, "1"];
        let run = mode.run_in(dir, &["--may-write", &inside], &program);
        assert!(run.output.starts_with("own domain ok"), "{}", run.output);
    }
}
