//! A file that may be neither read nor written, below a directory that may not be changed.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[files.read]
deny = ["@/secret/**", "@/nest/secret/**"]
[files.write]
deny = ["@/secret/**", "@/nest/secret/**"]
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "paths",
        policy: POLICY,
        options: &[],
        cases,
    }
}

#[test]
fn other_spellings() {
    suite(&[
        works("plain", "file.read secret/key policy.toml"),
        works("dotdot", "file.read secret/key"),
        works("symlink_file", "file.read secret/key"),
        works("symlink_directory", "file.read secret/key"),
        works("symlink_chain", "file.read secret/key"),
        works("proc_root", "file.read secret/key"),
        works("proc_task_root", "file.read secret/key"),
        works("proc_fd_directory", "file.read secret/key"),
        works("proc_fd_reopen", "file.read secret/key"),
        works("dev_fd", "file.read secret/key"),
        works("dev_stdin", "file.read secret/key"),
        works("symlink_to_magic", "file.read secret/key"),
        works("dirfd", "file.read secret/key"),
        works("cwd", "file.read secret/key"),
        works("deep_cwd", "file.read secret/key"),
        works("openat2_plain", "file.read secret/key"),
        works("openat2_beneath", "file.read secret/key"),
        works("openat2_in_root", "file.read secret/key"),
        works("openat2_no_links", "file.read secret/key"),
        works("openat2_in_root_link", "file.read secret/key"),
        works("long_way", "file.read secret/key"),
        works("tree_plain", "file.read secret/key | confined:open_tree"),
        works(
            "tree_plain_file",
            "file.read secret/key | confined:open_tree",
        ),
    ])
    .hold();
}

#[test]
fn through_others() {
    suite(&[
        works("proc_cwd_of_child", "file.read secret/key"),
        works("proc_root_of_victim", "file.read confined:process"),
        works("proc_cwd_of_victim", "file.read confined:process"),
        works("proc_fd_of_victim", "file.read confined:process"),
        works("script", "file.read secret/script"),
        works("script_by_shell", "file.read secret/script"),
        works("redirected", "file.read secret/key"),
        works("mapped", "secret/key"),
        untried("written_by_another_user", "secret/key"),
    ])
    .hold();
}

#[test]
fn other_names() {
    suite(&[
        works("hard_link", "file.link secret/key"),
        works("earlier_link", "file.read work/earlier policy.toml"),
        works("earlier_link_followed", "file.read work/earlier"),
        works("earlier_link_copied", "file.link work/earlier"),
        works("earlier_link_renamed", "file.rename work/earlier"),
        works("earlier_link_written", "file.write work/earlier"),
        works("earlier_link_mode", "file.attributes work/earlier"),
        works("hard_link_by_descriptor", "file.link secret/key"),
        untried("hard_link_of_empty_path", "file.link secret/key"),
        works("renamed_parent", "file.rename secret"),
        works("renamed_beside", "file.rename secret"),
        works("renamed_above", "file.rename nest"),
        works("renamed_file", "file.rename secret/key"),
        works("exchanged", "file.rename secret"),
        works("renamed_onto", "file.rename secret/**"),
        works("uncached", "file.rename secret/key long"),
    ])
    .hold();
}

#[test]
fn other_views() {
    suite(&[
        untried("bind_mount", "confined:namespace unshare"),
        untried("bind_mount_here", "confined:mount"),
        untried("overlay", "confined:mount"),
        untried("tree_clone", "confined:mount open_tree"),
        untried("changed_root", "confined:mount chroot"),
        untried("by_handle", "confined:open_by_handle_at"),
    ])
    .hold();
}

#[test]
fn writing() {
    suite(&[
        works("write_plain", "file.write secret/key"),
        works("truncate_by_reading", "secret/key"),
        works("truncate_path", "file.write secret/key"),
        works("create_in", "file.write secret/new"),
        works("create_through_link", "file.write secret/new"),
        works("make_directory", "file.make secret/new"),
        works("make_link", "file.link secret/new"),
        works("make_node", "file.make secret/new"),
        works("make_socket", "net.bind secret/new"),
        works("remove_file", "file.remove secret/key"),
        works("remove_directory", "file.remove secret/empty"),
        works("linked_in", "file.link secret/**"),
        works("temporary_linked_in", "file.link secret/**"),
        works("temporary_inside", "secret"),
        untried("core_dump", ""),
    ])
    .hold();
}

#[test]
fn attributes() {
    suite(&[
        works("mode", "file.attributes secret/key"),
        works("mode_by_path_descriptor", "file.attributes secret/key"),
        untried("mode2", "secret/key"),
        works("owner", "file.attributes secret/key"),
        works("owner_by_path_descriptor", "file.attributes secret/key"),
        works("times", "file.attributes secret/key"),
        untried("attribute", "file.attributes secret/key"),
        untried("attribute_at", "file.attributes secret/key"),
        untried("file_attribute_at", "file.attributes secret/key"),
    ])
    .hold();
}

#[test]
fn races_of_reading() {
    suite(&[
        works("race_open", "file.read secret/key"),
        works("race_proc", "file.read secret/key"),
        works("race_openat2", "file.read secret/key"),
        works("race_path_only", "file.read secret/key"),
        works("race_descriptor", "file.read secret/key"),
        works("race_cwd", "file.read secret/key"),
        works("race_swap", "file.read secret/key"),
    ])
    .hold();
}

#[test]
fn races_of_writing() {
    suite(&[
        works("race_write", "file.write secret/key"),
        works("race_unlink", "file.remove secret/key"),
        works("race_mode", "file.attributes secret/key"),
    ])
    .hold();
}

#[test]
fn races_of_names() {
    suite(&[
        works("race_rename", "file.rename secret/key"),
        works("race_link", "file.link secret/key"),
        untried("race_attribute", "file.attributes secret/key"),
        works("race_swap_write", "secret/key"),
        works("race_swap_unlink", "file.remove secret/key"),
    ])
    .hold();
}
