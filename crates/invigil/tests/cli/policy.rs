//! `invigil policy check` and `explain`.

use std::fs;

use super::Invigil;

const PUSH: &str = r#"version = 1
[files.read]
deny = [{ rule = "~/.ssh/**", reason = "private keys" }]
[files.write]
default = "deny"
allow = ["${workspace}/**"]
[network]
default = "deny"
allow = ["*.example.com:443", "127.0.0.1:*"]
[[exec]]
program = "git"
args = ["push", ".."]
decision = "ask"
reason = "pushing leaves this machine"
matches = ["git push origin main", "env FOO=1 git push"]
misses = ["git commit -m push"]
[[tool]]
name = "drive_cli"
param = { prompt = { contains = "rm -rf" } }
decision = "deny"
"#;

fn with_policy() -> Vec<Invigil> {
    let everyone = Invigil::everyone();
    for invigil in &everyone {
        fs::write(invigil.at("policy.toml"), PUSH).unwrap();
    }
    everyone
}

#[test]
fn a_file_is_checked_with_its_examples() {
    for invigil in with_policy() {
        let (out, _) = invigil.expect(0, &["policy", "check", "policy.toml"]);
        assert_eq!(out, "ok policy.toml: 6 rules\n");
        let wrong = PUSH.replace("[\"git commit -m push\"]", "[\"git -C x push\"]");
        fs::write(invigil.at("wrong.toml"), wrong).unwrap();
        let (out, err) = invigil.expect(125, &["policy", "check", "wrong.toml", "policy.toml"]);
        assert_eq!(out, "ok policy.toml: 6 rules\n");
        assert!(
            err.contains("matches `git -C x push`, which it should miss"),
            "{err}"
        );
        assert!(err.contains("--> wrong.toml:16:11"), "{err}");
        let (_, err) = invigil.expect(125, &["policy", "check", "absent.toml"]);
        assert!(err.contains("absent.toml"), "{err}");
        invigil.expect(125, &["policy", "check"]);
    }
}

#[test]
fn a_decision_names_the_rule_and_its_place() {
    for invigil in with_policy() {
        let explain = |code, args: &[&str]| {
            let all = [&["policy", "explain", "--policy", "policy.toml"], args].concat();
            invigil.expect(code, &all).0
        };
        let asked = explain(3, &["--", "git", "push", "origin"]);
        assert!(asked.starts_with("ask exec git push origin\n"), "{asked}");
        assert!(asked.contains("policy.toml:11: ask git push .."), "{asked}");
        assert!(
            asked.contains("because  pushing leaves this machine"),
            "{asked}"
        );
        for spelled in [
            &["env", "A=1", "git", "push"][..],
            &["sh", "-c", "true & git -C x push"],
            &["/usr/bin/git", "push"],
        ] {
            explain(3, &[&["--"], spelled].concat());
        }
        explain(0, &["--", "git", "commit", "-m", "push"]);
        explain(0, &["--", "echo", "rm", "-rf"]);
        let secret = invigil.at(".ssh/id_rsa");
        assert!(explain(1, &["--read", &secret]).contains("because  private keys"));
        explain(0, &["--read", "policy.toml"]);
        explain(0, &["--write", "new/file"]);
        let refused = explain(1, &["--write", "/etc/passwd"]);
        assert!(
            refused.contains("instead  allowed: ${workspace}/**"),
            "{refused}"
        );
        explain(0, &["--connect", "api.example.com:443"]);
        explain(1, &["--connect", "evilexample.com:443"]);
        explain(0, &["--connect", "[::ffff:127.0.0.1]:80"]);
        explain(1, &["--unix", "/run/docker.sock"]);
        explain(1, &["--tool", "drive_cli", r#"{"prompt": "rm -rf /"}"#]);
        explain(0, &["--tool", "drive_cli", "{}"]);
        let json = explain(3, &["--json", "--", "git", "push"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["verdict"], "ask");
        assert_eq!(json["rule"]["line"], 11);
        assert_eq!(json["action"], "exec git push");
    }
}

#[test]
fn keys_that_are_lent_are_asked_about() {
    let invigil = Invigil::new();
    let explain = ["policy", "explain", "--profile", "coding", "--unix"];
    let keys = invigil.at(".ssh/agent/s.x.agent.y");
    for socket in [
        "/tmp/ssh-XXXX/agent.17",
        "/run/user/1000/keyring/ssh",
        &keys,
    ] {
        let (out, _) = invigil.expect(3, &[&explain[..], &[socket]].concat());
        assert!(out.contains("logs in with your keys"), "{out}");
    }
    invigil.expect(0, &[&explain[..], &["/tmp/other.sock"]].concat());
}

#[test]
fn misuse_is_not_a_decision() {
    for invigil in with_policy() {
        invigil.expect(125, &["policy", "explain"]);
        invigil.expect(125, &["policy", "explain", "--read", "x", "--write", "y"]);
        invigil.expect(125, &["policy", "explain", "--connect", "nowhere"]);
        invigil.expect(125, &["policy", "explain", "--tool", "x", "{"]);
        invigil.expect(
            125,
            &[
                "policy",
                "explain",
                "--policy",
                "absent.toml",
                "--read",
                "x",
            ],
        );
        let (_, err) = invigil.expect(
            125,
            &["policy", "explain", "--profile", "coder", "--read", "x"],
        );
        assert!(err.contains("observe, coding, strict"), "{err}");
    }
}

#[test]
fn files_stack_and_a_project_only_tightens() {
    for invigil in Invigil::everyone() {
        let at = |name: &str, text: &str| {
            let path = invigil.at(name);
            fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
            fs::write(path, format!("version = 1\n{text}")).unwrap();
        };
        let secret = invigil.at(".aws/credentials");
        let read = [
            "policy",
            "explain",
            "--profile",
            "coding",
            "--read",
            secret.as_str(),
        ];
        invigil.expect(1, &read);
        at(
            ".invigil/policy.toml",
            "[files.read]\nallow = [\"~/.aws/**\"]\ndeny = [\"/etc/hostname\"]",
        );
        invigil.expect(1, &read);
        invigil.expect(1, &["policy", "explain", "--read", "/etc/hostname"]);
        at(
            ".config/invigil/policy.toml",
            "[files.read]\nallow = [\"~/.aws/**\"]",
        );
        let (out, _) = invigil.expect(0, &read);
        assert!(
            out.contains("also     profile coding:"),
            "what was overruled is shown: {out}"
        );
    }
}
