//! Where a claim's files are, and what was changed where.

use invigil_schema::OsText;

use super::seen::{Act, Change, Seen};

/// Directories that tools keep for themselves: to have filled them is not to have changed a project.
const KEPT_BY_TOOLS: &[&str] = &[
    ".cache",
    ".git",
    ".gradle",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    "__pycache__",
    "node_modules",
    "target",
];
/// Places for files that nobody keeps.
const TEMPORARY: &[&str] = &["/tmp/", "/var/tmp/", "/dev/shm/", "/run/"];

/// A file or a directory that a claim names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    path: String,
    /// It is said to be a directory.
    pub(super) is_directory: bool,
}

/// What a change outside of the claimed places means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Work that somebody would want to know of.
    Work,
    /// What a program keeps in the home directory of its user.
    Settings,
}

/// The files of a run.
pub(super) struct Places<'a> {
    seen: &'a Seen,
}

impl<'a> Places<'a> {
    pub(super) fn of(seen: &'a Seen) -> Self {
        Places { seen }
    }

    /// What a claim means by a path.
    pub(super) fn resolve(&self, path: &str) -> Option<Place> {
        let absolute = match (path.strip_prefix("~/"), path.starts_with('/')) {
            (Some(rest), _) => format!("{}/{rest}", self.seen.home.as_ref()?),
            (None, true) => path.to_owned(),
            (None, false) => format!("{}/{path}", self.seen.cwd.as_ref()?),
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in absolute.split('/') {
            match part {
                "" | "." => {}
                ".." => _ = parts.pop(),
                part => parts.push(part),
            }
        }
        Some(Place {
            path: format!("/{}", parts.join("/")),
            is_directory: path.ends_with('/') || path.ends_with("/."),
        })
    }

    /// What happened at a place, or below it, oldest first.
    pub(super) fn changes(&self, place: &Place, until: u64) -> Vec<Change> {
        let own = self.seen.files.get(&OsText::from(place.path.as_str()));
        let inside = format!("{}/", place.path);
        let below = self.seen.files.range(OsText::from(inside.as_str())..);
        let below = below.take_while(|(path, _)| path.as_bytes().starts_with(inside.as_bytes()));
        let all = own.into_iter().chain(below.map(|(_, changes)| changes));
        let all = all.flatten().filter(|change| change.seq < until);
        let mut changes: Vec<Change> = all.copied().collect();
        changes.sort_by_key(|change| change.seq);
        changes
    }

    /// A file that was changed, is called as a claim says, and lies elsewhere.
    pub(super) fn namesake(&self, path: &str, until: u64) -> Option<(String, Change)> {
        let name = path.trim_end_matches('/').rsplit('/').next()?;
        let called = |path: &OsText| {
            let path = path.to_string_lossy();
            path.rsplit('/').next() == Some(name)
        };
        let mut files = self.seen.files.iter().filter(|(path, _)| called(path));
        files.find_map(|(path, changes)| {
            let change = changes.iter().find(|change| change.seq < until)?;
            Some((path.to_string_lossy().into_owned(), *change))
        })
    }

    /// The first change of the project between two records.
    pub(super) fn work_between(&self, after: u64, until: u64) -> Option<(String, Change)> {
        let cwd = self.resolve(".")?;
        let inside = format!("{}/", cwd.path.trim_end_matches('/'));
        let files = self.seen.files.range(OsText::from(inside.as_str())..);
        let files = files.take_while(|(path, _)| path.as_bytes().starts_with(inside.as_bytes()));
        let files = files.filter(|(path, _)| !is_kept_by_tools(&path.to_string_lossy()));
        let within = |change: &&Change| {
            change.seq > after && change.seq < until && change.act != Act::Attributes
        };
        let changed =
            files.filter_map(|(path, changes)| Some((path, changes.iter().find(within)?)));
        let first = changed.min_by_key(|(_, change)| change.seq)?;
        Some((first.0.to_string_lossy().into_owned(), *first.1))
    }

    /// What was changed beyond some places, but for what tools keep for themselves and what is temporary.
    pub(super) fn outside(&self, places: &[Place], until: u64) -> Vec<(String, Change, Side)> {
        let within = |path: &str, place: &Place| {
            let rest = path.strip_prefix(place.path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || place.path == "/")
        };
        let work = self.resolve(".");
        let mut outside = Vec::new();
        for (path, changes) in &self.seen.files {
            let path = path.to_string_lossy();
            let certain = |change: &&Change| {
                change.seq < until && change.sure && change.act != Act::Attributes
            };
            let Some(change) = changes.iter().find(certain) else {
                continue;
            };
            // A directory above is made so that something can be in it.
            let above = |place: &Place| {
                within(
                    &place.path,
                    &Place {
                        path: path.clone().into_owned(),
                        is_directory: true,
                    },
                )
            };
            if places
                .iter()
                .any(|place| within(&path, place) || above(place))
            {
                continue;
            }
            let in_work = work.as_ref().is_some_and(|work| within(&path, work));
            let temporary = TEMPORARY.iter().any(|start| path.starts_with(start));
            let gone = changes
                .last()
                .is_some_and(|last| matches!(last.act, Act::Deleted | Act::MovedAway))
                && changes
                    .first()
                    .is_some_and(|first| first.act == Act::Created);
            let side = match in_work {
                true if is_kept_by_tools(&path) || gone => continue,
                true => Side::Work,
                false if temporary || path.contains("/.cache/") => continue,
                false if path.contains("/.") => Side::Settings,
                false => Side::Work,
            };
            outside.push((path.into_owned(), *change, side));
        }
        outside.sort_by_key(|(_, change, _)| change.seq);
        outside
    }
}

/// Whether a path is in a directory that a tool keeps for itself. What makes git do something else is not.
fn is_kept_by_tools(path: &str) -> bool {
    let mut parts = path
        .split('/')
        .skip_while(|part| !KEPT_BY_TOOLS.contains(part));
    match (parts.next(), parts.next()) {
        (Some(".git"), Some("hooks" | "config")) => false,
        (Some(_), _) => true,
        (None, _) => path.ends_with(".pyc"),
    }
}
