//! What a worker that was killed may have left: temporary names of its job.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use invigil_schema::JobId;
use rustix::fs::{AtFlags, Dir, unlinkat};
use rustix::io::Errno;

use super::{Roots, temporary_prefix};

/// Removes the temporary names of a job from the directories of what it was about to change. What they hold was either
/// kept before, or is a half of something new.
pub(crate) fn sweep<'a>(roots: &Roots, job_id: &JobId, paths: impl IntoIterator<Item = &'a Path>) {
    let folders: BTreeSet<&Path> = paths.into_iter().filter_map(Path::parent).collect();
    let prefix = temporary_prefix(job_id);
    for folder in folders {
        let Ok(folder) = roots.exact_directory(folder) else {
            continue;
        };
        let Ok(entries) = Dir::read_from(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !name.to_bytes().starts_with(prefix.as_bytes()) {
                continue;
            }
            // The name cannot be guessed, so that nobody but the worker has made it.
            if unlinkat(&folder, name, AtFlags::empty()) == Err(Errno::ISDIR) {
                let held = format!("/proc/self/fd/{}", folder.as_raw_fd());
                let tree = Path::new(&held).join(std::ffi::OsStr::from_bytes(name.to_bytes()));
                drop(std::fs::remove_dir_all(tree));
            }
        }
    }
}
