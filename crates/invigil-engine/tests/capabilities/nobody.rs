//! Everything here once more, as a user who is nobody.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::is_root;

const NOBODY: u32 = 65534;

#[test]
fn all_of_this_holds_for_nobody() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("capabilities");
    // By another process: a file that is open for writing here is open in everything that starts meanwhile.
    let mut copy = Command::new("cp");
    copy.arg(std::env::current_exe().unwrap()).arg(&program);
    assert!(copy.status().unwrap().success());
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
    let output = Command::new(program)
        .env("TMPDIR", &temporary)
        .current_dir(&temporary)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test result: ok"), "{text}");
}
