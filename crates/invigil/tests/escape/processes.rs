//! Processes outside of the run, the supervisor first of all; and processes that would outlive it.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[files.read]
deny = ["@/secret/**"]
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "processes",
        policy: POLICY,
        options: &["--timeout", "2s"],
        cases,
    }
}

#[test]
fn signals() {
    suite(&[
        works("by_kill", "signal"),
        works("stop", "signal"),
        works("by_tgkill", "signal"),
        works("by_tkill", "signal"),
        works("by_group", "signal"),
        works("queued", "signal"),
        works("queued_to_thread", "signal"),
        works("by_descriptor", "signal"),
        works("by_directory", "signal"),
        works("owned_descriptor", "confined:signal"),
        works("owned_descriptor_by_thread", "confined:signal"),
        works("owned_socket", "confined:signal"),
        works("owned_socket_old", "confined:signal"),
    ])
    .hold();
}

#[test]
fn memory_and_means() {
    suite(&[
        works("attached", "confined:trace"),
        works("seized", "confined:trace"),
        works("memory", "confined:process"),
        works("memory_read", "confined:process"),
        works("environment", "confined:process"),
        works("maps", "confined:process"),
        works("read_memory", "confined:trace"),
        works("write_memory", "confined:trace"),
        untried("advise_memory", "confined:trace"),
        works("stolen_descriptor", "confined:descriptor"),
        works("limited", "confined:schedule"),
        works("nice_process", "confined:schedule"),
        works("nice_group", "confined:schedule group"),
        untried("nice_user", "schedule"),
        works("processors", "confined:schedule"),
        works("scheduled", "sched"),
        works("scheduled_attributes", "sched"),
        works("io_class", "confined:schedule"),
        works("first_to_die", "confined:process oom_score_adj"),
        untried("renamed_thread", "confined:process comm"),
        untried("moved_pages", "confined:trace"),
        untried("other_group", ""),
        untried("moved_cgroup", "confined:cgroup"),
    ])
    .hold();
}

#[test]
fn the_supervisor() {
    suite(&[
        untried("boss_by_kill", "invigil protects itself"),
        untried("boss_stop", "invigil protects itself"),
        untried("boss_by_tgkill", "invigil protects itself"),
        untried("boss_by_tkill", "invigil protects itself"),
        untried("boss_queued", "invigil protects itself"),
        untried("boss_queued_to_thread", "invigil protects itself"),
        untried("boss_by_descriptor", "invigil protects itself"),
        untried("boss_by_directory", "invigil protects itself"),
        untried("boss_owned_descriptor", "invigil protects itself"),
        untried("boss_owned_descriptor_by_thread", "invigil protects itself"),
        untried("boss_owned_socket", "invigil protects itself"),
        untried("boss_owned_socket_old", "invigil protects itself"),
        untried("boss_attached", "invigil protects itself"),
        untried("boss_seized", "invigil protects itself"),
        untried("boss_memory", "invigil protects itself"),
        untried("boss_memory_read", "invigil protects itself"),
        untried("boss_environment", "invigil protects itself"),
        untried("boss_read_memory", "invigil protects itself"),
        untried("boss_write_memory", "invigil protects itself"),
        untried("boss_stolen_descriptor", "invigil protects itself"),
        untried("boss_limited", "invigil protects itself"),
        untried("boss_nice_process", "invigil protects itself"),
        untried("boss_processors", "invigil protects itself"),
        untried("boss_scheduled", "invigil protects itself"),
        untried("boss_scheduled_attributes", "invigil protects itself"),
        untried("boss_io_class", "invigil protects itself"),
        untried("boss_first_to_die", "invigil protects itself"),
        untried("boss_moved_cgroup", "confined:cgroup"),
        untried("boss_thread", "invigil protects itself"),
    ])
    .hold();
}

#[test]
fn outliving() {
    suite(&[
        works("daemon_twice", "timeout"),
        works("daemon_subreaper", "timeout"),
        untried("untraced", "clone"),
        works("stopped_child", "timeout"),
        works("ignoring", "timeout"),
        untried("leader_gone", "timeout"),
    ])
    .hold();
}
