//! What a confined run has no business with, and other doors to what it may not have.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[files.read]
deny = ["@/secret/**"]
[programs]
deny = ["@/tools/witness"]
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "kernel",
        policy: POLICY,
        options: &[],
        cases,
    }
}

#[test]
fn other_doors() {
    suite(&[
        untried("i386", "architecture"),
        untried("i386_socket", "architecture"),
        untried("x32", "architecture"),
        untried("x32_exec", "architecture"),
        works("open_high_bits", "file.read secret/key"),
        works("own_filter_that_allows", "file.read secret/key"),
        works("own_landlock", "file.read secret/key"),
        works("not_dumpable", "file.read secret/key"),
        works("any_tracer", "file.read secret/key"),
        works("own_dispatch", "file.read secret/key"),
        untried("traced_child", "debugger_inside"),
        works("own_listener", "foreign_listener"),
        untried("set_user_id", "rights_not_lent"),
        untried("regained", "rights capset"),
        untried("setuid_root", "rights setuid"),
        works("other_personality", "file.read secret/key"),
        works("other_personality", "exec tools/witness"),
    ])
    .hold();
}

#[test]
fn namespaces_and_mounts() {
    suite(&[
        untried("user_namespace", "confined:namespace unshare"),
        untried("mount_namespace", "confined:namespace unshare"),
        untried("net_namespace", "confined:namespace unshare"),
        untried("pid_namespace", "confined:namespace unshare"),
        untried("other_namespaces", "confined:namespace unshare"),
        untried("unshare_high_bits", "confined:namespace unshare"),
        untried("cloned_namespace", "confined:namespace clone"),
        untried("cloned3_namespace", ""),
        untried("cloned_into_cgroup", ""),
        untried("set_namespace", "confined:namespace setns"),
        untried("set_namespace_of_victim", "confined:namespace setns"),
        untried("mounting", "confined:mount"),
        untried("mounting_anew", "confined:mount fsopen"),
        untried("unmounting", "confined:mount umount2"),
        untried("attributes_of_mount", "confined:mount mount_setattr"),
        untried("pivoting", "confined:mount pivot_root"),
        untried("changing_root", "confined:mount chroot"),
    ])
    .hold();
}

#[test]
fn the_machine() {
    suite(&[
        untried("keys", "confined:keyctl"),
        untried("adding_key", "confined:add_key"),
        untried("asking_key", "confined:request_key"),
        untried("programs_in_kernel", "confined:bpf"),
        untried("performance", "confined:perf_event_open"),
        untried("page_faults", "confined:userfaultfd"),
        untried("new_kernel", "confined:kexec_load"),
        untried("new_kernel_file", "confined:kexec_file_load"),
        untried("module", "confined:init_module"),
        untried("module_file", "confined:finit_module"),
        untried("module_gone", "confined:delete_module"),
        untried("rebooting", "confined:reboot"),
        untried("swapping", "confined:swapon"),
        untried("unswapping", "confined:swapoff"),
        untried("accounting", "confined:acct"),
        untried("quotas", "confined:quotactl"),
        untried("kernel_log", "confined:syslog"),
        untried("the_clock", "confined:clock_settime"),
        untried("adjusted_clock", "confined:clock"),
        untried("host_name", "confined:sethostname"),
        untried("ports", "confined:ioperm"),
        untried("device_node", "confined:device"),
        untried("raw_memory", "confined:machine"),
        untried("watching_files", "confined:fanotify_init"),
        untried("terminal_input", "TIOCSTI | terminal"),
        untried("terminal_input_high_bits", "TIOCSTI | terminal"),
    ])
    .hold();
}
