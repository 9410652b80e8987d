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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_the_job_has_left_goes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let job = JobId::new("job_1").unwrap();
        for name in [".invigil-job_1-1", ".invigil-job_2-1", "job_1", "target"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir_all(at(".invigil-job_1-clone/a/b")).unwrap();
        std::os::unix::fs::symlink(at("target"), at(".invigil-job_1-link")).unwrap();
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/.invigil-job_1-2"), "x").unwrap();
        let roots = Roots::open(folder.path(), &[]).unwrap();
        let paths = [at("target"), at("other"), "/etc/passwd".into()];
        sweep(&roots, &job, paths.iter().map(|path| path.as_path()));
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".invigil-job_2-1", "below", "job_1", "target"]);
        assert!(at("below/.invigil-job_1-2").exists());
    }
}
