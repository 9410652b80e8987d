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
}

/// Where a change was, seen from a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    Itself,
    Inside,
    /// A directory above it is, or was, another one.
    Above,
}

/// What a change outside of the claimed places means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Work that somebody would want to know of.
    Work,
    /// What a program keeps in the home directory of its user.
    Settings,
    /// Whether it was changed is not certain.
    Unsure,
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
        let workspace = self.seen.workspace()?;
        let absolute = match (path.strip_prefix("~/"), path.starts_with('/')) {
            (Some(rest), _) => format!("{}/{rest}", self.seen.home.as_ref()?),
            (None, true) => path.to_owned(),
            (None, false) => format!("{workspace}/{path}"),
        };
        let path = plain(&absolute);
        // Where the command was told to run can be the name of a link.
        let said = self.seen.cwd.as_deref().map(plain);
        let said = said.filter(|_| inside(&path, workspace).is_none());
        let behind = said.and_then(|said| inside(&path, &said).map(str::to_owned));
        let behind = behind.map(|rest| plain(&format!("{workspace}/{rest}")));
        Some(Place {
            path: behind.unwrap_or(path),
        })
    }

    /// What happened at a place, below it, and above it as far as that changes what it is; oldest first.
    pub(super) fn changes(&self, place: &Place) -> Vec<(Where, Change)> {
        let path = OsText::from(place.path.as_str());
        let own = self.seen.files.get(&path).into_iter().flatten();
        let inside = format!("{}/", place.path.trim_end_matches('/'));
        let below = self.seen.files.range(OsText::from(inside.as_str())..);
        let below = below.take_while(|(path, _)| path.as_bytes().starts_with(inside.as_bytes()));
        let below = below.flat_map(|(_, changes)| changes);
        let above = self.seen.above(&path).into_iter();
        let mut changes: Vec<(Where, Change)> = own
            .map(|change| (Where::Itself, *change))
            .chain(below.map(|change| (Where::Inside, *change)))
            .chain(above.map(|change| (Where::Above, change)))
            .collect();
        changes.sort_by_key(|(_, change)| change.seq);
        changes
    }

    /// A change of another file with the same name, if there is one.
    pub(super) fn namesake(&self, path: &str) -> Option<(String, Change)> {
        self.namesakes(path, |_, _| true)
    }

    /// A change of a file with the same name beyond the project that was there before the run. Links of before the run
    /// can lead there.
    pub(super) fn linked_namesake(&self, path: &str) -> Option<(String, Change)> {
        self.namesakes(path, |other, first| {
            self.is_beyond(other) && !first.act.is_made()
        })
    }

    fn namesakes(
        &self,
        path: &str,
        fits: impl Fn(&str, &Change) -> bool,
    ) -> Option<(String, Change)> {
        let name = path.trim_end_matches('/').rsplit('/').next()?;
        let ending = format!("/{name}");
        let mut files = self.seen.files.iter();
        files.find_map(|(path, changes)| {
            let first = changes.first()?;
            let path = path.to_string_lossy();
            let same = path.ends_with(&ending) && fits(&path, first);
            same.then(|| (path.into_owned(), *first))
        })
    }

    /// What was changed beyond some places, but for what tools keep for themselves and what is temporary.
    pub(super) fn outside(&self, places: &[Place]) -> Vec<(String, Change, Side)> {
        let mut outside = Vec::new();
        let links: Vec<&str> = places.iter().filter_map(|place| self.link(place)).collect();
        for (path, changes) in &self.seen.files {
            let text = path.to_string_lossy();
            let within = |place: &Place| inside(&text, &place.path).is_some();
            let Some(first) = changes.first() else {
                continue;
            };
            if places.iter().any(within) {
                continue;
            }
            // A directory above is made so that something can be in it.
            let is_above = |place: &Place| inside(&place.path, &text).is_some();
            if places.iter().any(is_above) {
                let turned = changes
                    .iter()
                    .find(|change| change.act.turns_what_is_below());
                outside.extend(turned.map(|turned| (text.into_owned(), *turned, Side::Unsure)));
                continue;
            }
            let Some(side) = self.side(path, changes) else {
                continue;
            };
            let linked = self.is_beyond(&text) && text.split('/').any(|part| links.contains(&part));
            let certain =
                |change: &&Change| change.sure && change.act != Act::Attributes && !linked;
            match changes.iter().find(certain) {
                Some(change) => outside.push((text.into_owned(), *change, side)),
                None => outside.push((text.into_owned(), *first, Side::Unsure)),
            }
        }
        outside.sort_by_key(|(_, change, _)| change.seq);
        outside
    }

    /// The name of a place in which nothing happened. It may be a link of before the run that leads out of the project.
    fn link<'p>(&self, place: &'p Place) -> Option<&'p str> {
        let quiet = self.changes(place).is_empty();
        place.path.rsplit('/').next().filter(|_| quiet)
    }

    fn is_beyond(&self, path: &str) -> bool {
        let workspace = self.seen.workspace();
        workspace.is_some_and(|workspace| inside(path, workspace).is_none())
    }

    /// What changes of a file mean, if anybody would want to know of them.
    fn side(&self, path: &OsText, changes: &[Change]) -> Option<Side> {
        let text = path.to_string_lossy();
        let workspace = self.seen.workspace()?;
        match inside(&text, workspace) {
            Some(inside) if is_kept_by_tools(inside) => None,
            Some(_) if self.is_gone(path, changes) => None,
            Some(_) => Some(Side::Work),
            None if TEMPORARY.iter().any(|start| text.starts_with(start)) => None,
            None if self.is_cache(&text) => None,
            None if text.contains("/.") => Some(Side::Settings),
            None => Some(Side::Work),
        }
    }

    /// Whether the run has made a file and nothing of it is left: it, or the directory in which it was made, was removed
    /// or renamed.
    fn is_gone(&self, path: &OsText, changes: &[Change]) -> bool {
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
            return false;
        };
        let leaves = |change: &Change| change.act.is_gone() && change.seq > last.seq;
        first.act.is_made()
            && first.act != Act::MovedHere
            && (last.act.is_gone() || self.seen.above(path).iter().any(leaves))
    }

    /// Whether a path is in the caches of somebody's home directory.
    fn is_cache(&self, path: &str) -> bool {
        let mut parts = path.split('/').skip(1);
        let known = self.seen.home.as_deref();
        let of_home = known.and_then(|home| inside(path, home));
        match (of_home, parts.next()) {
            (Some(inside), _) => inside.starts_with(".cache/"),
            (None, Some("root")) => parts.next() == Some(".cache"),
            (None, Some("home")) => parts.nth(1) == Some(".cache"),
            (None, _) => false,
        }
    }
}

/// An absolute path without detours.
pub(super) fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// What a path is called seen from a directory; nothing for the directory itself, and none if it is not inside.
pub(super) fn inside<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(directory.trim_end_matches('/'))?;
    match rest.is_empty() {
        true => Some(rest),
        false => rest.strip_prefix('/'),
    }
}

/// Whether a path, as it is called in the project, is in a directory that a tool keeps for itself. What makes git do
/// something else is not.
pub(super) fn is_kept_by_tools(inside: &str) -> bool {
    let parts: Vec<&str> = inside.split('/').collect();
    let kept = |at: &usize| match parts[*at] {
        // Deeper inside it can be a directory of sources.
        "target" => {
            *at == 0 || matches!(parts.get(at + 1), Some(&("debug" | "release" | "classes")))
        }
        part => KEPT_BY_TOOLS.contains(&part),
    };
    let Some(at) = (0..parts.len()).find(kept) else {
        return inside.ends_with(".pyc");
    };
    let turns_git = |part: &&str| matches!(*part, "hooks" | "config" | "config.worktree" | "info");
    match (parts[at], parts.get(at + 1)) {
        (".git", Some(&("modules" | "worktrees"))) => !parts[at + 2..].iter().any(turns_git),
        (".git", Some(part)) => !turns_git(part),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_keep_for_themselves() {
        for kept in [
            "target/x",
            "a/target/debug/x",
            ".git/index",
            ".git",
            ".git/refs/heads/config",
            ".cache/x",
            "node_modules/a/b.js",
            "a/b.pyc",
        ] {
            assert!(is_kept_by_tools(kept), "{kept}");
        }
        for work in [
            "",
            "src/a.rs",
            "src/target/mod.rs",
            ".git/hooks/pre-commit",
            ".git/config",
            ".git/modules/a/config",
            "targets/x",
        ] {
            assert!(!is_kept_by_tools(work), "{work}");
        }
    }

    #[test]
    fn paths_without_detours() {
        assert_eq!(plain("/w/./a/../b//c/"), "/w/b/c");
        assert_eq!(inside("/w/a/b", "/w"), Some("a/b"));
        assert_eq!(inside("/w", "/w/"), Some(""));
        assert_eq!(inside("/ws/a", "/w"), None);
        assert_eq!(inside("/a", "/"), Some("a"));
    }
}
