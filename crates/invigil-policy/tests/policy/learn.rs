//! From what was observed to a policy, and back.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use invigil_policy::{
    Action, Endpoint, Exec, Layer, Observations, Policy, Source, UnixSocket, Verdict, learn,
    profile,
};
use invigil_schema::OsText;
use proptest::prelude::*;
use serde_json::json;

use super::{Ask, places};

fn texts(texts: &[&str]) -> BTreeSet<OsText> {
    texts.iter().map(|text| OsText::from(*text)).collect()
}

fn load(text: &str) -> Policy {
    let source = Source {
        name: "learned.toml".into(),
        text: text.into(),
        layer: Layer::CommandLine,
    };
    Policy::load(&[source], &places()).unwrap_or_else(|error| panic!("{}\n{text}", error.report()))
}

fn observed() -> Observations {
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    Observations {
        reads: Some(texts(&[
            "/etc/ld.so.cache",
            "/usr/lib/libc.so.6",
            "/home/me/work/a",
            "/home/me/.gitconfig",
            "/home/me/.ssh/id_rsa",
            "/home/me/.config/git/ignore",
            "/proc/self/maps",
            "/srv/data/deep/x",
        ])),
        writes: texts(&[
            "/home/me/work/src/x",
            "/tmp/cc8f3.o",
            "/dev/null",
            "/dev/pts/3",
            "/proc/412/oom_score_adj",
            "/home/me/.cargo/registry/cache/x/y",
            "/home/me/.cargo/.package-cache",
        ]),
        programs: texts(&[
            "/usr/bin/git",
            "/usr/bin/dash",
            "/home/me/work/target/debug/x",
            "/home/me/.cargo/bin/cargo",
        ]),
        connects: [
            (addr("127.0.0.1:4567"), None),
            (addr("192.0.2.1:443"), Some("api.example.com".to_owned())),
            (addr("[::ffff:192.0.2.9]:80"), None),
            (addr("169.254.169.254:80"), None),
        ]
        .into(),
        binds: [addr("0.0.0.0:3000"), addr("0.0.0.0:0")].into(),
        unix: texts(&["/run/foo.sock", "/var/run/docker.sock", "/tmp/x/y.sock"]),
        unix_abstract: texts(&["name"]),
        tools: ["read_file".to_owned()].into(),
    }
}

/// `INVIGIL_BLESS=1` writes it anew.
#[test]
fn the_text_is_one_that_a_person_would_have_written() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/learned.toml");
    let text = learn(&observed(), &places());
    if std::env::var_os("INVIGIL_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn what_was_done_may_be_done_again_and_nothing_else() {
    let policy = load(&learn(&observed(), &places()));
    assert_eq!(policy.read("/usr/lib/libc.so.6"), Verdict::Allow);
    assert_eq!(
        policy.read("/home/me/.ssh/id_rsa"),
        Verdict::Deny,
        "observed, and still secret"
    );
    assert_eq!(
        policy.read("/home/me/.config/git/credentials"),
        Verdict::Deny,
        "secret inside of what is allowed"
    );
    assert_eq!(policy.read("/home/me/work/.env"), Verdict::Deny);
    assert_eq!(policy.read("/home/me/diary"), Verdict::Deny);
    assert_eq!(policy.write("/tmp/another"), Verdict::Allow);
    assert_eq!(policy.write("/proc/99/oom_score_adj"), Verdict::Allow);
    assert_eq!(policy.write("/home/me/.cargo/bin/x"), Verdict::Deny);
    assert_eq!(policy.write("/etc/passwd"), Verdict::Deny);
    assert_eq!(policy.exec("/usr/bin/git", &["status"]), Verdict::Allow);
    assert_eq!(policy.exec("/usr/bin/curl", &[]), Verdict::Deny);
    assert_eq!(
        policy.connect("192.0.2.1:443", Some("api.example.com")),
        Verdict::Allow
    );
    assert_eq!(
        policy.connect("192.0.2.1:80", Some("api.example.com")),
        Verdict::Deny
    );
    assert_eq!(policy.connect("169.254.169.254:80", None), Verdict::Deny);
    assert_eq!(policy.unix("/run/foo.sock"), Verdict::Allow);
    assert_eq!(policy.unix("/var/run/docker.sock"), Verdict::Deny);
    assert_eq!(policy.tool("read_file", &json!({})), Verdict::Allow);
    assert_eq!(policy.tool("other", &json!({})), Verdict::Deny);
    assert!(policy.bounds().exec_roots.is_some(), "a boundary");
}

#[test]
fn what_was_not_watched_is_not_refused() {
    let policy = load(&learn(&Observations::default(), &places()));
    assert_eq!(policy.read("/home/me/diary"), Verdict::Allow);
    assert_eq!(policy.read("/home/me/.ssh/id_rsa"), Verdict::Deny);
    assert_eq!(policy.write("/x"), Verdict::Deny);
}

fn path() -> impl Strategy<Value = OsText> {
    let root = prop::sample::select(vec![
        "",
        "/home/me",
        "/home/me/work",
        "/home/me/.ssh",
        "/tmp",
        "/usr",
        "/etc",
        "/proc/17",
        "/dev",
        "/srv/a",
    ]);
    let name = prop_oneof![
        "[a-z.*?{}\\[\\],!\\\\\"'#~$@ üé\n\t-]{1,6}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 1..5),
        Just(b".env".to_vec()),
    ];
    (root, prop::collection::vec(name, 0..5)).prop_map(|(root, names)| {
        let mut path = root.as_bytes().to_vec();
        for name in names {
            let clean: Vec<u8> = name
                .into_iter()
                .filter(|byte| *byte != b'/' && *byte != 0)
                .collect();
            if !clean.is_empty() && clean != b"." && clean != b".." {
                path.push(b'/');
                path.extend(clean);
            }
        }
        OsText::from(if path.is_empty() { b"/".to_vec() } else { path })
    })
}

fn addr() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
        any::<[u8; 16]>().prop_map(std::net::IpAddr::from),
        prop::sample::select(vec![
            "127.0.0.1",
            "0.0.0.0",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "169.254.169.254"
        ])
        .prop_map(|ip| ip.parse().unwrap()),
    ];
    (ip, any::<u16>()).prop_map(SocketAddr::from)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_observation_passes_unless_it_is_secret(
        reads in prop::collection::btree_set(path(), 0..12),
        writes in prop::collection::btree_set(path(), 0..12),
        programs in prop::collection::btree_set(path(), 0..12),
        connects in prop::collection::btree_set((addr(), prop::option::of("[a-zA-Z.-]{1,12}")), 0..6),
        binds in prop::collection::btree_set(addr(), 0..6),
        unix in prop::collection::btree_set(path(), 0..4),
        unix_abstract in prop::collection::btree_set(path(), 0..4),
        tools in prop::collection::btree_set("[a-z_*{}\\[-]{1,8}", 0..4),
    ) {
        let observed = Observations { reads: Some(reads), writes, programs, connects, binds, unix, unix_abstract, tools };
        let policy = load(&learn(&observed, &places()));
        let coding = Policy::load(&[profile("coding").unwrap()], &places()).unwrap();
        let secret = |action: &Action<'_>| coding.verdict(action) == Verdict::Deny;
        let mut actions = Vec::new();
        for path in observed.reads.iter().flatten() {
            actions.push((Action::Read(path.as_bytes()), secret(&Action::Read(path.as_bytes()))));
        }
        for path in &observed.writes {
            actions.push((Action::Write(path.as_bytes()), secret(&Action::Read(path.as_bytes()))));
        }
        for path in &observed.programs {
            let path = path.as_bytes();
            actions.push((Action::Exec(Exec { program: path, called: path, argv: &[], interpreter: None }), false));
        }
        for (addr, host) in &observed.connects {
            let action = Action::Connect(Endpoint { addr: *addr, host: host.as_deref() });
            actions.push((action, secret(&action)));
        }
        for addr in &observed.binds {
            let action = Action::Bind(Endpoint { addr: *addr, host: None });
            actions.push((action, secret(&action)));
        }
        for path in &observed.unix {
            let action = Action::Unix(UnixSocket::Path(path.as_bytes()));
            actions.push((action, secret(&action)));
        }
        for name in &observed.unix_abstract {
            let action = Action::Unix(UnixSocket::Abstract(name.as_bytes()));
            actions.push((action, secret(&action)));
        }
        let params = json!({});
        for name in &observed.tools {
            actions.push((Action::Tool { name, params: &params }, false));
        }
        for (action, secret) in actions {
            let verdict = policy.verdict(&action);
            prop_assert!(verdict == Verdict::Allow || secret, "{action:?} is {verdict:?}\n{}", learn(&observed, &places()));
            if secret && matches!(action, Action::Read(_)) {
                prop_assert_eq!(verdict, Verdict::Deny);
            }
        }
    }
}
