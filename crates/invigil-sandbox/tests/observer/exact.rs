//! A gate that must not be fooled: what it has judged is what happens, and programs still cannot tell.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::{Mode, is_root, open_dir, tools};

/// Only this tier has arguments that nobody can change.
fn modes() -> Vec<Mode> {
    let users: &[bool] = if is_root() { &[true, false] } else { &[false] };
    let mode = |&root| Mode {
        root,
        tier: "notify",
    };
    users.iter().map(mode).collect()
}

fn races() -> Option<&'static PathBuf> {
    static RACES: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = RACES.get_or_init(|| {
        tools().traps.as_ref()?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/races.c");
        let program = tools().path().join("races");
        let mut gcc = Command::new("gcc");
        gcc.args(["-w", "-O1", "-pthread", "-o"])
            .arg(&program)
            .arg(source);
        gcc.status()
            .is_ok_and(|status| status.success())
            .then_some(program)
    });
    built.as_ref()
}

#[test]
fn programs_cannot_tell() {
    let Some(traps) = &tools().traps else { return };
    let traps = traps.to_str().unwrap();
    // A file whose path is longer than the kernel can say cannot be judged, and is refused: `long_paths` is not here.
    let scenarios = [
        "descriptors",
        "deleted_cwd",
        "through_links",
        "not_utf8",
        "passing",
        "beneath",
        "interrupted",
        "fifo",
    ];
    for mode in modes() {
        for scenario in scenarios {
            let bare = mode.bare(&[traps, scenario]);
            let run = mode.run(&["--exact", "--reads"], &[traps, scenario]);
            assert_eq!(
                (run.code, &run.output),
                (bare.0, &bare.1),
                "{mode:?} {scenario}"
            );
            run.complete();
        }
    }
}

#[test]
fn devices_terminals_and_attributes_of_links() {
    let script = "echo x > /dev/null && head -c 4 /dev/zero | wc -c && ln -s nowhere l && touch -h -d @7 l && \
                  stat -c %Y l && chown -h $(id -u) l && cat /proc/self/comm && (cat < /dev/tty) 2>/dev/null; \
                  readlink /proc/self/exe > /dev/null && head -c 4 /proc/self/exe | tail -c 3; echo; echo $?";
    for mode in modes() {
        let bare = mode.bare(&["setsid", "-w", "sh", "-c", script]);
        let run = mode.run(
            &["--exact", "--reads"],
            &["setsid", "-w", "sh", "-c", script],
        );
        assert_eq!((run.code, &run.output), (bare.0, &bare.1), "{mode:?}");
        assert!(run.output.contains("ELF"), "{}", run.output);
        assert!(run.of("access_denied").is_empty(), "{mode:?}");
        run.complete();
    }
}

#[test]
fn what_was_judged_is_what_happens() {
    let Some(races) = races() else { return };
    let ways = [
        "plain",
        "write",
        "magic",
        "link",
        "beneath",
        "times",
        "mode",
        "attribute",
        "hardlink",
        "truncate",
    ];
    for mode in modes() {
        for way in ways {
            let dir = open_dir();
            let work = dir.path().join("work");
            std::fs::create_dir(&work).unwrap();
            for (name, text) in [("good", "GOOD"), ("evil", "EVIL and long")] {
                std::fs::write(work.join(name), text).unwrap();
                let open = PermissionsExt::from_mode(0o666);
                std::fs::set_permissions(work.join(name), open).unwrap();
                if is_root() && !mode.root {
                    std::os::unix::fs::chown(work.join(name), Some(65534), Some(65534)).unwrap();
                }
            }
            std::os::unix::fs::symlink(".", work.join("here")).unwrap();
            let before = std::fs::metadata(work.join("evil")).unwrap();
            let options = ["--exact", "--reads", "--deny", "work/evil"];
            let run = mode.run_in(dir, &options, &[races.to_str().unwrap(), way, "3000"]);
            assert_eq!(run.output, "had 0\n", "{mode:?} {way}");
            let evil = run.work().join("evil");
            let after = std::fs::metadata(&evil).unwrap();
            assert_eq!(std::fs::read(&evil).unwrap(), b"EVIL and long", "{way}");
            assert_eq!(
                (after.mtime(), after.mode()),
                (before.mtime(), before.mode()),
                "{mode:?} {way}"
            );
            assert_eq!(
                (after.ctime(), after.nlink()),
                (before.ctime(), 1),
                "{mode:?} {way}"
            );
            let denied = run.of("access_denied").len();
            assert!(denied > 0, "{mode:?} {way}: nobody tried");
        }
    }
}

#[test]
fn whoever_would_have_to_act_for_itself_is_refused() {
    let script = "import ctypes,os\n\
        libc=ctypes.CDLL(None,use_errno=True)\n\
        class A(ctypes.Structure): _fields_=[('fs',ctypes.c_uint64)]\n\
        a=A(1<<1)\n\
        fd=libc.syscall(444,ctypes.byref(a),8,0)\n\
        libc.prctl(38,1,0,0,0)\n\
        r=libc.syscall(446,fd,0)\n\
        print('restricted' if r==0 else os.strerror(ctypes.get_errno()))\n";
    for mode in modes() {
        let run = mode.run(&["--exact"], &["python3", "-c", script]);
        assert!(run.output.contains("not permitted"), "{}", run.output);
        assert_eq!(run.of("access_denied").len(), 1, "{mode:?}");
    }
}
