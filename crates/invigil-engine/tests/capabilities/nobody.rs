//! Everything here once more, as a user who is nobody.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::is_root;

const NOBODY: u32 = 65534;
/// The variable that names a process which is not nobody's.
pub(crate) const FOREIGN: &str = "INVIGIL_TEST_FOREIGN";

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
    let mut foreign = Command::new("sleep").arg("600").spawn().unwrap();
    let output = Command::new(program)
        .env(FOREIGN, foreign.id().to_string())
        .env("TMPDIR", &temporary)
        .current_dir(&temporary)
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    let untouched = foreign.try_wait();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test result: ok"), "{text}");
    assert!(
        text.contains("a_process_of_another_user_is_a_denial ... ok"),
        "{text}"
    );
    assert_eq!(untouched.unwrap(), None, "it is root's and was ended");
}
