//! Where a path leads, found out after the run: links that lead to places outlive it, and files that are gone were none.

use std::fs;
use std::path::Path;

/// Whether a link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follow {
    Yes,
    No,
}

/// A path as it was written, seen from `dir`.
pub(super) fn join(dir: &str, path: &str) -> String {
    let whole = match path {
        "" => return dir.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{dir}/{path}"),
    };
    let parts = whole
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    let mut clean = String::new();
    for part in parts {
        clean.push('/');
        clean.push_str(part);
    }
    if clean.is_empty() { "/".into() } else { clean }
}

/// The same file without links and `..` on the way.
pub(super) fn resolve(path: &str, follow: Follow) -> String {
    let mut open: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let mut done = String::new();
    let mut links = 0;
    while let Some(part) = open.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." => {
                let parent = done.rfind('/').unwrap_or_default();
                done.truncate(parent);
                continue;
            }
            _ => {}
        }
        let next = format!("{done}/{part}");
        let last = open.iter().all(|part| part.is_empty());
        let link = fs::read_link(&next).ok().filter(|_| links < 40);
        match link.as_deref().and_then(Path::to_str) {
            // The process is gone, and all of them are one.
            _ if next == "/proc/self" => done = "/proc/1".into(),
            Some(text) if !last || follow == Follow::Yes => {
                links += 1;
                if text.starts_with('/') {
                    done.clear();
                }
                open.extend(text.split('/').rev().map(str::to_owned));
            }
            _ => done = next,
        }
    }
    if done.is_empty() { "/".into() } else { done }
}

/// The arguments that the image has which is loaded for `asked`: for a script its interpreter comes first.
pub(super) fn script(asked: &str, written: &str, argv: Vec<String>) -> Vec<String> {
    let begin = |path: &str| {
        let bytes = fs::read(path).ok()?;
        let line = bytes
            .strip_prefix(b"#!")?
            .split(|&byte| byte == b'\n')
            .next()?;
        Some(String::from_utf8_lossy(line).trim().to_owned())
    };
    let (mut path, mut argv) = (asked.to_owned(), argv);
    let mut name = written.to_owned();
    for _ in 0..4 {
        let Some(line) = begin(&path) else {
            break;
        };
        let (interpreter, argument) = match line.split_once([' ', '\t']) {
            Some((interpreter, argument)) => {
                (interpreter.to_owned(), Some(argument.trim().to_owned()))
            }
            None => (line, None),
        };
        let rest = argv.into_iter().skip(1);
        argv = [interpreter.clone()]
            .into_iter()
            .chain(argument)
            .chain([name])
            .chain(rest)
            .collect();
        path.clone_from(&interpreter);
        name = interpreter;
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_and_clean() {
        assert_eq!(join("/a/b", "./c//d"), "/a/b/c/d");
        assert_eq!(join("/a", "/x/"), "/x");
        assert_eq!(resolve("/nowhere/a/../b", Follow::Yes), "/nowhere/b");
        assert_eq!(resolve("/", Follow::Yes), "/");
        assert_eq!(resolve("/proc/self/x", Follow::Yes), "/proc/1/x");
    }

    #[test]
    fn links_on_the_way_are_followed() {
        let folder = std::env::temp_dir().join(format!("resolve.{}", std::process::id()));
        fs::create_dir_all(folder.join("real")).unwrap();
        std::os::unix::fs::symlink("real", folder.join("link")).unwrap();
        let base = folder.canonicalize().unwrap();
        let base = base.to_str().unwrap();
        assert_eq!(
            resolve(&format!("{base}/link/x"), Follow::No),
            format!("{base}/real/x")
        );
        assert_eq!(
            resolve(&format!("{base}/link"), Follow::No),
            format!("{base}/link")
        );
        assert_eq!(
            resolve(&format!("{base}/link"), Follow::Yes),
            format!("{base}/real")
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
