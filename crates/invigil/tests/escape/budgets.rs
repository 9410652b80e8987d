//! Using more than one may.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[budget]
wall = "7s"
cpu = "1s"
memory = "120MiB"
processes = 30
output = "1MiB"
file_size = "1MiB"
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "processes",
        policy: POLICY,
        options: &[],
        cases,
    }
}

#[test]
fn processes_and_memory() {
    suite(&[
        works("many_processes", "processes"),
        works("many_generations", "processes"),
        works("much_memory", "memory"),
        works("shared_memory", "memory"),
        works("memory_in_children", "memory"),
    ])
    .hold();
}

#[test]
fn the_group_that_is_counted() {
    suite(&[
        untried("widened_cgroup", "confined:cgroup"),
        untried("removed_cgroup", "confined:cgroup"),
        works("left_cgroup", "memory"),
    ])
    .hold();
}

#[test]
fn time_and_output() {
    suite(&[
        works("much_time", "cpu"),
        works("time_in_children", "cpu"),
        works("much_output", "budget printed"),
        works("waiting", "budget longer"),
    ])
    .hold();
}

#[test]
fn files() {
    suite(&[
        works("big_file", "limit:file_size"),
        works("big_file_allocated", "limit:file_size"),
        works("big_file_truncated", "limit:file_size"),
        works("big_file_after_raising", "limit:file_size"),
    ])
    .hold();
}
