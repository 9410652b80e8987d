//! One file: precedence, paths, programs, the network, tools.

use invigil_policy::Verdict::{Allow, Ask as AskVerdict, Deny};
use invigil_policy::{Action, By, Exec, UnixSocket};
use invigil_schema::OsText;
use serde_json::json;

use super::{Ask, policy};

#[test]
fn deny_beats_ask_beats_allow_whatever_the_order() {
    let policy = policy(
        r#"
        [files.read]
        default = "allow"
        allow = ["/a/**"]
        ask   = ["/a/b/**"]
        deny  = ["/a/b/c/**"]
        "#,
    );
    assert_eq!(policy.read("/a/x"), Allow);
    assert_eq!(policy.read("/a/b/x"), AskVerdict);
    assert_eq!(policy.read("/a/b/c/x"), Deny);
    let decision = policy.ask(Action::Read(b"/a/b/c/x"));
    assert_eq!(decision.matched.len(), 3);
    let rule = decision.rule().unwrap();
    assert_eq!((rule.line, rule.text.as_str()), (7, "/a/b/c/**"));
    assert_eq!(decision.cite(), "policy.toml:7: deny /a/b/c/**");
}

#[test]
fn the_default_of_the_section_then_that_of_the_file_then_nobody() {
    let both = policy("default = \"ask\"\n[files.write]\ndefault = \"deny\"");
    assert_eq!(both.write("/x"), Deny);
    assert_eq!(both.read("/x"), AskVerdict);
    let decision = both.ask(Action::Read(b"/x"));
    assert!(matches!(&decision.by, By::Default(rule) if rule.line == 2));
    assert_eq!(policy("").ask(Action::Read(b"/x")).by, By::Nobody);
    assert_eq!(policy("").strict().ask(Action::Read(b"/x")).by, By::Strict);
}

#[test]
fn in_strict_mode_only_rules_allow() {
    let policy =
        policy("default = \"ask\"\n[files.read]\nallow = [\"/a\"]\nask = [\"/b\"]").strict();
    assert_eq!(policy.read("/a"), Allow);
    assert_eq!(policy.read("/b"), AskVerdict);
    assert_eq!(policy.read("/c"), Deny);
    assert_eq!(policy.exec("/usr/bin/git", &[]), Deny);
}

#[test]
fn a_directory_and_everything_below_it() {
    let policy = policy(
        r#"
        [files.write]
        default = "deny"
        allow = ["${workspace}/**", "${tmp}/build-?/*.o", "/dev/{null,tty}", "**/cache/**", "/lit\\*eral"]
        deny  = ["**/.env"]
        "#,
    );
    assert_eq!(policy.write("/home/me/work"), Allow);
    assert_eq!(policy.write("/home/me/work/a/b"), Allow);
    assert_eq!(policy.write("/home/me/workshop/a"), Deny);
    assert_eq!(policy.write("/home/me/work/.env"), Deny);
    assert_eq!(policy.write("/home/me/work/a/.env"), Deny);
    assert_eq!(policy.write("/home/me/work/a/.envrc"), Allow);
    assert_eq!(policy.write("/.env"), Deny);
    assert_eq!(policy.write("/tmp/build-1/x.o"), Allow);
    assert_eq!(policy.write("/tmp/build-1/y/x.o"), Deny);
    assert_eq!(policy.write("/dev/tty"), Allow);
    assert_eq!(policy.write("/dev/tty1"), Deny);
    assert_eq!(policy.write("/x/cache/y"), Allow);
    assert_eq!(policy.write("/x/cache"), Allow);
    assert_eq!(policy.write("/lit*eral"), Allow);
    assert_eq!(policy.write("/literal"), Deny);
    assert_eq!(
        policy.verdict(&Action::Write(b"/home/me/work/\xff\n\xfe")),
        Allow
    );
    let everything = super::policy("[files.read]\ndefault = \"deny\"\nallow = [\"/**\"]");
    assert_eq!(everything.read("/"), Allow);
    assert_eq!(everything.read("/a/b"), Allow);
}

const PUSH: &str = r#"
    [[exec]]
    program = "git"
    args = ["push", ".."]
    decision = "ask"
"#;

#[test]
fn a_push_is_a_push_however_it_is_spelled() {
    let policy = policy(PUSH);
    for args in [
        &["push"][..],
        &["push", "origin", "main"],
        &["-C", "dir", "push"],
        &["-c", "x=y", "push", "-f"],
        &["--git-dir=/x", "push"],
        &["--git-dir", "/x", "--no-pager", "-p", "push"],
    ] {
        assert_eq!(policy.exec("/usr/bin/git", args), AskVerdict, "{args:?}");
        assert_eq!(
            policy.called("/usr/bin/git", "/home/me/work/harmless", args),
            AskVerdict,
            "a symlink {args:?}"
        );
        assert_eq!(
            policy.called("/opt/x/multicall", "/usr/bin/git", args),
            AskVerdict,
            "a multi-call program {args:?}"
        );
    }
    for args in [
        &["commit", "-m", "push"][..],
        &["pull"],
        &["-C", "push", "status"],
        &["-c", "push", "log", "push"],
        &["stash", "push"],
        &["--no-pager", "commit", "-m", "push"],
        &[],
    ] {
        assert_eq!(policy.exec("/usr/bin/git", args), Allow, "{args:?}");
    }
    assert_eq!(policy.exec("/usr/bin/echo", &["git", "push"]), Allow);
    assert_eq!(policy.exec("/usr/bin/legit", &["push"]), Allow);
}

#[test]
fn an_allow_takes_the_arguments_as_they_are() {
    let policy = policy(
        r#"
        [programs]
        default = "deny"
        [[exec]]
        program = "git"
        args = ["status", ".."]
        decision = "allow"
        [[exec]]
        program = "make"
        args = []
        decision = "allow"
        "#,
    );
    assert_eq!(policy.exec("/usr/bin/git", &["status", "-s"]), Allow);
    // It runs what the configuration says.
    assert_eq!(
        policy.exec("/usr/bin/git", &["-c", "core.fsmonitor=evil", "status"]),
        Deny
    );
    assert_eq!(policy.exec("/usr/bin/make", &[]), Allow);
    assert_eq!(policy.exec("/usr/bin/make", &["install"]), Deny);
}

#[test]
fn a_bare_name_is_allowed_only_where_the_agent_cannot_put_it() {
    let policy = policy("[programs]\ndefault = \"deny\"\nallow = [\"sh\", \"cargo\"]");
    assert_eq!(policy.called("/usr/bin/dash", "/usr/bin/sh", &[]), Allow);
    assert_eq!(policy.exec("/home/me/.cargo/bin/cargo", &[]), Allow);
    assert_eq!(policy.exec("/home/me/work/sh", &[]), Deny);
    assert_eq!(
        policy.exec("/home/me/work/bin/sh", &[]),
        Deny,
        "PATH leads into the workspace"
    );
    assert_eq!(policy.called("/tmp/evil", "/tmp/sh", &[]), Deny);
}

#[test]
fn what_is_not_known_of_options_is_read_both_ways() {
    let text = "[[exec]]\nprogram = \"tool\"\nargs = [\"send\", \"..\"]\ndecision = \"deny\"\n";
    let unknown = policy(text);
    assert_eq!(
        unknown.exec("/usr/bin/tool", &["-x", "value", "send"]),
        Deny
    );
    assert_eq!(unknown.exec("/usr/bin/tool", &["-x", "send"]), Deny);
    assert_eq!(unknown.exec("/usr/bin/tool", &["get", "send"]), Allow);
    let known = policy(&format!("{text}options = [\"-x\", \"+*\"]"));
    assert_eq!(known.exec("/usr/bin/tool", &["-x", "value", "send"]), Deny);
    assert_eq!(known.exec("/usr/bin/tool", &["+word", "-y", "send"]), Deny);
    assert_eq!(known.exec("/usr/bin/tool", &["-x", "send"]), Allow);
}

#[test]
fn rest_may_stand_anywhere() {
    let policy = policy(
        "[[exec]]\nprogram = \"{rm,unlink}\"\nargs = [\"..\", \"-*r*\", \"..\", \"/\"]\ndecision = \"deny\"",
    );
    assert_eq!(policy.exec("/usr/bin/rm", &["-rf", "/"]), Deny);
    assert_eq!(
        policy.exec("/usr/bin/rm", &["x", "-fr", "--no-preserve-root", "/"]),
        Deny
    );
    assert_eq!(policy.exec("/usr/bin/rm", &["-rf", "/tmp/x"]), Allow);
    assert_eq!(policy.exec("/usr/bin/echo", &["rm", "-rf", "/"]), Allow);
}

#[test]
fn a_script_is_its_interpreter() {
    let argv = ["./x.py", "1"].map(OsText::from);
    let python_argv = ["/usr/bin/python3", "./x.py", "1"].map(OsText::from);
    let python = Exec {
        program: b"/usr/bin/python3.11",
        called: b"/usr/bin/python3",
        argv: &python_argv,
        interpreter: None,
    };
    let script = Exec {
        program: b"/home/me/work/x.py",
        called: b"/home/me/work/x.py",
        argv: &argv,
        interpreter: Some(&python),
    };
    let judge = |text: &str| policy(text).ask(Action::Exec(script));
    assert_eq!(judge("[programs]\ndeny = [\"python3\"]").verdict, Deny);
    assert_eq!(judge("[programs]\ndeny = [\"x.py\"]").verdict, Deny);
    assert_eq!(
        judge("[programs]\ndefault = \"deny\"\nallow = [\"python3\"]").verdict,
        Allow
    );
    // Who may write the script would else run anything.
    let decision = judge("[programs]\ndefault = \"deny\"\nallow = [\"${workspace}/x.py\"]");
    assert_eq!(decision.verdict, Deny);
    assert!(decision.instead.unwrap().contains("/usr/bin/python3.11"));
    let with_args =
        "[[exec]]\nprogram = \"python3\"\nargs = [\"*x.py\", \"..\"]\ndecision = \"ask\"";
    assert_eq!(judge(with_args).verdict, AskVerdict);
}

#[test]
fn hosts_end_at_labels() {
    let policy = policy(
        r#"
        [network]
        default = "deny"
        allow = ["*.github.com:443", "api.example.com:443", "*.crates.example:8000-8999"]
        deny  = ["secret.github.com:*", "10.0.0.0/8:*"]
        "#,
    );
    let to = |host, port| policy.connect(&format!("192.0.2.1:{port}"), Some(host));
    assert_eq!(to("api.github.com", 443), Allow);
    assert_eq!(to("a.b.github.com", 443), Allow);
    assert_eq!(to("API.GitHub.com.", 443), Allow);
    assert_eq!(
        to("github.com", 443),
        Deny,
        "the name itself is not below itself"
    );
    assert_eq!(to("evilgithub.com", 443), Deny);
    assert_eq!(to("github.com.evil.example", 443), Deny);
    assert_eq!(to("api.github.com", 80), Deny);
    assert_eq!(to("secret.github.com", 443), Deny);
    assert_eq!(to("x.crates.example", 8500), Allow);
    assert_eq!(to("x.crates.example", 9000), Deny);
    assert_eq!(
        policy.connect("192.0.2.1:443", None),
        Deny,
        "no name, no rule for names"
    );
    assert_eq!(
        policy.connect("10.1.2.3:443", Some("api.github.com")),
        Deny,
        "a name that leads inside"
    );
}

#[test]
fn addresses_are_judged_as_where_they_lead() {
    let policy = policy(
        r#"
        [network]
        default = "deny"
        allow = ["127.0.0.0/8:*", "[::1]:*", "[2001:db8::/32]:443", "*:53"]
        deny  = ["127.0.0.1:5432"]
        "#,
    );
    assert_eq!(policy.connect("127.0.0.1:80", None), Allow);
    assert_eq!(policy.connect("127.9.9.9:80", None), Allow);
    assert_eq!(
        policy.connect("[::ffff:127.0.0.1]:80", None),
        Allow,
        "mapped is IPv4"
    );
    assert_eq!(policy.connect("[::ffff:127.0.0.1]:5432", None), Deny);
    assert_eq!(
        policy.connect("0.0.0.0:5432", None),
        Deny,
        "Linux connects to this machine"
    );
    assert_eq!(policy.connect("0.0.0.0:80", None), Allow);
    assert_eq!(policy.connect("[::]:80", None), Allow);
    assert_eq!(policy.connect("[2001:db8:1::2]:443", None), Allow);
    assert_eq!(policy.connect("[2001:db9::2]:443", None), Deny);
    assert_eq!(policy.connect("8.8.8.8:53", None), Allow);
    assert_eq!(policy.connect("8.8.8.8:54", None), Deny);
    assert_eq!(policy.bind("127.0.0.1:8080"), Allow);
    assert_eq!(policy.bind("127.0.0.1:5432"), Deny);
    assert_eq!(
        policy.bind("0.0.0.0:8080"),
        Deny,
        "all addresses are more than this machine"
    );
    let open = super::policy("[network]\ndeny = [\"192.0.2.7:80\", \"0.0.0.0:22\"]");
    assert_eq!(
        open.bind("0.0.0.0:80"),
        Allow,
        "a rule about another machine"
    );
    assert_eq!(open.bind("0.0.0.0:22"), Deny);
    assert_eq!(open.bind("[::ffff:0.0.0.0]:22"), Deny);
    let mapped = super::policy("[network]\ndeny = [\"[::ffff:10.0.0.0/104]:*\"]");
    assert_eq!(mapped.connect("10.7.7.7:1", None), Deny);
}

#[test]
fn unix_sockets_are_named() {
    let policy = policy(
        "[network]\ndefault = \"deny\"\nallow = [\"unix:/run/foo.sock\", \"unix:@bus-*\", \"127.0.0.1:*\"]",
    );
    assert_eq!(policy.unix("/run/foo.sock"), Allow);
    assert_eq!(policy.unix("/var/run/docker.sock"), Deny);
    let name = |name: &[u8]| policy.verdict(&Action::Unix(UnixSocket::Abstract(name)));
    assert_eq!(name(b"bus-1/x"), Allow);
    assert_eq!(name(b"/run/foo.sock"), Deny);
}

#[test]
fn tools_by_name_and_parameters() {
    let policy = policy(
        r#"
        [tools]
        default = "ask"
        allow = ["read_*", "list"]
        [[tool]]
        name = "{drive_cli,read_any}"
        param = { prompt = { contains = "rm -rf" } }
        decision = "deny"
        matches = [{ prompt = "please rm -rf /" }, { prompt = ["rm -rf"] }]
        misses = [{ prompt = "hello" }, { other = "rm -rf" }]
        [[tool]]
        name = "fetch"
        param = { url = { matches = '^https://[a-z.]*\.example/', glob = "*.json" }, "/options/depth" = { equals = 1 } }
        decision = "allow"
        "#,
    );
    assert_eq!(policy.tool("read_file", &json!({})), Allow);
    assert_eq!(
        policy.tool("read_any", &json!({"prompt": "rm -rf x"})),
        Deny
    );
    assert_eq!(
        policy.tool("drive_cli", &json!({"prompt": "ls"})),
        AskVerdict
    );
    assert_eq!(policy.tool("drive_cli", &json!(null)), AskVerdict);
    let fetch =
        |url: &str, depth| policy.tool("fetch", &json!({"url": url, "options": {"depth": depth}}));
    assert_eq!(fetch("https://a.example/x.json", 1), Allow);
    assert_eq!(fetch("https://a.example/x.xml", 1), AskVerdict);
    assert_eq!(fetch("https://a.example/x.json", 2), AskVerdict);
    assert_eq!(fetch("http://a.example/x.json", 1), AskVerdict);
}

#[test]
fn command_lines_are_looked_through() {
    let policy = policy(PUSH);
    let judge = |line: &[&str]| {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        policy
            .decide_command(&words, &|_| None)
            .map(|(words, decision)| (words.join(" "), decision.verdict))
    };
    assert_eq!(
        judge(&["git", "push"]),
        Some(("git push".into(), AskVerdict))
    );
    assert_eq!(
        judge(&["env", "A=1", "git", "push"]),
        Some(("git push".into(), AskVerdict))
    );
    assert_eq!(
        judge(&["sh", "-c", "true & /usr/bin/git -C x push"])
            .unwrap()
            .1,
        AskVerdict
    );
    assert_eq!(judge(&["sh", "-c", "echo git push"]).unwrap().1, Allow);
    assert_eq!(judge(&["git", "commit", "-m", "push"]).unwrap().1, Allow);
    assert_eq!(judge(&[]), None);
    let found = |_: &str| {
        Some((
            OsText::from("/opt/git/bin/git"),
            OsText::from("/home/me/work/g"),
        ))
    };
    let words = ["g", "push"].map(String::from);
    assert_eq!(
        policy.decide_command(&words, &found).unwrap().1.verdict,
        AskVerdict
    );
}

#[test]
fn a_decision_can_be_read_by_people_and_programs() {
    let policy = policy(
        "[files.write]\ndefault = \"deny\"\nallow = [\"${workspace}/**\", \"/tmp/**\"]\ndeny = [{ rule = \"**/.env\", reason = \"secrets\" }]",
    );
    let decision = policy.ask(Action::Write(b"/etc/passwd"));
    assert_eq!(
        decision.to_string(),
        "deny\n  by       policy.toml:3: deny by default in [files.write]\n  instead  allowed: ${workspace}/**, /tmp/**\n"
    );
    let decision = policy.ask(Action::Write(b"/tmp/.env"));
    assert_eq!(
        decision.to_string(),
        "deny\n  by       policy.toml:5: deny **/.env\n  because  secrets\n  also     policy.toml:4: allow /tmp/**\n  \
         instead  allowed: ${workspace}/**, /tmp/**\n"
    );
    let json = json!(decision);
    assert_eq!(json["verdict"], "deny");
    assert_eq!(json["by"], "rule");
    assert_eq!(json["rule"]["line"], 5);
    assert_eq!(json["rule"]["file"], "policy.toml");
    assert_eq!(json["rule"]["section"], "write");
    assert_eq!(json["matched"].as_array().unwrap().len(), 2);
    assert_eq!(
        json!(super::policy("").ask(Action::Read(b"/")))["by"],
        "nobody"
    );
}

#[test]
fn what_a_rename_must_look_at() {
    let policy = policy(
        "[files.read]\ndeny = [\"~/.ssh/**\", \"/srv/*/keys/id_?\"]\n[files.write]\nallow = [\"/x/**\"]",
    );
    let below = |path: &str| policy.refuses_below(path.as_bytes());
    assert!(below("/home/me"));
    assert!(below("/home/me/.ssh"));
    assert!(below("/home/me/.ssh/deep"));
    assert!(below("/"));
    assert!(below("/srv/a/keys"));
    assert!(!below("/srv/a/keys/id_1"));
    assert!(!below("/srv/a/other"));
    assert!(!below("/home/me/work"));
    assert!(!below("/x"));
    assert!(super::policy("[files.read]\ndeny = [\"**/.env\"]").refuses_below(b"/anything"));
}
