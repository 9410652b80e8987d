//! Files that a rule refuses and that have more than one name: found when the policy is loaded, and known again under any.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use invigil_policy::{Action, Policy, Verdict};

/// A file by device and inode.
pub(super) type Identity = (u64, u64);

/// How many entries of directories are looked at before a run starts.
const LOOKS_MAX: usize = 20_000;

/// The names of such files that rules refuse.
#[derive(Debug, Default)]
pub(crate) struct Links(HashMap<Identity, Vec<PathBuf>>);

impl Links {
    /// Looks below the places that rules name.
    pub(crate) fn find(policy: &Policy, places: &[PathBuf]) -> Links {
        let mut found = Links::default();
        let mut pending = places.to_vec();
        let mut looks = 0;
        while let Some(path) = pending.pop() {
            looks += 1;
            if looks > LOOKS_MAX {
                break;
            }
            let Ok(data) = path.symlink_metadata() else {
                continue;
            };
            if data.is_dir() {
                let entries = path.read_dir().into_iter().flatten().flatten();
                pending.extend(entries.map(|entry| entry.path()));
            } else if data.is_file() && data.nlink() > 1 && refuses(policy, &path) {
                let names = found.0.entry((data.dev(), data.ino())).or_default();
                names.push(path);
            }
        }
        found
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The refused names of a file.
    pub(crate) fn names(&self, identity: Identity) -> &[PathBuf] {
        self.0.get(&identity).map_or(&[], Vec::as_slice)
    }
}

fn refuses(policy: &Policy, path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let actions = [Action::Read(path), Action::Write(path)];
    let mut verdicts = actions.iter().map(|action| policy.verdict(action));
    verdicts.any(|verdict| verdict != Verdict::Allow)
}
