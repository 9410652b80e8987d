//! Rules for what a comparison leaves out.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use invigil_schema::OsText;

use super::Section;

/// What a comparison leaves out.
///
/// A rule is a glob over names: `/tmp/**`, `*.pyc` does not match across `/`, `**/*.pyc` does. With the name of a
/// section in front it counts there only: `network_endpoints:127.0.0.1:*`. IPv6 brackets stand for themselves.
#[derive(Debug, Clone)]
pub struct Ignore {
    everywhere: GlobSet,
    sections: [GlobSet; Section::ALL.len()],
}

/// Why a rule cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the ignore rule {rule:?} is not a glob: {reason}; a glob looks like /tmp/** or **/*.pyc")]
pub struct IgnoreError {
    /// The rule.
    pub rule: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Ignore {
    /// Reads rules.
    pub fn new<S: AsRef<str>>(rules: impl IntoIterator<Item = S>) -> Result<Self, IgnoreError> {
        let mut everywhere = GlobSetBuilder::new();
        let mut sections = Section::ALL.map(|_| GlobSetBuilder::new());
        for rule in rules {
            let rule = rule.as_ref();
            let of_section = Section::ALL
                .iter()
                .zip(&mut sections)
                .find_map(|(section, set)| {
                    let glob = rule.strip_prefix(section.as_str())?.strip_prefix(':')?;
                    Some((set, glob))
                });
            let (set, glob) = of_section.unwrap_or((&mut everywhere, rule));
            let glob = GlobBuilder::new(&literal_address(glob))
                .literal_separator(true)
                .build()
                .map_err(|error| refuse(rule, &error))?;
            set.add(glob);
        }
        let build = |set: &GlobSetBuilder| set.build().map_err(|error| refuse("", &error));
        let mut built = Section::ALL.map(|_| GlobSet::empty());
        for (built, set) in built.iter_mut().zip(&sections) {
            *built = build(set)?;
        }
        Ok(Ignore {
            everywhere: build(&everywhere)?,
            sections: built,
        })
    }

    /// Leaves out nothing.
    pub fn nothing() -> Self {
        Ignore {
            everywhere: GlobSet::empty(),
            sections: Section::ALL.map(|_| GlobSet::empty()),
        }
    }

    pub(super) fn matches(&self, section: Section, name: &OsText) -> bool {
        let name = name.to_string_lossy();
        let mut own = Section::ALL.iter().zip(&self.sections);
        self.everywhere.is_match(&*name)
            || own.any(|(of, set)| *of == section && set.is_match(&*name))
    }
}

fn refuse(rule: &str, error: &globset::Error) -> IgnoreError {
    IgnoreError {
        rule: rule.to_owned(),
        reason: error.kind().to_string(),
    }
}

/// `[::1]:443` is an address and not a set of characters.
fn literal_address(glob: &str) -> String {
    let address = glob
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"));
    match address {
        Some((address, port)) if address.matches(':').count() >= 2 => {
            format!("\\[{address}\\]:{port}")
        }
        _ => glob.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_as_people_expect() {
        let rules = [
            "/tmp/**",
            "**/*.pyc",
            "network_endpoints:127.0.0.1:*",
            "[::1]:*",
            "tools:read_*",
        ];
        let ignore = Ignore::new(rules).unwrap();
        let matches = |section, name: &str| ignore.matches(section, &name.into());
        assert!(matches(Section::FilesystemPaths, "/tmp/a/b"));
        assert!(matches(Section::FilesystemPaths, "/x/y.pyc"));
        assert!(!matches(Section::FilesystemPaths, "/tmpx"));
        assert!(matches(Section::NetworkEndpoints, "127.0.0.1:80"));
        assert!(!matches(Section::Denials, "127.0.0.1:80"));
        assert!(matches(Section::NetworkEndpoints, "[::1]:80"));
        assert!(matches(Section::Tools, "read_file"));
        assert!(!matches(Section::Tools, "write_file"));
    }

    #[test]
    fn a_bad_rule_is_named() {
        let error = Ignore::new(["/ok", "/a{b"]).unwrap_err();
        assert_eq!(error.rule, "/a{b");
    }
}
