//! What a worker that was killed may have left: temporary names of its job.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use invigil_schema::{Entry, JobId, Kept};
use rustix::fs::{AtFlags, unlinkat};

use super::change::as_path;
use super::entry::{look, names, same};
use super::{Roots, temporary_prefix};

/// Removes the temporary names of a job from the directories of what it was about to change.
///
/// Before a change is made such a name is a half of something new; afterwards it is what was moved aside, and that goes only
/// if it is what was kept. Anything else is what somebody else has written meanwhile, and stays.
pub(crate) fn sweep(roots: &Roots, job_id: &JobId, kept: &[Kept]) {
    let mut folders: BTreeMap<&Path, Vec<&Kept>> = BTreeMap::new();
    for change in kept {
        if let Some(folder) = as_path(&change.path).parent() {
            folders.entry(folder).or_default().push(change);
        }
    }
    let prefix = temporary_prefix(job_id);
    for (folder, changes) in folders {
        let Ok(folder) = roots.exact_directory(folder) else {
            continue;
        };
        let left = names(&folder).unwrap_or_default();
        let ours = |name: &&_| OsStr::as_bytes(name).starts_with(prefix.as_bytes());
        for name in left.iter().map(|name| name.as_os_str()).filter(ours) {
            clear(&folder, name, &changes);
        }
    }
}

fn clear(folder: &OwnedFd, name: &OsStr, changes: &[&Kept]) {
    let Ok(found) = look(folder, name) else {
        return;
    };
    if matches!(found.entry, Entry::Directory { .. }) {
        // Directories are never moved aside.
        let held = format!("/proc/self/fd/{}", folder.as_raw_fd());
        drop(std::fs::remove_dir_all(Path::new(&held).join(name)));
        return;
    }
    let known = changes
        .iter()
        .any(|change| same(&change.before, &found.entry));
    let made = |change: &&Kept| {
        let name = as_path(&change.path).file_name();
        let now = name.and_then(|name| look(folder, name).ok());
        now.is_some_and(|now| same(&change.after, &now.entry))
    };
    if known || !changes.iter().any(made) {
        // Who cannot remove it leaves it.
        let _ = unlinkat(folder, name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

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
        let before = look(roots.exact_directory(&at("")).unwrap(), "target".as_ref()).unwrap();
        let kept = |path: PathBuf| Kept {
            path: path.into_os_string().into(),
            before: before.entry.clone(),
            after: Entry::Absent,
            repository: None,
        };
        sweep(
            &roots,
            &job,
            &[kept(at("target")), kept("/etc/passwd".into())],
        );
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".invigil-job_2-1", "below", "job_1", "target"]);
        assert!(at("below/.invigil-job_1-2").exists());
    }

    #[test]
    fn what_another_wrote_is_not_swept_away() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let job = JobId::new("job_1").unwrap();
        let roots = Roots::open(folder.path(), &[]).unwrap();
        let dir = roots.exact_directory(&at("")).unwrap();
        let entry = |text: &str| {
            fs::write(at("scratch"), text).unwrap();
            look(&dir, "scratch".as_ref()).unwrap().entry
        };
        let kept = [Kept {
            path: at("file").into_os_string().into(),
            before: entry("old"),
            after: entry("new"),
            repository: None,
        }];
        // Not exchanged yet, exchanged, exchanged with something else than was kept.
        for (now, aside, stays) in [
            ("old", "ne", false),
            ("new", "old", false),
            ("new", "x", true),
        ] {
            fs::write(at("file"), now).unwrap();
            fs::write(at(".invigil-job_1-1"), aside).unwrap();
            sweep(&roots, &job, &kept);
            assert_eq!(at(".invigil-job_1-1").exists(), stays, "{now} {aside}");
            assert_eq!(fs::read_to_string(at("file")).unwrap(), now);
        }
    }
}
