//! A program that may not run, at all or with certain arguments; and programs that are not among those that may.

use crate::world::{Case, Suite, untried, works};

const DENIED: &str = r#"
version = 1
default = "allow"
[programs]
deny = ["@/tools/witness", "@/tools/bare"]
"#;

const ONLY: &str = r#"
version = 1
default = "allow"
[programs]
allow = ["@/bin/exec", "/bin/sh", "/usr/bin/sh", "/usr/bin/dash", "/bin/true", "/usr/bin/true", "@/tools/nothing"]
default = "deny"
"#;

const PUSH: &str = r#"
version = 1
default = "allow"
[[exec]]
program = "witness"
args = ["push", ".."]
decision = "deny"
reason = "pushing leaves this machine"
"#;

const fn suite<'a>(policy: &'static str, cases: &'a [Case]) -> Suite<'a> {
    Suite {
        program: "exec",
        policy,
        options: &[],
        cases,
    }
}

#[test]
fn a_denied_program() {
    suite(
        DENIED,
        &[
            works("plain", "exec tools/witness policy.toml"),
            works("dotdot", "exec tools/witness"),
            works("argv0", "exec tools/witness"),
            works("no_arguments", "exec tools/witness"),
            works("symbolic", "exec tools/witness"),
            works("hard_link", "exec | link"),
            works("hard_link_before", "exec tools/"),
            works("copy_before", "exec tools/twin"),
            works("renamed", "witness"),
            works("copied", "file.read tools/witness"),
            works("copied_alias", "tools/alias | tools/witness"),
            works("shell", "exec tools/witness"),
            works("shell_words", "exec tools/witness"),
            works("env", "exec tools/witness"),
            works("python", "exec tools/witness"),
            works("loader", "tools/witness"),
            works("loader_alias", "file.read tools/alias policy.toml"),
            works("loader_twin", "file.read tools/twin policy.toml"),
            works("bare_interpreter", "exec work/evil policy.toml"),
            works("bare_interpreter_alias", "exec work/evil policy.toml"),
            untried("preloaded", "file.read tools/witness"),
            works("memory_file", "file.read tools/witness"),
            works("path_descriptor", "exec tools/witness"),
            works("proc_descriptor", "exec tools/witness"),
            works("dirfd", "exec tools/witness"),
            works("shebang", "witness"),
            works("shebang_arguments", "witness"),
            works("shebang_chain", "witness"),
            works("shebang_link", "witness"),
            works("thread", "exec tools/witness"),
            works("by_vfork", "exec tools/witness"),
            works("spawned", "exec tools/witness"),
            works("mapped", "file.read tools/witness"),
            untried("changed_root", "confined:"),
        ],
    )
    .hold();
}

#[test]
fn only_some_programs() {
    suite(
        ONLY,
        &[
            works("plain", "exec tools/witness"),
            works("own_program", "exec work/mine"),
            works("memory_program", "exec"),
            works("named_as_allowed", "exec work/bin/sh"),
            works("copied", "exec work/harmless"),
            works("loader", "exec ld-linux"),
            works("shell", "exec tools/witness"),
            works("shebang", "exec"),
            untried("mounted_as_allowed", "confined:"),
            works("bare_interpreter", "exec"),
        ],
    )
    .hold();
}

#[test]
fn arguments() {
    suite(
        PUSH,
        &[
            works("push", "exec tools/witness policy.toml"),
            works("push_behind_options", "exec tools/witness"),
            works("push_under_link", "exec tools/witness"),
            works("push_by_shell", "exec tools/witness"),
            works("push_by_env", "exec tools/witness"),
            works("push_in_shebang", "witness"),
            works("push_by_xargs", "exec tools/witness"),
            works("race_argument", "exec tools/witness"),
        ],
    )
    .hold();
}

#[test]
fn races() {
    suite(
        DENIED,
        &[
            works("race_program", "exec tools/witness"),
            works("race_link", "exec tools/witness"),
        ],
    )
    .hold();
}
