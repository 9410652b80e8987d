//! Other names of one file, as far as the run has made them: hard links, and directories that were renamed. Who changes a
//! file under one of its names has changed it under all of them.

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::OsText;

/// Names that are remembered. Past this, absence says nothing any more.
const NAMES_MAX: usize = 20_000;

/// Names that lead to the same files.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Which names of files are linked, each by the number of its file.
    linked: BTreeMap<OsText, u64>,
    files: BTreeMap<u64, BTreeSet<OsText>>,
    next: u64,
    /// Where something is that was there before the run, and what it was called then.
    moved: BTreeMap<OsText, OsText>,
    /// There are more than were remembered.
    pub(super) cut: bool,
}

impl Names {
    /// One file has got one more name.
    pub(super) fn link(&mut self, old: &OsText, new: &OsText) {
        if self.linked.len() >= NAMES_MAX {
            self.cut = true;
            return;
        }
        let file = self.linked.get(old).copied().unwrap_or(self.next);
        self.next += 1;
        for name in [old, new] {
            self.linked.insert(name.clone(), file);
            self.files.entry(file).or_default().insert(name.clone());
        }
    }

    /// A name is gone.
    pub(super) fn remove(&mut self, path: &OsText) {
        self.moved.remove(path);
        if let Some(file) = self.linked.remove(path)
            && let Some(names) = self.files.get_mut(&file)
        {
            names.remove(path);
            if names.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    /// Something is called otherwise, and with it everything inside. `was_there` says that it can be something from
    /// before the run that has files inside.
    pub(super) fn rename(&mut self, from: &OsText, to: &OsText, was_there: bool) {
        self.remove(to);
        let origin = self.origin(from).unwrap_or_else(|| from.clone());
        for (old, file) in at_and_below(&self.linked, from) {
            let new = behind(&old, from, to);
            self.linked.remove(&old);
            self.linked.insert(new.clone(), file);
            if let Some(names) = self.files.get_mut(&file) {
                names.remove(&old);
                names.insert(new);
            }
        }
        let known = self.moved.contains_key(from);
        for (old, origin) in at_and_below(&self.moved, from) {
            let new = behind(&old, from, to);
            self.moved.remove(&old);
            if new != origin {
                self.moved.insert(new, origin);
            }
        }
        if known || !was_there || origin == *to {
            return;
        }
        match self.moved.len() < NAMES_MAX {
            true => _ = self.moved.insert(to.clone(), origin),
            false => self.cut = true,
        }
    }

    /// Two things have each other's name.
    pub(super) fn exchange(&mut self, one: &OsText, other: &OsText) {
        // No path has a zero byte.
        let aside = OsText::from([one.as_bytes(), b"\0"].concat());
        self.rename(one, &aside, true);
        self.rename(other, one, true);
        self.rename(&aside, other, true);
    }

    /// What else a file is, or was, called. Only its content is the same under all names: a name can be removed.
    pub(super) fn others(&self, path: &OsText, content: bool) -> Vec<OsText> {
        let mut others: Vec<OsText> = self.inside_of_moved(path).into_iter().collect();
        let linked = self.linked.get(path).filter(|_| content);
        for name in linked.into_iter().flat_map(|file| &self.files[file]) {
            others.push(name.clone());
            others.extend(self.inside_of_moved(name));
        }
        others.retain(|other| other != path);
        others
    }

    /// What something was called before the run, by the nearest directory that was renamed.
    fn origin(&self, path: &OsText) -> Option<OsText> {
        let own = self.moved.get(path).cloned();
        own.or_else(|| self.inside_of_moved(path))
    }

    fn inside_of_moved(&self, path: &OsText) -> Option<OsText> {
        if self.moved.is_empty() {
            return None;
        }
        above(path).find_map(|directory| {
            let origin = self.moved.get(&directory)?;
            Some(behind(path, &directory, origin))
        })
    }
}

/// The directories above a path, the nearest first.
pub(super) fn above(path: &OsText) -> impl Iterator<Item = OsText> {
    let bytes = path.as_bytes();
    let slashes = (1..bytes.len()).rev().filter(|&at| bytes[at] == b'/');
    slashes.map(|at| OsText::from(bytes[..at].to_vec()))
}

/// A path with another beginning.
fn behind(path: &OsText, from: &OsText, to: &OsText) -> OsText {
    [to.as_bytes(), &path.as_bytes()[from.as_bytes().len()..]]
        .concat()
        .into()
}

fn at_and_below<T: Clone>(map: &BTreeMap<OsText, T>, path: &OsText) -> Vec<(OsText, T)> {
    if map.is_empty() {
        return Vec::new();
    }
    let inside = [path.as_bytes(), b"/"].concat();
    let below = map.range(OsText::from(inside.clone())..);
    let below = below.take_while(|(name, _)| name.as_bytes().starts_with(&inside));
    let own = map.get_key_value(path);
    let all = own.into_iter().chain(below);
    all.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(names: &Names, path: &str) -> Vec<String> {
        let others = names.others(&path.into(), true);
        others
            .iter()
            .map(|other| other.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn links_follow_their_directories_and_end_with_their_names() {
        let mut names = Names::default();
        names.link(&"/w/a".into(), &"/t/x".into());
        names.link(&"/t/x".into(), &"/t/y".into());
        assert_eq!(others(&names, "/t/y"), ["/t/x", "/w/a"]);
        names.rename(&"/t".into(), &"/u".into(), false);
        assert_eq!(others(&names, "/u/y"), ["/u/x", "/w/a"]);
        assert_eq!(others(&names, "/t/y"), [""; 0]);
        names.remove(&"/u/x".into());
        assert_eq!(others(&names, "/u/y"), ["/w/a"]);
        // Something else has taken its name.
        names.rename(&"/z".into(), &"/w/a".into(), false);
        assert_eq!(others(&names, "/u/y"), [""; 0]);
        assert!(names.others(&"/u/y".into(), false).is_empty());
    }

    #[test]
    fn what_was_renamed_is_known_by_its_first_name_until_it_is_back() {
        let mut names = Names::default();
        names.rename(&"/w/src".into(), &"/w/old".into(), true);
        assert_eq!(others(&names, "/w/old/a/b"), ["/w/src/a/b"]);
        names.rename(&"/w/old/a".into(), &"/t".into(), true);
        assert_eq!(others(&names, "/t/b"), ["/w/src/a/b"]);
        names.rename(&"/w/old".into(), &"/w/older".into(), true);
        assert_eq!(others(&names, "/w/older/x"), ["/w/src/x"]);
        names.rename(&"/w/older".into(), &"/w/src".into(), true);
        assert_eq!(others(&names, "/w/src/x"), [""; 0]);
        names.exchange(&"/w/src".into(), &"/w/lib".into());
        assert_eq!(others(&names, "/w/lib/x"), ["/w/src/x"]);
        assert_eq!(others(&names, "/w/src/x"), ["/w/lib/x"]);
        names.exchange(&"/w/src".into(), &"/w/lib".into());
        assert_eq!(others(&names, "/w/src/x"), [""; 0]);
    }
}
