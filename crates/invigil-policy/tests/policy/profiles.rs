//! The profiles that come with Invigil.

use invigil_policy::Verdict::{Allow, Ask as AskVerdict, Deny};
use invigil_policy::{PROFILES, Policy, profile};

use super::{Ask, places};

#[track_caller]
fn load(name: &str) -> Policy {
    let source = profile(name).unwrap();
    Policy::load(&[source], &places()).unwrap_or_else(|error| panic!("{}", error.report()))
}

#[test]
fn there_are_three_and_each_loads() {
    for name in PROFILES {
        load(name);
    }
    assert!(profile("coder").is_none());
}

#[test]
fn observe_refuses_nothing() {
    let bounds = load("observe").bounds();
    assert!(!bounds.reads && !bounds.execs && !bounds.network && !bounds.unix);
    assert_eq!(
        (bounds.read_roots, bounds.write_roots, bounds.ports),
        (None, None, None)
    );
}

#[test]
fn coding_lets_tools_work() {
    let coding = load("coding");
    for path in [
        "/home/me/work/src/main.rs",
        "/home/me/work/.git/index.lock",
        "/tmp/cc123.o",
        "/var/tmp/x",
        "/dev/null",
        "/dev/tty",
        "/dev/pts/3",
        "/dev/ptmx",
        "/dev/shm/sem.x",
        "/home/me/.cargo/registry/cache/x.crate",
        "/home/me/.cargo/.package-cache",
        "/home/me/.cargo/.package-cache-mutate",
        "/home/me/.cargo/.global-cache-journal",
        "/home/me/.npm/_logs/x.log",
        "/home/me/.cache/pip/x",
        "/proc/12/oom_score_adj",
    ] {
        assert_eq!(coding.write(path), Allow, "{path}");
    }
    for path in [
        "/home/me/.gitconfig",
        "/home/me/.ssh/known_hosts",
        "/home/me/.ssh/config",
        "/home/me/.npmrc",
        "/home/me/.cargo/config.toml",
        "/home/me/work/.env.example",
        "/etc/passwd",
        "/etc/ssl/certs/ca-certificates.crt",
        "/usr/lib/x.so",
    ] {
        assert_eq!(coding.read(path), Allow, "{path}");
    }
    assert_eq!(coding.exec("/usr/bin/make", &["all"]), Allow);
    assert_eq!(
        coding.exec("/usr/bin/git", &["commit", "-m", "push"]),
        Allow
    );
    assert_eq!(coding.exec("/usr/bin/npm", &["install"]), Allow);
    assert_eq!(
        coding.connect("192.0.2.1:443", Some("api.example.com")),
        Allow
    );
}

#[test]
fn coding_keeps_secrets_and_asks_before_anything_leaves() {
    let coding = load("coding");
    for path in [
        "/home/me/.ssh/id_ed25519",
        "/home/me/.aws/credentials",
        "/home/me/.aws",
        "/home/me/.config/gcloud/credentials.db",
        "/home/me/.netrc",
        "/home/me/.docker/config.json",
        "/home/me/.kube/config",
        "/home/me/.cargo/credentials",
        "/home/me/.cargo/credentials.toml",
        "/home/me/.config/gh/hosts.yml",
        "/home/me/work/.env",
        "/home/me/work/a/.env.production",
        "/etc/shadow",
    ] {
        assert_eq!(coding.read(path), Deny, "{path}");
    }
    for path in [
        "/etc/passwd",
        "/home/me/.bashrc",
        "/home/me/.ssh/authorized_keys",
        "/home/me/.cargo/bin/cargo",
        "/home/me/work/.git/hooks/pre-commit",
        "/home/me/work/.invigil/policy.toml",
        "/home/me/.config/autostart/x",
        "/home/me/.local/bin/x",
        "/home/me/.local/share/pnpm/x",
        "/home/me/.yarn/bin/x",
        "/usr/bin/x",
    ] {
        assert_eq!(coding.write(path), Deny, "{path}");
    }
    assert_eq!(
        coding.exec("/usr/bin/git", &["-C", "x", "push"]),
        AskVerdict
    );
    assert_eq!(
        coding.exec("/home/me/.cargo/bin/cargo", &["publish"]),
        AskVerdict
    );
    assert_eq!(
        coding.exec("/usr/bin/node", &["/usr/bin/npm", "publish"]),
        AskVerdict
    );
    assert_eq!(coding.exec("/usr/bin/gh", &["pr", "list"]), AskVerdict);
    assert_eq!(coding.exec("/usr/bin/sudo", &["ls"]), Deny);
    assert_eq!(coding.connect("169.254.169.254:80", None), Deny);
    assert_eq!(coding.connect("[::ffff:169.254.169.254]:80", None), Deny);
    assert_eq!(coding.unix("/var/run/docker.sock"), Deny);
    assert_eq!(coding.unix("/run/docker.sock"), Deny);
    assert_eq!(coding.unix("/run/user/1000/bus"), Deny);
}

#[test]
fn strict_has_the_workspace_and_no_network() {
    let strict = load("strict");
    assert_eq!(strict.write("/home/me/work/x"), Allow);
    assert_eq!(strict.write("/home/me/.cache/x"), Deny);
    assert_eq!(strict.read("/home/me/.bashrc"), Deny);
    assert_eq!(strict.read("/usr/lib/x"), Allow);
    assert_eq!(
        strict.called("/usr/bin/dash", "/bin/sh", &["-c", "x"]),
        Allow
    );
    assert_eq!(strict.exec("/home/me/work/a.out", &[]), Deny);
    assert_eq!(strict.exec("/usr/bin/sudo", &[]), Deny);
    let bounds = strict.bounds();
    assert!(bounds.network_off());
    assert!(bounds.env.unwrap().passes(b"LC_ALL"));
    assert!(
        !strict
            .bounds()
            .env
            .unwrap()
            .passes(b"AWS_SECRET_ACCESS_KEY")
    );
}
