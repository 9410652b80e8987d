//! Real work under a policy: what a coding agent does all day passes, and what was learned of it lets it pass again.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::guard::{denials, everyone, has, make, put, run};
use crate::{Invigil, NOBODY};

/// Programs and what is done with them, each in the workspace.
const JOBS: [(&str, &str); 5] = [
    (
        "git",
        "git init -q a && cd a && git config user.name x && git config user.email x@y && echo 1 > f && git add f \
         && git commit -qm one && git branch b && git checkout -q b && echo 2 > f && git commit -qam two && cd .. \
         && git clone -q a c && cd c && git log --oneline",
    ),
    (
        "make",
        "printf 'int main(void){return 0;}' > m.c && printf 'm: m.c\\n\\tcc -o m m.c\\n' > Makefile && make -s && ./m",
    ),
    (
        "npm",
        "mkdir -p lib app && echo '{\"name\":\"lib\",\"version\":\"1.0.0\"}' > lib/package.json && cd app \
         && echo '{\"name\":\"app\",\"version\":\"1.0.0\"}' > package.json && npm install --no-update-notifier --offline --no-audit --no-fund ../lib",
    ),
    (
        "pip3",
        "python3 -m venv --symlinks v && mkdir -p w && python3 - <<'EOF'\nimport zipfile\nz=zipfile.ZipFile('w/p-1-py3-none-any.whl','w')\nz.writestr('p.py','x=1\\n')\nz.writestr('p-1.dist-info/METADATA','Metadata-Version: 2.1\\nName: p\\nVersion: 1\\n')\nz.writestr('p-1.dist-info/WHEEL','Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\nz.writestr('p-1.dist-info/RECORD','')\nz.close()\nEOF\nv/bin/pip install -q --no-index w/p-1-py3-none-any.whl && v/bin/python -c 'import p'",
    ),
    (
        "ssh-keygen",
        "mkdir -p k && ssh-keygen -q -t ed25519 -N '' -C x -f k/key && ssh-keygen -l -f k/key.pub",
    ),
];

#[test]
fn coding_work_passes_in_the_profile_for_it() {
    for invigil in everyone() {
        for (tool, script) in JOBS.iter().filter(|(tool, _)| has(tool)) {
            let (code, out) = run(&invigil, tool, &["--mode", "guard"], &["sh", "-c", script]);
            assert_eq!(code, Some(0), "{tool}: {out}");
            let denied = denials(&invigil, tool);
            assert_eq!(denied, Vec::<Value>::new(), "{tool}");
        }
    }
}

/// A job is watched; under what was learned of it the same passes; and one thing more is refused, and nothing else.
#[track_caller]
fn learned(tool: &str) {
    if !has(tool) {
        return;
    }
    let (_, job) = JOBS.iter().find(|(name, _)| *name == tool).unwrap();
    let script = format!("rm -rf job && mkdir job && cd job && {job}");
    // Somewhere else than the homes and the workspaces of the tests, which are all in one place.
    let more = format!("/var/tmp/invigil-{}", std::process::id());
    let with_more = format!("{script}; echo x > {more}");
    for invigil in everyone() {
        let (code, out) = run(&invigil, "seen", &["--reads", "on"], &["sh", "-c", &script]);
        assert_eq!(code, Some(0), "{out}");
        let learned = learn(&invigil, "seen");
        let policy = ["--policy", &learned];
        let (code, out) = run(&invigil, "again", &policy, &["sh", "-c", &script]);
        assert_eq!(
            (code, denials(&invigil, "again")),
            (Some(0), vec![]),
            "{out}"
        );
        run(&invigil, "more", &policy, &["sh", "-c", &with_more]);
        let denied = denials(&invigil, "more");
        assert_eq!(denied.len(), 1, "{denied:?}");
        assert_eq!(denied[0]["target"], more);
        assert!(!Path::new(&more).exists());
    }
}

#[test]
fn what_was_learned_of_git_and_make() {
    learned("git");
    learned("make");
}

#[test]
fn what_was_learned_of_npm_and_keys() {
    learned("npm");
    learned("ssh-keygen");
}

#[test]
fn what_was_learned_of_pip() {
    learned("pip3");
}

fn learn(invigil: &Invigil, run: &str) -> String {
    let learned = invigil.at(&format!("{run}.toml"));
    let mut learn = invigil.command(&["policy", "learn", run, "-o", &learned]);
    let learn = learn.current_dir(invigil.at("ws"));
    let learn = learn.env("TMPDIR", invigil.at("ws/tmp"));
    assert!(learn.status().unwrap().success(), "{run}");
    learned
}

/// Where the toolchain is, without the proxies of rustup.
fn toolchain() -> Option<PathBuf> {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = asked.ok().filter(|asked| asked.status.success())?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(sysroot).ok()?.trim());
    sysroot.join("bin/cargo").exists().then_some(sysroot)
}

/// Builds a crate in the workspace. The toolchain may be where an ordinary user cannot go, so that one sees it elsewhere:
/// in a view of its own, which is gone with the last process in it.
fn cargo(invigil: &Invigil, toolchain: &Path, id: &str, options: &[&str], script: &str) -> Output {
    let head = ["run", "--run-id", id, "--ask", "never", "--quiet"];
    let tail = ["--", "sh", "-c", script];
    let watched = invigil.command(&[&head, options, &tail].concat());
    let (mut command, seen) = match invigil.nobody {
        false => (Command::new("env"), toolchain.to_owned()),
        true => {
            let mut command = Command::new("unshare");
            let show = "mount --bind \"$1\" \"$2\" || exit 77; shift 2; exec \"$@\"";
            let seen = PathBuf::from(invigil.at("toolchain"));
            command.args(["--mount", "sh", "-c", show, "sh"]);
            command.arg(toolchain).arg(&seen);
            (command, seen)
        }
    };
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        seen.join("bin").display()
    );
    command
        .arg(watched.get_program())
        .args(watched.get_args())
        .envs(
            watched
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("CARGO_HOME")
        .env_remove("RUSTUP_HOME")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO_TARGET_DIR")
        .env("PATH", path)
        .env("TMPDIR", invigil.at("ws/tmp"))
        .current_dir(invigil.at("ws"));
    command.output().unwrap()
}

#[test]
fn a_crate_is_built_in_the_profile_for_coding() {
    let Some(toolchain) = toolchain() else {
        println!("skipped: there is no toolchain");
        return;
    };
    for invigil in everyone() {
        for name in ["ws/tmp", "ws/src", ".cargo", "toolchain"] {
            make(&invigil, name);
        }
        put(
            &invigil,
            "ws/Cargo.toml",
            "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
        );
        put(
            &invigil,
            "ws/src/main.rs",
            "fn main() { println!(\"built\"); }\n#[test]\nfn works() {}\n",
        );
        let script = "cargo build -q --offline && target/debug/small && cargo test -q --offline";
        let passes = |id: &str, options: &[&str]| {
            let output = cargo(&invigil, &toolchain, id, options, script);
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if output.status.code() == Some(77) {
                println!("skipped as uid {NOBODY}: no mounts here: {said}");
                return false;
            }
            assert_eq!(output.status.code(), Some(0), "{id}: {said}");
            assert!(said.starts_with("built\n"), "{id}: {said}");
            true
        };
        if !passes("coding", &["--mode", "guard", "--profile", "coding"]) {
            continue;
        }
        assert_eq!(denials(&invigil, "coding"), Vec::<Value>::new());
        std::fs::remove_dir_all(invigil.at("ws/target")).unwrap();
        passes("seen", &["--reads", "on"]);
        let learned = learn(&invigil, "seen");
        std::fs::remove_dir_all(invigil.at("ws/target")).unwrap();
        passes("again", &["--policy", &learned]);
        assert_eq!(denials(&invigil, "again"), Vec::<Value>::new());
    }
}
